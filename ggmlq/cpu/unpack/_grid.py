"""What the code books of the IQ formats share: packed rows, and signs by index."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from ..jit import inner
from ..lanes import convert, recast

U8, U16 = types.uint8, types.uint16


def packed(book: NDArray[np.int8]) -> NDArray[Any]:
    """[rows, 8] or [rows, 4] codes as one integer a row."""
    return np.ascontiguousarray(book).view(f"<u{book.shape[1]}").reshape(-1)


@inner
def with_parity(index: Any) -> Any:
    """Seven bits, in each byte of a 64-bit word or of lanes, and an eighth that makes them even.

    The folds let bits of the next byte in from above; they never come down to the lowest bit.
    """
    folded = index ^ index >> 4
    folded = folded ^ folded >> 2
    folded = folded ^ folded >> 1
    return index | (folded & 0x0101010101010101) << 7


@inner
def signs(words: Any) -> Any:
    """64 signs of the four sign indices in the lower 28 bits of each of two 32-bit words."""
    two = words & 0x00003FFF00003FFF | (words & 0x0FFFC0000FFFC000) << 2
    four = two & 0x007F007F007F007F | (two & 0x3F803F803F803F80) << 1
    return with_parity(four)


@inner
def signs_of(indices: Any) -> Any:
    """64 signs of eight sign indices in lanes of 16 bits."""
    return with_parity(recast(convert(indices, U8), types.uint64))
