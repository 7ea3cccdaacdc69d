"""Many rows of activations times packed weights by ``mma.sync``: cuda:mma_bf16, mma_q8, mma_f16, grouped_mma.

One kernel, whose activations are of one of four kinds: float16 or bfloat16 as they lie, float16 whose sums
are halves, or 8-bit codes. Experts have a second one, which takes its tile from a plan of uses and writes the
rows that the plan lists. Both are the same loop.

    who computes what: a block of four warps has 128 rows of weights × ``columns`` rows of activations,
    a warp 32 of the 128 rows, which are two *fragment rows* of 16, and all of the ``columns``

                    rows of activations: columns of y^T
                    +------------------------+
        warp 0      |  fragment rows 0, 1    |      lane 4 g + t: rows g and g + 8 of a fragment,
        warp 1      |                2, 3    |      columns 2 t and 2 t + 1 of each eight
        warp 2      |                4, 5    |
        warp 3      |                6, 7    |
                    +------------------------+

    shared memory: a ring of two to four stages, each 64 columns of K; behind it, where weights have offsets,
    sums of the activations of the stage that is multiplied

        | stage 0 | stage 1 | stage 2 | stage 3 | sums |        stage:  8 fragments | rows of activations

    a step: all threads copy, all warps multiply, one barrier

        cp.async      step s + 3 into the stage of step s - 1
        wait, barrier step s is there
        a warp        its two fragments of step s → registers → codes → mma with the rows of the stage → scale

The grid is (tiles of weights, tiles of activations, parts of K). Where K is split, each part writes float32
sums, and a second kernel adds them in a fixed order (kernels/epilogue/results.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ....base.slots import rows_of
from ....dispatch.epilogue import Epilogue
from ...driver.launch import Kernel
from ...driver.recorded import between
from ...intrinsics import hopper, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import from_lane, g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, int32, types, uint32, uint64
from ...intrinsics.ptx import load16_l2, wide_place
from ...intrinsics.tensor_cores import (
    LINE,
    MAGIC_BITS,
    PAIR,
    SIXTEENS,
    ByteForm,
    RunForm,
    byte_products,
    run_products,
)
from ...layouts import groups
from ...layouts.code_tiles import CODES, EIGHT, SCALES, eight_bytes, sum_run
from ...layouts.codes import (
    buffer_sizes,
    byte_unit,
    can_fold,
    folded_unpacker,
    signed_unpacker,
    sixteen_unpacker,
    sub_pairs,
    word_loader,
)
from ...layouts.layout import FRAGMENT_ROWS, ROWS, STEP, TILE_ROWS, PackedLayout
from ...layouts.scales import number_loader, scale_loader, scale_value
from ..epilogue.results import (
    FOUR,
    NOTHING,
    Result,
    add_partials,
    bias_loader,
    holder,
    residual_adder,
    residual_of,
    result_of,
    scatterer,
    thread_sums,
)
from ..hopper.tiles import MIN_CAPABILITY
from .ring import offset_advancer

# --- tiles and stages ---------------------------------------------------------------------------

# Kinds of activations: "float16" and "bfloat16" are multiplied as they lie, with sums in float32.
HALF_SUMS = "half sums"  # float16 with sums of halves
BYTES = "int8"  # codes of 8 bits with a scale for 32 columns

KB = 1 << 10
RESERVED = KB  # bytes that CUDA takes for each block, beside the block's own
SHARED = 100 * KB  # of a multiprocessor of 8.6, 8.9 and 12.x; with more, as others have, nothing was faster
MAX_STAGES = 4
MAX_BLOCKS = 4  # on a multiprocessor
WARP_FRAGMENTS = 2  # fragment rows of a warp
ROW, CHUNK = 2 * STEP, 16  # bytes of a row of activations in a stage, and of a copy


@dataclass(frozen=True)
class MmaTile:
    """128 rows of weights times some rows of activations, by warps that have two fragment rows each."""

    columns: int
    blocks: int  # that a multiprocessor holds

    def __str__(self) -> str:
        return f"{self.columns} columns"

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return FRAGMENT_ROWS // WARP_FRAGMENTS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    def stage(self, layout: PackedLayout) -> int:
        """Bytes of a stage: weights, then activations."""
        return FRAGMENT_ROWS * layout.fragment_bytes + self.columns * ROW

    def sums_bytes(self, layout: PackedLayout) -> int:
        """Bytes behind the stages for sums of activations, a float a run and row."""
        return 4 * layout.runs * self.columns if layout.has_offset else 0

    def stages(self, layout: PackedLayout) -> int:
        """Stages of a block's ring."""
        room = SHARED // self.blocks - RESERVED - self.sums_bytes(layout)
        return max(2, min(MAX_STAGES, room // self.stage(layout)))

    def shared(self, layout: PackedLayout) -> int:
        """Bytes of shared memory of a block."""
        return self.stages(layout) * self.stage(layout) + self.sums_bytes(layout)


@dataclass(frozen=True)
class CodeTile(MmaTile):
    """128 rows of weights times some rows of activations as bytes: layouts/code_tiles.py has the picture."""

    def stage(self, layout: PackedLayout) -> int:
        """Bytes of a stage: weights, then activations with their scales and sums."""
        return FRAGMENT_ROWS * layout.fragment_bytes + self.columns // EIGHT * eight_bytes(sum_run(layout))

    def sums_bytes(self, layout: PackedLayout) -> int:
        """Nothing: sums come with the activations."""
        return 0


TILES = MmaTile(16, 4), MmaTile(32, 3), MmaTile(64, 2)
WIDE_TILE = MmaTile(128, 2)  # for weights with much to do for a step, whatever its rows of activations
CODE_TILES = CodeTile(16, 4), CodeTile(32, 3), CodeTile(64, 2), CodeTile(128, 2)


def tiles_of(layout: PackedLayout, kind: str) -> tuple[MmaTile, ...]:
    """The tiles for weights of a layout and activations of a kind."""
    if kind == BYTES:
        crowded = layout.runs > 2 or bool(layout.levels)  # registers, by more scales or by a table
        most_blocks = 2 if layout.runs > 2 and layout.has_offset else MAX_BLOCKS
        narrow = tuple(each for each in CODE_TILES[1:-1] if each.blocks <= most_blocks)
        return (CODE_TILES[0], *narrow, *CODE_TILES[-1:][crowded:])
    wide = folds(layout, kind) and layout.has_offset and layout.bit_planes == (4,)
    return (*TILES, WIDE_TILE) if wide else TILES


def folds(layout: PackedLayout, kind: str) -> bool:
    """True where sub-scales are multiplied into the codes."""
    return kind == "float16" and can_fold(layout)


# --- copies into a stage ------------------------------------------------------------------------
#
# Each thread copies 16 bytes at a time, and keeps the addresses of what it copies: they are the same in all
# steps but for the step's own distance.
#
#     weights       a warp copies its own two fragments, which lie ``apart`` bytes from each other
#     activations   all threads copy rows of 128 bytes, eight threads a row
#     code tiles    one piece of memory a stage, in the order of the stage
#
# Banks: a row of activations is eight chunks of 16 bytes, all 32 banks. Chunk c of row r lies at
# c ^ 2 (r % 4), so the eight bytes that each lane takes of rows g come without a conflict.


class WeightsAt(NamedTuple):
    """The places of what a thread copies of packed weights."""

    fragments: Any  # address of all
    first: Any  # number of the fragment of the warp's first row and the first step
    place: Any  # of the lane's chunk in a stage


@cache
def weights_placer(layout: PackedLayout, tile: MmaTile) -> Any:
    """The device function for a thread's places of weights, whose block has rows from ``first_row`` on."""
    fragment_bytes, warp_rows = layout.fragment_bytes, FRAGMENT_ROWS // tile.warps

    @inlined
    def place_weights(fragments: Any, first_row: Any, steps: Any, warp: Any, lane: Any) -> Any:
        first = uint32(uint32(first_row + warp * warp_rows) * steps)
        place = uint32(warp * (warp_rows * fragment_bytes) + lane * 16)
        return WeightsAt(fragments, from_lane(first, lane), from_lane(place, lane))

    return place_weights


@cache
def weights_fetcher(layout: PackedLayout, tile: MmaTile) -> Any:
    """The device function (stage, WeightsAt, bytes between fragment rows, step) that starts the copies of a
    stage's weights.
    """
    fragment_bytes, chunks = layout.fragment_bytes, layout.fragment_bytes // CHUNK
    warp_rows, copy16 = FRAGMENT_ROWS // tile.warps, ptx.copy16

    @inlined
    def fetch_weights(at: Any, w_at: Any, apart: Any, step: Any) -> None:
        lane = uint32(cuda.threadIdx.x) & 31
        source = wide_place(uint32(w_at.first + step), uint32(fragment_bytes), w_at.fragments)
        source += uint64(lane * 16)
        for fragment_row in range(warp_rows):
            to = uint32(at + w_at.place + uint32(fragment_row * fragment_bytes))
            for first in range(0, chunks, 32):
                if lane < uint32(chunks - first):
                    here = source + uint64(fragment_row) * apart + uint64(16 * first)
                    copy16(uint32(to + uint32(16 * first)), here)

    return fetch_weights


class RowsAt(NamedTuple):
    """The places of what a thread copies of activations of 16 bits."""

    x: Any  # address of all
    elements: Any  # first elements of the thread's rows, a tuple
    place: Any  # of its chunk of the first of them in a stage
    k: Any  # columns of x


@inlined
def place_of(thread: Any) -> Any:
    """The place of a thread's chunk among the activations of a stage."""
    row, chunk = thread >> 3, thread & 7
    return uint32(row * ROW + ((chunk ^ (row & 3) << 1) << 4))


def several(one: Callable[[int], Any], count: int, first: int = 0) -> Any:
    """The device function that joins the tuples of device functions ``one(0)`` … to one tuple."""
    if count == 1:
        return one(first)
    half = count // 2
    low, high = several(one, half, first), several(one, count - half, first + half)

    @inlined
    def joined(facts: Any) -> Any:
        return low(facts) + high(facts)

    return joined


@cache
def rows_placer(layout: PackedLayout, tile: MmaTile) -> Any:
    """The device function for a thread's places of rows of activations from ``m0`` on."""
    rows_together, weights_at = tile.threads // 8, FRAGMENT_ROWS * layout.fragment_bytes

    def row(i: int) -> Any:
        @inlined
        def address(first: Any) -> Any:
            # rows beyond the last are multiplied and thrown away
            row_of_x, m, k = first
            source_row = min(uint32(row_of_x + i * rows_together), uint32(m - 1))
            return (uint32(source_row * k),)

        return address

    all_rows = several(row, tile.columns // rows_together)

    @inlined
    def place_rows(x: Any, m0: Any, m: Any, k: Any, lane: Any) -> Any:
        thread = uint32(cuda.threadIdx.x)
        rows = all_rows((uint32(m0 + (thread >> 3)), m, k))
        return RowsAt(x[0], rows, from_lane(uint32(place_of(thread) + weights_at), lane), k)

    return place_rows


class Uses(NamedTuple):
    """Uses of experts from one of the thread's rows on."""

    row_of_thread: Any
    listed: Any  # address of the uses of the block's columns
    count: Any  # of them
    per: Any  # uses of a row of x
    k: Any


@cache
def listed_rows_placer(layout: PackedLayout, tile: MmaTile) -> Any:
    """The device function for a thread's places of rows that a list of uses names.

    Beyond ``count`` the last one is multiplied and thrown away.
    """
    rows_together, weights_at = tile.threads // 8, FRAGMENT_ROWS * layout.fragment_bytes
    load4 = ptx.load4

    def row(i: int) -> Any:
        @inlined
        def address(uses: Any) -> Any:
            place = min(uint32(uses.row_of_thread + i * rows_together), uint32(uses.count - 1))
            use = load4(uses.listed + uint64(place) * 4)
            return (uint32(uint32(use // uses.per) * uses.k),)

        return address

    all_rows = several(row, tile.columns // rows_together)

    @inlined
    def place_listed(x: Any, listed: Any, count: Any, per: Any, k: Any, lane: Any) -> Any:
        thread = uint32(cuda.threadIdx.x)
        rows = all_rows(Uses(uint32(thread >> 3), listed, count, per, k))
        return RowsAt(x, rows, from_lane(uint32(place_of(thread) + weights_at), lane), k)

    return place_listed


class RowCopies(NamedTuple):
    """The copies of a stage's activations by one thread, a row each."""

    rows: Any  # RowsAt
    to: Any
    column: Any
    length: Any  # bytes to copy: 16, or 0 for zeros


@cache
def rows_fetcher(tile: MmaTile) -> Any:
    """The device function (stage, RowsAt, step) that starts the copies of a stage's activations."""
    rows_together, copy16_or_zeros = tile.threads // 8, ptx.copy16_or_zeros

    def row(i: int) -> Any:
        @inlined
        def copy(copies: Any) -> Any:
            rows = copies.rows
            source = wide_place(uint32(rows.elements[i] + copies.column), uint32(2), rows.x)
            copy16_or_zeros(uint32(copies.to + i * rows_together * ROW), source, copies.length)
            return (copies.column,)

        return copy

    copy_rows = several(row, tile.columns // rows_together)

    @inlined
    def fetch_rows(at: Any, rows: Any, step: Any) -> None:
        # Steps fill K up to 64 columns: beyond it zeros are copied, from a place that exists.
        column = uint32(step * STEP + (uint32(cuda.threadIdx.x) & 7) * 8)
        length = uint32(16) if column < rows.k else uint32(0)
        column = column if column < rows.k else 0
        copy_rows(RowCopies(rows, uint32(at + rows.place), column, length))

    return fetch_rows


class CodesAt(NamedTuple):
    """The place of what threads copy of code tiles."""

    x: Any  # address of all
    m0: Any  # the block's first row
    height: Any  # rows of code tiles


@inlined
def place_codes(x: Any, m0: Any, m: Any, height: Any, lane: Any) -> Any:
    return CodesAt(x[0], m0, height)


@cache
def codes_fetcher(layout: PackedLayout, tile: MmaTile) -> Any:
    """The device function (stage, CodesAt, step) that starts the copies of a stage's code tiles."""
    length, weights_at = eight_bytes(sum_run(layout)), FRAGMENT_ROWS * layout.fragment_bytes
    chunks, copy16, threads = tile.columns // EIGHT * length // CHUNK, ptx.copy16, tile.threads

    @inlined
    def fetch_codes(at: Any, tiles: Any, step: Any) -> None:
        eights = uint32(step * uint32(tiles.height // EIGHT) + tiles.m0 // EIGHT)
        thread = uint32(cuda.threadIdx.x)
        source = wide_place(eights, uint32(length), tiles.x) + uint64(thread * CHUNK)
        to = uint32(at + weights_at + thread * CHUNK)
        for first in range(0, chunks, threads):
            if thread < uint32(chunks - first):
                copy16(uint32(to + uint32(first * CHUNK)), source + uint64(first * CHUNK))

    return fetch_codes


# --- the loop -----------------------------------------------------------------------------------


@cache
def accumulator(layout: PackedLayout, tile: MmaTile, fetch_x: Any, multiply: Any) -> Any:
    """The device function that adds steps ``first`` … ``last - 1`` of a tile to a thread's totals."""
    length, stages = tile.stage(layout), tile.stages(layout)
    ahead, end = stages - 1, (stages - 1) * length  # stages that are filled ahead; the offset of the last one
    fetch_weights, wait_for_predecessor = weights_fetcher(layout, tile), hopper.wait_for_predecessor
    base, commit, wait = ptx.shared_base, ptx.commit, ptx.wait_for_all_but(stages - 2)
    after = offset_advancer(stages, length)

    @inlined
    def accumulate(
        totals: Any, w_at: Any, apart: Any, x_at: Any, first: Any, last: Any, warp: Any, lane: Any,
        constants: Any,
    ) -> Any:  # fmt: skip
        # All stages but one are filled before the first product. Weights do not change, so their copies start
        # while the kernel before still runs; that kernel may have made x, or still read y.
        ring = base()
        for i in range(ahead):
            if first + uint32(i) < last:
                fetch_weights(ring + uint32(i * length), w_at, apart, first + uint32(i))
        wait_for_predecessor()
        for i in range(ahead):
            if first + uint32(i) < last:
                fetch_x(ring + uint32(i * length), x_at, first + uint32(i))
            commit()  # also where nothing was copied: ``wait`` counts groups, one a step
        here, step, behind = uint32(0), first, uint32(base() + (end + length))
        while step < last:
            before = end if here == 0 else uint32(here - length)  # the stage that was multiplied last
            to, later = uint32(base() + before), uint32(step + ahead)
            # This thread's copies of the step have arrived: those of ``stages - 2`` later ones may be in
            # flight. So have those of all others after the barrier, and no warp reads any more the stage to
            # fill: without it copies would overwrite what a slower warp still multiplies.
            wait()
            cuda.syncthreads()
            if later < last:
                fetch_weights(to, w_at, apart, later)
                fetch_x(to, x_at, later)
            commit()
            totals = multiply(uint32(base() + here), behind, warp, lane, totals, constants)
            here, step = after(here), uint32(step + 1)
        return totals

    return accumulate


# --- a step with 16 bits: unpack → mma → scale --------------------------------------------------
#
# A step adds a stage to a lane's totals. Codes are pairs of halves, or of bfloat16; a *run* of 16 or 32
# columns shares a scale, with which its sums are multiplied. Where sub-scales are exact in the codes they are
# multiplied into them first (``folds``), and 64 columns have one scale. An offset is taken off times the sum
# of a run's activations, which each warp makes for a part of the tile.
#
# With sums of halves the middle of the codes is taken off them: sums of codes from 0 on would be large, and
# offsets would take most of them off again, but not their roundings.


def centred(layout: PackedLayout) -> PackedLayout:
    """The layout whose codes are multiplied with sums of halves: those around 0."""
    return replace(layout, lowest=-layout.middle) if layout.has_offset else layout


def products_of(layout: PackedLayout, tile: MmaTile, kind: str) -> Any:
    """The device functions for the products of a warp: RunProducts or ByteProducts."""
    eights = tile.columns // EIGHT
    if kind == BYTES:
        apart = eight_bytes(sum_run(layout))
        return byte_products(ByteForm(WARP_FRAGMENTS, eights, layout.runs, layout.has_offset, apart))
    folded = folds(layout, kind)
    sixteens, runs = (SIXTEENS, layout.runs) if folded else (SIXTEENS // layout.runs, 1)
    offsets = runs if layout.has_offset else 0
    in_halves = kind == HALF_SUMS
    floats = "float16" if in_halves else kind
    form = RunForm(floats, WARP_FRAGMENTS, eights, sixteens, offsets, tile.warps)
    return run_products(form, in_halves)


class LaneAt(NamedTuple):
    """The places of a lane's activations in a stage."""

    x_at: Any  # its row
    t: Any
    swap: Any  # the exchange of chunks in that row
    sums_at: Any  # sums of the first run's activations


@cache
def run_codes(layout: PackedLayout, kind: str) -> Any:
    """The device function for the codes of a run of both fragment rows of a warp, as a tuple."""
    unpack_sixteen = sixteen_unpacker(layout, "float16" if kind == HALF_SUMS else kind)

    @inlined
    def sixteen_codes(words: Any, sixteen: Any, opaque: Any) -> Any:
        a = cuda.local.array(4, uint32)
        unpack_sixteen(words, sixteen, a, opaque)
        return a[0], a[1], a[2], a[3]

    @inlined
    def of_one_sixteen(w0: Any, w1: Any, run: Any, opaque: Any) -> Any:
        return sixteen_codes(w0, run, opaque) + sixteen_codes(w1, run, opaque)

    @inlined
    def of_two_sixteens(w0: Any, w1: Any, run: Any, opaque: Any) -> Any:
        first = sixteen_codes(w0, 2 * run, opaque) + sixteen_codes(w0, 2 * run + 1, opaque)
        return first + sixteen_codes(w1, 2 * run, opaque) + sixteen_codes(w1, 2 * run + 1, opaque)

    return of_one_sixteen if layout.runs == 4 else of_two_sixteens


@cache
def lane_places(sixteens: int) -> Any:
    """The device function for the places of a run's activations in a lane's row, as a tuple."""

    @inlined
    def place(at: Any, sixteen: Any) -> Any:
        return uint32(at.x_at + (((2 * sixteen + (at.t >> 1)) ^ at.swap) << 4))

    @inlined
    def of_one_sixteen(at: Any, run: Any) -> Any:
        return (place(at, run),)

    @inlined
    def of_two_sixteens(at: Any, run: Any) -> Any:
        return place(at, 2 * run), place(at, 2 * run + 1)

    return of_one_sixteen if sixteens == 1 else of_two_sixteens


@cache
def stage_summer(layout: PackedLayout, tile: MmaTile, kind: str) -> Any:
    """The device function that leaves the sums of a stage's activations in shared memory, for all warps."""
    floats = "float16" if kind == HALF_SUMS else kind
    put_sums, of_two = products_of(layout, tile, floats).put_sums, lane_places(2)
    most = min(tile.columns // EIGHT, tile.warps)  # with few rows two warps sum the same

    @inlined
    def sum_up(at: Any, warp: Any, g: Any) -> None:
        eight = warp % most
        first = LaneAt(uint32(at.x_at + eight * LINE), at.t, at.swap, at.sums_at)
        places = of_two(first, 0) + of_two(first, 1)
        put_sums(places, uint32(at.sums_at + eight * PAIR), uint32(1) if g == 0 else uint32(0))
        # Each warp takes the sums of all. Those of the next step are written behind the barrier of its
        # stage, when nobody reads these any more.
        cuda.syncthreads()

    return sum_up


@cache
def multiplier(layout: PackedLayout, tile: MmaTile, kind: str) -> Any:
    """The device function that adds one step to a lane's totals; ``sums_at``: behind the stages."""
    fragment_bytes, weights_at = layout.fragment_bytes, FRAGMENT_ROWS * layout.fragment_bytes
    has_offset, (words_count, _) = layout.has_offset, buffer_sizes(layout)
    load_words = word_loader(layout)
    sum_up: Any = stage_summer(layout, tile, kind) if has_offset else None
    multiply_runs = (folded_multiplier if folds(layout, kind) else run_multiplier)(layout, tile, kind)

    @inlined
    def multiply(at: Any, sums_at: Any, warp: Any, lane: Any, totals: Any, opaque: Any) -> Any:
        g, t = g_and_t(lane)
        swap, row_of_x = (g & 3) << 1, at + weights_at + (t & 1) * 8
        lane_at = LaneAt(uint32(row_of_x + g * ROW), t, swap, uint32(sums_at + t * 8))
        if has_offset:
            sum_up(lane_at, warp, g)
        w_at = uint32(at + warp * (WARP_FRAGMENTS * fragment_bytes))
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
    load_scales, fma, middle = scale_loader(layout), ptx.fma, np.float32(layout.middle)
    codes_of = run_codes(centred(layout) if kind == HALF_SUMS else layout, kind)
    places_of, add = lane_places(SIXTEENS // runs), products_of(layout, tile, kind).multiply

    @inlined
    def of_rows(f0: Any, f1: Any, at: Any) -> Any:
        return float32(f0[at]), float32(f0[scales + at]), float32(f1[at]), float32(f1[scales + at])

    @inlined
    def turned(f0: Any, f1: Any, run: Any) -> Any:
        at = runs + run
        return -float32(f0[at]), -float32(f0[scales + at]), -float32(f1[at]), -float32(f1[scales + at])

    @inlined
    def turned_of_centred(f0: Any, f1: Any, run: Any) -> Any:
        (s0, s1, s2, s3), (o0, o1, o2, o3) = of_rows(f0, f1, run), of_rows(f0, f1, runs + run)
        low, high = fma(middle, s0, -o0), fma(middle, s1, -o1)
        return low, high, fma(middle, s2, -o2), fma(middle, s3, -o3)

    offsets_of = (turned_of_centred if kind == HALF_SUMS else turned) if has_offset else of_rows

    @inlined
    def add_run(totals: Any, run: Any, w0: Any, w1: Any, f0: Any, f1: Any, at: Any, opaque: Any) -> Any:
        run_of_codes, places = codes_of(w0, w1, run, opaque), places_of(at, run)
        scales_of_rows, offsets = of_rows(f0, f1, run), offsets_of(f0, f1, run)
        sums_at = uint32(at.sums_at + 4 * columns * run)
        return add(totals, run_of_codes, scales_of_rows, offsets, places, sums_at)

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
    count, each, has_offset = layout.half_words + layout.sub_words, SIXTEENS // layout.runs, layout.has_offset
    fragment_bytes, unit, places_of_two, four = (
        layout.fragment_bytes, np.float32(layout.unit), lane_places(2), layout.runs == 4,
    )  # fmt: skip
    load_numbers, pairs_of, offset = number_loader(layout), sub_pairs(layout), scale_value(layout)
    unpack_sixteen, half = folded_unpacker(layout), ptx.half_value
    add = products_of(layout, tile, kind).multiply

    @inlined
    def sixteen_codes(words: Any, sixteen: Any, numbers: Any, opaque: Any) -> Any:
        a = cuda.local.array(4, uint32)
        unpack_sixteen(words, sixteen, a, opaque, pairs_of(numbers, sixteen // each))
        return a[0], a[1], a[2], a[3]

    @inlined
    def all_codes(words: Any, numbers: Any, opaque: Any) -> Any:
        first = sixteen_codes(words, 0, numbers, opaque) + sixteen_codes(words, 1, numbers, opaque)
        return first + sixteen_codes(words, 2, numbers, opaque) + sixteen_codes(words, 3, numbers, opaque)

    @inlined
    def scales(numbers: Any) -> Any:
        low, high = half(numbers[0] & 0xFFFF), half(numbers[0] >> 16)
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
        load_numbers(uint32(w_at + fragment_bytes), lane, n1)
        both = all_codes(w0, n0, opaque) + all_codes(w1, n1, opaque)
        places = places_of_two(lane_at, 0)
        places = places + places_of_two(lane_at, 1)
        return add(totals, both, scales(n0) + scales(n1), offsets(n0, n1), places, lane_at.sums_at)

    return multiply


# --- a step with bytes --------------------------------------------------------------------------
#
# Integer sums are scaled twice, by the weights' scales and by those of the activations, which lie in the
# stage beside the codes and their sums (layouts/code_tiles.py).

LANE_BYTES, PAIR_BYTES = 16, 8  # of a lane's codes of a row, and of a run's sums of two rows


@inlined
def magic_constants(lane: Any, opaque: Any) -> Any:
    """The four first values of integer sums; the opaque zero. The assembler must not know them."""
    first, keep = uint32(MAGIC_BITS + opaque), from_lane
    second, third = uint32(first + (opaque >> 1)), uint32(first + (opaque >> 2))
    fourth = uint32(first + (opaque >> 3))
    return (keep(first, lane), keep(second, lane), keep(third, lane), keep(fourth, lane)), opaque


@cache
def byte_multiplier(layout: PackedLayout, tile: MmaTile) -> Any:
    """The device function that adds one step of bytes to a lane's totals."""
    fragment_bytes, weights_at = layout.fragment_bytes, FRAGMENT_ROWS * layout.fragment_bytes
    (words_count, scales_count), runs, has_offset = buffer_sizes(layout), layout.runs, layout.has_offset
    load_words, load_scales, unpack = word_loader(layout), scale_loader(layout), signed_unpacker(layout)
    share, pair_bytes = np.float32(1 / byte_unit(layout)), PAIR_BYTES * runs
    scales, four, add = layout.scales, runs == 4, products_of(layout, tile, BYTES).multiply

    @inlined
    def sixteen_codes(words: Any, sixteen: Any, opaque: Any) -> Any:
        a = cuda.local.array(2, int32)
        unpack(words, sixteen, a, 0, opaque)
        return uint32(a[0]), uint32(a[1])

    @inlined
    def codes_of(words: Any, opaque: Any) -> Any:
        first = sixteen_codes(words, 0, opaque) + sixteen_codes(words, 1, opaque)
        return first + sixteen_codes(words, 2, opaque) + sixteen_codes(words, 3, opaque)

    @inlined
    def of_run(f: Any, at: Any, times: Any) -> Any:
        return float32(f[at] * times), float32(f[scales + at] * times)

    @inlined
    def numbers_of(f: Any, first: Any, times: Any) -> Any:
        low = of_run(f, first, times) + of_run(f, first + 1, times)
        if four:
            return low + of_run(f, first + 2, times) + of_run(f, first + 3, times)
        return low

    @inlined
    def offsets_of(f0: Any, f1: Any) -> Any:
        if has_offset:
            return numbers_of(f0, runs, float32(-1)) + numbers_of(f1, runs, float32(-1))
        return (float32(0),)

    @inlined
    def multiply(at: Any, behind: Any, warp: Any, lane: Any, totals: Any, constants: Any) -> Any:
        start, opaque = constants
        g, t = g_and_t(lane)
        w_at = uint32(at + warp * (WARP_FRAGMENTS * fragment_bytes))
        x_at = uint32(at + weights_at)
        codes_at = uint32(x_at + (g * STEP + t * LANE_BYTES))
        scales_at = uint32(x_at + (CODES + t * LANE_BYTES))
        sums_at = uint32(x_at + (CODES + SCALES + t * pair_bytes))
        w0, w1 = cuda.local.array(words_count, uint32), cuda.local.array(words_count, uint32)
        f0, f1 = cuda.local.array(scales_count, float32), cuda.local.array(scales_count, float32)
        load_words(w_at, lane, w0)
        load_words(uint32(w_at + fragment_bytes), lane, w1)
        load_scales(w_at, lane, f0)
        load_scales(uint32(w_at + fragment_bytes), lane, f1)
        both, factors = codes_of(w0, opaque) + codes_of(w1, opaque), numbers_of(f0, 0, share)
        factors = factors + numbers_of(f1, 0, share)
        return add(totals, both, factors, offsets_of(f0, f1), start, codes_at, scales_at, sums_at)

    return multiply


# --- epilogue and store -------------------------------------------------------------------------


@cache
def storer(columns: int, fragment: tuple[Callable[..., Any], ...]) -> Any:
    """The device function that writes a lane's results, or its partial sums, of ``columns`` columns.

    ``residual``: its address, or 0, and its kind, as kernels/epilogue/results.py has them.
    """
    ends, load_bias, add = thread_sums(columns), bias_loader(), residual_adder(columns, False)
    (first_fragment, second_fragment), nothing = fragment, NOTHING
    write, write16 = ends.write, ends.write16

    @inlined
    def store_fragment(sums: Any, result: Any, residual: Any, column: Any, row: Any, m: Any, n: Any) -> None:
        addend, kind = residual
        low, high = load_bias(result, row, n), load_bias(result, uint32(row + ROWS // 2), n)
        if addend != 0:
            sums = add(sums, addend, kind, column, row, m, n, low, high)
            low, high = nothing, nothing
        if result.kind == 0:
            write(sums, result.at, column, row, m, n, low, high)
        else:
            write16(sums, result.at, column, row, m, n, low, high, uint32(result.kind - 1))

    @inlined
    def store(totals: Any, result: Any, residual: Any, column: Any, row: Any, m: Any, n: Any) -> None:
        store_fragment(first_fragment(totals), result, residual, column, row, m, n)
        store_fragment(second_fragment(totals), result, residual, column, uint32(row + ROWS), m, n)

    return store


# --- the kernels --------------------------------------------------------------------------------


class Step(NamedTuple):
    """Device functions of a product with one kind of activations."""

    place_x: Any  # (x, m0, m, k, lane) -> what ``fetch_x`` takes; x: a tuple of addresses
    fetch_x: Any  # (stage, places, step): start the copies
    constants: Any  # (lane, an opaque zero) -> numbers that stay in registers
    multiply: Any  # (stage, end of the stages, warp, lane, totals, constants) -> totals


@inlined
def opaque_alone(lane: Any, opaque: Any) -> Any:
    return opaque


def step_of(layout: PackedLayout, tile: MmaTile, kind: str) -> Step:
    """The device functions for activations of a kind."""
    if kind == BYTES:
        fetch = codes_fetcher(layout, tile)
        return Step(place_codes, fetch, magic_constants, byte_multiplier(layout, tile))
    place, multiply = rows_placer(layout, tile), multiplier(layout, tile, kind)
    return Step(place, rows_fetcher(tile), opaque_alone, multiply)


def tile_kernel(name: str, layout: PackedLayout, tile: MmaTile, kind: str) -> Kernel:
    """The kernel: block (row of tiles, tile of activations, part of the columns)."""
    place_weights, step = weights_placer(layout, tile), step_of(layout, tile, kind)
    products, has_factors = products_of(layout, tile, kind), kind == HALF_SUMS
    place_x, zeros, constants_of = step.place_x, products.zeros, step.constants
    accumulate = accumulator(layout, tile, step.fetch_x, step.multiply)
    scaled: Any = products.scaled if has_factors else None
    store, base = storer(tile.columns, products.fragment), ptx.shared_base
    fragment_bytes, rows, columns = layout.fragment_bytes, WARP_FRAGMENTS * ROWS, tile.columns
    let_successor_start = hopper.let_successor_start

    def product(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        x: Any,  # activations [m, k] of the kind; with sums of halves float32 factors [m] behind them
        results: Any,  # Result: of y [splits, m, n]
        m: Any, n: Any, k: Any, steps: Any,  # k: of code tiles the rows
        residual: Any,  # of y's shape, or 0, and its kind
    ) -> None:  # fmt: skip
        (warp, lane), part, splits = warp_and_lane(), uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
        m0 = uint32(cuda.blockIdx.y) * columns
        apart = uint64(steps) * fragment_bytes
        first = uint32(uint32(part * steps) // splits)
        last = uint32(uint32((part + 1) * steps) // splits)
        w_at = place_weights(fragments, uint32(cuda.blockIdx.x) * FRAGMENT_ROWS, steps, warp, lane)
        x_at = place_x(x, m0, m, k, lane)
        # A zero that the assembler cannot know: constants combined with it stay in registers.
        opaque, totals = (base() + lane * 16) >> 16 & 0x8000, zeros()
        constants = constants_of(lane, opaque)
        totals = accumulate(totals, w_at, apart, x_at, first, last, warp, lane, constants)
        let_successor_start()  # not before: its blocks would come between those of this one
        g, t = g_and_t(lane)
        row = uint32(cuda.blockIdx.x) * TILE_ROWS + warp * rows
        if has_factors:  # of rows of halves, which were multiplied with a power of two: layouts/x_tiles.py
            column = uint32(m0 + t * 2)
            totals = scaled(totals, x[1] + uint64(column) * 4)
        y, y_kind, bias, bias_kind = results
        result = Result(y + uint64(part) * m * n * 4, y_kind, bias, bias_kind)
        if not has_factors:
            column = uint32(m0 + t * 2)
        store(totals, result, residual, column, uint32(row + g), m, n)

    addresses = types.UniTuple(uint64, 2 if has_factors else 1)
    result_type, residual_type = (
        types.Tuple((uint64, uint32, uint64, uint32)), types.Tuple((uint64, uint32)),
    )  # fmt: skip
    return Kernel(
        name, product, uint64, addresses, result_type, *(uint32,) * 4, residual_type,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout), least=MIN_CAPABILITY,
        early=True, limits_blocks=True,
    )  # fmt: skip


def experts_kernel(name: str, layout: PackedLayout, tile: MmaTile, kind: str) -> Kernel:
    """The kernel of experts' weights: block (row of tiles of an expert, slot of a plan of uses)."""
    place_weights, place_listed = weights_placer(layout, tile), listed_rows_placer(layout, tile)
    products, fragment_bytes, columns = products_of(layout, tile, kind), layout.fragment_bytes, tile.columns
    zeros, (first_rows, second_rows) = products.zeros, products.fragment
    accumulate = accumulator(layout, tile, rows_fetcher(tile), multiplier(layout, tile, kind))
    hold, scatter, base, load_words = holder(columns), scatterer(columns), ptx.shared_base, load16_l2
    wait_for_predecessor, let_successor_start = (
        hopper.wait_for_predecessor, hopper.let_successor_start,
    )  # fmt: skip
    warp_rows, head = WARP_FRAGMENTS * ROWS, 4 * groups.HEAD

    def product(
        fragments: Any,  # uint8 [experts, fragment rows, steps, fragment]
        x: Any,  # activations of the kind [rows, k]
        plan: Any, uses_of_columns: Any,  # uint32: layouts/groups.py; the use of each column
        y: Any,  # float32 [uses, n]
        n: Any, k: Any, steps: Any, per_row: Any,  # per_row: uses of a row of x
    ) -> None:  # fmt: skip
        wait_for_predecessor()  # it makes the plan
        (warp, lane), slot = warp_and_lane(), uint32(cuda.blockIdx.y)
        if slot >= uint32(load_words(plan)[0]):  # the grid has as many slots as there can be
            return
        v = load_words(plan + head + uint64(slot) * 16)
        expert, first_slot, uses = uint32(v[0]), uint32(v[1]), uint32(v[3])
        count = min(uint32(columns), uint32(uses - uint32(slot - first_slot) * columns))
        listed = uses_of_columns + uint64(uint32(slot * columns)) * 4
        row = uint32(uint32(expert * uint32(cuda.gridDim.x)) + uint32(cuda.blockIdx.x))
        w_at = place_weights(fragments, uint32(row * FRAGMENT_ROWS), steps, warp, lane)
        x_at, apart = place_listed(x, listed, count, per_row, k, lane), uint64(steps) * fragment_bytes
        rows, totals = hold(listed, lane, count), zeros()  # loaded here, they are there at the end
        opaque = (base() + lane * 16) >> 16 & 0x8000
        totals = accumulate(totals, w_at, apart, x_at, uint32(0), steps, warp, lane, opaque)
        let_successor_start()
        g, t = g_and_t(lane)
        below = uint32(uint32(cuda.blockIdx.x) * TILE_ROWS + warp * warp_rows + g)
        scatter(first_rows(totals), y, rows, uint32(t * 2), below, n)
        scatter(second_rows(totals), y, rows, uint32(t * 2), uint32(below + ROWS), n)

    return Kernel(
        name, product, *(uint64,) * 5, *(uint32,) * 4,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout), least=MIN_CAPABILITY,
        early=True,
    )  # fmt: skip


# --- the launch ---------------------------------------------------------------------------------


class MmaPlan(NamedTuple):
    """A tile, the grid of its blocks, and how many of them a multiprocessor holds: kernels/cost/mma.py."""

    tile: MmaTile
    grid: tuple[int, int, int]  # the last are the parts of K
    beside: int


def launch_tiles(
    kernel: Kernel, plan: MmaPlan, fragments: Any, x: tuple[Any, ...], k: int, out: Any, end: Epilogue
) -> None:  # fmt: skip
    """Launch the kernel of a plan's tile, and add up partial sums; ``x``, ``k``: as the kernel takes them."""
    m, n, steps, result = rows_of(out), out.shape[1], fragments.shape[1], result_of(out, end.bias)
    residual, (tile, grid, beside) = residual_of(end.residual), plan
    block, splits = (tile.threads,), grid[-1]
    if splits == 1:
        kernel(grid, block, fragments, x, result, m, n, k, steps, residual, max_blocks=beside)
        return
    wide = -(-n // FOUR) * FOUR
    partials = between((splits, m, wide), np.float32)
    sums, none = result_of(partials, None), residual_of(None)
    kernel(grid, block, fragments, x, sums, m, wide, k, steps, none, max_blocks=beside)
    add_partials(partials, result, m, n, residual)
