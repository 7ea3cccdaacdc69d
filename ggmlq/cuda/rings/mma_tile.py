"""Tiles of packed weights times activations of 16 bits, or bytes, for ``mma.sync``: warps, stages, memory."""

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
    """128 rows of weights times some rows of activations, by warps that have two fragment rows each."""

    columns: int
    blocks: int  # that a multiprocessor holds

    def __str__(self) -> str:
        return f"{self.columns} columns"

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return FRAGMENT_ROWS // WARP_FRAGMENTS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

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


# --- bytes: code tiles, of which activations/code_tiles.py has the picture ------------------------

EIGHT, SCALED = 8, 32  # rows of activations that lie together; columns with one scale
CODES, SCALES = EIGHT * STEP, 4 * EIGHT * STEP // SCALED  # bytes of eight rows


def sum_run(layout: PackedLayout) -> int:
    """The columns whose activations are summed; 0 where weights have no offsets."""
    return layout.run if layout.has_offset else 0


def eight_bytes(run: int) -> int:
    """Bytes of eight rows of a step; ``run``: of ``sum_run``."""
    return CODES + SCALES + (4 * EIGHT * STEP // run if run else 0)


@dataclass(frozen=True)
class CodeTile(MmaTile):
    """128 rows of weights times some rows of activations as bytes."""

    def stage(self, layout: PackedLayout) -> int:
        """Bytes of a stage: weights, then activations with their scales and sums."""
        return FRAGMENT_ROWS * layout.fragment_bytes + self.columns // EIGHT * eight_bytes(sum_run(layout))

    def sums_bytes(self, layout: PackedLayout) -> int:
        """Nothing: sums come with the activations."""
        return 0


CODE_TILES = CodeTile(16, 4), CodeTile(32, 3), CodeTile(64, 2), CodeTile(128, 2)
