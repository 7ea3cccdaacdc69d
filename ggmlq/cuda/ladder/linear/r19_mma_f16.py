"""Many rows with sums of halves: twice the rate on cards whose tensor cores sum floats slowly.

Changed from mma_bf16: ``mma`` adds the products of one run, 32 columns or 16, as halves. Each such sum
becomes float32 where it is scaled (intrinsics/mma_runs.py), so no more than two roundings of a half are in
it. Tensor cores of a GeForce card sum in float32 at half their speed; this is the whole. So that no sum
overflows, each row of activations is multiplied with a power of two first (layouts/x_tiles.py), and
its results with the inverse.

The arithmetic is ``f16r``, with an error of about 1e-7 of the result, in squares (docs/cards.md).

Limited, on an H200, by the conversions: two beside each ``mma``, which is no faster there.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ....arrays.array import QuantArray
from ....dispatch.epilogue import PLAIN, Epilogue
from ....dispatch.ladder import register
from ...driver.launch import Kernel, family
from ...intrinsics import dependent_launch, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, uint32, uint64
from ...intrinsics.mma_runs import STEPS, HalfProducts, RunForm, half_products
from ...kernels.cost.mma import HALF_SUMS, MmaSplit, tiles_of
from ...kernels.epilogue.results import Result
from ...kernels.hopper.tiles import MIN_CAPABILITY, refuses_shape
from ...kernels.mma.copies import (
    ROW,
    WARP_FRAGMENTS,
    MmaTile,
    fetchers,
    offset_advancer,
    prologue,
    refiller,
    sources,
)
from ...kernels.mma.frame import activation_summer, lane_places, launch_tiles, plan_for, run_codes, storer
from ...layouts.codes import buffer_sizes, word_loader
from ...layouts.layout import FRAGMENT_ROWS, ROWS, TILE_ROWS, PackedLayout, layouts
from ...layouts.pack import packed_weights
from ...layouts.scales import scale_loader
from ...layouts.x_tiles import half_rows_of

# A step of cuda:mma_f16: fragment rows of a warp times a stage of halves, added to a lane's totals.
#
# Where weights have offsets, the middle of the codes is taken off them: sums of codes from 0 on would be
# large, and offsets would take most of them off again, but not their roundings.

KIND = "float16"  # of activations that are multiplied


def centred(layout: PackedLayout) -> PackedLayout:
    """The layout whose codes are multiplied: those around 0."""
    return replace(layout, lowest=-layout.middle) if layout.has_offset else layout


def products_of(layout: PackedLayout, tile: MmaTile) -> HalfProducts:
    """The device functions for the products of a warp."""
    eights, steps = tile.columns // 8, STEPS // layout.runs
    return half_products(
        RunForm(KIND, WARP_FRAGMENTS, eights, steps, int(layout.has_offset), tile.warps, tile.columns)
    )


@cache
def run_adder(layout: PackedLayout, tile: MmaTile) -> Any:
    """The device function that adds a run to a lane's totals."""
    scales, runs, has_offset, columns = layout.scales, layout.runs, layout.has_offset, tile.columns
    codes_of, places_of = run_codes(centred(layout), KIND), lane_places(STEPS // runs)
    add, middle, fma = products_of(layout, tile).multiply, np.float32(layout.middle), ptx.fma

    @inlined
    def of_rows(f0: Any, f1: Any, at: Any) -> Any:
        return float32(f0[at]), float32(f0[scales + at]), float32(f1[at]), float32(f1[scales + at])

    @inlined
    def turned(f0: Any, f1: Any, run: Any) -> Any:
        (s0, s1, s2, s3), (o0, o1, o2, o3) = of_rows(f0, f1, run), of_rows(f0, f1, runs + run)
        low, high = fma(middle, s0, -o0), fma(middle, s1, -o1)
        return low, high, fma(middle, s2, -o2), fma(middle, s3, -o3)

    @inlined
    def add_run(totals: Any, run: Any, w0: Any, w1: Any, f0: Any, f1: Any, lane_at: Any, opaque: Any) -> Any:
        x_at, t, swap, sums_at = lane_at
        codes, places = codes_of(w0, w1, run, opaque), places_of(x_at, t, swap, run)
        factors = of_rows(f0, f1, run)
        offsets = turned(f0, f1, run) if has_offset else factors
        return add(totals, codes, factors, offsets, places, uint32(sums_at + 4 * columns * run))

    return add_run


@cache
def multiplier(layout: PackedLayout, tile: MmaTile) -> Any:
    """The device function that adds one step to a lane's totals; ``sums_at``: behind the stages."""
    fragment_bytes, weights_at = layout.fragment_bytes, FRAGMENT_ROWS * layout.fragment_bytes
    has_offset, (words_count, scales_count), runs = layout.has_offset, buffer_sizes(layout), layout.runs
    load_words, load_scales, add_run = word_loader(layout), scale_loader(layout), run_adder(layout, tile)
    sum_up: Any = activation_summer(layout, tile, KIND) if has_offset else None

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
        f0, f1 = cuda.local.array(scales_count, float32), cuda.local.array(scales_count, float32)
        load_words(w_at, lane, w0)
        load_words(uint32(w_at + fragment_bytes), lane, w1)
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


MOST = 65504  # the largest half


@family(lambda: ((layout, tile) for layout in layouts() for tile in tiles_of(layout, HALF_SUMS)))
def kernel(layout: PackedLayout, tile: MmaTile) -> Kernel:
    """The kernel: block (row of tiles, tile of activations, part of the columns), as mma/frame.py has it."""
    length, stages, fragment_bytes = tile.stage(layout), tile.stages(layout), layout.fragment_bytes
    ahead, end, columns, rows = stages - 1, (stages - 1) * length, tile.columns, WARP_FRAGMENTS * ROWS
    fetch, of_weights, of_activations = fetchers(layout, tile), *sources(layout, tile)
    start, after = prologue(fetch, ahead, length), offset_advancer(stages, length)
    refill, products = refiller(fetch, ptx.wait_for_all_but(stages - 2)), products_of(layout, tile)
    multiply, zeros, scaled = multiplier(layout, tile), products.zeros, products.scaled
    store, base = storer(columns, products.fragment), ptx.shared_base
    let_successor_start = dependent_launch.let_successor_start

    def product(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        x: Any, factors: Any,  # float16 [m, k], and float32 of each row
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
        start(base(), w_at, apart, x, m0, first, last, m, k)
        here, step, behind = uint32(0), first, uint32(base() + (end + length))
        while step < last:
            to = end if here == 0 else uint32(here - length)
            refill(uint32(base() + to), w_at, apart, x, m0, uint32(step + ahead), last, m, k)
            totals = multiply(uint32(base() + here), behind, warp, lane, totals, opaque)
            here, step = after(here), uint32(step + 1)
        let_successor_start()  # not before: its blocks would come between those of this one
        g, t = g_and_t(lane)
        row = uint32(cuda.blockIdx.x) * TILE_ROWS + warp * rows
        column = uint32(m0 + t * 2)
        totals = scaled(totals, factors + uint64(column) * 4)
        result = Result(y + uint64(part) * m * n * 4, y_kind, bias, bias_kind)
        store(totals, result, (residual, residual_kind), column, uint32(row + g), m, n)

    parameters = (uint64,) * 4 + (uint32, uint64) + (uint32,) * 5 + (uint64, uint32)
    return Kernel(
        f"mma_f16 of {layout.name}, {tile}", product, *parameters,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout), least=MIN_CAPABILITY,
        early=True, limits_blocks=True,
    )  # fmt: skip


def top_of(layout: PackedLayout) -> int:
    """The power of two below which activations are, so that no sum of a run reaches the largest half."""
    if layout.levels:
        code = max(map(abs, layout.levels))
    elif layout.low == 8:
        code = 128
    else:
        lowest = centred(layout).lowest
        code = max(-lowest, (1 << layout.bits) - 1 + lowest)
    return math.floor(math.log2(MOST / (ROWS * STEPS // layout.runs * code)))


@register(
    __name__, __doc__, arithmetic="f16r", accumulate="f16", refuses=refuses_shape, narrow=True,
    repeats=True, ends=True, adds=True,
)  # fmt: skip
def launch(
    x: Any, q: QuantArray, out: Any, split: MmaSplit | None = None, end: Epilogue = PLAIN
) -> None:  # fmt: skip
    """Multiply x by the weights into ``out``; ``split``: another tile and split than the best by estimate."""
    if not (x.size and out.size):
        out.fill(0)
        return
    w, k = packed_weights(q), q.shape[1]
    plan = plan_for(out, w.fragments, w.layout, HALF_SUMS, split)
    rows, factors = half_rows_of(x, plan.tile.columns, top_of(w.layout))
    run = kernel(w.layout, plan.tile)

    def make(grid: Any, block: Any, fragments: Any, rows: Any, *more: Any, max_blocks: int) -> None:
        run(grid, block, fragments, rows, factors, *more, max_blocks=max_blocks)

    launch_tiles(make, plan, w.fragments, rows, k, out, end)
