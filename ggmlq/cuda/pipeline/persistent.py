"""Products of 8-bit codes by blocks with roles that stay on the card: one warp fetches, two groups multiply.

A block makes tile after tile. One thread of its third warpgroup keeps the ring full (boxed.py), over the end of a
tile too, so that the next one's stages arrive while outputs are written. The two others multiply an equal part of
the rows each; they take the registers that the third gives back. While one promotes its sums the tensor cores work
for the other.

Floats: ``parts_of`` columns share a scale of w, read from memory a step ahead of its use; or each column has one,
in the stage. Integers stay in the tensor cores to the end of K and meet scales and zero points once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as combined
from math import gcd
from typing import Any

from ..machine.launch import Kernel, family
from ..words import barrier as barriers
from ..words import boxes, codes8, early_start, ptx
from ..words.atoms import inlined
from ..words.lane import warp_and_lane
from ..words.language import cuda, int32, uint32, uint64
from ..words.outputs import BUFFER, ROWS, box_putter, integer_finisher, storer
from ..words.wgmma8 import INTEGERS, LOW, STEP, Form, float_products, integer_products
from .boxed import BoxTile, Room, filler, follower, placer, starter
from .waves import Share

TALL = 16  # tiles that are gone down together
FETCHES, MULTIPLIES = 40, 232  # registers of a thread; 168 at the start
BLOCK = 128  # rows of w, the most that share a scale here

# Tiles of 128 columns or more of each; shares are guesses until they were measured.
FLOATS = (Share(BoxTile(256, 128, 4), 1.0), Share(BoxTile(128, 192, 5), 0.95), Share(BoxTile(128, 128, 6), 0.85))
BY_COLUMNS = (Share(BoxTile(128, 128, 6), 1.0),)
WHOLE = (Share(BoxTile(128, 256, 4), 1.0), Share(BoxTile(256, 128, 4), 0.98), Share(BoxTile(128, 128, 6), 0.8))
CODES = ("e4m3", "e5m2")
OUTS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Job:
    """What a kernel is made for."""

    tile: BoxTile
    x: str  # codes, as instructions name them
    w: str
    out: str = "float32"
    boxed: bool = True  # outputs go through the copy engine; else element by element
    by_columns: bool = False  # floats: each column has a scale of w of its own
    zeros: bool = False  # integers

    def __str__(self) -> str:
        ends = ["" if self.boxed else ", one by one", ", a scale a column" * self.by_columns]
        guarded = ", guarded" * barriers.GUARDED
        return f"{self.x} {self.w} to {self.out}, {self.tile}{''.join(ends)}{', zeros' * self.zeros}{guarded}"

    @property
    def integer(self) -> bool:
        """Whether codes are integers."""
        return self.x in INTEGERS

    @property
    def form(self) -> Form:
        """The products of a warpgroup."""
        return Form(self.tile.columns, self.x, self.w, self.tile.halves)

    @property
    def room(self) -> Room:
        """Its shared memory."""
        return Room(self.tile, x_scales=not self.integer, w_scales=self.by_columns)

    @property
    def granule(self) -> int:
        """Columns that share a scale of w."""
        return gcd(self.tile.columns, BLOCK)

    @property
    def parts(self) -> int:
        """Of a tile's columns; 0: see ``float_products``."""
        return 0 if self.by_columns else self.tile.columns // self.granule

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * (self.tile.groups + 1)


def opener(job: Job) -> Any:
    """The device function at the start of a kernel: ring, barriers, and the predecessor's end."""
    base, start = ptx.shared_base, starter(job.tile.stages, 4 * job.tile.groups)
    of_barriers, wait = job.room.barriers, early_start.wait_for_predecessor

    @inlined
    def begin() -> Any:
        ring = uint32(uint32(base() + uint32(1023)) & uint32(0xFFFFFC00))
        full = uint32(ring + uint32(of_barriers))
        if uint32(cuda.threadIdx.x) == uint32(0):
            start(full)
        cuda.syncthreads()
        wait()
        return ring, full

    return begin


def placer_of_threads(job: Job) -> Any:
    """The device function for where a thread of a multiplying warp stands.

    Its lane, its warp's first row, its place in the warp's buffer of outputs, lower words of descriptors.
    """
    of_outputs, rows_each, of_w = job.room.outputs, 64 * job.tile.halves, job.tile.rows * STEP
    floats = job.out == "float32"

    @inlined
    def stand(ring: Any, warp: Any) -> Any:
        _, lane = warp_and_lane()
        group = uint32(uint32(warp >> uint32(2)) * uint32(rows_each))
        inner = uint32(group + uint32(uint32(warp & uint32(3)) << uint32(4)))
        buffer = uint32(ring + uint32(of_outputs) + warp * uint32(BUFFER))
        if floats:
            r, t = uint32(lane >> uint32(2)), uint32(lane & uint32(3))
            chunk = uint32(uint32(t >> uint32(1)) ^ r)
            at = uint32(buffer + r * uint32(128) + chunk * uint32(16) + uint32(t & uint32(1)) * uint32(8))
        else:
            r = uint32(lane & uint32(ROWS - 1))
            chunk = uint32(uint32(lane >> uint32(4)) ^ uint32(r & uint32(7)))
            at = uint32(buffer + r * uint32(128) + chunk * uint32(16))
        a = uint32(uint32(LOW) | uint32(uint32(ring + group * uint32(STEP)) >> uint32(4)))
        b = uint32(uint32(LOW) | uint32(uint32(ring + uint32(of_w)) >> uint32(4)))
        return lane, inner, buffer, at, a, b

    return stand


def writer(job: Job) -> Any:
    """The device function that writes a warp's part of a tile, as floats."""
    form, boxed = job.form, job.boxed
    put, store = box_putter(form.columns, form.halves, job.out), storer(form.columns, form.halves, job.out)

    @inlined
    def write(totals: Any, lane: Any, buffer: Any, at: Any, y: Any, column: Any, row: Any, m: Any, n: Any) -> None:
        if boxed:
            put(totals, lane, buffer, at, y, column, row)
        else:
            g, t = uint32(lane >> uint32(2)), uint32(lane & uint32(3))
            store(totals, y, uint32(column + uint32(t << uint32(1))), uint32(row + g), m, n)

    return write


def float_worker(job: Job) -> Any:
    """The device function of the warps that multiply floats."""
    tile, room, form = job.tile, job.room, job.form
    stages, length, beside, of_scales = tile.stages, tile.stage // 16, room.beside, room.scales
    granule, by_columns, boxed, halves, of_columns = job.granule, job.by_columns, job.boxed, form.halves, 4 * tile.rows
    zeros, nothing, begin, first, last, factors, promote, scales_of_w = float_products(form, job.parts)
    factors_first, factors_last, promote_first, promote_last = factors[0], factors[-1], promote[0], promote[-1]
    after, stand, write, place = follower(stages), placer_of_threads(job), writer(job), placer(tile, TALL)
    wait, arrive, until_written = barriers.wait, barriers.arrive, boxes.until_written

    @inlined
    def work(
        ring: Any, full: Any, warp: Any, table: Any, pitch: Any, y: Any, number: Any, every: Any,
        down: Any, across: Any, steps: Any, m: Any, n: Any,
    ) -> None:  # fmt: skip
        lane, inner, buffer, at, first_a, first_b = stand(ring, warp)
        near = uint32(ring + uint32(of_scales))
        own = uint32(near + uint32(uint32(inner + uint32(lane >> uint32(2))) << uint32(2)))
        columns_at = uint32(near + uint32(of_columns) + uint32(uint32(lane & uint32(3)) << uint32(3)))
        stage, phase, count, sums = uint32(0), uint32(0), uint32(down * across), nothing()
        while number < count:
            row, column = place(number, down, across)
            of_w = table + uint64(uint32(column // uint32(granule))) * uint64(4)
            scale, totals, step = scales_of_w(of_w), zeros(), uint32(0)
            wait(uint32(full + stage * uint32(8)), phase)
            sums = begin(sums, uint32(own + stage * uint32(beside)))
            a, b = uint32(first_a + stage * uint32(length)), uint32(first_b + stage * uint32(length))
            while step < steps:
                step = uint32(step + uint32(1))
                more = uint32(step < steps)
                of_w += uint64(uint32(pitch * more))
                scale_then = scales_of_w(of_w)  # long before it is needed
                beside_now = uint32(columns_at + stage * uint32(beside))
                if halves == 2:
                    sums = first(sums, a, b)
                    totals = promote_first(totals, sums, factors_first(sums, scale), beside_now)
                found = factors_last(sums, scale)
                done, a_now, b_now = uint32(full + uint32(8 * stages) + stage * uint32(8)), a, b
                stage, phase = after(stage, phase)
                a, b = uint32(first_a + stage * uint32(length)), uint32(first_b + stage * uint32(length))
                sums = last(
                    sums, a_now, b_now,
                    uint32(full + stage * uint32(8)), phase, more, uint32(own + stage * uint32(beside)),
                )  # fmt: skip
                if by_columns:
                    totals = promote_last(totals, sums, found, beside_now)
                if lane == uint32(0):
                    arrive(done)
                if not by_columns:
                    totals = promote_last(totals, sums, found, beside_now)
                scale = scale_then
            write(totals, lane, buffer, at, y, column, uint32(row + inner), m, n)
            number = uint32(number + every)
        if boxed and lane == uint32(0):
            until_written()

    return work


def rows_about(job: Job) -> Any:
    """The device function for what an integer product needs of a thread's rows.

    Their scales; their zero points, then what those of w are multiplied with.
    """
    load_float, load4, zeros = ptx.load_float, codes8.load4, job.zeros

    @inlined
    def scale(row: Any, given: Any) -> Any:
        m, of_x, row_x, rows_x, points_x, others_x = given
        return load_float(of_x + uint64(uint32(min(row, uint32(m - uint32(1))) // rows_x)) * row_x)

    @inlined
    def point(row: Any, at: Any, m: Any) -> Any:
        if zeros:
            return load4(at + uint64(min(row, uint32(m - uint32(1)))) * uint64(4))
        return int32(0)

    @inlined
    def one(row: Any, given: Any) -> Any:
        m, _, _, _, points, others = given
        low, high = row, uint32(row + uint32(8))
        found = point(low, points, m), point(high, points, m), point(low, others, m), point(high, others, m)
        return (scale(low, given), scale(high, given)), found

    @inlined
    def two(row: Any, given: Any) -> Any:
        (a, b), (p, q, r, s) = one(row, given)
        (c, d), (t, u, v, w) = one(uint32(row + uint32(64)), given)
        return (a, b, c, d), (p, q, t, u, r, s, v, w)

    return two if job.form.halves == 2 else one


def integer_worker(job: Job) -> Any:
    """The device function of the warps that multiply integers."""
    tile, form, zeros = job.tile, job.form, job.zeros
    stages, length, boxed = tile.stages, tile.stage // 16, job.boxed
    nothing, advance, drain = integer_products(form)
    after, stand, write, place = follower(stages), placer_of_threads(job), writer(job), placer(tile, TALL)
    wait, arrive, until_written = barriers.wait, barriers.arrive, boxes.until_written
    finish, about = integer_finisher(form.columns, form.halves, zeros), rows_about(job)

    @inlined
    def work(
        ring: Any, full: Any, warp: Any, given: Any, y: Any, number: Any, every: Any,
        down: Any, across: Any, steps: Any, m: Any, n: Any,
    ) -> None:  # fmt: skip
        of_x, row_x, rows_x, of_w, points_x, others_x, points_w, others_w = given
        lane, inner, buffer, at, first_a, first_b = stand(ring, warp)
        stage, phase, count = uint32(0), uint32(0), uint32(down * across)
        while number < count:
            row, column = place(number, down, across)
            totals, step, before = nothing(), uint32(0), uint32(0)
            while step < steps:
                barrier = uint32(full + stage * uint32(8))
                a, b = uint32(first_a + stage * uint32(length)), uint32(first_b + stage * uint32(length))
                wait(barrier, phase)
                totals = advance(totals, a, b)
                if step > uint32(0) and lane == uint32(0):
                    arrive(before)
                before = uint32(barrier + uint32(8 * stages))
                stage, phase = after(stage, phase)
                step = uint32(step + uint32(1))
            totals = drain(totals)
            if lane == uint32(0):
                arrive(before)
            row = uint32(row + inner)
            about_x = (m, of_x, row_x, rows_x, points_x, others_x)
            scales, points = about(uint32(row + uint32(lane >> uint32(2))), about_x)
            of_column = uint64(uint32(column + uint32(uint32(lane & uint32(3)) << uint32(1)))) * uint64(4)
            found = finish(totals, scales, of_w + of_column, points, points_w + of_column, others_w + of_column)
            write(found, lane, buffer, at, y, column, row, m, n)
            number = uint32(number + every)
        if boxed and lane == uint32(0):
            until_written()

    return work


def roles(job: Job, fill: Any, work: Any) -> Any:
    """The device function that sends each warp to its role, with the registers that it needs.

    ``fill`` and ``work`` take ``given`` apart: all that the kernel was called with.
    """
    fetching, begin, first_lane = 4 * job.tile.groups, opener(job), barriers.of_first_lane
    give, take = barriers.registers("dec", FETCHES), barriers.registers("inc", MULTIPLIES)
    rows, columns = job.tile.rows, job.tile.columns

    @inlined
    def run(given: Any, m: Any, n: Any) -> None:
        ring, full = begin()
        thread = uint32(cuda.threadIdx.x)
        warp = first_lane(uint32(thread >> uint32(5)))
        down = uint32(uint32(m + uint32(rows - 1)) // uint32(rows))
        across = uint32(uint32(n + uint32(columns - 1)) // uint32(columns))
        number, every = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        if uint32(warp) >= uint32(fetching):
            give()
            if thread == uint32(32 * fetching):
                fill(ring, full, given, number, every, down, across)
        else:
            take()
            work(ring, full, warp, given, number, every, down, across)

    return run


def _kernel(job: Job, product: Any, *parameters: Any) -> Kernel:
    return Kernel(
        f"tma persistent {job}", product, *parameters, threads=job.threads, shared=job.room.shared,
        least=(9, 0), exact=True, early=True, lto=True,
    )  # fmt: skip


def float_jobs() -> list[tuple[Job]]:
    """Every tile, kind of codes and of outputs; one by one only the widest."""
    found = [Job(wave.tile, a, b, out) for wave, a, b, out in combined(FLOATS, CODES, CODES, OUTS)]
    found += [Job(BY_COLUMNS[0].tile, a, b, out, by_columns=True) for a, b, out in combined(CODES, CODES, OUTS)]
    found += [Job(FLOATS[0].tile, "e4m3", "e4m3", out, boxed=False) for out in OUTS]
    return [(job,) for job in found]


def integer_jobs() -> list[tuple[Job]]:
    """Likewise, with zero points and without."""
    every = combined(WHOLE, INTEGERS, INTEGERS, OUTS, (False, True))
    found = [Job(wave.tile, a, b, out, zeros=zeros) for wave, a, b, out, zeros in every]
    found += [Job(WHOLE[0].tile, "s8", "s8", out, boxed=False) for out in OUTS]
    return [(job,) for job in found]


@family(float_jobs())
def float_kernel(job: Job) -> Kernel:
    """Codes of floats, promoted every 128 columns."""
    fill_ring, multiply = filler(job.room, TALL), float_worker(job)

    @inlined
    def fill(ring: Any, full: Any, given: Any, number: Any, every: Any, down: Any, across: Any) -> None:
        x, w, of_x, of_columns, _, _, _, _, steps, span, _ = given
        fill_ring(ring, full, x, w, of_x, of_columns, number, every, down, across, steps, span)

    @inlined
    def work(ring: Any, full: Any, warp: Any, given: Any, number: Any, every: Any, down: Any, across: Any) -> None:
        _, _, _, _, table, y, m, n, steps, _, pitch = given
        multiply(ring, full, warp, table, pitch, y, number, every, down, across, steps, m, n)

    run = roles(job, fill, work)

    def product(
        x: Any, w: Any,  # maps of codes
        of_x: Any,  # map of scales [K / (128 · span), M]
        of_columns: Any,  # map of scales of w [steps, N], where each column has its own
        table: Any,  # or they: float32 [steps, pitch / 4], one for each ``granule`` columns
        y: Any,  # map, or address
        m: Any, n: Any, steps: Any, span: Any, pitch: Any,
    ) -> None:  # fmt: skip
        run((x, w, of_x, of_columns, table, y, m, n, steps, span, pitch), m, n)

    return _kernel(job, product, *(uint64,) * 6, *(uint32,) * 5)


@family(integer_jobs())
def integer_kernel(job: Job) -> Kernel:
    """Codes of integers under scales that do not vary along K."""
    fill_ring, multiply = filler(job.room, TALL), integer_worker(job)

    @inlined
    def fill(ring: Any, full: Any, given: Any, number: Any, every: Any, down: Any, across: Any) -> None:
        x, w, _, _, _, steps, _ = given
        nowhere = uint64(0)
        fill_ring(ring, full, x, w, nowhere, nowhere, number, every, down, across, steps, uint32(1))

    @inlined
    def work(ring: Any, full: Any, warp: Any, given: Any, number: Any, every: Any, down: Any, across: Any) -> None:
        _, _, y, m, n, steps, about = given
        multiply(ring, full, warp, about, y, number, every, down, across, steps, m, n)

    run = roles(job, fill, work)

    def product(
        x: Any, w: Any,  # maps of codes
        y: Any,  # map, or address
        of_x: Any, row_x: Any,  # scales of x, and bytes from one to the next
        of_w: Any,  # float32 [N], filled up to whole tiles; the last two as well
        points_x: Any, others_x: Any, points_w: Any, others_w: Any,  # int32: tiles8.rows.Zeros
        m: Any, n: Any, steps: Any,
        rows_x: Any,  # of x that share a scale
    ) -> None:  # fmt: skip
        about = (of_x, row_x, rows_x, of_w, points_x, others_x, points_w, others_w)
        run((x, w, y, m, n, steps, about), m, n)

    return _kernel(job, product, *(uint64,) * 10, *(uint32,) * 4)
