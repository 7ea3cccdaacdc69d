"""The kernels of cuda:grouped_codes: persistent blocks multiply 8-bit codes, tile by tile, for all experts.

They are the blocks of persistent.py with the tiles of a plan (schedule/groups.py) in place of one product's.
The rows of a tile are a slot of an expert's uses, its columns a part of the expert's weights; the tiles of an
expert are taken in the order of one product. Rows of x lie in the plan's order (expert_operands.py) and are
fetched in boxes, or in place where the uses are in order; results go straight to the rows of the uses.

A box of weights that reaches over an expert's end brings rows of the next expert, for outputs that nobody
writes. The scales are a table in which each expert begins at a multiple of 128 (expert_operands.py): boxes
of scales must begin at a multiple of 16 bytes, wherever the expert's rows do.
"""

from __future__ import annotations

from itertools import product as combined
from typing import Any

from ..epilogue.listed_rows import row_scatterer
from ..intrinsics import codes
from ..intrinsics.atoms import inlined
from ..intrinsics.language import uint32, uint64
from ..intrinsics.wgmma8 import INTEGERS
from ..machine.launch import Kernel, family
from ..rings.boxed import BoxTile, raster, step_producer
from ..schedule.groups import HEAD
from ..schedule.waves import RatedTile
from .consumers import float_consumer, integer_consumer
from .persistent import specialized_block
from .variant import FLOAT_CODES, OUTPUTS, RASTER_HEIGHT, Variant

LOW = BoxTile(64, 128, 8, groups=1)  # for few uses an expert: half the rows for as many weights
# How busy they keep a multiprocessor: the figures of variant.py; that of LOW is a guess.
FLOAT_TILES = (
    RatedTile(BoxTile(256, 128, 4), 1.0),
    RatedTile(BoxTile(128, 192, 5), 0.96),
    RatedTile(BoxTile(128, 128, 6), 0.88),
    RatedTile(LOW, 0.6),
)
COLUMN_SCALE_TILES = (RatedTile(BoxTile(128, 128, 6), 1.0), RatedTile(LOW, 0.6))
INTEGER_TILES = (
    RatedTile(BoxTile(128, 256, 4), 1.0),
    RatedTile(BoxTile(128, 128, 6), 0.87),
    RatedTile(LOW, 0.55),
)
ZERO_POINT_TILES = INTEGER_TILES[1:]  # the largest tile has no registers left for zero points


def float_variants() -> list[tuple[Variant]]:
    """Every tile, pair of codes and kind of outputs."""
    cases = (
        (rated, shares is COLUMN_SCALE_TILES)
        for shares in (FLOAT_TILES, COLUMN_SCALE_TILES)
        for rated in shares
    )
    return [
        (Variant(share.tile, a, b, out, boxed=False, column_scales=column_scales),)
        for (share, column_scales), a, b, out in combined(cases, FLOAT_CODES, FLOAT_CODES, OUTPUTS)
    ]


def integer_variants() -> list[tuple[Variant]]:
    """Every tile, pair of codes and kind of outputs, with and without zero points."""
    cases = (
        (rated, shares is ZERO_POINT_TILES)
        for shares in (INTEGER_TILES, ZERO_POINT_TILES)
        for rated in shares
    )
    return [
        (Variant(share.tile, a, b, out, boxed=False, zeros=zeros),)
        for (share, zeros), a, b, out in combined(cases, INTEGERS, INTEGERS, OUTPUTS)
    ]


# --- where tiles are --------------------------------------------------------------------------


def tile_counter(tile: BoxTile) -> Any:
    """The device function for the schedule of a block: the number of tiles, the plan, and ``sizes``.

    ``sizes``: rows of an expert's weights; its columns in the table of scales; the map of x in place, or 0
    where a row has several uses; the use of each row of the plan. The map is 0, too, where uses are not in
    order.
    """
    columns, load4 = tile.columns, codes.load4

    @inlined
    def count_tiles(plan: Any, sizes: Any) -> Any:
        n, expert_columns, x_map, use_of_row = sizes
        across = uint32(uint32(n + uint32(columns - 1)) // uint32(columns))
        x_map = x_map if load4(plan + uint64(4)) != uint32(0) else uint64(0)
        return uint32(load4(plan) * across), plan, across, n, expert_columns, x_map, use_of_row

    return count_tiles


def tile_finder(tile: BoxTile) -> Any:
    """The device function for a tile's first row in the plan, its first column and its expert."""
    rows, locate, load_words = tile.rows, raster(tile, RASTER_HEIGHT), codes.load_words

    @inlined
    def find(number: Any, tiles: Any) -> Any:
        plan, across = tiles[1], tiles[2]
        slot = uint32(number // across)
        v = load_words(plan + uint64(4 * HEAD) + uint64(slot) * uint64(16))
        row, column = locate(uint32(number - uint32(v[1] * across)), v[2], across)
        return uint32(uint32(v[1] * uint32(rows)) + row), column, v[0]

    return find


def expert_placer(tile: BoxTile) -> Any:
    """The device function for a tile's row, column, and first column in the table of scales of w."""
    find = tile_finder(tile)

    @inlined
    def locate(number: Any, tiles: Any) -> Any:
        row, column, expert = find(number, tiles)
        return row, column, uint32(uint32(expert * tiles[4]) + column)

    return locate


def producer(variant: Variant, is_w: bool) -> Any:
    """The device function of the thread that fills the ring with an operand, for all tiles of a block."""
    find, produce_steps, load4 = tile_finder(variant.tile), step_producer(variant.layout, is_w), codes.load4

    @inlined
    def produce(
        ring: Any, full: Any, rows: Any, scales: Any, number: Any, stride: Any, tiles: Any, steps: Any,
        span: Any,
    ) -> None:  # fmt: skip
        stage, phase, first = uint32(0), uint32(0), uint32(0)
        in_place = not is_w and tiles[5] != uint64(0)
        rows = tiles[5] if in_place else rows
        while number < tiles[0]:
            row, column, expert = find(number, tiles)
            at = uint32(uint32(expert * tiles[3]) + column) if is_w else row
            scale_column = uint32(uint32(expert * tiles[4]) + column) if is_w else row
            if in_place:
                at = uint32(load4(tiles[6] + uint64(row) * uint64(4)))
            stage, phase = produce_steps(
                ring, full, stage, phase, rows, scales, at, scale_column, first, steps, span
            )
            number = uint32(number + stride)

    return produce


def row_writer(variant: Variant) -> Any:
    """The device function that writes a warp's part of a tile to the rows of its uses."""
    rows, scatter = (
        variant.tile.rows,
        row_scatterer(variant.form.columns, variant.form.halves, variant.out.kind),
    )
    load_words = codes.load_words

    @inlined
    def write(
        totals: Any, position: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, out_args: Any
    ) -> None:  # fmt: skip
        (lane, inner, buffer, at), (plan, use_of_row) = position, out_args
        slot = uint32(row // uint32(rows))
        v = load_words(plan + uint64(4 * HEAD) + uint64(slot) * uint64(16))
        count = uint32(v[3] - uint32(uint32(slot - v[1]) * uint32(rows)))
        uses = use_of_row + uint64(row) * uint64(4)
        scatter(totals, y, uses, inner, count, column, n, lane, buffer, at)

    return write


# --- kernels ----------------------------------------------------------------------------------


def _kernel(variant: Variant, product: Any, *parameters: Any) -> Kernel:
    return Kernel(
        f"tma for experts {variant}", product, *parameters, threads=variant.threads,
        shared=variant.layout.shared,
        least=(9, 0), exact=True, early=True, lto=True,
    )  # fmt: skip


@family(float_variants())
def float_kernel(variant: Variant) -> Kernel:
    """The kernel for codes of floats, whose sums are promoted every 128 columns."""
    produce_w, produce_x = producer(variant, True), producer(variant, False)
    multiply = float_consumer(variant, row_writer(variant), expert_placer(variant.tile))

    @inlined
    def consume(
        ring: Any, full: Any, warp: Any, arguments: Any, number: Any, stride: Any, tiles: Any
    ) -> None:
        table, y, steps, pitch, n, out_args = arguments
        none, count = uint32(0), tiles[0]
        multiply(
            ring, full, warp, table, pitch, y, number, stride, count, tiles, none, steps, none, n, out_args,
        )  # fmt: skip

    run = specialized_block(variant, produce_w, produce_x, consume, tile_counter(variant.tile))

    def product(
        x: Any, x_map: Any, w: Any,  # maps of codes: x in the order of the plan, and as it lies
        x_scales: Any,  # map of scales [K / (128 · span), rows of the plan]
        column_scales_map: Any,  # map of scales of w [steps, E · expert_columns], if each has its own
        table: Any,  # or that: float32 [steps, pitch / 4], one for each ``columns_per_scale`` columns
        y: Any,  # of the outputs' kind [uses, n]
        plan: Any, use_of_row: Any,  # uint32: schedule/groups.py, and its uses
        n: Any, steps: Any, span: Any, pitch: Any, expert_columns: Any,  # of an expert, in the table
    ) -> None:  # fmt: skip
        arguments = (table, y, steps, pitch, n, (plan, use_of_row))
        run(
            (x, w, x_scales, column_scales_map, steps, span), arguments, plan, (n, expert_columns, x_map,
            use_of_row),
        )  # fmt: skip

    return _kernel(variant, product, *(uint64,) * 9, *(uint32,) * 5)


@family(integer_variants())
def integer_kernel(variant: Variant) -> Kernel:
    """The kernel for codes of integers whose scales do not vary along K."""
    produce_w, produce_x = producer(variant, True), producer(variant, False)
    multiply = integer_consumer(variant, row_writer(variant), expert_placer(variant.tile))

    @inlined
    def consume(
        ring: Any, full: Any, warp: Any, arguments: Any, number: Any, stride: Any, tiles: Any
    ) -> None:
        y, steps, height, n, terms, out_args = arguments
        multiply(ring, full, warp, terms, y, number, stride, tiles[0], tiles, steps, height, n, out_args)

    run = specialized_block(variant, produce_w, produce_x, consume, tile_counter(variant.tile))

    def product(
        x: Any, x_map: Any, w: Any,  # maps of codes: x in the order of the plan, and as it lies
        y: Any,  # of the outputs' kind [uses, n]
        x_scales: Any, points_x: Any, others_x: Any,  # for each row of the plan: persistent.integer_kernel
        w_scales: Any, points_w: Any, others_w: Any,  # for each column of the experts' tables
        plan: Any, use_of_row: Any,
        n: Any, steps: Any, height: Any, expert_columns: Any,  # height: rows of the plan
    ) -> None:  # fmt: skip
        terms = (x_scales, uint64(4), uint32(1), w_scales, points_x, others_x, points_w, others_w)
        sources = (x, w, uint64(0), uint64(0), steps, uint32(1))
        run(
            sources, (y, steps, height, n, terms, (plan, use_of_row)), plan, (n, expert_columns, x_map,
            use_of_row),
        )  # fmt: skip

    return _kernel(variant, product, *(uint64,) * 12, *(uint32,) * 4)
