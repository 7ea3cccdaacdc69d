"""``WidePlan``: what a block of wide.py computes, and where its operands lie in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from ..intrinsics.atoms import inlined
from ..intrinsics.language import uint32
from .plan import BLOCKS, EDGE, HOPPERS, LANES, SIXTEEN, USUAL, WIDTHS, row_bytes

GROUP, PRODUCERS = 4, 4  # warps of a warpgroup that multiplies; that copy
GROUP_ROWS = GROUP * EDGE
STAGES, LINE = 2, 128  # of keys and of values; bytes of a swizzled row
COPIED = 3  # tiles of blocks that are copied ahead
# Offsets of the barriers of both stages of keys, and of values: it is full, or free.
KEYS_FULL, KEYS_FREE, VALUES_FULL, VALUES_FREE, BARRIERS = 0, 16, 32, 48, 64


@dataclass(frozen=True)
class WidePlan:
    """The block of 64 rows for each warpgroup that multiplies, and of one that copies and decodes."""

    k: str
    v: str
    width: int  # columns of a key, a multiple of 64
    width_v: int
    groups: int = 2
    by_rows, shared = True, False
    turned, neighbours = False, 1

    def __str__(self) -> str:
        return f"{self.k}, {self.v}, {self.width}/{self.width_v}, {self.groups} warpgroups by wgmma"

    @property
    def warps(self) -> int:
        """Warps of a block that multiply."""
        return GROUP * self.groups

    @property
    def threads(self) -> int:
        """Threads of a block, the producer's last."""
        return LANES * (self.warps + PRODUCERS)

    @property
    def rows(self) -> int:
        """Rows of queries of a block."""
        return EDGE * self.warps

    @property
    def positions(self) -> int:
        """Positions of a step."""
        return 128 if self.groups > 1 and self.width <= 192 and self.width_v <= 128 else 64

    @property
    def blocks(self) -> int:
        """Blocks that share a multiprocessor."""
        return 2 if self.groups == 1 and self.width <= 128 and self.width_v <= 128 else 1

    resident = blocks

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that multiplies, and of one that copies; (0, 0): as many as at the start."""
        return (224, 56) if self.groups > 1 else (200, 56) if self.blocks > 1 else (0, 0)

    @property
    def team(self) -> int:
        """Threads that copy and decode together."""
        return LANES * PRODUCERS

    @property
    def span(self) -> int:
        """Positions of a step that a warp has: all."""
        return self.positions

    @property
    def fours(self) -> int:
        """Scores of a lane, four at a time."""
        return self.positions // 8

    @property
    def sums(self) -> int:
        """Sums of a lane."""
        return self.width_v // 2

    def kind(self, name: str) -> str:
        """The floats of a type's tiles."""
        return name if name in SIXTEEN else "f16"

    def tile(self, width: int) -> int:
        """Bytes of a tile of keys or values."""
        return 2 * self.positions * width

    @property
    def keys_at(self) -> int:
        """Offset of the stages of keys."""
        return 2 * self.rows * self.width

    @property
    def values_at(self) -> int:
        """Offset of the stages of values."""
        return self.keys_at + STAGES * self.tile(self.width)

    @property
    def copies_at(self) -> int:
        """Offset of tiles of blocks, as they are stored."""
        return self.values_at + STAGES * self.tile(self.width_v)

    @property
    def copy_bytes(self) -> int:
        """Bytes of a tile of blocks, of keys or values."""
        rows = ((self.k, self.width), (self.v, self.width_v))
        sizes = [self.positions * row_bytes(name, width) + 16 for name, width in rows if name not in SIXTEEN]
        return -(-max(sizes, default=0) // 128) * 128

    @property
    def barriers_at(self) -> int:
        """Offset of the barriers."""
        return self.copies_at + COPIED * self.copy_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory; tiles begin at a multiple of 1024."""
        return 1024 + self.barriers_at + BARRIERS


def wide_plan_of(k: str, v: str, width: int, width_v: int, rows: int) -> WidePlan:
    """The plan for so many rows of a head of keys; two warpgroups would wait for one that decodes blocks."""
    return WidePlan(k, v, width, width_v, 2 if k in SIXTEEN and rows > GROUP_ROWS else 1)


def takes(k: str, v: str, width: int, width_v: int) -> bool:
    """True if there is a plan for keys and values of these types and widths.

    Both are floats, or blocks of one type: decoders of two take more registers than a warp that copies has.
    """
    fits = width in WIDTHS and width_v in WIDTHS and (v in SIXTEEN if k in SIXTEEN else k == v in BLOCKS)
    return fits and wide_plan_of(k, v, width, width_v, GROUP_ROWS + 1).shared_bytes <= HOPPERS


def wide_plans() -> Iterator[tuple[WidePlan]]:
    """Plans of the usual widths and types, of one warpgroup and of two."""
    for (k, v), width in product(USUAL, WIDTHS):
        if takes(k, v, width, width):
            plans = (wide_plan_of(k, v, width, width, rows) for rows in (GROUP_ROWS, GROUP_ROWS + 1))
            yield from ((plan,) for plan in dict.fromkeys(plans))


@inlined
def swizzled(row: Any, chunk: Any, rows: Any) -> Any:
    """The offset of 16 bytes of a tile: parts of 64 columns, chunks of a row exchanged."""
    part, within = chunk >> uint32(3), chunk & uint32(7)
    return (part * uint32(rows) + row) * uint32(LINE) + ((within ^ (row & uint32(7))) << uint32(4))
