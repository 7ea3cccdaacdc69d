"""TODO"""

from __future__ import annotations

from dataclasses import dataclass

from ..packed.layout import FRAGMENT_ROWS, STEP, PackedLayout
from ..rings.shape import MOST_SHARED

CONSUMER_WARPS = FRAGMENT_ROWS  # one for each fragment row of a tile
CONSUMER_THREADS = 32 * CONSUMER_WARPS
X_ROW_BYTES = 2 * STEP  # bytes of a row of a panel
MAP_ELEMENT = 8  # bytes that are one element to a map of weights
BOX_ELEMENTS = 256  # elements in a row of a box
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 56, 224  # of a thread of wide tiles; 168 at the start
SCRATCH = 32  # bytes
UNIT_FRAGMENTS = 2  # records of a strip that are multiplied one after the other: the least that a block takes


@dataclass(frozen=True)
class WarpSpecializedTile:
    """Of a block: rows of activations, and how many blocks a multiprocessor holds."""

    columns: int
    blocks: int = 1

    def __str__(self) -> str:
        return f"{self.columns} columns" + f", {self.blocks} blocks" * (self.blocks > 1)

    @property
    def wide(self) -> bool:
        """Whether there is a warpgroup beside those that multiply, which gives them registers: one of its
        warps fetches, the others order activations (late_activations.py).
        """
        return self.columns > 160

    @property
    def fragments(self) -> int:
        """Of a strip in a stage."""
        return 1 if self.columns > 128 else UNIT_FRAGMENTS

    @property
    def threads(self) -> int:
        """Of a block."""
        return CONSUMER_THREADS + (128 if self.wide else 32)

    @property
    def x_tile_bytes(self) -> int:
        """Bytes of a step's activations."""
        return self.columns * X_ROW_BYTES

    def boxes(self, layout: PackedLayout) -> int:
        """That bring the weights of a stage: one, or one a record where a box cannot be as wide as two."""
        return 1 if self.fragments * layout.fragment_bytes // MAP_ELEMENT <= BOX_ELEMENTS else self.fragments

    def box_row(self, layout: PackedLayout) -> int:
        """Bytes of a strip that a box brings."""
        return self.fragments // self.boxes(layout) * layout.fragment_bytes

    def next_fragment(self, layout: PackedLayout) -> int:
        """Bytes from a strip's first record of a stage to its second."""
        return layout.fragment_bytes if self.boxes(layout) == 1 else FRAGMENT_ROWS * layout.fragment_bytes

    def size(self, layout: PackedLayout) -> int:
        """Bytes of a stage that are fetched."""
        return self.fragments * (self.x_tile_bytes + FRAGMENT_ROWS * layout.fragment_bytes)

    def stage(self, layout: PackedLayout) -> int:
        """Bytes of a stage, whole kilobytes, as the swizzle asks."""
        return -(-self.size(layout) // 1024) * 1024

    def stages(self, layout: PackedLayout) -> int:
        """In shared memory at once."""
        return max(2, min(8, (MOST_SHARED // self.blocks - 2048) // self.stage(layout)))

    def shared(self, layout: PackedLayout) -> int:
        """Bytes of shared memory."""
        return 1024 + self.stages(layout) * (self.stage(layout) + 16) + SCRATCH
