"""Warp-specialised: one warp fetches, two warpgroups unpack and multiply, and blocks make several tiles.

Changed: Hopper's own instruction, ``wgmma``, reads weights from registers, decoded and times their scales,
and activations from shared memory (chapter c2 has it alone). And no warp waits for all others. Eight warps
that fetch together, meet, multiply together and unpack together wait at each step. Here a ninth warp, the
producer, has the copy engine fetch: it requests whole pieces of memory, packed weights and x_tiles
(layouts/x_tiles.py), as soon as a stage is free, over the ends of tiles, too. The two consumer warpgroups
wait for nothing but full stages, so one has the tensor cores while the other unpacks.

Tiles are up to 256 rows of activations wide, which halves the cost to unpack weights and to fetch
activations. Blocks stay on the card and split the last wave of tiles along the columns
(kernels/hopper/tiles.py), so any shape fills the card, in one kernel: each block of a tile adds up a slice
of the partial sums (kernels/hopper/stream_k.py).

Tiles are made in a raster (kernels/hopper/tiles.py), so that activations stay in the L2 cache while weights
go by. With the widest tiles three more warps make x_tiles of later steps meanwhile
(kernels/hopper/tiles.py).

Activations of 16 bits are read as they lie by tiles of up to 160 rows: lanes take weights in the order of
their columns (layouts/operand.py), so no kernel runs before. Activations in float32, and those of wider
tiles, become x_tiles first. float16 is multiplied as float16 with weights as halves, where scales are halves.

Limited by the work around the products, 7 to 12 microseconds to make x_tiles, to start and to add up partial
sums; from some 1000 rows on by the card's power.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....arrays.array import QuantArray
from ....base.slots import rows_of
from ....dispatch.card import Card
from ....dispatch.epilogue import PLAIN, Epilogue
from ....dispatch.ladder import register
from ...driver import device
from ...driver.launch import Kernel, family
from ...driver.recorded import between, decided, part
from ...kernels.cost.warp_specialized import TILES, Split, WarpSpecializedShape, best_split, best_tile
from ...kernels.epilogue.results import KIND_NUMBERS, MAX_GATED_COLUMNS, addend_of, result_of
from ...kernels.hopper import frame
from ...kernels.hopper.kernel import (
    HALVES,
    MAP_WORDS,
    Products,
    dense,
    dense_results,
    map_finder,
    map_words,
    packed_blocks,
)
from ...kernels.hopper.stream_k import exchange_sizes, within_clusters
from ...kernels.hopper.tiles import (
    UNIT_FRAGMENTS,
    LateXTiles,
    Raster,
    WarpSpecializedTile,
    plan_late,
    plan_raster,
    reads_plain,
    refuses,
)
from ...layouts.floats import narrowed
from ...layouts.layout import FRAGMENT_ROWS, PackedLayout, layouts
from ...layouts.pack import packed_weights
from ...layouts.weights import serves_halves
from ...layouts.x_tiles import cleared, readable_rows, x_tiles_of

NO_MAP = (0,) * (MAP_WORDS - 1)


@family(lambda: ((layout, tile) for layout in layouts() for tile in TILES))
def kernel(layout: PackedLayout, tile: WarpSpecializedTile) -> Kernel:
    """The kernel of one product."""
    products, schedule = Products(layout, tile, reads_plain(layout, tile), halves=True), dense(layout, tile)
    epilogue = dense_results(tile), within_clusters(layout, tile, schedule.walk.locate)
    name = f"warp_specialized of {layout.name}, {tile}"
    return frame.kernel(name, packed_blocks(products), schedule, epilogue)


class WarpSpecializedPlan(NamedTuple):
    """A tile, the split of tiles among blocks, their raster, and the memory that split tiles need."""

    tile: WarpSpecializedTile
    split: Split
    order: Raster
    late: LateXTiles
    sums: int  # partial sums in memory
    flags: int  # words by which blocks of a tile wait for each other
    plain: bool  # x is read as it lies


def plan_for(
    m: int, card: Card, layout: PackedLayout, n: int, steps: int, plain: bool, gated: bool,
    tile: WarpSpecializedTile | None,
) -> WarpSpecializedPlan:  # fmt: skip
    """The plan of a product of ``m`` rows; ``tile``: another one than the best by estimate."""
    shape = WarpSpecializedShape.on(card, m, n, steps // UNIT_FRAGMENTS, layout, plain)
    tile = tile or best_tile(shape).tile
    if gated and tile.columns > MAX_GATED_COLUMNS:
        tile = next(each for each in TILES[::-1] if each.columns <= MAX_GATED_COLUMNS)
    across = shape.across(tile)
    wave = shape.wave(tile, device.resident_blocks(tile.blocks, tile.shared(layout)))
    split, _ = best_split(shape.down * across, shape.stages, wave)
    w_bytes = FRAGMENT_ROWS * layout.fragment_bytes
    order = plan_raster(across, shape.down, wave.blocks, tile.x_tile_bytes, w_bytes)
    sums, flags = exchange_sizes(split, tile)
    wave_us = shape.stages * wave.stage_time(wave.blocks)
    late = plan_late(order, tile.wide, tile.columns, steps, split.split_tiles, flags, wave_us)
    return WarpSpecializedPlan(tile, split, order, late, sums, flags, shape.reads_plain(tile))


ALONE = tuple(WarpSpecializedTile(columns) for columns in (16, 32, 64, 128))


def plan_alone(m: int, card: Card, layout: PackedLayout, n: int, steps: int) -> WarpSpecializedPlan:
    """The plan of up to 128 rows none of whose bits depend on the others.

    K is split by the shape of the weights alone, whatever the width of the tile, and x_tiles are made of all
    kinds of x: so each sum has its products in one order.
    """
    tile = next(tile for tile in ALONE if tile.columns >= m)
    shape = WarpSpecializedShape.on(card, 1, n, steps // UNIT_FRAGMENTS, layout)
    wave = shape.wave(ALONE[0], device.resident_blocks(1, ALONE[0].shared(layout)))
    split, _ = best_split(shape.down, shape.stages, wave)
    order = plan_raster(1, shape.down, wave.blocks, tile.x_tile_bytes, FRAGMENT_ROWS * layout.fragment_bytes)
    sums, flags = exchange_sizes(split, tile)
    late = plan_late(order, tile.wide, tile.columns, steps, split.split_tiles, flags, 0)
    return WarpSpecializedPlan(tile, split, order, late, sums, flags, False)


def floats_of(x: Any, layout: PackedLayout) -> tuple[Any, str, bool]:
    """Rows of x that kernels can read, their kind, and whether they are multiplied as float16.

    Those of float16 are, if weights become halves: then their bits are moved as they lie, like bfloat16. With
    a unit below 1, small scales times the unit would be subnormal halves.
    """
    halves = x.dtype.char == "e" and serves_halves(layout) and layout.unit == 1
    x, kind = readable_rows(x)
    if halves:  # rows that do not lie as kernels read them have become another kind
        x, kind = (x if kind == "float16" else narrowed(x, "float16")).view(np.uint16), "float16"
    return x, kind, halves


# What is launched. Blocks of a tile that is split tell each other by flags in memory that partial sums are
# there, and count late x_tiles behind them. Both must be zero before, so what runs first clears them:
#
#     x read as it lies    ``cleared``, where tiles are split so     →  the product, which fetches x by a map
#     x of another kind    x_tiles, whose kernel clears flags, too   →  the product, which fetches x_tiles
#
# The widest tiles have only the first x_tiles made before: their own warps make the late ones.


def multiply(
    x: Any, q: QuantArray, out: Any, tile: WarpSpecializedTile | None, end: Epilogue, alone: bool
) -> None:  # fmt: skip
    """Multiply x by the weights into ``out``; ``alone``: by the plan whose rows do not depend on others."""
    if not (x.size and out.size):
        out.fill(0)
        return
    w, m, n = packed_weights(q), rows_of(x), out.shape[1]
    (x, kind, halves), steps = floats_of(x, w.layout), w.fragments.shape[1]
    card, plain = device.card_of(device.current()), halves or kind == "bfloat16"
    if alone:
        plan = decided(plan_alone, m, card, w.layout, n, steps)
    else:
        plan = decided(plan_for, m, card, w.layout, n, steps, plain, end.gate is not None, tile)
    tile, split, order, late = plan.tile, plan.split, plan.order, plan.late
    product = kernel(w.layout, tile)
    flags: Any = between(plan.flags + late.words, np.uint32)
    partials: Any = between((plan.sums,), np.float32)
    words = map_words(x, tile) if plan.plain else None
    if words:
        x_tiles, height = 0, 0
        if plan.sums:
            cleared(flags)
        else:
            flags = partials = 0
    else:
        rows_before, steps_before = late.before(order.width * tile.columns)
        x_tiles = x_tiles_of(x, steps, tile.columns, flags, rows_before, steps_before, tile.wide)
        height = x_tiles.shape[1]
    operands = part(q, map_finder(tile.box_row(w.layout))), x_tiles
    rows = x, HALVES if halves else KIND_NUMBERS[kind], x.shape[1]
    x_map = x, *(words or NO_MAP)
    product(
        (split.blocks,), (product.threads,), operands, result_of(out, end.bias), (partials, flags), rows,
        (m, n, steps, height), tuple(order), x_map, addend_of(end), tuple(late), split.arguments,
        cluster=split.cluster, max_blocks=tile.blocks,
    )  # fmt: skip


def launch_alone(x: Any, q: QuantArray, out: Any, end: Epilogue = PLAIN) -> None:
    """Multiply up to 128 rows, whose bits do not depend on rows beside them."""
    multiply(x, q, out, None, end, True)


@register(
    __name__, __doc__, arithmetic="bf16s", accumulate="f16", refuses=refuses, narrow=True, repeats=True,
    ends=True, adds=True, gates=MAX_GATED_COLUMNS, invariant=launch_alone,
)  # fmt: skip
def launch(
    x: Any, q: QuantArray, out: Any, tile: WarpSpecializedTile | None = None, end: Epilogue = PLAIN
) -> None:  # fmt: skip
    """``tile``: another tile than the best by estimate; with a gate of at most MAX_GATED_COLUMNS columns."""
    multiply(x, q, out, tile, end, False)
