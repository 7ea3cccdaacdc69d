"""Many rows: tiles of activations that all warps of a block share, and a ring that four warps fill.

Changed from gemv: its warps read all activations again for each two fragment rows. Here four warps make
128 rows of outputs from one tile of up to 128 rows of activations, which all warps read in the same
stages of shared memory (rings/ring.py), with one barrier a step. A weight is decoded once for a tile.
Activations of 16 bits are read as they lie, and multiplied as what they are: codes are exact in float16 and
in bfloat16. Where there are few tiles the columns are split among blocks too, and a second, small kernel
adds the partial sums in a fixed order (epilogue/split_sums.py).

A sum of one run is scaled once for 16 or 32 columns: one multiply-add an output
(intrinsics/mma_runs.py). The rest is exact: integer codes, sums in float32. Where weights have offsets, each
warp sums a part of the tile's activations for all.

Limited by ``mma.sync``, which reaches under two thirds of what Hopper's wgmma does, and by the multiply-adds
of scales: two beside each mma.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.epilogue import PLAIN, Epilogue
from ...dispatch.ladder import register
from ..activations.floats import narrowed
from ..activations.x_tiles import readable_rows
from ..cost.mma import MmaSplit, best_split
from ..epilogue.results import bias_loader, result_of
from ..epilogue.split_sums import FOUR, add_partials
from ..epilogue.thread_sums import thread_sums
from ..intrinsics import bf16x2, dependent_launch, ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, opaque_zero, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..intrinsics.mma_runs import LINE, PAIR, STEPS, RunForm, RunProducts, run_products
from ..machine import device
from ..machine.launch import Kernel, family
from ..machine.recorded import between
from ..packed.code_halves import can_fold, folded_unpacker, half_unpacker, sub_pairs
from ..packed.codes import buffer_sizes, step_unpacker, word_loader
from ..packed.layout import FRAGMENT_ROWS, ROWS, STEP, TILE_ROWS, PackedLayout, layouts
from ..packed.pack import packed_weights
from ..packed.scales import number_loader, scale_loader, scale_value
from ..rings.mma_tile import ROOMS, TILES, WARP_FRAGMENTS, MmaTile
from ..rings.ring import Fetchers, offset_advancer, prologue, refiller
from ..warp_specialized.problems import LEAST, refuses_shape

ROW = 2 * STEP  # bytes of a row of activations in a stage
NARROW = "float16", "bfloat16"  # kinds of activations that are multiplied


def products_of(layout: PackedLayout, tile: MmaTile, kind: str) -> RunProducts:
    """The device functions for the products of a warp."""
    folded, eights = folds(layout, kind), tile.warp_columns // 8
    steps, runs = (STEPS, layout.runs) if folded else (STEPS // layout.runs, 1)
    offsets = runs if layout.has_offset else 0
    return run_products(RunForm(kind, WARP_FRAGMENTS, eights, steps, offsets, tile.warps, tile.columns))


def folds(layout: PackedLayout, kind: str) -> bool:
    """True where sub-scales are multiplied into the codes."""
    return kind == "float16" and can_fold(layout)


@cache
def fetchers(layout: PackedLayout, tile: MmaTile) -> Fetchers:
    """The device functions that start the copies of one stage: of weights, and of activations.

    A row of activations is eight chunks of 16 bytes; chunk c of row r lies at c ^ 2 (r % 4), so the eight
    bytes of each lane come without a bank conflict.
    """
    fragment_bytes, chunks, columns = layout.fragment_bytes, layout.fragment_bytes // 16, tile.columns
    rows_together, warp_rows = tile.threads // 8, FRAGMENT_ROWS // tile.warps
    weights_at = FRAGMENT_ROWS * fragment_bytes
    copy16, copy16_or_zeros = ptx.copy16, bf16x2.copy16_or_zeros

    @inlined
    def fetch_weights(at: Any, w_at: Any, apart: Any, step: Any) -> None:
        warp, lane = warp_and_lane()
        warp_row = warp * uint32(warp_rows)
        to = at + warp_row * uint32(fragment_bytes) + lane * uint32(16)
        source = address(w_at + uint64(warp_row) * apart, step, fragment_bytes, lane * uint32(16), 1)
        for fragment_row in range(warp_rows):
            for first in range(0, chunks, 32):
                if lane + uint32(first) < uint32(chunks):
                    place = uint32(fragment_row * fragment_bytes + 16 * first)
                    copy16(to + place, source + uint64(fragment_row) * apart + uint64(16 * first))

    @inlined
    def fetch_activations(at: Any, x: Any, m0: Any, step: Any, m: Any, k: Any) -> None:
        thread, opaque = uint32(cuda.threadIdx.x), step >> uint32(31)  # else addresses of all rows are kept
        row, chunk = thread >> uint32(3), thread & uint32(7)
        column = uint32(step * uint32(STEP) + chunk * uint32(8))
        length = uint32(16) if column < k else uint32(0)
        column = column if column < k else uint32(0)
        to = at + row * uint32(ROW) + ((chunk ^ (row & uint32(3)) << uint32(1)) << uint32(4))
        first_row, last_row = uint32(m0 + row | opaque), uint32(m - uint32(1))
        for i in range(0, columns, rows_together):
            # rows beyond the last are multiplied and thrown away
            source_row = min(uint32(first_row + uint32(i)), last_row)
            target = uint32(to + uint32(weights_at + i * ROW))
            copy16_or_zeros(target, x + uint64(uint32(source_row * k + column)) * uint64(2), length)

    return fetch_weights, fetch_activations


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
    load_words, down, warp_columns = word_loader(layout), FRAGMENT_ROWS // WARP_FRAGMENTS, tile.warp_columns
    sum_up = activation_summer(layout, tile, kind) if has_offset else None
    multiply_runs = (folded_multiplier if folds(layout, kind) else run_multiplier)(layout, tile, kind)

    @inlined
    def multiply(at: Any, sums_at: Any, warp: Any, lane: Any, totals: Any, opaque: Any) -> Any:
        g, t = g_and_t(lane)
        swap, row_of_x = (g & uint32(3)) << uint32(1), at + uint32(weights_at) + (t & uint32(1)) * uint32(8)
        x_at, sums_at = uint32(row_of_x + g * uint32(ROW)), uint32(sums_at + t * uint32(8))
        if has_offset:
            sum_up(x_at, sums_at, warp, g, t, swap)
        part = warp // uint32(down) * uint32(warp_columns)
        w_at = uint32(at + warp % uint32(down) * uint32(WARP_FRAGMENTS * fragment_bytes))
        lane_at = uint32(x_at + part * uint32(ROW)), t, swap, uint32(sums_at + part * uint32(4))
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
    fragment_bytes, unit, two, four = layout.fragment_bytes, np.float32(layout.unit), lane_places(2), layout.runs == 4
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


@cache
def storer(layout: PackedLayout, tile: MmaTile, kind: str) -> Any:
    """The device function that writes a lane's results, or its partial sums."""
    ends, load_bias = thread_sums(tile.warp_columns), bias_loader()
    write, write16 = ends.write, ends.write16
    first_fragment, second_fragment = products_of(layout, tile, kind).fragment

    @inlined
    def store_fragment(sums: Any, result: Any, column: Any, row: Any, m: Any, n: Any) -> None:
        y, y_kind, _, _ = result
        low, high = load_bias(result, row, n), load_bias(result, uint32(row + uint32(ROWS // 2)), n)
        if y_kind == uint32(0):
            write(sums, y, column, row, m, n, low, high)
        else:
            write16(sums, y, column, row, m, n, low, high, uint32(y_kind - uint32(1)))

    @inlined
    def store(totals: Any, result: Any, column: Any, row: Any, m: Any, n: Any) -> None:
        store_fragment(first_fragment(totals), result, column, row, m, n)
        store_fragment(second_fragment(totals), result, column, uint32(row + uint32(ROWS)), m, n)

    return store


def cases() -> Iterator[tuple[PackedLayout, MmaTile, int, str]]:
    """Kernels by layout, tile, stages and kind of activations."""
    for layout in layouts():
        for tile in TILES:
            for stages in dict.fromkeys(tile.stages(layout, room) for room in ROOMS):
                for kind in NARROW:
                    yield layout, tile, stages, kind


@family(cases)
def kernel(layout: PackedLayout, tile: MmaTile, stages: int, kind: str) -> Kernel:
    """The kernel: block (row of tiles, tile of activations, part of the columns)."""
    length, columns, fragment_bytes = tile.stage(layout), tile.columns, layout.fragment_bytes
    ahead, end, fetch = stages - 1, (stages - 1) * length, fetchers(layout, tile)
    start, after = prologue(fetch, ahead, length), offset_advancer(stages, length)
    refill = refiller(fetch, ptx.wait_for_all_but(stages - 2))
    multiply, store = multiplier(layout, tile, kind), storer(layout, tile, kind)
    zeros, base = products_of(layout, tile, kind).zeros, ptx.shared_base
    let_successor_start, warps_down = dependent_launch.let_successor_start, FRAGMENT_ROWS // WARP_FRAGMENTS
    rows, warp_columns = WARP_FRAGMENTS * ROWS, tile.warp_columns

    def product(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        x: Any,  # of the kind [m, k]
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [splits, m, n]: epilogue/results.py
        m: Any, n: Any, k: Any, steps: Any,
    ) -> None:  # fmt: skip
        (warp, lane), part, splits = warp_and_lane(), uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
        m0 = uint32(cuda.blockIdx.y) * uint32(columns)
        apart = uint64(steps) * uint64(fragment_bytes)
        w_at = fragments + uint64(cuda.blockIdx.x) * uint64(FRAGMENT_ROWS) * apart
        first, last = uint32(part * steps) // splits, uint32((part + uint32(1)) * steps) // splits
        opaque, totals = (base() + lane * uint32(16)) >> uint32(16) & uint32(0x8000), zeros()
        start(base(), w_at, apart, x, m0, first, last, m, k)
        to, here = uint32(end), uint32(0)
        for step in range(first, last):
            refill(base() + to, w_at, apart, x, m0, step + uint32(ahead), last, m, k)
            totals = multiply(base() + here, base() + uint32(end + length), warp, lane, totals, opaque)
            to, here = after(to), after(here)
        let_successor_start()  # not before: its blocks would come between those of this one
        g, t = g_and_t(lane)
        row = uint32(cuda.blockIdx.x) * uint32(FRAGMENT_ROWS * ROWS) + warp % uint32(warps_down) * uint32(rows)
        column = m0 + warp // uint32(warps_down) * uint32(warp_columns) + t * uint32(2)
        result = y + uint64(part) * uint64(m) * uint64(n) * uint64(4), y_kind, bias, bias_kind
        store(totals, result, uint32(column), uint32(row + g), m, n)

    parameters = (uint64,) * 3 + (uint32, uint64) + (uint32,) * 5
    return Kernel(
        f"mma_bf16 of {layout.name}, {tile}, {stages} stages, {kind}", product, *parameters,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout, stages), least=LEAST, early=True,
    )  # fmt: skip


@register(
    __name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=refuses_shape, narrow=True,
    repeats=True, ends=True,
)  # fmt: skip
def launch(
    x: Any, q: QuantArray, out: Any, split: MmaSplit | None = None, end: Epilogue = PLAIN
) -> None:  # fmt: skip
    """Multiply x by the weights into ``out``; ``split``: another tile and split than the best by estimate."""
    if not (x.size and out.size):
        out.fill(0)
        return
    w, (m, n), k = packed_weights(q), out.shape, q.shape[1]
    rows, kind = readable_rows(x)
    if kind not in NARROW:
        rows, kind = narrowed(rows, "bfloat16"), "bfloat16"
    steps = w.fragments.shape[1]
    tile, stages, splits = split or best_split(device.card_of(device.current()), w.layout, m, n, steps)
    grid, make = (-(-n // TILE_ROWS), -(-m // tile.columns), splits), kernel(w.layout, tile, stages, kind)
    result = result_of(out, end.bias)
    if splits == 1:
        make(grid, (tile.threads,), w.fragments, rows, *result, m, n, k, steps)
        return
    wide = -(-n // FOUR) * FOUR
    partials = between((splits, m, wide), np.float32)
    make(grid, (tile.threads,), w.fragments, rows, *result_of(partials, None), m, wide, k, steps)
    add_partials(partials, result, m, n)
