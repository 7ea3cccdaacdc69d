"""A few rows: weights straight from memory in the file's bits, on tensor cores that have time to spare.

Changed: no warp waits for a record, for with few rows all that counts is to read the weights once, as
fast as memory gives them. Each of the 8 to 16 warps of a block keeps records in flight into shared
memory (gemv/stages.py), without waiting for any other warp; the first ones while the kernel before this
one still runs (intrinsics/dependent_launch.py). A block makes 32 or 64 rows of outputs; its warps share the columns and
add up at the end, in a fixed order. And codes of some types stay raised, which saves instructions
(packed/operand.py).

Up to 8 rows of activations stay floats and are rounded to bfloat16 while they are read: so one kernel
does all. The codes are exact in bfloat16, and a scale meets only sums: nothing overflows. (An activation
that is infinite may make NaN, for raised codes are 128 too high and that is taken off.)

With up to four rows the columns of ``mma`` that are free serve other runs (gemv/by_runs.py). How many strips
a block has, and how blocks share them, is what an estimate says takes least (cost/gemv.py).

Limited by instructions as much as by memory: what unpacks codes and makes scales takes half of all issue
slots. A block of 64 rows of outputs loads and converts activations half as often.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.card import older_than, too_small_for
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ...formats import BLOCK_FORMATS, BlockFormat
from ..activations.floats import aligned_floats, narrowed
from ..cost import gemv as pace
from ..gemv import by_runs, clusters
from ..gemv.stages import BOTH, COLUMNS, FOUR, SPANS, Stage, columns_of, fetchers, kinds_of, taker
from ..intrinsics import bf16x2, dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine import device
from ..machine.launch import Kernel, family
from ..packed.codes import buffers
from ..packed.layout import ROWS, StripLayout, layout_of
from ..packed.operand import operand_of, summer
from ..packed.pack import LONGEST
from ..packed.pack import strips as strips_of
from ..rings.ring import offset_advancer

LEAST, WIDE = (8, 0), (9, 0)  # in the code for earlier GPUs 32 rows and two records spill


def spans(fmt: BlockFormat, columns: int, newer: bool = True) -> tuple[int, ...]:
    """Records of a strip in a stage.

    32 rows leave no registers for two of them where there are offsets, or on older GPUs.
    """
    return SPANS[1:] if columns > 16 and (fmt.has_offset or not newer) else SPANS


@cache
def multiplier(stage: Stage) -> Any:
    """The device function that adds a span of all strips to a lane's sums, four of a strip and tile."""
    multiply_record, again = record_multiplier(stage), stage.span > 1

    @inlined
    def multiply(at: Any, lane: Any, sums: Any, unseen: Any) -> None:
        multiply_record(at, 0, lane, sums, unseen)  # a loop over records would not be unrolled
        if again:
            multiply_record(at, 1, lane, sums, unseen)

    return multiply


@cache
def record_multiplier(stage: Stage) -> Any:
    """The device function that adds one record of all strips."""
    layout, size, tiles, again = stage.layout, stage.size, stage.tiles, stage.strips > BOTH
    count, values = buffers(layout)
    runs, scales, has_offset = layout.runs, layout.scales, layout.has_offset
    load_words, load_scales, fragment, begin = operand_of(layout, tiles)
    each, record, take, sum_of = 4 // runs, layout.record, taker(stage), summer(4 // layout.runs)
    of_x, of_d = 8 * tiles, 4 * tiles
    ones, mma_into = bf16x2.ONES, bf16x2.mma_into

    @inlined
    def multiply_pair(
        here: Any, pair: Any, lane: Any, b: Any, x: Any, start: Any, sums: Any, unseen: Any
    ) -> None:
        words, a = cuda.local.array(count, uint32), cuda.local.array(4, uint32)
        f, d = cuda.local.array(values, float32), cuda.local.array(of_d, float32)
        for strip in range(pair * BOTH, pair * BOTH + BOTH):
            load_words(here + uint32(strip * size), lane, words)
            load_scales(here + uint32(strip * size), lane, f)
            for run in range(runs):
                for tile in range(tiles):
                    i, j = 8 * tile + 2 * run, 4 * tile
                    d[j], d[j + 1], d[j + 2], d[j + 3] = start[i], start[i + 1], start[i], start[i + 1]
                for s in range(run * each, run * each + each):
                    fragment(words, s, a, unseen)
                    for tile in range(tiles):
                        mma_into(d, 4 * tile, a, 0, b, 8 * tile + 2 * s)
                for tile in range(tiles):
                    o, j, i = 4 * (strip * tiles + tile), 4 * tile, 8 * tile + 2 * run
                    low, high = f[run], f[scales + run]
                    sums[o], sums[o + 2] = sums[o] + low * d[j], sums[o + 2] + high * d[j + 2]
                    sums[o + 1], sums[o + 3] = sums[o + 1] + low * d[j + 1], sums[o + 3] + high * d[j + 3]
                    if has_offset:
                        low, high = f[runs + run], f[scales + runs + run]
                        sums[o], sums[o + 2] = sums[o] - low * x[i], sums[o + 2] - high * x[i]
                        sums[o + 1] -= low * x[i + 1]
                        sums[o + 3] -= high * x[i + 1]

    @inlined
    def multiply(at: Any, which: Any, lane: Any, sums: Any, unseen: Any) -> None:
        b = cuda.local.array(of_x, uint32)
        x, start = cuda.local.array(of_x, float32), cuda.local.array(of_x, float32)
        take(at, which, lane, b)
        for tile in range(tiles):
            for run in range(runs):
                i, first = 8 * tile + 2 * run, 8 * tile + 2 * run * each
                if has_offset:
                    x[i], x[i + 1] = sum_of(b, first, ones)
                start[i], start[i + 1] = begin(b, first, x[i], x[i + 1])
        here = at + uint32(which * record)
        multiply_pair(here, 0, lane, b, x, start, sums, unseen)
        if again:
            multiply_pair(here, 1, lane, b, x, start, sums, unseen)  # a loop over four is not always unrolled

    return multiply


@cache
def finisher(stage: Stage) -> Any:
    """The device function that adds up what the warps have, the first warp first, and stores outputs."""
    columns, tiles, stride, again = stage.columns, stage.tiles, stage.sums, stage.strips > BOTH
    share, base, put_float = clusters.sharer(stage), ptx.shared_base, bf16x2.put_float

    @inlined
    def put(sums: Any, pair: Any, warp: Any, g: Any, t: Any) -> None:
        for i in range(8 * tiles):  # rows g, g + 8 of a strip, columns 2 t, 2 t + 1 of a tile
            row = g + uint32(pair * BOTH * ROWS + i // (4 * tiles) * ROWS + i // 2 % 2 * 8)
            column = uint32(i // 4 % tiles * 8 + i % 2) + t * uint32(2)
            if column < uint32(columns):
                at = (warp * uint32(columns) + column) * uint32(stride) + row
                put_float(base() + at * uint32(4), sums[pair * 8 * tiles + i])

    @inlined
    def finish(sums: Any, y: Any, row0: Any, rank: Any, parts: Any, m: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        if t * uint32(2) < uint32(columns):
            put(sums, 0, warp, g, t)
            if again:
                put(sums, 1, warp, g, t)  # one loop over all would not be unrolled
        cuda.syncthreads()
        share(y, row0, rank, parts, m, n)

    return finish


@family(
    (fmt, columns, span, small, strips)
    for fmt in BLOCK_FORMATS
    for strips in (BOTH, FOUR)
    for columns in columns_of(strips)
    for span in spans(fmt, columns)
    for small in kinds_of(strips, columns)
)
def kernel(fmt: BlockFormat, columns: int, span: int, small: bool, strips: int) -> Kernel:
    """The kernel for up to so many rows of activations; of small blocks, or of one a multiprocessor."""
    of = Stage(layout_of(fmt), columns, span, small, strips)
    length, count, size = of.length, of.count, of.size
    ahead, end, ring, after = count - 1, (count - 1) * length, count * length, offset_advancer(count, length)
    warps, own_sums, spread, gather = of.warps, of.numbers, by_runs.serves(of), by_runs.gatherer(of)
    (fetch_weights, fetch_activations), finish = fetchers(of), finisher(of)
    multiply = by_runs.multiplier(of) if spread else multiplier(of)
    base, commit, wait = ptx.shared_base, ptx.commit, ptx.wait_for_all_but(count - 2)
    let_start, wait_for_predecessor = (
        dependent_launch.let_successor_start,
        dependent_launch.wait_for_predecessor,
    )
    place, rows = clusters.placer(of), of.rows

    def gemv(
        records: Any,  # uint8 [strips, spans, records of a span, record]
        x: Any,  # float32 [m, k]; bfloat16 from 9 rows on
        y: Any,  # float32 [m, n]
        m: Any, n: Any, k: Any, spans: Any, parts: Any,
    ) -> None:  # fmt: skip
        warp, lane = warp_and_lane()
        tile, rank, first, every = place(warp, parts)
        apart = uint64(spans) * uint64(size)
        of_w = records + uint64(tile) * uint64(strips) * apart
        own = base() + warp * uint32(ring)
        sums = cuda.local.array(own_sums, float32)
        for i in range(own_sums):
            sums[i] = float32(0)
        let_start()
        for i in range(ahead):
            span = uint32(first + uint32(every * uint32(i)))
            if span < spans:
                fetch_weights(own + uint32(i * length), lane, of_w, apart, span)
        wait_for_predecessor()  # it may have made x, or read y
        for i in range(ahead):
            span = uint32(first + uint32(every * uint32(i)))
            if span < spans:
                fetch_activations(own + uint32(i * length), lane, x, span, m, k)
            commit()
        to, here, span = uint32(end), uint32(0), first
        while span < spans:
            wait()
            cuda.syncwarp()  # the stage is there for all lanes, and all are done with the one to fill
            later = uint32(span + uint32(every * uint32(ahead)))
            if later < spans:
                fetch_weights(own + to, lane, of_w, apart, later)
                fetch_activations(own + to, lane, x, later, m, k)
            commit()
            multiply(own + here, lane, sums, spans >> uint32(16) & uint32(0x8000))
            to, here = after(to), after(here)
            span = uint32(span + every)
        if spread:
            gather(sums)
        cuda.syncthreads()  # the rings are free
        finish(sums, y, uint32(tile * uint32(rows)), rank, parts, m, n)

    parameters = (uint64,) * 3 + (uint32,) * 5
    name = f"gemv of {fmt.name}, up to {columns} rows, {span} records a stage{', small blocks' * small}"
    name += f", {rows} rows of weights" * (strips > BOTH)
    least = WIDE if small or strips > BOTH or (columns > 16 and span > 1) else LEAST
    sizes: dict[str, Any] = {"threads": 32 * warps, "shared": of.shared, "least": least}
    return Kernel(name, gemv, *parameters, early=True, blocks=of.blocks, max_blocks=of.blocks, **sizes)


def chosen(fmt: BlockFormat, m: int, small: bool = False, strips: int = BOTH) -> Stage:
    """The stage of the kernel for so many rows; the largest that this GPU has room for, if there is one."""
    return _chosen(fmt, m, device.room(), device.older_than(WIDE) is None, small, strips)


@cache
def _chosen(
    fmt: BlockFormat, m: int, room: int | None, newer: bool, small: bool = False, strips: int = BOTH
) -> Stage:
    columns, layout = next(columns for columns in columns_of(strips) if columns >= m), layout_of(fmt)
    stages = [Stage(layout, columns, span, small, strips) for span in spans(fmt, columns, newer)]
    return next((each for each in stages if room is None or each.blocks * each.shared <= room), stages[-1])


def refuses(problem: Linear) -> str | None:
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > COLUMNS[-1]:
        return f"takes up to {COLUMNS[-1]} rows of activations"
    if problem.k > LONGEST:
        return f"takes up to {LONGEST} columns"
    card = problem.card
    newer = older_than(card, WIDE) is None
    stage = _chosen(problem.format, problem.m, card and card.shared, newer)
    return older_than(card, LEAST) or too_small_for(card, stage.shared)


def way_for(layout: StripLayout, count: int, k: int, m: int) -> pace.Way:
    """How blocks share so many strips; as was measured on Hopper, and elsewhere with two strips each."""
    if device.older_than(WIDE) is not None:
        return pace.Way(BOTH, clusters.ALONE)
    card = device.card_of(device.current())
    job = pace.Job(layout, count, k, m, card.multiprocessors, card.memory, card.capability == WIDE)
    return pace.best(job)[1]


@register(__name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=refuses, repeats=True)
def launch(x: Any, q: QuantArray, out: Any, way: pace.Way | None = None) -> None:
    """``way``: another than is thought best."""
    (m, n), k = out.shape, q.shape[1]
    if not (m and n and k):
        out.fill(0)
        return
    assert isinstance(q.format, BlockFormat)
    w = strips_of(q)
    strips, blocks = way or way_for(w.layout, w.records.shape[0], k, m)
    of, (parts, most) = chosen(q.format, m, blocks != clusters.ALONE, strips), blocks
    assert parts <= of.parts, "shared memory has no place for the sums of so many"
    given = aligned_floats(x) if of.floats else narrowed(x, "bfloat16")
    make = kernel(q.format, of.columns, of.span, of.small, strips)
    tiles, sizes = w.records.shape[0] // strips, (m, n, k, w.records.shape[1] // of.span, parts)
    make((tiles * parts,), (make.threads,), w.records, given, out, *sizes, cluster=parts, max_blocks=most)
