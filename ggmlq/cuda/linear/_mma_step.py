"""A step of cuda:mma_bf16: fragment rows of a warp times a stage of activations, added to a lane's totals."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t
from ..intrinsics.language import cuda, float32, uint32
from ..intrinsics.mma_runs import LINE, PAIR, STEPS, RunForm, RunProducts, run_products
from ..packed.codes import (
    buffer_sizes,
    can_fold,
    folded_unpacker,
    half_unpacker,
    step_unpacker,
    sub_pairs,
    word_loader,
)
from ..packed.layout import FRAGMENT_ROWS, PackedLayout
from ..packed.scales import number_loader, scale_loader, scale_value
from ..rings.mma_copies import ROW, WARP_FRAGMENTS, MmaTile


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
        return uint32(a[0]), uint32(a[1]), uint32(a[2]), uint32(a[3])

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
        return uint32(x_at + (((uint32(2 * step) + (t >> uint32(1))) ^ swap) << uint32(4)))

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
        eight = warp % uint32(most)
        at = uint32(x_at + eight * uint32(LINE))
        places = of_two(at, t, swap, 0) + of_two(at, t, swap, 1)
        put_sums(places, uint32(to + eight * uint32(PAIR)), uint32(1) if g == uint32(0) else uint32(0))
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
        swap, row_of_x = (g & uint32(3)) << uint32(1), at + uint32(weights_at) + (t & uint32(1)) * uint32(8)
        x_at, sums_at = uint32(row_of_x + g * uint32(ROW)), uint32(sums_at + t * uint32(8))
        if has_offset:
            sum_up(x_at, sums_at, warp, g, t, swap)
        w_at = uint32(at + warp * uint32(WARP_FRAGMENTS * fragment_bytes))
        lane_at = x_at, t, swap, sums_at
        w0, w1 = cuda.local.array(words_count, uint32), cuda.local.array(words_count, uint32)
        load_words(w_at, lane, w0)
        load_words(uint32(w_at + uint32(fragment_bytes)), lane, w1)
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
        at = uint32(sums_at + uint32(4 * columns * run))
        return add(totals, codes, scales_of_rows, offsets, places, at)

    @inlined
    def multiply(totals: Any, w0: Any, w1: Any, w_at: Any, lane: Any, lane_at: Any, opaque: Any) -> Any:
        f0, f1 = cuda.local.array(scales_count, float32), cuda.local.array(scales_count, float32)
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
