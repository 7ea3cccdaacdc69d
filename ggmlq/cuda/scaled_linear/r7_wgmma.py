"""Hopper's ``wgmma`` on FP8 codes: four warps multiply 64 × 128 × 128 out of shared memory.

Changed: ``wgmma`` takes both operands from shared memory, where the copy engine (TMA) lays them as it wants
them: one thread asks for two boxes of 128 codes a row and for the scales that belong to them, and all wait
at one barrier that counts bytes. No thread computes an address, no code crosses a register, nothing is
widened.

Its sums have about 14 bits behind the leading one, so every 128 columns they go over into float32 sums,
times both scales. At K = 4096 the error without that is some 3e-3 of the mean, with it 1e-4.

Why it helps: those tensor cores do four times what ``mma.sync`` on widened halves can.

Limited by waiting: copy, multiply and promote follow each other, one stage at a time.
"""

from __future__ import annotations

from typing import Any

from ...arrays.scaled import ScaledArray
from ...dispatch.ladder import register
from ...dispatch.problems import ScaledLinear
from ..codes8 import operands as operands8
from ..codes8.consumers import placer_of_threads, writer
from ..codes8.job import CODES, OUTS, TALL, Job
from ..intrinsics import barrier as barriers
from ..intrinsics import boxes, dependent_launch, ptx
from ..intrinsics.language import cuda, uint32, uint64
from ..intrinsics.promoted import float_products
from ..machine.launch import Kernel, family
from ..rings.boxed import BoxTile, fetcher, placer, starter

TILE = BoxTile(128, 128, 1)


def jobs(tile: BoxTile) -> list[tuple[Job]]:
    """A tile with every kind of codes and of outputs that tests look at."""
    found = [Job(tile, a, b) for a in CODES for b in CODES]
    found += [
        Job(tile, "e4m3", "e4m3", out, boxed, by)
        for out in OUTS
        for boxed in (True, False)
        for by in (False, True)
    ]
    return [(job,) for job in dict.fromkeys(found)]


@family(jobs(TILE))
def kernel(job: Job) -> Kernel:
    """A tile a block; all threads multiply."""
    tile, room, threads = job.tile, job.room, 128 * job.tile.groups
    of_barriers, of_scales, rows, granule, boxed = (
        room.barriers,
        room.scales,
        tile.rows,
        job.granule,
        job.boxed,
    )
    start, place = starter(tile.stages, 1), placer(tile, TALL)
    ask_w, ask_x = fetcher(room, True), fetcher(room, False)
    zeros, nothing, begin, first, _, _, _, factors, promote, scales_of_w = float_products(job.form, job.parts)
    of_thread, promoted, stand, write = factors[0], promote[0], placer_of_threads(job), writer(job)
    wait, first_lane, until_written, take_turn = (
        barriers.wait,
        barriers.of_first_lane,
        boxes.until_written,
        dependent_launch.take_turn,
    )
    base, columns = ptx.shared_base, tile.columns

    def product(
        x: Any, w: Any, of_x: Any, of_columns: Any, table: Any, y: Any,
        m: Any, n: Any, steps: Any, span: Any, pitch: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.threadIdx.x)
        warp = first_lane(uint32(thread >> uint32(5)))
        ring = uint32(uint32(base() + uint32(1023)) & uint32(0xFFFFFC00))
        full = uint32(ring + uint32(of_barriers))
        if thread == uint32(0):
            start(full)
        cuda.syncthreads()
        take_turn()
        down = uint32(uint32(m + uint32(rows - 1)) // uint32(rows))
        across = uint32(uint32(n + uint32(columns - 1)) // uint32(columns))
        row, column = place(uint32(cuda.blockIdx.x), down, across)
        lane, inner, buffer, at, a, b = stand(ring, warp)
        own = uint32(
            ring + uint32(of_scales) + uint32(uint32(inner + uint32(lane >> uint32(2))) << uint32(2))
        )
        columns_at = uint32(
            ring + uint32(of_scales + 4 * rows) + uint32(uint32(lane & uint32(3)) << uint32(3))
        )
        of_w = table + uint64(uint32(column // uint32(granule))) * uint64(4)
        totals, sums, step = zeros(), nothing(), uint32(0)
        while step < steps:
            if thread == uint32(0):
                ask_w(ring, full, uint32(0), w, of_columns, column, column, step, step)
                ask_x(ring, full, uint32(0), x, of_x, row, row, step, uint32(step // span))
            wait(full, uint32(step & uint32(1)))
            sums = begin(sums, own)
            found = of_thread(sums, scales_of_w(of_w))
            sums = first(sums, a, b)
            totals = promoted(totals, sums, found, columns_at)
            of_w += uint64(pitch)
            step = uint32(step + uint32(1))
            cuda.syncthreads()  # all are done with the stage
        write(totals, (lane, inner, buffer, at), ring, y, column, row, m, n, 0)
        if boxed and lane == uint32(0):
            until_written()

    return Kernel(
        f"tma simple {job}", product, *(uint64,) * 6, *(uint32,) * 5, threads=threads, shared=room.shared,
        least=(9, 0), exact=True, early=True, lto=True,
    )  # fmt: skip


def refuses(problem: ScaledLinear) -> str | None:
    if problem.integer:
        return "multiplies floats of 8 bits"
    return operands8.refuses(problem)


def run(make: Any, tile: BoxTile, x: ScaledArray, w: ScaledArray, out: Any) -> None:
    """A product of FP8 by the kernel ``make(job)``, a block of threads a tile."""
    if not (out.size and w.shape[1]):
        out.fill(0)
        return
    (m, n), both, to = out.shape, operands8.operands(x, w), operands8.outputs(out)
    by_columns = not operands8.shared_by(both.w, 128)
    job = Job(tile, x.code.name, w.code.name, to.out, to.boxed, by_columns)
    given = operands8.float_arguments(job, both, w, m, n)
    kernel = make(job)
    kernel((tile.tiles(m, n),), (kernel.threads,), *given.maps, given.table, to.at, m, n, *given.sizes)


@register(
    __name__, __doc__, arithmetic="codes", accumulate="float32 every 128", refuses=refuses,
    narrow=True,
)  # fmt: skip
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    run(kernel, TILE, x, w, out)
