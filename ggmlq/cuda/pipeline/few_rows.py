"""Few rows of x: weights are the operand of 64 rows, x the other one; a cluster divides K.

What counts is that weights stream: each is read once, by blocks of which two or three fit on a
multiprocessor, so that enough copies are under way to fill the memory's bandwidth. A block makes 64 outputs
of every row of x. Its first copies, of weights, start before the predecessor ends; x is asked for after
that.

    stage    codes of w [64, 128] · codes of x [columns, 128]                 swizzled
    scales   of w [32 steps, 64] · of x [32 steps, columns]                   floats; only those of FP8 here
    sums     [columns, 64], a column's rows side by side, for the cluster to read
    barriers full [stages] · empty [stages]

The blocks of a cluster have neighbouring parts of K. Each leaves its sums in shared memory; then each adds
up its share of the outputs, the first block's sums first, out of the shared memory of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..words import barrier as barriers
from ..words import boxes, codes8, early_start, ptx
from ..words.atoms import inlined
from ..words.language import cuda, uint32, uint64
from ..words.outputs import stager
from ..words.promoted import float_products
from ..words.wgmma8 import INTEGERS, LOW, STEP, Form, straight_products
from .boxed import KILO, follower

ROWS = 64  # of weights
CHUNK = 32  # steps whose scales are in shared memory
PITCH = 4 * (ROWS + 4)  # bytes between columns of sums
MULTIPLY = 128  # threads that do; a warp fetches
THREADS = MULTIPLY + 32
PARTS = (8, 4, 2, 1)  # blocks of a cluster
SHORTEST = 4  # steps of a part


@dataclass(frozen=True)
class FewTile:
    """Rows of x, and a ring of stages."""

    columns: int
    stages: int
    blocks: int  # of a multiprocessor

    def __str__(self) -> str:
        return f"64x{self.columns}, {self.stages} stages"

    @property
    def stage(self) -> int:
        """Bytes."""
        return (ROWS + self.columns) * STEP

    @property
    def scales(self) -> int:
        """Where they begin; the sums stand behind them, then the barriers."""
        return self.stages * self.stage

    @property
    def sums(self) -> int:
        return self.scales + 4 * CHUNK * (ROWS + self.columns)

    @property
    def barriers(self) -> int:
        return self.sums + self.columns * PITCH

    @property
    def shared(self) -> int:
        """Bytes in all."""
        return KILO + self.barriers + 16 * self.stages


TILES = (FewTile(8, 6, 3), FewTile(16, 5, 3), FewTile(32, 5, 2), FewTile(64, 4, 2), FewTile(128, 5, 1))


@dataclass(frozen=True)
class FewJob:
    """What a kernel is made for."""

    tile: FewTile
    x: str
    w: str
    out: str = "float32"
    zeros: bool = False  # integers

    def __str__(self) -> str:
        guarded = ", guarded" * barriers.GUARDED
        return f"{self.x} {self.w} to {self.out}, {self.tile}{', zeros' * self.zeros}{guarded}"

    @property
    def integer(self) -> bool:
        """Whether codes are integers."""
        return self.x in INTEGERS

    @property
    def form(self) -> Form:
        """Weights are the first operand."""
        return Form(self.tile.columns, self.w, self.x)


def parts_of(tiles: int, slots: int, steps: int) -> int:
    """Blocks of a cluster: as many as the card holds at one time, each with some steps."""
    able = [parts for parts in PARTS if tiles * parts <= slots and steps // parts >= SHORTEST]
    return able[0] if able else 1


def filler(tile: FewTile) -> Any:
    """The device function of the one thread that fetches steps ``first`` … ``last``."""
    stages, length, of_x = tile.stages, tile.stage, ROWS * STEP
    expect, fetch, wait, after = barriers.expect, boxes.fetch, barriers.wait, follower(stages)
    wait_for_predecessor = early_start.wait_for_predecessor

    @inlined
    def fill(ring: Any, full: Any, x: Any, w: Any, row: Any, first: Any, last: Any) -> None:
        for s in range(stages):
            if uint32(first + uint32(s)) < last:
                done, k = uint32(full + uint32(8 * s)), uint32(uint32(first + uint32(s)) * uint32(STEP))
                expect(done, uint32(length))
                fetch(uint32(ring + uint32(s * length)), w, k, row, done)
        wait_for_predecessor()  # it may have made x
        for s in range(stages):
            if uint32(first + uint32(s)) < last:
                done, k = uint32(full + uint32(8 * s)), uint32(uint32(first + uint32(s)) * uint32(STEP))
                fetch(uint32(ring + uint32(s * length + of_x)), x, k, uint32(0), done)
        step, stage, phase = uint32(first + uint32(stages)), uint32(0), uint32(0)
        while step < last:
            at, done = uint32(ring + stage * uint32(length)), uint32(full + stage * uint32(8))
            k = uint32(step * uint32(STEP))
            wait(uint32(done + uint32(8 * stages)), phase)
            expect(done, uint32(length))
            fetch(at, w, k, row, done)
            fetch(uint32(at + uint32(of_x)), x, k, uint32(0), done)
            stage, phase = after(stage, phase)
            step = uint32(step + uint32(1))

    return fill


def scaler(tile: FewTile, which: str) -> Any:
    """The device function that brings the scales of w, or of x, for some steps into shared memory."""
    count = ROWS if which == "w" else tile.columns
    load_float, put_float = ptx.load_float, codes8.put_float

    @inlined
    def bring(
        to: Any,
        scales: Any,
        row: Any,
        column: Any,
        rows: Any,
        span: Any,
        from_row: Any,
        limit: Any,
        first: Any,
        last: Any,
    ) -> None:
        i = uint32(cuda.threadIdx.x)
        stop = uint32(uint32(last - first) * uint32(count))
        while i < stop:
            step = uint32(first + uint32(i // uint32(count)))
            own = min(uint32(from_row + uint32(i % uint32(count))), uint32(limit - uint32(1)))
            at = scales + uint64(uint32(own // rows)) * row + uint64(uint32(step // span)) * column
            put_float(uint32(to + uint32(i << uint32(2))), load_float(at))
            i = uint32(i + uint32(MULTIPLY))

    return bring


@inlined
def stand(ring: Any) -> Any:
    """A thread's first row and column among the sums of its block."""
    thread = uint32(cuda.threadIdx.x)
    lane = uint32(thread & uint32(31))
    row = uint32(uint32(uint32(thread >> uint32(5)) << uint32(4)) + uint32(lane >> uint32(2)))
    return row, uint32(uint32(lane & uint32(3)) << uint32(1))


def float_worker(job: FewJob) -> Any:
    """The device function of the warps that multiply: sums, promoted, into shared memory."""
    tile = job.tile
    stages, length, columns = tile.stages, tile.stage // 16, tile.columns
    of_scales, of_sums = tile.scales, tile.sums
    of_x_scales = of_scales + 4 * CHUNK * ROWS
    zeros, nothing, begin, first_products, _, factors, promote, unscaled = float_products(job.form, 0)
    of_rows, promoted, stage_sums = factors[0], promote[0], stager(columns, False, PITCH)
    bring_w, bring_x, after = scaler(tile, "w"), scaler(tile, "x"), follower(stages)
    meet, wait, arrive = barriers.gather_point(1, MULTIPLY), barriers.wait, barriers.arrive
    wait_for_predecessor = early_start.wait_for_predecessor

    @inlined
    def work(ring: Any, full: Any, given: Any, row0: Any, first: Any, last: Any, m: Any, n: Any) -> None:
        of_x, row_x, column_x, rows_x, span_x, of_w, row_w, column_w, rows_w, span_w = given
        row, column = stand(ring)
        near_w, near_x = uint32(ring + uint32(of_scales)), uint32(ring + uint32(of_x_scales))
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        a0 = uint32(uint32(LOW) | uint32(ring >> uint32(4)))
        b0 = uint32(uint32(LOW) | uint32(uint32(ring + uint32(ROWS * STEP)) >> uint32(4)))
        totals, sums, stage, phase, step = zeros(), nothing(), uint32(0), uint32(0), first
        while step < last:
            stop = min(uint32(step + uint32(CHUNK)), last)
            bring_w(near_w, of_w, row_w, column_w, rows_w, span_w, row0, n, step, stop)
            wait_for_predecessor()
            bring_x(near_x, of_x, row_x, column_x, rows_x, span_x, uint32(0), m, step, stop)
            meet()
            own = uint32(near_w + uint32(row << uint32(2)))
            across = uint32(near_x + uint32(column << uint32(2)))
            while step < stop:
                barrier, moved = uint32(full + stage * uint32(8)), uint32(stage * uint32(length))
                wait(barrier, phase)
                sums = begin(sums, own)
                found = of_rows(sums, unscaled(of_w))
                sums = first_products(sums, uint32(a0 + moved), uint32(b0 + moved))
                if lane == uint32(0):
                    arrive(uint32(barrier + uint32(8 * stages)))
                totals = promoted(totals, sums, found, across)
                stage, phase = after(stage, phase)
                own, across = uint32(own + uint32(4 * ROWS)), uint32(across + uint32(4 * columns))
                step = uint32(step + uint32(1))
            meet()  # all are done with these scales
        wait_for_predecessor()  # also where there is no step: it may read what will be written
        stage_sums(totals, uint32(ring + uint32(of_sums) + column * uint32(PITCH) + uint32(row << uint32(2))))

    return work


def integer_worker(job: FewJob) -> Any:
    """The same for integers: exact sums."""
    tile = job.tile
    stages, length, of_sums = tile.stages, tile.stage // 16, tile.sums
    nothing, advance, drain = straight_products(job.form)
    stage_sums, after = stager(tile.columns, True, PITCH), follower(stages)
    wait, arrive, wait_for_predecessor = barriers.wait, barriers.arrive, early_start.wait_for_predecessor

    @inlined
    def work(ring: Any, full: Any, given: Any, row0: Any, first: Any, last: Any, m: Any, n: Any) -> None:
        row, column = stand(ring)
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        a0 = uint32(uint32(LOW) | uint32(ring >> uint32(4)))
        b0 = uint32(uint32(LOW) | uint32(uint32(ring + uint32(ROWS * STEP)) >> uint32(4)))
        totals, stage, phase, step, before = nothing(), uint32(0), uint32(0), first, uint32(0)
        wait_for_predecessor()
        while step < last:
            barrier, moved = uint32(full + stage * uint32(8)), uint32(stage * uint32(length))
            wait(barrier, phase)
            totals = advance(totals, uint32(a0 + moved), uint32(b0 + moved))
            if step > first and lane == uint32(0):
                arrive(before)
            before = uint32(barrier + uint32(8 * stages))
            stage, phase = after(stage, phase)
            step = uint32(step + uint32(1))
        totals = drain(totals)
        stage_sums(totals, uint32(ring + uint32(of_sums) + column * uint32(PITCH) + uint32(row << uint32(2))))

    return work
