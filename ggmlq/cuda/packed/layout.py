"""What a strip's records look like for a format; the head of pack.py has the picture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ...formats import BlockFormat
from ...formats._tables import FP4
from ...formats.packing import packing

ROWS, STEP = 16, 64  # of a record
FRAGMENT_ROWS = 8  # of a block
TILE_ROWS = FRAGMENT_ROWS * ROWS  # rows of weights of a block
BIT_PLANES = {1: (2,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2)}


@dataclass(frozen=True)
class PackedLayout:
    """What a kernel must know of a format's records."""

    bit_planes: tuple[int, ...]  # bits of a code in each, lowest first
    lowest: int  # the code that is stored as 0
    levels: tuple[int, ...]  # or: codes are stored as indices of these
    fp4: bool  # or: as the bits of a float of four
    run: int  # columns that share a scale
    has_offset: bool
    middle: int  # of the codes that an offset goes with
    blocks: int  # of a row that a record has halves of
    halves: int  # of a block
    subs: int  # bytes of a run
    sub_zero: int  # of ``formats.format.Scales``, like all that follows
    unit: float
    sign: int
    nibbles: bool
    scale: str  # of Packing: "half", "single" (the halves are those of a float32), "power", "small_float"

    @property
    def low(self) -> int:
        """Bits of the first plane."""
        return self.bit_planes[0]

    @property
    def high(self) -> int:
        """Bits of the second plane; 0 if there is none."""
        return sum(self.bit_planes[1:])

    @property
    def bits(self) -> int:
        """Of a code; as many words of codes a lane and record."""
        return sum(self.bit_planes)

    @property
    def runs(self) -> int:
        """Of a record."""
        return STEP // self.run

    @property
    def scales(self) -> int:
        """Scales and offsets of a row in a record."""
        return self.runs * (1 + self.has_offset)

    @property
    def high_at(self) -> int:
        """Where in a record the second plane begins."""
        return 128 * self.low

    @property
    def half_words(self) -> int:
        """Words of halves of two rows."""
        return self.halves * self.blocks

    @property
    def sub_words(self) -> int:
        """Words of bytes of two rows."""
        return self.subs * self.runs // 2

    @property
    def interleaved(self) -> bool:
        """Whether one load takes the words of two rows: then halves and bytes lie side by side."""
        return self.half_words + self.sub_words in (1, 2, 4)

    @property
    def halves_at(self) -> int:
        """Where in a record the halves begin."""
        return 128 * self.bits

    @property
    def half_stride(self) -> int:
        """Bytes from those of two rows to the next."""
        return 4 * (self.half_words + self.interleaved * self.sub_words)

    @property
    def subs_at(self) -> int:
        """Where in a record the bytes begin."""
        return self.halves_at + 4 * self.half_words * (1 if self.interleaved else ROWS // 2)

    @property
    def sub_stride(self) -> int:
        """Bytes from those of two rows to the next."""
        return 4 * (self.sub_words + self.interleaved * self.half_words)

    @property
    def fragment_bytes(self) -> int:
        """Bytes of a record."""
        return self.halves_at + 4 * (self.half_words + self.sub_words) * ROWS // 2


@cache
def layout_of(fmt: BlockFormat) -> PackedLayout:
    """How strips keep a format."""
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


def half_addresses(fmt: BlockFormat) -> list[int]:
    """Where a block has halves; a float32 is two of them."""
    found: list[int] = []
    for kind, at, *_ in (fmt.dtype.fields or {}).values():
        if kind.kind == "f":
            found += range(at, at + kind.itemsize, 2)
    return found


@cache
def stored_codes(layout: PackedLayout) -> NDArray[np.uint8]:
    """What is stored for a code, by its byte."""
    code = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int64)
    found: NDArray[np.uint8]
    if layout.levels:
        found = np.searchsorted(layout.levels, code).astype(np.uint8)
        return found
    found = ((code - layout.lowest) & 255).astype(np.uint8)
    return found
