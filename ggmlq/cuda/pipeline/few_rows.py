"""Few rows of x: weights are the operand of 64 rows, x the other one; a cluster divides K.

What counts is that weights stream: each is read once, by blocks of which one to three fit on a
multiprocessor, so that enough copies are under way to fill the memory's bandwidth. A block makes 64 or 128
outputs of every row of x. Its first copies, of weights, start before the predecessor ends; x is asked for
after that. From there to the outputs everything waits for something, so that chain is short: scales come by
asynchronous copies, and of 64 rows two warpgroups take the steps in turns.

    stage    codes of w [rows, 128] · codes of x [columns, 128]               swizzled
    scales   of w [chunk steps, rows] · of x [chunk steps, columns]           floats
             of w [rows] · of x [columns], both with their zero points        integers
    sums     [sources, columns / parts, rows], a column's rows side by side: what others bring here
    barriers full [stages] · empty [stages]

The blocks of a cluster have neighbouring parts of K. Each finishes an equal part of the columns, and brings
its sums of the other columns into the shared memory of those that finish them: few right from its registers,
many in pieces of 16 bytes, by way of the stages that are no longer needed, for single words in great number
take longer than the products. There they are added up, the first source's first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..words import barrier as barriers
from ..words import boxes, codes8, early_start, ptx
from ..words.atoms import inlined
from ..words.language import cuda, uint32, uint64
from ..words.outputs import pusher, stager
from ..words.promoted import float_products
from ..words.wgmma8 import INTEGERS, LOW, STEP, Form, straight_products
from .boxed import KILO, follower

GROUPS = 2  # warpgroups that multiply; a warp fetches
MULTIPLY = 128 * GROUPS
THREADS = MULTIPLY + 32
PARTS = (8, 4, 2, 1)  # blocks of a cluster
SHORTEST = 4  # steps of a part


@dataclass(frozen=True)
class FewTile:
    """Rows of w and of x, and a ring of stages."""

    rows: int  # 64: warpgroups take steps in turns; 128: each has its own
    columns: int
    stages: int  # a multiple of ``turns``: a barrier's parity tells two phases apart, not more
    blocks: int  # of a multiprocessor
    chunk: int = 32  # steps whose scales are in shared memory

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}, {self.stages} stages"

    @property
    def turns(self) -> int:
        """Warpgroups that make the sums of a row, of different steps."""
        return 64 * GROUPS // self.rows

    @property
    def many(self) -> bool:
        """Whether sums go to other blocks in pieces of 16 bytes."""
        return self.turns == 1

    @property
    def pitch(self) -> int:
        """Bytes between columns of sums."""
        return 4 * (self.rows + 4)

    @property
    def stage(self) -> int:
        """Bytes."""
        return (self.rows + self.columns) * STEP

    @property
    def scales(self) -> int:
        """Where they begin; the sums stand behind them, then the barriers."""
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
    def shared(self) -> int:
        """Bytes in all."""
        return KILO + self.barriers + 16 * self.stages


TILES = (FewTile(64, 8, 6, 3), FewTile(64, 16, 4, 3), FewTile(64, 32, 6, 2), FewTile(128, 64, 6, 1, 16))


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


def parts_of(tile: FewTile, tiles: int, multiprocessors: int, steps: int) -> int:
    """Blocks of a cluster: as many as the card holds at one time, each with some steps.

    Of wide tiles no more than one a multiprocessor: the exchange of their sums would cost more than it gains.
    """
    slots = multiprocessors * (tile.blocks if tile.columns <= 16 else 1)
    able = [parts for parts in PARTS if tiles * parts <= slots and steps // parts >= SHORTEST]
    return able[0] if able else 1


def filler(tile: FewTile) -> Any:
    """The device function of the one thread that fetches steps ``first`` … ``last``."""
    stages, length, of_x = tile.stages, tile.stage, tile.rows * STEP
    expect, fetch, wait, after = barriers.expect, boxes.fetch, barriers.wait, follower(stages)
    wait_for_predecessor, prefetch = early_start.wait_for_predecessor, boxes.prefetch

    @inlined
    def fill(ring: Any, full: Any, x: Any, w: Any, row: Any, first: Any, last: Any) -> None:
        for s in range(stages):
            if uint32(first + uint32(s)) < last:
                done, k = uint32(full + uint32(8 * s)), uint32(uint32(first + uint32(s)) * uint32(STEP))
                expect(done, uint32(length))
                fetch(uint32(ring + uint32(s * length)), w, k, row, done)
        prefetch(x)
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


def bringer(count: int) -> Any:
    """The device function that starts to copy scales of ``count`` rows and some steps into shared memory."""
    shift, stride, copy = count.bit_length() - 1, MULTIPLY // count, codes8.copy4

    @inlined
    def bring(
        to: Any, scales: Any, row: Any, column: Any, rows: Any, span: Any,
        from_row: Any, limit: Any, first: Any, last: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        own = min(uint32(from_row + uint32(thread & uint32(count - 1))), uint32(limit - uint32(1)))
        at, to = scales + uint64(uint32(own // rows)) * row, uint32(to + uint32(thread << uint32(2)))
        step = uint32(first + uint32(thread >> uint32(shift)))
        while step < last:
            copy(to, at + uint64(uint32(step // span)) * column)
            to, step = uint32(to + uint32(4 * MULTIPLY)), uint32(step + uint32(stride))

    return bring


def bringer_of_integers(zeros: bool) -> Any:
    """The same for integers: one scale a row, and its zero points."""
    copy = codes8.copy4

    @inlined
    def bring(
        to: Any, count: Any, scales: Any, row: Any, rows: Any, points: Any, others: Any,
        from_row: Any, limit: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        if thread < count:
            own = min(uint32(from_row + thread), uint32(limit - uint32(1)))
            at, to = uint64(own) * uint64(4), uint32(to + uint32(thread << uint32(2)))
            copy(to, scales + uint64(uint32(own // rows)) * row)
            if zeros:
                copy(uint32(to + uint32(count << uint32(2))), points + at)
                copy(uint32(to + uint32(count << uint32(3))), others + at)

    return bring


def placer_of_threads(tile: FewTile) -> Any:
    """The device function for where a thread stands.

    Its lane; its first row and column among the sums of its block; its warpgroup's turn; lower words of
    descriptors.
    """
    side_by_side, of_x = tile.turns == 1, tile.rows * STEP

    @inlined
    def stand(ring: Any, group: Any) -> Any:
        thread = uint32(cuda.threadIdx.x)
        lane = uint32(thread & uint32(31))
        below = uint32(group << uint32(6)) if side_by_side else uint32(0)
        turn = uint32(0) if side_by_side else group
        warp = uint32(uint32(thread >> uint32(5)) & uint32(3))
        row = uint32(below + uint32(warp << uint32(4)) + uint32(lane >> uint32(2)))
        a = uint32(uint32(LOW) | uint32(uint32(ring + below * uint32(STEP)) >> uint32(4)))
        b = uint32(uint32(LOW) | uint32(uint32(ring + uint32(of_x)) >> uint32(4)))
        return lane, row, uint32(uint32(lane & uint32(3)) << uint32(1)), turn, a, b

    return stand


def deliverer(job: FewJob) -> Any:
    """The device function that brings sums to the blocks that finish them."""
    tile = job.tile
    columns, pitch, turns, of_sums = tile.columns, tile.pitch, tile.turns, tile.sums
    log, fours, shift = columns.bit_length() - 1, tile.rows // 4, (tile.rows // 4).bit_length() - 1
    push, stage = pusher(columns, job.integer, pitch), stager(columns, job.integer, pitch)
    join_cluster, put16_of, take16 = barriers.join_cluster, barriers.put16_of, ptx.take16
    meet = barriers.gather_point(1, MULTIPLY)

    @inlined
    def store(ring: Any, totals: Any, row: Any, column: Any, turn: Any, rank: Any, halvings: Any) -> None:
        share = uint32(uint32(log) - halvings)  # its logarithm
        source = uint32(uint32(uint32(rank * uint32(turns)) + turn) << share)
        join_cluster()  # their shared memory is there
        push(totals, uint32(ring + uint32(of_sums) + uint32(row << uint32(2))), column, share, source)

    @inlined
    def carry(ring: Any, totals: Any, row: Any, column: Any, turn: Any, rank: Any, halvings: Any) -> None:
        share = uint32(uint32(log) - halvings)
        meet()  # nobody multiplies what is in the stages
        stage(totals, uint32(ring + column * uint32(pitch) + uint32(row << uint32(2))))
        meet()
        join_cluster()
        i = uint32(cuda.threadIdx.x)
        while i < uint32(fours * columns):
            c, at = uint32(i >> uint32(shift)), uint32(uint32(i & uint32(fours - 1)) << uint32(4))
            v = take16(uint32(ring + c * uint32(pitch) + at))
            owner = uint32(c >> share)
            there = uint32(uint32(c - uint32(owner << share)) + uint32(rank << share))
            at = uint32(ring + uint32(of_sums) + there * uint32(pitch) + at)
            put16_of(at, owner, v[0], v[1], v[2], v[3])
            i = uint32(i + uint32(MULTIPLY))

    return carry if tile.many else store


def striding(tile: FewTile) -> Any:
    """The device function for the stage of a warpgroup's next step, and its parity."""
    after, turns = follower(tile.stages), tile.turns

    @inlined
    def stride(stage: Any, phase: Any) -> Any:
        for _ in range(turns):
            stage, phase = after(stage, phase)
        return stage, phase

    return stride


def float_worker(job: FewJob) -> Any:
    """The device function of the warps that multiply: sums, promoted, brought to where they are finished."""
    tile = job.tile
    stages, length, columns, chunk = tile.stages, tile.stage // 16, tile.columns, tile.chunk
    of_scales, of_x_scales, deliver = tile.scales, tile.scales_of_x, deliverer(job)
    zeros, nothing, begin, first_products, _, factors, promote, unscaled = float_products(job.form, 0)
    of_rows, promoted = factors[0], promote[0]
    rows, turns, stand, stride = tile.rows, tile.turns, placer_of_threads(tile), striding(tile)
    bring_w, bring_x = bringer(rows), bringer(columns)
    meet, wait, arrive = barriers.gather_point(1, MULTIPLY), barriers.wait, barriers.arrive
    wait_for_predecessor, commit, landed = (
        early_start.wait_for_predecessor, ptx.commit, ptx.wait_for_all_but(0),
    )  # fmt: skip

    @inlined
    def work(
        ring: Any, full: Any, given: Any, _: Any, group: Any, row0: Any, first: Any, last: Any,
        m: Any, n: Any, rank: Any, halvings: Any,
    ) -> None:  # fmt: skip
        of_x, row_x, column_x, rows_x, span_x, of_w, row_w, column_w, rows_w, span_w = given
        lane, row, column, turn, a0, b0 = stand(ring, group)
        near_w, near_x = uint32(ring + uint32(of_scales)), uint32(ring + uint32(of_x_scales))
        totals, sums, stage, phase = zeros(), nothing(), turn, uint32(0)
        base, step = first, uint32(first + turn)
        while base < last:
            stop = min(uint32(base + uint32(chunk)), last)
            bring_w(near_w, of_w, row_w, column_w, rows_w, span_w, row0, n, base, stop)
            wait_for_predecessor()
            bring_x(near_x, of_x, row_x, column_x, rows_x, span_x, uint32(0), m, base, stop)
            commit()
            landed()
            meet()
            ahead = uint32(uint32(step - base) << uint32(2))
            own = uint32(near_w + ahead * uint32(rows) + uint32(row << uint32(2)))
            across = uint32(near_x + ahead * uint32(columns) + uint32(column << uint32(2)))
            while step < stop:
                barrier, moved = uint32(full + stage * uint32(8)), uint32(stage * uint32(length))
                wait(barrier, phase)
                sums = begin(sums, own)
                found = of_rows(sums, unscaled(of_w))
                sums = first_products(sums, uint32(a0 + moved), uint32(b0 + moved))
                if lane == uint32(0):
                    arrive(uint32(barrier + uint32(8 * stages)))
                totals = promoted(totals, sums, found, across)
                stage, phase = stride(stage, phase)
                own = uint32(own + uint32(4 * turns * rows))
                across = uint32(across + uint32(4 * turns * columns))
                step = uint32(step + uint32(turns))
            meet()  # all are done with these scales
            base = stop
        wait_for_predecessor()  # also where there is no step: it may read what will be written
        deliver(ring, totals, row, column, turn, rank, halvings)

    return work


def integer_worker(job: FewJob) -> Any:
    """The same for integers: exact sums."""
    tile = job.tile
    stages, length, columns = tile.stages, tile.stage // 16, tile.columns
    of_scales, of_x_scales = tile.scales, tile.scales_of_x
    nothing, advance, drain = straight_products(job.form)
    rows, turns, stand, stride = tile.rows, tile.turns, placer_of_threads(tile), striding(tile)
    deliver, bring = deliverer(job), bringer_of_integers(job.zeros)
    wait, arrive, wait_for_predecessor = barriers.wait, barriers.arrive, early_start.wait_for_predecessor
    commit, landed = ptx.commit, ptx.wait_for_all_but(0)

    @inlined
    def work(
        ring: Any, full: Any, given: Any, zeros: Any, group: Any, row0: Any, first: Any, last: Any,
        m: Any, n: Any, rank: Any, halvings: Any,
    ) -> None:  # fmt: skip
        of_x, row_x, _, rows_x, _, of_w, row_w, _, rows_w, _ = given
        points_x, others_x, points_w, others_w = zeros
        lane, row, column, turn, a0, b0 = stand(ring, group)
        totals, stage, phase, before = nothing(), turn, uint32(0), uint32(0)
        near_w, near_x = uint32(ring + uint32(of_scales)), uint32(ring + uint32(of_x_scales))
        bring(near_w, uint32(rows), of_w, row_w, rows_w, points_w, others_w, row0, n)
        wait_for_predecessor()
        bring(near_x, uint32(columns), of_x, row_x, rows_x, points_x, others_x, uint32(0), m)
        commit()
        step = uint32(first + turn)
        while step < last:
            barrier, moved = uint32(full + stage * uint32(8)), uint32(stage * uint32(length))
            wait(barrier, phase)
            totals = advance(totals, uint32(a0 + moved), uint32(b0 + moved))
            if before != uint32(0) and lane == uint32(0):
                arrive(before)
            before = uint32(barrier + uint32(8 * stages))
            stage, phase = stride(stage, phase)
            step = uint32(step + uint32(turns))
        totals = drain(totals)
        landed()
        deliver(ring, totals, row, column, turn, rank, halvings)

    return work
