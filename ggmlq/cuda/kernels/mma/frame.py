"""The frame of cuda:mma_bf16 and cuda:mma_q8: a tile from the first stage to its results."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ....base.slots import rows_of
from ....dispatch.card import Card
from ....dispatch.epilogue import Epilogue
from ...driver import device
from ...driver.launch import Kernel
from ...driver.recorded import between, decided
from ...intrinsics import dependent_launch, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, uint32, uint64
from ...intrinsics.mma_runs import LINE, PAIR, STEPS, RunForm, RunProducts, run_products
from ...layouts.codes import (
    buffer_sizes,
    can_fold,
    folded_unpacker,
    half_unpacker,
    step_unpacker,
    sub_pairs,
    word_loader,
)
from ...layouts.layout import FRAGMENT_ROWS, ROWS, TILE_ROWS, PackedLayout
from ...layouts.scales import number_loader, scale_loader, scale_value
from ..cost.mma import MmaSplit, best_split
from ..epilogue.results import (
    FOUR,
    NOTHING,
    Result,
    add_partials,
    bias_loader,
    residual_adder,
    residual_of,
    result_of,
    thread_sums,
)
from ..hopper.tiles import MIN_CAPABILITY
from .copies import ROW, WARP_FRAGMENTS, Fetchers, MmaTile, offset_advancer, prologue, refiller, sources

# A step of cuda:mma_bf16: fragment rows of a warp times a stage of activations, added to a lane's totals.


def products_of(layout: PackedLayout, tile: MmaTile, kind: str) -> RunProducts:
    """The device functions for the products of a warp."""
    folded, eights = folds(layout, kind), tile.columns // 8
    steps, runs = (STEPS, layout.runs) if folded else (STEPS // layout.runs, 1)
    offsets = runs if layout.has_offset else 0
    return run_products(RunForm(kind, WARP_FRAGMENTS, eights, steps, offsets, tile.warps, tile.columns))


def folds(layout: PackedLayout, kind: str) -> bool:
    """True where sub-scales are multiplied into the codes."""
    return kind == "float16" and can_fold(layout)


@cache
def run_codes(layout: PackedLayout, kind: str) -> Any:
    """The device function for the codes of a run of both fragment rows of a warp, as a tuple."""
    unpack_step = half_unpacker(layout) if kind == "float16" else step_unpacker(layout)

    @inlined
    def step_codes(words: Any, step: Any, opaque: Any) -> Any:
        a = cuda.local.array(4, uint32)
        unpack_step(words, step, a, opaque)
        return a[0], a[1], a[2], a[3]

    @inlined
    def of_one_step(w0: Any, w1: Any, run: Any, opaque: Any) -> Any:
        return step_codes(w0, run, opaque) + step_codes(w1, run, opaque)

    @inlined
    def of_two_steps(w0: Any, w1: Any, run: Any, opaque: Any) -> Any:
        first = step_codes(w0, 2 * run, opaque) + step_codes(w0, 2 * run + 1, opaque)
        return first + step_codes(w1, 2 * run, opaque) + step_codes(w1, 2 * run + 1, opaque)

    return of_one_step if layout.runs == 4 else of_two_steps


@cache
def lane_places(steps: int) -> Any:
    """The device function for the places of a run's activations in a lane's row, as a tuple."""

    @inlined
    def place(x_at: Any, t: Any, swap: Any, step: Any) -> Any:
        return uint32(x_at + (((2 * step + (t >> 1)) ^ swap) << 4))

    @inlined
    def of_one_step(x_at: Any, t: Any, swap: Any, run: Any) -> Any:
        return (place(x_at, t, swap, run),)

    @inlined
    def of_two_steps(x_at: Any, t: Any, swap: Any, run: Any) -> Any:
        return place(x_at, t, swap, 2 * run), place(x_at, t, swap, 2 * run + 1)

    return of_one_step if steps == 1 else of_two_steps


@cache
def activation_summer(layout: PackedLayout, tile: MmaTile, kind: str) -> Any:
    """The device function that leaves the sums of a stage's activations in shared memory, for all warps."""
    put_sums, of_two = products_of(layout, tile, kind).put_sums, lane_places(2)
    most = min(tile.columns // 8, tile.warps)  # with few rows two warps sum the same

    @inlined
    def sum_up(x_at: Any, to: Any, warp: Any, g: Any, t: Any, swap: Any) -> None:
        eight = warp % most
        at = uint32(x_at + eight * LINE)
        places = of_two(at, t, swap, 0) + of_two(at, t, swap, 1)
        put_sums(places, uint32(to + eight * PAIR), uint32(1) if g == 0 else uint32(0))
        cuda.syncthreads()

    return sum_up


@cache
def multiplier(layout: PackedLayout, tile: MmaTile, kind: str) -> Any:
    """The device function that adds one step to a lane's totals; ``sums_at``: behind the stages."""
    fragment_bytes, weights_at = layout.fragment_bytes, FRAGMENT_ROWS * layout.fragment_bytes
    has_offset, (words_count, _) = layout.has_offset, buffer_sizes(layout)
    load_words = word_loader(layout)
    sum_up: Any = activation_summer(layout, tile, kind) if has_offset else None
    multiply_runs = (folded_multiplier if folds(layout, kind) else run_multiplier)(layout, tile, kind)

    @inlined
    def multiply(at: Any, sums_at: Any, warp: Any, lane: Any, totals: Any, opaque: Any) -> Any:
        g, t = g_and_t(lane)
        swap, row_of_x = (g & 3) << 1, at + weights_at + (t & 1) * 8
        x_at, sums_at = uint32(row_of_x + g * ROW), uint32(sums_at + t * 8)
        if has_offset:
            sum_up(x_at, sums_at, warp, g, t, swap)
        w_at = uint32(at + warp * (WARP_FRAGMENTS * fragment_bytes))
        lane_at = x_at, t, swap, sums_at
        w0, w1 = cuda.local.array(words_count, uint32), cuda.local.array(words_count, uint32)
        load_words(w_at, lane, w0)
        load_words(uint32(w_at + fragment_bytes), lane, w1)
        return multiply_runs(totals, w0, w1, w_at, lane, lane_at, opaque)

    return multiply


@cache
def run_multiplier(layout: PackedLayout, tile: MmaTile, kind: str) -> Any:
    """The device function that adds one run after the other, each with its scales."""
    runs, scales, has_offset, columns = layout.runs, layout.scales, layout.has_offset, tile.columns
    fragment_bytes, (_, scales_count) = layout.fragment_bytes, buffer_sizes(layout)
    load_scales, codes_of = scale_loader(layout), run_codes(layout, kind)
    places_of, add = lane_places(STEPS // runs), products_of(layout, tile, kind).multiply

    @inlined
    def of_rows(f0: Any, f1: Any, at: Any) -> Any:
        return float32(f0[at]), float32(f0[scales + at]), float32(f1[at]), float32(f1[scales + at])

    @inlined
    def turned(f0: Any, f1: Any, at: Any) -> Any:
        return -float32(f0[at]), -float32(f0[scales + at]), -float32(f1[at]), -float32(f1[scales + at])

    offsets_of, offsets_from = (turned, runs) if has_offset else (of_rows, 0)

    @inlined
    def add_run(totals: Any, run: Any, w0: Any, w1: Any, f0: Any, f1: Any, lane_at: Any, opaque: Any) -> Any:
        x_at, t, swap, sums_at = lane_at
        codes, places = codes_of(w0, w1, run, opaque), places_of(x_at, t, swap, run)
        scales_of_rows, offsets = of_rows(f0, f1, run), offsets_of(f0, f1, offsets_from + run)
        at = uint32(sums_at + 4 * columns * run)
        return add(totals, codes, scales_of_rows, offsets, places, at)

    @inlined
    def multiply(totals: Any, w0: Any, w1: Any, w_at: Any, lane: Any, lane_at: Any, opaque: Any) -> Any:
        f0, f1 = cuda.local.array(scales_count, float32), cuda.local.array(scales_count, float32)
        load_scales(w_at, lane, f0)
        load_scales(uint32(w_at + fragment_bytes), lane, f1)
        totals = add_run(totals, 0, w0, w1, f0, f1, lane_at, opaque)  # a loop would not be unrolled
        if has_offset:
            cuda.syncwarp()  # else both runs' scales are in registers at one time, which are too few
        totals = add_run(totals, 1, w0, w1, f0, f1, lane_at, opaque)
        if runs == 4:
            totals = add_run(totals, 2, w0, w1, f0, f1, lane_at, opaque)
            totals = add_run(totals, 3, w0, w1, f0, f1, lane_at, opaque)
        return totals

    return multiply


@cache
def folded_multiplier(layout: PackedLayout, tile: MmaTile, kind: str) -> Any:
    """The device function that adds all runs at once: their sub-scales are multiplied into the codes."""
    count, each, has_offset = layout.half_words + layout.sub_words, STEPS // layout.runs, layout.has_offset
    fragment_bytes, unit, two, four = (
        layout.fragment_bytes,
        np.float32(layout.unit),
        lane_places(2),
        layout.runs == 4,
    )
    load_numbers, pairs_of, offset = number_loader(layout), sub_pairs(layout), scale_value(layout)
    unpack_step, half, add = folded_unpacker(layout), ptx.half_value, products_of(layout, tile, kind).multiply

    @inlined
    def step_codes(words: Any, step: Any, numbers: Any, opaque: Any) -> Any:
        a = cuda.local.array(4, uint32)
        unpack_step(words, step, a, opaque, pairs_of(numbers, step // each))
        return uint32(a[0]), uint32(a[1]), uint32(a[2]), uint32(a[3])

    @inlined
    def all_codes(words: Any, numbers: Any, opaque: Any) -> Any:
        first = step_codes(words, 0, numbers, opaque) + step_codes(words, 1, numbers, opaque)
        return first + step_codes(words, 2, numbers, opaque) + step_codes(words, 3, numbers, opaque)

    @inlined
    def scales(numbers: Any) -> Any:
        low, high = half(numbers[0] & uint32(0xFFFF)), half(numbers[0] >> uint32(16))
        return float32(low * unit), float32(high * unit)

    @inlined
    def turned(numbers: Any, run: Any) -> Any:
        return -float32(offset(numbers, 0, 1, run)), -float32(offset(numbers, 1, 1, run))

    @inlined
    def offsets_of(n0: Any, n1: Any) -> Any:
        offsets = turned(n0, 0) + turned(n1, 0) + turned(n0, 1) + turned(n1, 1)
        if four:
            return offsets + turned(n0, 2) + turned(n1, 2) + turned(n0, 3) + turned(n1, 3)
        return offsets

    @inlined
    def no_offsets(n0: Any, n1: Any) -> Any:
        return scales(n0) + scales(n1)

    offsets = offsets_of if has_offset else no_offsets

    @inlined
    def multiply(totals: Any, w0: Any, w1: Any, w_at: Any, lane: Any, lane_at: Any, opaque: Any) -> Any:
        n0, n1 = cuda.local.array(count, uint32), cuda.local.array(count, uint32)
        load_numbers(w_at, lane, n0)
        load_numbers(uint32(w_at + uint32(fragment_bytes)), lane, n1)
        x_at, t, swap, sums_at = lane_at
        codes, places = all_codes(w0, n0, opaque) + all_codes(w1, n1, opaque), two(x_at, t, swap, 0)
        places = places + two(x_at, t, swap, 1)
        return add(totals, codes, scales(n0) + scales(n1), offsets(n0, n1), places, sums_at)

    return multiply


class MmaParts(NamedTuple):
    """Device functions of a product."""

    place: Callable[..., Any]  # (x, m0, m, k, lane) -> the x of ``fetch``
    fetch: Fetchers
    zeros: Callable[..., Any]  # () -> totals
    constants: Callable[..., Any]  # (lane, an opaque zero) -> numbers that stay in registers
    multiply: Callable[..., Any]  # (stage, end of the stages, warp, lane, totals, constants) -> totals
    fragment: tuple[Callable[..., Any], ...]  # by fragment: (totals) -> its part of them


@cache
def storer(columns: int, fragment: tuple[Callable[..., Any], ...]) -> Any:
    """The device function that writes a lane's results, or its partial sums, of ``columns`` columns.

    ``more``: a residual and its kind, as kernels/epilogue/results.py has them.
    """
    ends, load_bias, add, nothing = (
        thread_sums(columns),
        bias_loader(),
        residual_adder(columns, False),
        NOTHING,
    )
    write, write16 = ends.write, ends.write16
    first_fragment, second_fragment = fragment

    @inlined
    def store_fragment(sums: Any, result: Any, more: Any, column: Any, row: Any, m: Any, n: Any) -> None:
        residual, kind = more
        low, high = load_bias(result, row, n), load_bias(result, uint32(row + ROWS // 2), n)
        if residual != 0:
            sums = add(sums, residual, kind, column, row, m, n, low, high)
            low, high = nothing, nothing
        if result.kind == 0:
            write(sums, result.at, column, row, m, n, low, high)
        else:
            write16(sums, result.at, column, row, m, n, low, high, uint32(result.kind - 1))

    @inlined
    def store(totals: Any, result: Any, more: Any, column: Any, row: Any, m: Any, n: Any) -> None:
        store_fragment(first_fragment(totals), result, more, column, row, m, n)
        store_fragment(second_fragment(totals), result, more, column, uint32(row + ROWS), m, n)

    return store


def tile_kernel(name: str, layout: PackedLayout, tile: MmaTile, parts: MmaParts) -> Kernel:
    """The kernel: block (row of tiles, tile of activations, part of the columns)."""
    length, stages, fragment_bytes = tile.stage(layout), tile.stages(layout), layout.fragment_bytes
    ahead, end, of_activations = stages - 1, (stages - 1) * length, parts.place
    of_weights = sources(layout, tile).weights
    start, after = prologue(parts.fetch, ahead, length), offset_advancer(stages, length)
    refill = refiller(parts.fetch, ptx.wait_for_all_but(stages - 2))
    multiply, zeros, constants_of = parts.multiply, parts.zeros, parts.constants
    store = storer(tile.columns, parts.fragment)
    base, let_successor_start = ptx.shared_base, dependent_launch.let_successor_start
    rows, columns = WARP_FRAGMENTS * ROWS, tile.columns

    def product(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        x: Any,  # activations, as ``parts`` take them
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [splits, m, n]: kernels/epilogue/results.py
        m: Any, n: Any, k: Any, steps: Any,
        residual: Any, residual_kind: Any,  # of y's shape, or 0: kernels/epilogue/results.py
    ) -> None:  # fmt: skip
        (warp, lane), part, splits = warp_and_lane(), uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
        m0 = uint32(cuda.blockIdx.y) * columns
        apart = uint64(steps) * fragment_bytes
        first = uint32(uint32(part * steps) // splits)
        last = uint32(uint32((part + 1) * steps) // splits)
        w_at = of_weights(fragments, uint32(cuda.blockIdx.x) * FRAGMENT_ROWS, steps, warp, lane)
        x = of_activations(x, m0, m, k, lane)
        opaque, totals = (base() + lane * 16) >> 16 & 0x8000, zeros()
        constants = constants_of(lane, opaque)
        start(base(), w_at, apart, x, m0, first, last, m, k)
        here, step, behind = uint32(0), first, uint32(base() + (end + length))
        while step < last:
            to = end if here == 0 else uint32(here - length)
            refill(uint32(base() + to), w_at, apart, x, m0, uint32(step + ahead), last, m, k)
            totals = multiply(uint32(base() + here), behind, warp, lane, totals, constants)
            here, step = after(here), uint32(step + 1)
        let_successor_start()  # not before: its blocks would come between those of this one
        g, t = g_and_t(lane)
        row = uint32(cuda.blockIdx.x) * TILE_ROWS + warp * rows
        result = Result(y + uint64(part) * m * n * 4, y_kind, bias, bias_kind)
        column, more = uint32(m0 + t * 2), (residual, residual_kind)
        store(totals, result, more, column, uint32(row + g), m, n)

    parameters = (uint64,) * 3 + (uint32, uint64) + (uint32,) * 5 + (uint64, uint32)
    return Kernel(
        name, product, *parameters,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout), least=MIN_CAPABILITY,
        early=True, limits_blocks=True,
    )  # fmt: skip


class MmaPlan(NamedTuple):
    """A tile, the grid of its blocks, and how many of them a multiprocessor holds."""

    tile: MmaTile
    grid: tuple[int, int, int]  # the last are the parts of K
    beside: int


def plan_tiles(
    m: int, card: Card, layout: PackedLayout, kind: str, n: int, steps: int, split: MmaSplit | None = None
) -> MmaPlan:  # fmt: skip
    """The plan of a product with activations of a kind; ``split``: another tile and split than the best."""
    tile, splits = split or best_split(card, layout, kind, m, n, steps)
    grid = -(-n // TILE_ROWS), -(-m // tile.columns), splits
    # A multiprocessor with room for more would take them from others, where there are few blocks.
    return MmaPlan(tile, grid, min(tile.blocks, -(-math.prod(grid) // device.multiprocessors())))


def plan_for(
    out: Any, fragments: Any, layout: PackedLayout, kind: str, split: MmaSplit | None
) -> MmaPlan:  # fmt: skip
    """The plan of :func:`plan_tiles` for a result on the current device, decided for its rows."""
    card, facts = device.card_of(device.current()), (out.shape[1], fragments.shape[1])
    plan: MmaPlan = decided(plan_tiles, rows_of(out), card, layout, kind, *facts, split)
    return plan


def launch_tiles(
    make: Callable[..., Any], plan: MmaPlan, fragments: Any, x: Any, k: int, out: Any, end: Epilogue
) -> None:  # fmt: skip
    """Launch the kernel of a plan's tile, and add up partial sums; ``k``: as its parts take it."""
    m, n, steps, result = rows_of(out), out.shape[1], fragments.shape[1], result_of(out, end.bias)
    residual, (tile, grid, beside) = residual_of(end.residual), plan
    block, splits = (tile.threads,), grid[-1]
    if splits == 1:
        make(grid, block, fragments, x, *result, m, n, k, steps, *residual, max_blocks=beside)
        return
    wide = -(-n // FOUR) * FOUR
    partials = between((splits, m, wide), np.float32)
    sums, none = result_of(partials, None), residual_of(None)
    make(grid, block, fragments, x, *sums, m, wide, k, steps, *none, max_blocks=beside)
    add_partials(partials, result, m, n, residual)
