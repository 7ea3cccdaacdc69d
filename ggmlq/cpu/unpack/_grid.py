"""Code books of the IQ formats: rows by index, and signs by index."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from ..lanes import convert, gather, levels, negated, part, pick, recast, shuffles_words, word
from ..machine.jit import inline, inner

U8, U16, U64 = types.uint8, types.uint16, types.uint64
LARGEST = 512  # rows of a book that shuffles look up faster than loads do


def packed(book: NDArray[np.int8]) -> NDArray[Any]:
    """[rows, 8] or [rows, 4] codes as one integer a row."""
    return np.ascontiguousarray(book).view(f"<u{book.shape[1]}").reshape(-1)


def book(grid: NDArray[np.int8]) -> tuple[Any, Any]:
    """Two steps from 32 indices of rows, as lanes of 16 bits, to codes.

    ``find(indices)`` gives 32 lanes; ``codes(lanes)`` takes a part of them and gives its codes as bytes.
    Where rows are not looked up by shuffles, the first step does nothing and the second loads the rows.
    """
    if not shuffles_words() or len(grid) > LARGEST:
        rows = packed(grid)
        return inner(lambda indices: indices), inner(lambda indices: recast(gather(rows, indices), U8))
    entries, index = np.unique(grid, return_inverse=True)
    width, length = 16 // grid.shape[1], len(grid)
    shifts = np.arange(0, 16, width)
    words = (index.reshape(grid.shape) << shifts).sum(axis=1).astype(np.uint16)
    table = np.resize(np.resize(entries, 1 << width), 64).view(np.uint8)
    return inner(lambda indices: pick(words, length, indices)), inner(lambda rows: levels(table, rows))


@inline
def eights(codes: Any, rows: Any) -> Any:
    """The codes of 32 rows of eight, 64 in a vector."""
    a, b = codes(part(rows, 0, 8)), codes(part(rows, 8, 8))
    return a, b, codes(part(rows, 16, 8)), codes(part(rows, 24, 8))


@inline
def fours(codes: Any, rows: Any, more: Any) -> Any:
    """The codes of twice 32 rows of four, 64 in a vector."""
    a, b = codes(part(rows, 0, 16)), codes(part(rows, 16, 16))
    return a, b, codes(part(more, 0, 16)), codes(part(more, 16, 16))


@inline
def words_of(lanes: Any) -> Any:
    """Four lanes of 64 bits as words."""
    a, b = recast(part(lanes, 0, 1), U64), recast(part(lanes, 1, 1), U64)
    return a, b, recast(part(lanes, 2, 1), U64), recast(part(lanes, 3, 1), U64)


@inline
def words_at(row: Any, at: int) -> Any:
    """Four words of 64 bits from an address on."""
    return word(row, at, U64), word(row, at + 8, U64), word(row, at + 16, U64), word(row, at + 24, U64)


@inline
def put_signed(put: Any, out: Any, at: int, codes: Any, minus: Any) -> None:
    """Four vectors of 64 codes, each with a minus where its word has a bit."""
    for i in range(4):
        put(out, at + i * 64, negated(codes[i], minus[i]))


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
