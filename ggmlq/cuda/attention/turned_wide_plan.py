"""``TurnedWidePlan``: what a block of turned_wide.py computes, where its operands lie in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .plan import ALL_SHARED, BLOCKS, LANES, aligned, row_bytes

HOPPER = (9, 0)
ROWS, POSITIONS, WIDTH = 64, 64, 128  # of a block of threads; of a step; columns of keys and of values
WARPS, STAGES, LINE = 4, 4, 128  # of a warpgroup; of keys and values; bytes of a swizzled row
THREADS = LANES * WARPS
RAW = ROWS * WIDTH // 2 // THREADS  # words of queries that a thread reads
EIGHTS = ROWS // 8  # eight rows each, of which a lane has two


@dataclass(frozen=True)
class TurnedWidePlan:
    """The block of one warpgroup, for keys and values of one type of blocks."""

    k: str
    width, width_v, rows, positions, span = WIDTH, WIDTH, ROWS, POSITIONS, POSITIONS
    turned, shared = False, False

    def __str__(self) -> str:
        return f"{self.k}, {self.v}, {WIDTH}/{WIDTH}, up to {ROWS} rows by wgmma, turned"

    @property
    def v(self) -> str:
        """The type of values."""
        return self.k

    threads = team = THREADS
    sums_pitch = WIDTH + 4

    @property
    def blocks(self) -> int:
        """Blocks that share a multiprocessor."""
        return 2

    @property
    def resident(self) -> int:
        """Blocks of which a multiprocessor's shared memory holds so many, too."""
        return min(self.blocks, ALL_SHARED // (self.shared_bytes + 1024))

    def pitch(self, width: int) -> int:
        """Bytes from row to row of a tile of 16-bit numbers, of which this plan has none that is copied."""
        return 2 * width

    @property
    def stage(self) -> int:
        """Bytes of a stage of keys, or of values."""
        return aligned(POSITIONS * row_bytes(self.k, WIDTH) + 16)

    weights_at = 2 * ROWS * WIDTH  # offset of two tiles of weights, behind the queries
    keys_at = weights_at + 2 * 2 * ROWS * POSITIONS

    @property
    def values_at(self) -> int:
        """Offset of the stages of values."""
        return self.keys_at + STAGES * self.stage

    @property
    def notes_at(self) -> int:
        """Offset of what warps tell each other: maxima of rows, then whether one has grown, of two steps."""
        return self.values_at + STAGES * self.stage

    @property
    def exchanged_stats_at(self) -> int:
        """Offset of maxima and sums of weights behind the results, over everything else."""
        return 4 * ROWS * self.sums_pitch

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory; tiles begin at a multiple of 1024."""
        return 1024 + self.notes_at + 4 * WARPS * ROWS + 4 * 2 * WARPS


def takes(k: str, v: str, width: int, width_v: int) -> bool:
    """True if there is a plan for keys and values of these types and widths."""
    return k == v and k in BLOCKS and width == width_v == WIDTH


def turned_wide_plans() -> Iterator[tuple[TurnedWidePlan]]:
    """The plans of both types of blocks."""
    for name in BLOCKS:
        yield (TurnedWidePlan(name),)
