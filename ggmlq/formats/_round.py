"""The rounding rules of ggml's encoders, in the words of ``_program.py``; in NumPy for arrays of any shape.

ggml rounds differently in each family, and its C code converts floats to integers in ways that
the language leaves open. Where that matters (a block so tiny that ``1 / d`` overflows) these
helpers do what ggml does when compiled for x86-64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ._program import Vector, absolute, where, whole, with_sign

Floats = NDArray[np.float32]
BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))
BEYOND = np.float32(2**31)  # the first float that an int32 cannot hold


def inverse(d: Vector) -> Vector:
    """1 / d as ggml forms it, 0 where d is 0. It overflows for tiny d."""
    return where(d != 0, np.float32(1) / d, np.float32(0))


def truncate(v: Vector) -> Vector:
    """C's float to integer conversion, towards zero.

    NaN and values out of range become the lowest integer, as on x86-64; the low bits, which are
    all that most codes keep of it, are zero.
    """
    return whole(where(absolute(v) < BEYOND, v, -BEYOND))


def half_away(v: Vector) -> Vector:
    """C's ``roundf``: to nearest, ties away from zero. Half a unit itself would round 0.49999997 up."""
    return truncate(v + with_sign(BELOW_HALF, v))


def half_even(v: Floats) -> NDArray[np.int32]:
    """Ggml's ``nearest_int`` in NumPy: to nearest, ties to even."""
    codes: NDArray[np.int32] = truncate(np.rint(v))
    return codes


def signed_extreme(x: Floats) -> Floats:
    """[..., n] to [...], in NumPy: the element of largest magnitude with its sign; the first one wins."""
    at = np.abs(x).argmax(axis=-1)[..., None]
    extreme: Floats = np.take_along_axis(x, at, axis=-1)[..., 0]
    return extreme + np.float32(0)  # a block of -0.0 has the extreme +0.0
