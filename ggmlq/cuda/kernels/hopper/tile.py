"""The tile of a warp-specialised block: its outputs, its threads, and the layout of its stages.

A tile is computed with swapped operands (swap_ab): weights are the operand A of ``wgmma``, 64 rows a
warpgroup, and come from registers, for they have to be unpacked anyway. Activations are B and stay in shared
memory, so a tile has as many columns as rows of activations, which may be few.

    stage    x_tiles [fragments][columns, 64]   swizzled, as activations/x_tiles.py made them
             weights [8][fragments]             as packed/pack.py made them; large ones [fragments][8]
    barriers full [stages] · empty [stages]
    scratch  words that the threads of a block leave for each other: stream_k.py

A stage is one fragment of each fragment row, or two: as much as is multiplied in a thousand clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....dispatch.card import older_than
from ....dispatch.problems import Linear
from ....formats import BlockFormat
from ...machine import tensor_maps
from ...packed import operand
from ...packed.layout import FRAGMENT_ROWS, STEP, PackedLayout
from ...packed.pack import LONGEST
from .frame import MAX_SHARED_BYTES

CONSUMER_WARPS = FRAGMENT_ROWS  # one for each fragment row of a tile
CONSUMER_THREADS = 32 * CONSUMER_WARPS
X_ROW_BYTES = 2 * STEP  # of a row of an x_tile
MAP_ELEMENT_BYTES = 8  # of an element of the map of weights
MAX_BOX_ELEMENTS = 256  # in a row of a box
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 56, 224  # of a thread of wide tiles; 168 at the start
SCRATCH_BYTES = 32
UNIT_FRAGMENTS = 2  # fragments of a row that are multiplied in turn: K is split in multiples of them


@dataclass(frozen=True)
class WarpSpecializedTile:
    """The rows of activations of a block, and the blocks that a multiprocessor holds."""

    columns: int
    blocks: int = 1

    def __str__(self) -> str:
        return f"{self.columns} columns" + f", {self.blocks} blocks" * (self.blocks > 1)

    @property
    def wide(self) -> bool:
        """True where a whole warpgroup stands beside the consumers and gives them registers.

        One of its warps fetches, the others make x_tiles (late_x_tiles.py).
        """
        return self.columns > 160

    @property
    def fragments(self) -> int:
        """Fragments of a fragment row in a stage."""
        return 1 if self.columns > 128 else UNIT_FRAGMENTS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return CONSUMER_THREADS + (128 if self.wide else 32)

    @property
    def x_tile_bytes(self) -> int:
        """Bytes of the activations of 64 columns."""
        return self.columns * X_ROW_BYTES

    def boxes(self, layout: PackedLayout) -> int:
        """Boxes that bring the weights of a stage: one, or one for each fragment where a box cannot be as
        wide as two.
        """
        return (
            1
            if self.fragments * layout.fragment_bytes // MAP_ELEMENT_BYTES <= MAX_BOX_ELEMENTS
            else self.fragments
        )

    def box_row(self, layout: PackedLayout) -> int:
        """Bytes of a fragment row that a box brings."""
        return self.fragments // self.boxes(layout) * layout.fragment_bytes

    def next_fragment(self, layout: PackedLayout) -> int:
        """Bytes from a fragment row's first fragment of a stage to its second."""
        return layout.fragment_bytes if self.boxes(layout) == 1 else FRAGMENT_ROWS * layout.fragment_bytes

    def size(self, layout: PackedLayout) -> int:
        """Bytes of a stage that are fetched."""
        return self.fragments * (self.x_tile_bytes + FRAGMENT_ROWS * layout.fragment_bytes)

    def stage(self, layout: PackedLayout) -> int:
        """Bytes of a stage in whole kilobytes, as the swizzle demands."""
        return -(-self.size(layout) // 1024) * 1024

    def stages(self, layout: PackedLayout) -> int:
        """Stages in shared memory."""
        return max(2, min(8, (MAX_SHARED_BYTES // self.blocks - 2048) // self.stage(layout)))

    def shared(self, layout: PackedLayout) -> int:
        """Bytes of shared memory."""
        return 1024 + self.stages(layout) * (self.stage(layout) + 16) + SCRATCH_BYTES


def reads_plain(layout: PackedLayout, tile: WarpSpecializedTile) -> bool:
    """True where blocks with a tile can read x of 16 bits as it lies, without x_tiles.

    Lanes then take weights in the order of columns. With wide tiles idle warps make x_tiles instead.
    """
    return not tile.wide and operand.serves(layout)


# Problems that kernels on tiles of packed weights refuse: for their shape, the GPU or the driver.

MIN_CAPABILITY, HOPPER = (8, 0), (9, 0)
MAX_ROWS_OF_X = 65535 * 64  # a grid has 65535 rows of blocks


def refuses_shape(problem: Linear) -> str | None:
    """The reason why tiles of packed weights do not serve a problem on any GPU, or None."""
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > MAX_ROWS_OF_X or problem.k > LONGEST or problem.m * problem.k >= 1 << 32:
        return f"takes up to {MAX_ROWS_OF_X} rows, {LONGEST} columns and 2**32 elements of activations"
    return older_than(problem.card, MIN_CAPABILITY)


def refuses_without_wgmma(problem: Linear) -> str | None:
    """The reason why kernels with Hopper's tensor instructions do not serve a problem, or None."""
    if problem.card is not None and problem.card.capability != HOPPER:
        return "needs compute capability 9.0: other GPUs do not have these instructions"
    return refuses_shape(problem)


def refuses(problem: Linear) -> str | None:
    """The reason why warp-specialised kernels do not serve a problem, or None; they need the copy engine,
    too.
    """
    return refuses_without_wgmma(problem) or tensor_maps.missing(problem.card)
