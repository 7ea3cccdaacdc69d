"""Products of 8-bit codes with few rows of x: weights are the wide operand of ``wgmma``, a cluster splits K.

Time is that of streaming the weights. Each is read once, by one to three blocks a multiprocessor, so that
enough copies are in flight to fill the memory's bandwidth. A block makes 64 or 128 outputs of every row of
x. Its first copies of weights start before the predecessor ends, if it knows which they are; x follows
after that. The rest of a block is a chain in which each part waits for the one before, so the chain is short:
asynchronous copies bring the scales, and with 64 rows two warpgroups take the steps in turns.

    stage    codes of w [rows, 128] · codes of x [columns, 128]               swizzled
    scales   of w [chunk steps, rows] · of x [chunk steps, columns]           floats
             of w [rows] · of x [columns], both with their zero points        integers
    sums     [sources, columns / split, rows], a column's rows side by side: those that other blocks send here
    barriers full [stages] · empty [stages]
    list     the rows of x: for ``cuda:small_m_codes`` alone, small_m_schedules.py

The blocks of a cluster have neighbouring parts of K. Each finishes an equal part of the columns, and sends
its sums of the other columns into the shared memory of the blocks that finish them. Few sums go straight
from its registers. Many go through the free stages, 16 bytes at a time, for so many single words would take
longer than the products. The block that finishes a column adds up its sums in the order of the parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..intrinsics import barrier as barriers
from ..intrinsics.wgmma import INTEGERS, STEP, Form
from ..rings.boxed import KILO
from ..warp_specialized.kernel import Frame
from .variant import FLOAT32_OUTPUT, OutputKind

CONSUMER_WARPGROUPS = 2  # beside them two warps fetch
CONSUMER_THREADS = 128 * CONSUMER_WARPGROUPS
THREADS = CONSUMER_THREADS + 64
SPLITS = (8, 4, 2, 1)  # blocks of a cluster that share K


@dataclass(frozen=True)
class SmallMTile:
    """Rows of w and of x, and a ring of stages: deep for one block, or short, so that several blocks fit."""

    rows: int  # 64: warpgroups take steps in turns; 128: each has its own rows
    columns: int
    stages: int  # a multiple of ``turns``: a barrier's parity tells only two phases apart
    blocks: int  # blocks that fit on a multiprocessor
    chunk: int = 32  # steps whose scales are in shared memory at a time

    groups = CONSUMER_WARPGROUPS

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}, {self.stages} stages"

    @property
    def turns(self) -> int:
        """Warpgroups that share the rows of the tile, and take its steps in turns."""
        return 64 * CONSUMER_WARPGROUPS // self.rows

    @property
    def wide_exchange(self) -> bool:
        """True where sums go to other blocks 16 bytes at a time."""
        return self.turns == 1 or self.columns >= 64

    @property
    def pitch(self) -> int:
        """Bytes between columns of sums."""
        return 4 * (self.rows + 4)

    @property
    def stage(self) -> int:
        """Bytes of a stage."""
        return (self.rows + self.columns) * STEP

    @property
    def scales(self) -> int:
        """Offset of the scales; the sums follow them, then the barriers."""
        return self.stages * self.stage

    @property
    def scales_of_x(self) -> int:
        return self.scales + 4 * self.chunk * self.rows

    @property
    def sums(self) -> int:
        return self.scales_of_x + 4 * self.chunk * self.columns

    @property
    def barriers(self) -> int:
        return self.sums + self.turns * self.columns * self.pitch

    @property
    def row_list(self) -> int:
        """Offset of a list of rows of x."""
        return self.barriers + 16 * self.stages

    @property
    def list_bytes(self) -> int:
        """Bytes of a list of rows."""
        return 8 * self.columns + 8

    @property
    def shared(self) -> int:
        """Bytes of shared memory, without a list of rows."""
        return KILO + self.row_list


TILES = (
    SmallMTile(64, 8, 12, 1), SmallMTile(64, 8, 6, 3), SmallMTile(64, 16, 12, 1), SmallMTile(64, 16, 4, 3),
    SmallMTile(64, 32, 8, 1), SmallMTile(64, 32, 6, 2), SmallMTile(64, 64, 8, 1, 16),
)  # fmt: skip


@dataclass(frozen=True)
class SmallMVariant:
    """The facts that a kernel for few rows is compiled for."""

    tile: SmallMTile
    x: str
    w: str
    out: OutputKind = FLOAT32_OUTPUT
    zeros: bool = False  # integers
    listed: bool = False  # a list in shared memory names the rows of x

    threads = THREADS  # of a block

    def __str__(self) -> str:
        guarded = ", guarded" * barriers.GUARDED
        return f"{self.x} {self.w} to {self.out}, {self.tile}{', zeros' * self.zeros}{guarded}"

    @property
    def blocks(self) -> int:
        """Blocks that fit on a multiprocessor."""
        return self.tile.blocks

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.tile.shared + self.tile.list_bytes * self.listed

    @property
    def frame(self) -> Frame:
        """Its warps, and what a block takes."""
        return Frame(4 * self.tile.groups, self.threads, self.shared, self.blocks)

    @property
    def integer(self) -> bool:
        """True where codes are integers."""
        return self.x in INTEGERS

    @property
    def form(self) -> Form:
        """The ``wgmma`` products of one warpgroup; weights are their first operand."""
        return Form(self.tile.columns, self.w, self.x)
