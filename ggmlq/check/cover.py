"""Blocks on which a decoder shows what it does: every code, every row of a grid, and hostile scales."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.blocks import random_blocks
from ..faults.blocks.books import grid_of, row_numbers
from ..formats import BlockFormat, Format
from ..formats.format import Blocks

ELEMENTS = 8192  # of a case, if no grid asks for more
ROW = 512  # elements of a row
DRAWS = 64  # times ELEMENTS, until all rows of a grid occur
# Halves that decoders get wrong: zeros, the ends of subnormal and of normal numbers, long fractions.
HALVES = (0, 0x8000, 1, 0x8001, 0x3FF, 0x83FF, 0x400, 0x8400, 0x3C00, 0xBC00, 0x3555, 0xB7FF, 0x7BFF, 0xFBFF)
WILD = (0x7C00, 0xFC00, 0x7E00)  # infinite, or no number
BYTES = {"e": (0, 1, 2, 126, 127, 128, 129, 253, 254), "d": (*range(0, 127, 7), 1, 2, 8, 9, 126)}
WILD_BYTES = {"e": (255,), "d": ()}


class Cover(NamedTuple):
    """Rows of blocks [N, bytes] that show one thing."""

    name: str
    fmt: Format
    raw: NDArray[np.uint8]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.raw), self.raw.shape[1] // self.fmt.dtype.itemsize * self.fmt.block_size


def covers(fmt: BlockFormat, seed: int = 0) -> list[Cover]:
    """The cases of a type: all codes, hostile scales, scales that are not finite, odd numbers of blocks."""
    return [
        _cover("all codes", fmt, _all_codes(fmt, seed)),
        _cover("hostile scales", fmt, _with_scales(fmt, seed, HALVES, BYTES)),
        _cover("one block", fmt, random_blocks(fmt, 1, 1, seed + 1)),
        _cover("odd numbers of blocks", fmt, random_blocks(fmt, 5, 3, seed + 2)),
        *(
            _cover("scales not finite", fmt, wild)
            for wild in [_with_scales(fmt, seed, WILD, WILD_BYTES)]
            if len(wild)
        ),
    ]


def _cover(name: str, fmt: Format, blocks: Blocks) -> Cover:
    return Cover(name, fmt, np.ascontiguousarray(blocks).view(np.uint8).reshape(len(blocks), -1))


def _all_codes(fmt: BlockFormat, seed: int) -> Blocks:
    """[N, blocks] random blocks, with every row of a grid."""
    per_row = max(ROW // fmt.block_size, 1)
    rows = ELEMENTS // (per_row * fmt.block_size)
    blocks = random_blocks(fmt, rows, per_row, seed)
    book = grid_of(fmt)
    if book is None:
        return blocks
    for draw in range(1, DRAWS):
        numbers = row_numbers(book, fmt.unpack(blocks).codes.astype(np.float64).reshape(-1, fmt.block_size))
        if len(np.unique(numbers)) == len(book.rows):
            break
        blocks = np.concatenate([blocks, random_blocks(fmt, rows, per_row, seed + 100 * draw)])
    return blocks


def _with_scales(
    fmt: BlockFormat, seed: int, halves: tuple[int, ...], bytes_: dict[str, tuple[int, ...]]
) -> Blocks:
    """[N, 2] blocks, a row for each value of the scale: in all fields, and in the first alone."""
    names = fmt.dtype.names or ()
    floats = [name for name in names if fmt.dtype[name].kind == "f"]
    if fmt.scales.table is not None:
        field = "e" if "e" in names else "d"
        values: Any = np.array(bytes_[field], np.uint8)
        floats = [field]
    elif not floats:
        return _scattered(fmt, seed, halves)
    else:
        values = np.array(halves, np.uint16).view(np.float16)
    blocks = random_blocks(fmt, len(values), 2, seed + 3)
    for name in floats:
        shape = (len(values),) + (1,) * (blocks[name].ndim - 1)
        with np.errstate(invalid="ignore"):
            wanted = values.astype(fmt.dtype[name].base).reshape(shape)
        where = slice(None) if name == floats[0] else slice(0, 1)
        blocks[name][:, where] = wanted
    return blocks


def _scattered(fmt: BlockFormat, seed: int, halves: tuple[int, ...]) -> Blocks:
    """Blocks whose d lies scattered among other fields: its bits are found by setting each."""
    assert fmt.scales.d is not None
    size = fmt.dtype.itemsize
    blocks = random_blocks(fmt, len(halves), 2, seed + 3)
    bits = np.unpackbits(blocks.view(np.uint8).reshape(len(halves), 2, size), axis=-1, bitorder="little")
    for address in range(8 * size):
        one = np.zeros(size, np.uint8)
        one[address // 8] = 1 << address % 8
        place = int(fmt.scales.d(one))
        if place:
            bits[:, :, address] = ((np.array(halves) & place) > 0)[:, None]
    return np.packbits(bits, axis=-1, bitorder="little").view(fmt.dtype).reshape(len(halves), 2)
