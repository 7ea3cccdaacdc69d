"""Tiles of packed weights times activations of 16 bits for ``mma.sync``: warps, stages, shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from ..packed.layout import FRAGMENT_ROWS, STEP, PackedLayout

KB = 1 << 10
RESERVED = KB  # bytes that CUDA takes for each block, beside the block's own
SHARED = 100 * KB  # of a multiprocessor of 8.6, 8.9 and 12.x; with more, as others have, nothing was faster
MOST_STAGES = 4
WARP_FRAGMENTS = 2  # fragment rows of a warp


@dataclass(frozen=True)
class MmaTile:
    """128 rows of weights times some rows of activations, by warps that have two fragment rows each.

    A warp has all rows of activations, or one of ``across`` parts of them.
    """

    columns: int
    blocks: int  # that a multiprocessor holds
    across: int = 1

    def __str__(self) -> str:
        return f"{self.columns} columns"

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return FRAGMENT_ROWS // WARP_FRAGMENTS * self.across

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def warp_columns(self) -> int:
        """Rows of activations of a warp."""
        return self.columns // self.across

    def stage(self, layout: PackedLayout) -> int:
        """Bytes of a stage: weights, then activations."""
        return FRAGMENT_ROWS * layout.fragment_bytes + self.columns * 2 * STEP

    def sums_bytes(self, layout: PackedLayout) -> int:
        """Bytes behind the stages for sums of activations, a float a run and row."""
        return 4 * layout.runs * self.columns if layout.has_offset else 0

    def stages(self, layout: PackedLayout) -> int:
        """Stages of a block's ring."""
        room = SHARED // self.blocks - RESERVED - self.sums_bytes(layout)
        return max(2, min(MOST_STAGES, room // self.stage(layout)))

    def shared(self, layout: PackedLayout) -> int:
        """Bytes of shared memory of a block."""
        return self.stages(layout) * self.stage(layout) + self.sums_bytes(layout)


TILES = MmaTile(16, 4), MmaTile(32, 3), MmaTile(64, 2)
WIDE = MmaTile(128, 2)  # for weights with much to do for a step, whatever its rows of activations
