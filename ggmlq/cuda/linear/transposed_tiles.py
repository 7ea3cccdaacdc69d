"""``y @ q`` by the warp-specialised kernel of Hopper: packed weights as they lie, for many rows of y.

A stage has the bytes of one of ``x @ q.T``: eight fragments below each other, two side by side. There they
are 128 rows of weights; here 128 columns are a tile, and sums run down the rows, 128 of them a stage. Each
warp takes one step of a fragment, 16 columns (packed/column_weights.py). y has 16 bits and is read as it
lies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ..activations.floats import narrowed
from ..activations.x_tiles import cleared, readable_rows
from ..cost.split import best_split
from ..cost.warp_specialized import WarpSpecializedShape, best_tile
from ..epilogue.results import KIND_NUMBERS, result_of
from ..machine import device
from ..machine.launch import Kernel, family
from ..machine.recorded import between
from ..packed.half_weights import serves_halves
from ..packed.layout import FRAGMENT_ROWS, TILE_ROWS, PackedLayout, layouts
from ..packed.pack import PackedWeights
from ..schedule.raster import raster
from ..warp_specialized import kernel as specialized
from ..warp_specialized.cluster_split import within_clusters
from ..warp_specialized.consumers import HALVES, Products, dense_results, packed_blocks
from ..warp_specialized.plain_rows import map_words
from ..warp_specialized.producer import weights_map
from ..warp_specialized.schedules import dense
from ..warp_specialized.stream_k import exchange_sizes
from ..warp_specialized.tile import WarpSpecializedTile

TILES = tuple(map(WarpSpecializedTile, (64, 128)))
NO_ADDEND, NOTHING_LATE = (0, 0), (0,) * 5  # warp_specialized/schedules.py:dense


@family(lambda: ((layout, tile) for layout in layouts() for tile in TILES))
def kernel(layout: PackedLayout, tile: WarpSpecializedTile) -> Kernel:
    """The kernel of one product."""
    products = Products(layout, tile, natural=True, halves=True, transposed=True)
    schedule = dense(layout, tile, transposed=True)
    epilogue = dense_results(tile), within_clusters(layout, tile, schedule.walk.locate)
    name = f"columns of {layout.name}, {tile}"
    return specialized.kernel(name, packed_blocks(products), schedule, epilogue)


def multiply(
    y: Any, q: QuantArray, w: PackedWeights, out: Any, bias: Any, tile: WarpSpecializedTile | None = None
) -> None:  # fmt: skip
    """``out = y @ q + bias`` for y [m, n] in 16 bits or float32, whose rows are a multiple of eight columns
    long; q's packed weights are ``w``.
    """
    (m, k), card, layout = out.shape, device.card_of(device.current()), w.layout
    # Parts of a unit would round small scales to numbers of few bits.
    halves = y.dtype.char == "e" and serves_halves(layout) and layout.unit == 1
    rows, kind = readable_rows(y)
    if halves:
        rows = (rows if kind == "float16" else narrowed(y, "float16")).view(np.uint16)
    elif kind != "bfloat16":
        rows = narrowed(rows, "bfloat16")
    stages = -(-rows.shape[1] // TILE_ROWS)
    shape = WarpSpecializedShape.on(card, m, k, stages, layout, True)
    tile = tile or best_tile(shape, TILES).tile
    words = map_words(rows, tile)
    if words is None:  # the driver wants other addresses
        rows = rows.copy()
        words = map_words(rows, tile)
    assert words is not None
    product, across = kernel(layout, tile), shape.across(tile)
    wave = shape.wave(tile, device.resident_blocks(tile.blocks, tile.shared(layout)))
    split, _ = best_split(shape.down * across, stages, wave)
    order = raster(across, shape.down, wave.blocks, tile.x_tile_bytes, FRAGMENT_ROWS * layout.fragment_bytes)
    partials, flags = exchange_sizes(split, tile)
    if flags:
        partials, flags = between(partials, np.float32), between(flags, np.uint32)
        cleared(flags)
    product(
        (split.blocks,), (product.threads,), (*q.prepared(weights_map(tile.box_row(layout))), 0),
        result_of(out, bias), (partials, flags),
        (rows, HALVES if halves else KIND_NUMBERS["bfloat16"], rows.shape[1]), (m, k, 2 * stages, 0),
        tuple(order), (rows, *words), NO_ADDEND, NOTHING_LATE, split.arguments,
        cluster=split.cluster, max_blocks=tile.blocks,
    )  # fmt: skip
