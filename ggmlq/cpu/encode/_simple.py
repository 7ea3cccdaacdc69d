"""What the encoders without a search share: extremes of a block, and ggml's rounding, on vectors.

The same rules stand in NumPy in ``ggmlq/formats/_round.py``, with their reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from ...formats.format import Bytes, Floats
from ..lanes import chosen, clipped, convert, either, first, most, narrow, part, recast, store
from ..machine.jit import inner

U8, I32, F32 = types.uint8, types.int32, types.float32


Encode = Callable[[Floats, Floats | None, Bytes], None]


def encoder(kernel: Callable[..., None], weighted: Encode | None = None) -> Encode:
    """The ``encode`` of a format from a compiled ``kernel(values, blocks)`` on flat arrays.

    ``weighted`` serves instead where there is an imatrix; without it the imatrix is ignored.
    """

    def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
        if imatrix is None or weighted is None:
            kernel(values.reshape(-1), blocks.reshape(-1))
        else:
            weighted(values, imatrix, blocks)

    return encode


@inner
def magnitudes(x: Any) -> Any:
    return recast(recast(x, I32) & 0x7FFFFFFF, F32)


@inner
def largest(x: Any) -> Any:
    """The largest magnitude. As integers, floats without a sign have the same order."""
    return recast(most(recast(x, I32) & 0x7FFFFFFF), F32)


@inner
def extreme(values: Any, at: int, x: Any) -> Any:
    """The element of largest magnitude with its sign, the first of equals; x are the values there."""
    return values[at + first(magnitudes(x) == largest(x))] + np.float32(0)


@inner
def _ordered(x: Any) -> Any:
    """Integers in the order of floats, and back."""
    bits = recast(x, I32)
    return bits ^ bits >> 31 & 0x7FFFFFFF


@inner
def highest(x: Any) -> Any:
    bits = most(_ordered(x))
    return recast(I32(bits ^ bits >> 31 & 0x7FFFFFFF), F32)


@inner
def lowest(values: Any, at: int, x: Any) -> Any:
    """The smallest element; of zeros with different signs the first."""
    bits = I32(-1 - most(_ordered(x) ^ -1))
    return values[at + first(x == recast(I32(bits ^ bits >> 31 & 0x7FFFFFFF), F32))]


@inner
def inverse(d: Any) -> Any:
    """1 / d, 0 where d is 0."""
    return np.float32(0) if d == 0 else np.float32(1) / d


@inner
def truncated(v: Any) -> Any:
    """Towards zero as int32; NaN and what is out of range becomes the lowest integer, as on x86."""
    return convert(clipped(v), I32)


@inner
def half_away(v: Any) -> Any:
    """To nearest as int32, ties away from zero."""
    v = clipped(v)
    whole = convert(v, I32)
    rest = v - convert(whole, F32)
    return whole + either(rest >= 0.5, 1, 0, I32) - either(rest <= -0.5, 1, 0, I32)


@inner
def at_most(codes: Any, limit: int) -> Any:
    """Codes up to a limit as bytes."""
    return convert(chosen(codes < limit, codes, limit), U8)


@inner
def put_half(blocks: Any, at: int, value: Any) -> None:
    """A float as a half."""
    store(blocks, at, recast(narrow(value), U8))


@inner
def put_nibbles(blocks: Any, at: int, codes: Any) -> None:
    """The low four bits of 32 codes."""
    store(blocks, at, part(codes, 0, 16) & 15 | part(codes, 16, 16) << 4)
