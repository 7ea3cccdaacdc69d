"""The frame of the kernels for few rows of packed weights: cuda:gemv and cuda:gemv_int16.

A kernel is a stage and how it is multiplied. The frame keeps stages in flight, adds up in the end, and
launches; an estimate (cost/gemv.py) decides how many fragment rows a block has, and how blocks split them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from ....arrays.array import QuantArray
from ....base.slots import rows_of
from ....dispatch.card import Card, older_than, too_small_for
from ....dispatch.epilogue import Epilogue
from ....dispatch.problems import Linear
from ....formats import BlockFormat
from ...driver import device
from ...driver.launch import Kernel
from ...driver.recorded import decided
from ...intrinsics import bf16x2, dependent_launch, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import g_and_t, opaque_zero, warp_and_lane
from ...intrinsics.language import cuda, float32, uint32, uint64
from ...layouts.floats import narrowed
from ...layouts.layout import ROWS, PackedLayout, layout_of
from ...layouts.pack import LONGEST, packed_weights
from ...layouts.x_tiles import readable_rows
from ..cost import gemv as cost
from ..epilogue.results import KIND_NUMBERS, Result, residual_loader, residual_of, result_of
from ..mma.shape import offset_advancer
from .stages import (
    ALONE,
    LEAST,
    SPANS,
    TWO,
    WIDE,
    GemvStage,
    cluster_epilogue,
    columns_for,
    fetchers,
    warp_placer,
    widths_of,
)


def spans(layout: PackedLayout, columns: int, newer: bool = True) -> tuple[int, ...]:
    """The numbers of fragments of a row that a stage may have, the largest first.

    32 rows leave no registers for two of them where there are offsets, or on older GPUs.
    """
    return SPANS[1:] if columns > 16 and (layout.has_offset or not newer) else SPANS


@cache
def sum_adder(stage: GemvStage) -> Any:
    """The device function that adds a residual to the sums of the first warp, in shared memory.

    ``more``: a residual and its kind, as epilogue/results.py has them. Nobody needs to wait: a thread adds
    to the sums that it takes from there later (kernels/gemv/stages.py).
    """
    columns, rows, stride, warps = stage.columns, stage.rows, stage.sums, stage.warps
    base, load = ptx.shared_base, residual_loader()
    take_float, put_float = bf16x2.take_float, bf16x2.put_float

    @inlined
    def add(more: Any, row0: Any, m: Any, n: Any) -> None:
        (warp, lane), (residual, kind), last = warp_and_lane(), more, min(uint32(columns), m)
        column = warp
        while column < last:
            for below in range(0, rows, 32):
                row = uint32(lane + uint32(below))
                if uint32(row0 + row) < n:
                    at = uint32(base() + uint32(uint32(column * stride + row) << 2))
                    put_float(at, take_float(at) + load(residual, kind, column, uint32(row0 + row), n))
            column = uint32(column + warps)

    return add


@cache
def epilogue(stage: GemvStage) -> Any:
    """The device function that adds up the sums of the warps, the first warp first, and stores outputs.

    The first block of a tile adds the residual.
    """
    columns, tiles, stride, twice = stage.columns, stage.tiles, stage.sums, stage.fragment_rows > TWO
    share, base, put_float = cluster_epilogue(stage), ptx.shared_base, bf16x2.put_float
    add = sum_adder(stage)

    @inlined
    def put(sums: Any, pair: Any, warp: Any, g: Any, t: Any) -> None:
        for i in range(8 * tiles):  # rows g, g + 8 of a fragment row, columns 2 t, 2 t + 1 of a tile
            row = g + uint32(pair * TWO * ROWS + i // (4 * tiles) * ROWS + i // 2 % 2 * 8)
            column = uint32(i // 4 % tiles * 8 + i % 2) + t * 2
            if column < columns:
                at = (warp * columns + column) * stride + row
                put_float(base() + at * 4, sums[pair * 8 * tiles + i])

    @inlined
    def finish(
        sums: Any, result: Any, more: Any, row0: Any, rank: Any, splits: Any, m: Any, n: Any
    ) -> None:  # fmt: skip
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        if t * 2 < columns:
            put(sums, 0, warp, g, t)
            if twice:
                put(sums, 1, warp, g, t)  # one loop over all would not be unrolled
        cuda.syncthreads()
        if more[0] != 0 and rank == 0:
            add(more, row0, m, n)
        share(result, row0, rank, splits, m, n)

    return finish


@inlined
def nothing(sums: Any) -> None:
    """The sums as they are: each lane has its own."""


def gemv_kernel(word: str, stage: GemvStage, multiply: Any, gather: Any = None) -> Kernel:
    """The kernel of a stage; ``gather`` adds up what lanes have of the same result."""
    length, count, size = stage.length, stage.count, stage.size
    ahead, end, ring, after = count - 1, (count - 1) * length, count * length, offset_advancer(count, length)
    warps, sum_count, fragment_rows = stage.warps, stage.numbers, stage.fragment_rows
    shares, add_up = gather is not None, gather or nothing
    (fetch_weights, fetch_activations), finish = fetchers(stage), epilogue(stage)
    base, commit, wait = ptx.shared_base, ptx.commit, ptx.wait_for_all_but(count - 2)
    let_start, wait_for_predecessor = (
        dependent_launch.let_successor_start, dependent_launch.wait_for_predecessor
    )  # fmt: skip
    place, rows = warp_placer(stage), stage.rows

    def gemv(
        fragments: Any,  # uint8 [fragment rows, spans, fragments of a span, fragment]
        x: Any, x_kind: Any,  # [m, k], of a kind by its place in KINDS; no float32 from 9 rows on
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [m, n]: kernels/epilogue/results.py
        m: Any, n: Any, k: Any, spans: Any, splits: Any,
        residual: Any, residual_kind: Any,  # of y's shape, or 0: kernels/epilogue/results.py
    ) -> None:  # fmt: skip
        warp, lane = warp_and_lane()
        tile, rank, first, stride = place(warp, splits)
        apart = uint64(spans) * size
        w_at = fragments + uint64(tile) * fragment_rows * apart
        warp_at = uint32(base() + uint32(warp * ring) + opaque_zero(spans))
        sums = cuda.local.array(sum_count, float32)
        for i in range(sum_count):
            sums[i] = float32(0)
        let_start()
        for i in range(ahead):
            span = uint32(first + uint32(stride * uint32(i)))
            if span < spans:
                fetch_weights(uint32(warp_at + uint32(i * length)), lane, w_at, apart, span)
        wait_for_predecessor()  # it may have made x, or read y
        for i in range(ahead):
            span = uint32(first + uint32(stride * uint32(i)))
            if span < spans:
                fetch_activations(uint32(warp_at + uint32(i * length)), lane, x, x_kind, span, m, k)
            commit()
        to, here, span = uint32(end), uint32(0), first
        while span < spans:
            wait()
            cuda.syncwarp()  # the stage has arrived for all lanes; none reads the one to fill
            later = uint32(span + uint32(stride * ahead))
            if later < spans:
                fetch_weights(uint32(warp_at + to), lane, w_at, apart, later)
                fetch_activations(uint32(warp_at + to), lane, x, x_kind, later, m, k)
            commit()
            multiply(uint32(warp_at + here), lane, x_kind, sums, opaque_zero(spans))
            to, here = after(to), after(here)
            span = uint32(span + stride)
        if shares:
            add_up(sums)
        cuda.syncthreads()  # the rings are free
        result, more = Result(y, y_kind, bias, bias_kind), (residual, residual_kind)
        finish(sums, result, more, uint32(tile * rows), rank, splits, m, n)

    parameters = (uint64, uint64, uint32, uint64, uint32, uint64, uint32) + (uint32,) * 5 + (uint64, uint32)
    layout, columns, span, small = stage.layout, stage.columns, stage.span, stage.small
    name = (
        f"{word} of {layout.name}, up to {columns} rows, {span} fragments a stage{', small blocks' * small}"
    )
    name += f", {rows} rows of weights" * (fragment_rows > TWO) + ", floats of 16 bits" * stage.narrow
    least = WIDE if small or fragment_rows > TWO or (columns > 16 and span > 1) else LEAST
    sizes: dict[str, Any] = {"threads": 32 * warps, "shared": stage.shared, "least": least}
    return Kernel(name, gemv, *parameters, early=True, blocks=stage.blocks, max_blocks=stage.blocks, **sizes)


def stage_for(
    layout: PackedLayout, m: int, small: bool = False, fragment_rows: int = TWO, narrow: bool = False
) -> GemvStage:
    """The stage of the kernel for ``m`` rows: the largest that this GPU has room for, if there is one."""
    return stage_in(layout, m, device.room(), device.older_than(WIDE) is None, small, fragment_rows, narrow)


@cache
def stage_in(
    layout: PackedLayout,
    m: int,
    room: int | None,
    newer: bool,
    small: bool = False,
    fragment_rows: int = TWO,
    narrow: bool = False,
) -> GemvStage:
    columns = columns_for(m)
    wide, narrow = spans(layout, columns, newer), narrow and True in widths_of(columns)
    stages = [GemvStage(layout, columns, span, small, fragment_rows, narrow) for span in wide]
    return next((s for s in stages if room is None or s.blocks * s.shared <= room), stages[-1])


def refuses_rows(problem: Linear, most: int) -> str | None:
    """The reason why kernels for up to ``most`` rows do not serve a problem, or None."""
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > most:
        return f"takes up to {most} rows of activations"
    if problem.k > LONGEST:
        return f"takes up to {LONGEST} columns"
    card = problem.card
    newer = older_than(card, WIDE) is None
    stage = stage_in(layout_of(problem.format), problem.m, card and card.shared, newer)
    return older_than(card, LEAST) or too_small_for(card, stage.shared)


def split_for(layout: PackedLayout, count: int, k: int, m: int, card: Card | None = None) -> cost.GemvSplit:
    """The split that should take least time on Hopper; elsewhere lone blocks with two fragment rows."""
    card = card or device.card_of(device.current())
    if card.capability != WIDE:
        return cost.GemvSplit(TWO, ALONE)
    shape = cost.GemvShape(layout, count, k, m, card.multiprocessors, card.memory)
    return cost.best_split(shape)[1]


class GemvPlan(NamedTuple):
    """The stage of a warp, and how blocks split a tile."""

    stage: GemvStage
    split: cost.GemvSplit


def plan_for(
    m: int, card: Card, layout: PackedLayout, count: int, k: int, kind: str, split: cost.GemvSplit | None
) -> GemvPlan:  # fmt: skip
    """The plan for ``m`` rows of floats of a kind; ``count``: fragment rows; ``split``: not the best one."""
    split = split or split_for(layout, count, k, m, card)
    small = split.blocks != ALONE
    return GemvPlan(stage_for(layout, m, small, split.fragment_rows, kind != "float32"), split)


def multiply_rows(
    kernel: Callable[..., Kernel],
    x: Any,
    q: QuantArray,
    out: Any,
    split: cost.GemvSplit | None,
    end: Epilogue,
) -> None:
    """Multiply x by the weights into ``out``; ``split``: another split than the best by estimate."""
    m, (n, k) = rows_of(x), q.shape
    if not (m and n and k):
        out.fill(0)
        return
    assert isinstance(q.format, BlockFormat)
    w, card = packed_weights(q), device.card_of(device.current())
    (rows, kind), count = readable_rows(x), w.fragments.shape[0]
    stage, split = decided(plan_for, m, card, w.layout, count, k, kind, split)
    fragment_rows, (splits, most) = split
    assert splits <= stage.most_splits, "shared memory has no place for the sums of so many"
    if kind == "float32" and not stage.floats:
        rows, kind = narrowed(rows, "bfloat16"), "bfloat16"
    facts = stage.columns, stage.span, stage.small, fragment_rows, *(True,) * stage.narrow
    make = kernel(w.layout, *facts)
    tiles = count // fragment_rows
    sizes = (m, n, k, w.fragments.shape[1] // stage.span, splits, *residual_of(end.residual))
    operands = w.fragments, rows, KIND_NUMBERS[kind], *result_of(out, end.bias)
    make((tiles * splits,), (make.threads,), *operands, *sizes, cluster=splits, max_blocks=most)
