"""The layout of a format's fragments: which bits, halves and bytes lie where. pack.py has the picture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ...formats import BLOCK_FORMATS, BlockFormat
from ...formats._tables import FP4
from ...formats.packing import packing

ROWS, STEP = 16, 64  # of a fragment: rows of weights, columns
FRAGMENT_ROWS = 8  # fragment rows that a block multiplies
TILE_ROWS = FRAGMENT_ROWS * ROWS
ACTIVATIONS = "q8_1", "q8_K"  # types that no model stores weights in: their kernels are compiled when needed
BIT_PLANES = {1: (2,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2)}


@dataclass(frozen=True)
class PackedLayout:
    """The facts about a format's fragments that kernels are made with."""

    bit_planes: tuple[int, ...]  # bits of a code in each plane, the lowest first
    lowest: int  # the code that is stored as 0
    levels: tuple[int, ...]  # codes are stored as indices of these; () where they are not
    fp4: bool  # codes are stored as the bits of a float of four bits
    run: int  # columns that share a scale
    has_offset: bool
    middle: int  # middle of the range of codes, where there is an offset
    blocks: int  # blocks of a row whose halves a fragment has
    halves: int  # halves of a block
    subs: int  # bytes of sub-scales of a run
    sub_zero: int  # this and what follows: facts of ``formats.format.Scales``
    unit: float
    sign: int
    nibbles: bool
    scale: str  # of Packing: "half", "single" (the halves are those of a float32), "power", "small_float"

    @property
    def name(self) -> str:
        """Words for people: bits of a code, columns that share a scale, and what else tells layouts apart."""
        levels = f" of {len(self.levels)} levels" if self.levels else ""
        return f"{self.bits}-bit codes{levels}, runs of {self.run}{' with offsets' * self.has_offset}"

    @property
    def low(self) -> int:
        """Bits of a code in the first plane."""
        return self.bit_planes[0]

    @property
    def high(self) -> int:
        """Bits of a code in the second plane; 0 if there is none."""
        return sum(self.bit_planes[1:])

    @property
    def bits(self) -> int:
        """Bits of a code; a lane has as many words of a fragment's codes."""
        return sum(self.bit_planes)

    @property
    def runs(self) -> int:
        """Runs of a fragment."""
        return STEP // self.run

    @property
    def scales(self) -> int:
        """Scales and offsets of a row of a fragment."""
        return self.runs * (1 + self.has_offset)

    @property
    def high_at(self) -> int:
        """Offset of the second plane in a fragment, in bytes."""
        return 128 * self.low

    @property
    def half_words(self) -> int:
        """Words with the halves of two rows."""
        return self.halves * self.blocks

    @property
    def sub_words(self) -> int:
        """Words with the bytes of two rows."""
        return self.subs * self.runs // 2

    @property
    def interleaved(self) -> bool:
        """True where one load takes the halves and the bytes of two rows: then they lie side by side."""
        return self.half_words + self.sub_words in (1, 2, 4)

    @property
    def halves_at(self) -> int:
        """Offset of the halves in a fragment, in bytes."""
        return 128 * self.bits

    @property
    def half_stride(self) -> int:
        """Bytes from the halves of two rows to those of the next two."""
        return 4 * (self.half_words + self.interleaved * self.sub_words)

    @property
    def subs_at(self) -> int:
        """Offset of the bytes of sub-scales in a fragment."""
        return self.halves_at + 4 * self.half_words * (1 if self.interleaved else ROWS // 2)

    @property
    def sub_stride(self) -> int:
        """Bytes from the sub-scales of two rows to those of the next two."""
        return 4 * (self.sub_words + self.interleaved * self.half_words)

    @property
    def fragment_bytes(self) -> int:
        """Bytes of a fragment."""
        return self.halves_at + 4 * (self.half_words + self.sub_words) * ROWS // 2


@cache
def layout_of(fmt: BlockFormat) -> PackedLayout:
    """The layout of a format's packed weights."""
    facts, how = packing(fmt), fmt.scales
    levels = facts.levels if facts.bits > 4 else ()  # a look-up costs more than a bit or two
    bit_planes = (4,) if levels else BIT_PLANES.get(facts.bits, (8,))
    return PackedLayout(
        bit_planes=bit_planes,
        lowest=0 if bit_planes == (8,) else facts.lowest,
        levels=levels,
        fp4={*map(abs, levels)} == {*FP4[:8].tolist()},
        run=facts.run,
        has_offset=facts.has_offset,
        middle=(facts.codes[-1] + 1) // 2 if facts.has_offset else 0,
        blocks=max(1, STEP // fmt.block_size),
        halves=1 if how.d else len(half_addresses(fmt)),
        subs=(how.sub is not None) + (how.low is not None),
        sub_zero=how.zero,
        unit=how.unit,
        sign=how.sign,
        nibbles=how.nibbles,
        scale=facts.scale,
    )


def layouts() -> tuple[PackedLayout, ...]:
    """The layouts of all types that models store weights in. Several types share one."""
    return tuple(dict.fromkeys(layout_of(fmt) for fmt in BLOCK_FORMATS if fmt.name not in ACTIVATIONS))


def half_addresses(fmt: BlockFormat) -> list[int]:
    """Offsets of the halves in a block; a float32 counts as two of them."""
    addresses: list[int] = []
    for kind, at, *_ in (fmt.dtype.fields or {}).values():
        if kind.kind == "f":
            addresses += range(at, at + kind.itemsize, 2)
    return addresses


@cache
def stored_codes(layout: PackedLayout) -> NDArray[np.uint8]:
    """The stored form of each code: a table by the byte of the code."""
    code = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int64)
    table: NDArray[np.uint8]
    if layout.levels:
        table = np.searchsorted(layout.levels, code).astype(np.uint8)
    else:
        table = ((code - layout.lowest) & 255).astype(np.uint8)
    return table
