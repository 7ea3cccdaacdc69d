"""A step of cuda:mma_f16: fragment rows of a warp times a stage of halves, added to a lane's totals.

Where weights have offsets, the middle of the codes is taken off them: sums of codes from 0 on would be large,
and offsets would take most of them off again, but not their roundings.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.half_runs import HalfProducts, half_products
from ..intrinsics.lane import g_and_t
from ..intrinsics.language import cuda, float32, uint32
from ..intrinsics.mma_runs import STEPS, RunForm
from ..packed.codes import buffer_sizes, word_loader
from ..packed.layout import FRAGMENT_ROWS, PackedLayout
from ..packed.scales import scale_loader
from ..rings.mma_copies import ROW
from ..rings.mma_tile import WARP_FRAGMENTS, MmaTile
from ._mma_step import activation_summer, lane_places, run_codes

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
        return add(totals, codes, factors, offsets, places, uint32(sums_at + uint32(4 * columns * run)))

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
        swap, row_of_x = (g & uint32(3)) << uint32(1), at + uint32(weights_at) + (t & uint32(1)) * uint32(8)
        x_at, sums_at = uint32(row_of_x + g * uint32(ROW)), uint32(sums_at + t * uint32(8))
        if has_offset:
            sum_up(x_at, sums_at, warp, g, t, swap)
        w_at = uint32(at + warp * uint32(WARP_FRAGMENTS * fragment_bytes))
        lane_at = x_at, t, swap, sums_at
        w0, w1 = cuda.local.array(words_count, uint32), cuda.local.array(words_count, uint32)
        f0, f1 = cuda.local.array(scales_count, float32), cuda.local.array(scales_count, float32)
        load_words(w_at, lane, w0)
        load_words(uint32(w_at + uint32(fragment_bytes)), lane, w1)
        load_scales(w_at, lane, f0)
        load_scales(uint32(w_at + uint32(fragment_bytes)), lane, f1)
        totals = add_run(totals, 0, w0, w1, f0, f1, lane_at, opaque)  # a loop would not be unrolled
        if has_offset:
            cuda.syncwarp()  # else both runs' scales are in registers at one time, which are too few
        totals = add_run(totals, 1, w0, w1, f0, f1, lane_at, opaque)
        if runs == 4:
            totals = add_run(totals, 2, w0, w1, f0, f1, lane_at, opaque)
            totals = add_run(totals, 3, w0, w1, f0, f1, lane_at, opaque)
        return totals

    return multiply
