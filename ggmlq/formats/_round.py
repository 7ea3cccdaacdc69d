"""The rounding rules of ggml's encoders, on float32 arrays.

ggml rounds differently in each family, and its C code converts floats to integers in ways that
the language leaves open. Where that matters (a block so tiny that ``1 / d`` overflows) these
helpers do what ggml does when compiled for x86-64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def signed_extreme(x: Floats) -> Floats:
    """[..., n] to [...]: the element of largest magnitude with its sign; the first one wins."""
    at = np.abs(x).argmax(axis=-1)[..., None]
    found = np.take_along_axis(x, at, axis=-1)[..., 0]
    return found + np.float32(0)  # a block of -0.0 has the extreme +0.0


def lowest(x: Floats) -> Floats:
    """[..., n] to [...]: the smallest element; of zeros with different signs the first one."""
    return np.take_along_axis(x, x.argmin(axis=-1)[..., None], axis=-1)[..., 0]


def inverse(d: Floats) -> Floats:
    """1 / d as ggml forms it, 0 where d is 0; [...] to [..., 1]. It overflows for tiny d."""
    return np.where(d == 0, np.float32(0), np.float32(1) / d)[..., None]


def truncate(v: Floats) -> NDArray[np.int32]:
    """C's float to integer conversion, towards zero.

    NaN and values out of range become the lowest integer, as on x86-64; the low bits, which are
    all that most codes keep of it, are zero.
    """
    return np.where(np.abs(v) < 2.0**31, v, -(2.0**31)).astype(np.int32)


def half_away(v: Floats) -> NDArray[np.int32]:
    """C's ``roundf``: to nearest, ties away from zero."""
    whole = np.trunc(v)
    return truncate(whole + np.copysign(np.abs(v - whole) >= 0.5, v))


def half_even(v: Floats) -> NDArray[np.int32]:
    """Ggml's ``nearest_int``: to nearest, ties to even."""
    return truncate(np.rint(v))
