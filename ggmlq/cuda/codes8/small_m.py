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
    list     the rows of x: for ``cuda:small_m_codes`` alone, small_m_uses.py

The blocks of a cluster have neighbouring parts of K. Each finishes an equal part of the columns, and sends
its sums of the other columns into the shared memory of the blocks that finish them. Few sums go straight
from its registers. Many go through the free stages, 16 bytes at a time, for so many single words would take
longer than the products. The block that finishes a column adds up its sums in the order of the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, boxes, codes8, dependent_launch
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32, uint64
from ..intrinsics.wgmma8 import INTEGERS, STEP, Form
from ..rings.boxed import KILO, stage_advancer
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

    def __str__(self) -> str:
        guarded = ", guarded" * barriers.GUARDED
        return f"{self.x} {self.w} to {self.out}, {self.tile}{', zeros' * self.zeros}{guarded}"

    @property
    def integer(self) -> bool:
        """True where codes are integers."""
        return self.x in INTEGERS

    @property
    def form(self) -> Form:
        """The ``wgmma`` products of one warpgroup; weights are their first operand."""
        return Form(self.tile.columns, self.w, self.x)


def row_finder(listed: bool) -> Any:
    """The device function that gives the i-th row of x or of w, at most the last; ``listed``: from a list."""
    take4 = bf16x2.take4

    @inlined
    def next_row(first: Any, i: Any, limit: Any) -> Any:
        return min(uint32(first + i), uint32(limit - uint32(1)))

    @inlined
    def listed_row(locate: Any, i: Any, count: Any) -> Any:
        return take4(uint32(locate + uint32(min(i, uint32(count - uint32(1))) << uint32(2))))

    return listed_row if listed else next_row


def producer(tile: SmallMTile, is_w: bool, listed: bool = False) -> Any:
    """The device function of the thread that fetches an operand's steps ``first`` … ``last``.

    ``row``: the first row, or the address of the list of rows; ``rows``: the rows of x to fetch. The
    producer of w announces the bytes of both operands, and may begin before the predecessor ends.
    """
    stages, length, x_offset = tile.stages, tile.stage, tile.rows * STEP
    expect, fetch, wait, after = barriers.expect, boxes.fetch, barriers.wait, stage_advancer(stages)
    one_by_one, find = listed and not is_w, row_finder(True)
    wait_for_predecessor, prefetch = dependent_launch.wait_for_predecessor, boxes.prefetch

    @inlined
    def produce(ring: Any, full: Any, codes: Any, row: Any, first: Any, last: Any, rows: Any) -> None:
        if not is_w:
            prefetch(codes)
            wait_for_predecessor()  # the predecessor may have made x
        step, stage, phase = first, uint32(0), uint32(1)
        while step < last:
            at, done = uint32(ring + stage * uint32(length)), uint32(full + stage * uint32(8))
            wait(uint32(done + uint32(8 * stages)), phase)
            column = uint32(step * uint32(STEP))
            if is_w:
                expect(done, uint32(uint32(x_offset) + uint32(rows * uint32(STEP))))
                fetch(at, codes, column, row, done)
            elif one_by_one:
                for i in range(uint32(0), rows):
                    to = uint32(uint32(at + uint32(x_offset)) + uint32(uint32(i) * uint32(STEP)))
                    fetch(to, codes, column, find(row, uint32(i), rows), done)
            else:
                fetch(uint32(at + uint32(x_offset)), codes, column, row, done)
            stage, phase = after(stage, phase)
            step = uint32(step + uint32(1))

    return produce


def scale_copier(count: int, listed: bool = False) -> Any:
    """The device function that starts to copy scales of ``count`` rows and some steps into shared memory."""
    find = row_finder(listed)
    shift, stride, copy = count.bit_length() - 1, CONSUMER_THREADS // count, codes8.copy4

    @inlined
    def copy_scales(
        to: Any, scales: Any, row: Any, column: Any, rows: Any, span: Any,
        from_row: Any, limit: Any, first: Any, last: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        row_index = find(from_row, uint32(thread & uint32(count - 1)), limit)
        at, to = scales + uint64(uint32(row_index // rows)) * row, uint32(to + uint32(thread << uint32(2)))
        step = uint32(first + uint32(thread >> uint32(shift)))
        while step < last:
            copy(to, at + uint64(uint32(step // span)) * column)
            to, step = uint32(to + uint32(4 * CONSUMER_THREADS)), uint32(step + uint32(stride))

    return copy_scales


def integer_scale_copier(zeros: bool, listed: bool = False) -> Any:
    """The device function that starts to copy a scale and zero-point terms for each row of integers."""
    copy, find = codes8.copy4, row_finder(listed)

    @inlined
    def copy_scales(
        to: Any, count: Any, scales: Any, row: Any, rows: Any, points: Any, others: Any,
        from_row: Any, limit: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        if thread < count:
            row_index = find(from_row, thread, limit)
            at, to = uint64(row_index) * uint64(4), uint32(to + uint32(thread << uint32(2)))
            copy(to, scales + uint64(uint32(row_index // rows)) * row)
            if zeros:
                copy(uint32(to + uint32(count << uint32(2))), points + at)
                copy(uint32(to + uint32(count << uint32(3))), others + at)

    return copy_scales
