"""Many tokens: sorted by expert on the device, and one product for the tiles of all experts.

Changed: up to 256 uses of an expert, those of a tile, share its weights. There are three kernels, and the
host waits for none. A few blocks count the uses of each expert and give every use a column of a tile
(layouts/groups.py). Rows of activations are narrowed and copied to these columns (layouts/x_tiles.py).
And warp-specialised blocks, those of cuda:warp_specialized of linear, take one tile after the other from
the plan, whatever its expert (kernels/hopper/experts.py). The tiles of the last wave are split along
the columns; the kernel counts them itself. Results go straight to the rows of the uses. Up to a thousand
uses of 256 experts the first kernel is left out: the blocks of both others make the plan for themselves
(layouts/groups.py).

So neither the number of launches nor the size of a grid depends on the values of ids. The uses that an
expert has on average decide how wide tiles are: wide ones unpack weights less often, narrow ones waste less
where an expert's last tile is filled in part.

Limited, with few uses an expert, by the instructions that unpack types with bytes of scales, for others by
memory and some ten microseconds around the products; with many by the card's power in the product itself, and
by sorting and copying rows, a third of the time where K is short.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ....arrays.array import QuantArray
from ....dispatch.experts import refuses_scaled
from ....dispatch.ladder import register
from ....dispatch.problems import ExpertLinear, Linear, Operand
from ...driver import device
from ...driver.launch import Kernel, family
from ...kernels.cost.stage import stage_us
from ...kernels.cost.warp_specialized import least_saved, most_partials
from ...kernels.hopper import frame
from ...kernels.hopper.experts import experts, listed_results
from ...kernels.hopper.kernel import Products, packed_blocks, weights_map
from ...kernels.hopper.stream_k import through_memory
from ...kernels.hopper.tiles import UNIT_FRAGMENTS, WarpSpecializedTile, raster_width
from ...kernels.hopper.tiles import refuses as refuses_tiles
from ...layouts import groups
from ...layouts.floats import aligned_floats
from ...layouts.groups import GATHER_THREADS, MOST_EXPERTS, MOST_USES, few_x_tile_gatherer, x_tile_gatherer
from ...layouts.layout import FRAGMENT_ROWS, TILE_ROWS, PackedLayout, layouts
from ...layouts.pack import packed_weights
from ...layouts.x_tiles import STEP, THREAD_COLUMNS

TILES = (
    *(WarpSpecializedTile(columns, 2) for columns in (16, 32, 48, 64)),
    *map(WarpSpecializedTile, (96, 144, 160, 208, 256)),
)
COST = {  # of a block's stage and its part of what surrounds tiles, by columns; only their ratios count
    16: 1.1, 32: 1.21, 48: 1.42, 64: 1.63, 96: 1.05, 144: 1.36, 160: 1.46, 208: 1.72, 256: 2.1,
}  # fmt: skip


@family(lambda: ((layout, tile) for layout in layouts() for tile in TILES))
def kernel(layout: PackedLayout, tile: WarpSpecializedTile) -> Kernel:
    """The kernel of the tiles of all experts."""
    products, schedule = Products(layout, tile, natural=False, halves=False), experts(layout, tile)
    epilogue = listed_results(tile), through_memory(tile, schedule.walk.locate, listed=True)
    name = f"warp_specialized experts of {layout.name}, {tile}"
    return frame.kernel(name, packed_blocks(products), schedule, epilogue)


@lru_cache(4096)
def tile_for(tokens: int, used: int, experts: int) -> WarpSpecializedTile:
    """The tile with the lowest cost for an expert's expected slots, if uses are spread by chance."""

    def us(tile: WarpSpecializedTile) -> float:
        slots = groups.expected_slots(tokens, used, experts, tile.columns)
        return slots * COST[tile.columns] / tile.blocks

    return min(TILES, key=us)


def refuses(problem: ExpertLinear) -> str | None:
    if (refused := refuses_scaled(problem)) is not None:
        return refused
    uses = problem.t * problem.u
    if not 0 < problem.e <= groups.MOST:
        return f"takes 1 to {groups.MOST} experts"
    if uses * max(problem.k, STEP * UNIT_FRAGMENTS) >= 1 << 36 or problem.n >= 1 << 28:
        return "takes up to 2**36 elements of activations and 2**28 rows of weights"
    weights, card = problem.weights, problem.card
    assert not isinstance(weights, Operand)
    return refuses_tiles(Linear(weights, 1, problem.n, problem.k, device=problem.device, card=card))


@register(__name__, __doc__, arithmetic="bf16s", accumulate="f16", refuses=refuses)
def launch(x: Any, q: QuantArray, ids: Any, out: Any, tile: WarpSpecializedTile | None = None) -> None:
    """``tile``: another tile than the best by estimate."""
    multiply(x, (q,), ids, (out,), tile)


def multiply(
    x: Any, matrices: tuple[QuantArray, ...], ids: Any, outs: tuple[Any, ...],
    tile: WarpSpecializedTile | None = None,
) -> None:  # fmt: skip
    """The products of x with experts of one type and shape in several arrays; rows are gathered once for all.

    A use without an expert makes a row of NaN in the first result, and leaves that of the others as it was.
    """
    w, (e, n, k) = packed_weights(matrices[0]), matrices[0].shape
    x, empty = aligned_floats(x), device.cupy().empty
    steps, down, (rows, _) = w.fragments.shape[1], -(-n // TILE_ROWS), x.shape
    tile = tile or tile_for(*ids.shape, e)
    plan_shape, product_kernel = groups.UsePlan(ids.size, e, tile.columns), kernel(w.layout, tile)
    most = device.multiprocessors() * device.resident_blocks(tile.blocks, product_kernel.shared)
    gain = least_saved(tile.columns, stage_us(w.layout, tile.columns, tile.blocks))
    slots = most_partials(most, steps // UNIT_FRAGMENTS, gain)
    partials = empty(
        slots * TILE_ROWS * tile.columns, np.float32
    )  # a product begins when the one before ends
    flags = empty((len(matrices), slots + 1), np.uint32)
    x_tiles = empty((steps, plan_shape.height, STEP), np.uint16)
    sixteens = steps * STEP // THREAD_COLUMNS
    blocks = -(-max(rows * sixteens, flags.size) // GATHER_THREADS)
    sizes = (flags.size, rows, ids.size // rows, k, n, sixteens, plan_shape.height)
    if ids.size <= MOST_USES and e <= MOST_EXPERTS:
        plan, uses_of_columns = 0, empty(plan_shape.height, np.uint32)
        rows_of_uses = x, ids, x_tiles, uses_of_columns, outs[0], flags
        few_x_tile_gatherer()((blocks,), (GATHER_THREADS,), *rows_of_uses, *sizes, e, tile.columns)
    else:
        plan, places = groups.sorted_uses(ids, plan_shape)
        uses_of_columns = plan[groups.HEAD + 4 * plan_shape.slots :]
        x_tile_gatherer()((blocks,), (GATHER_THREADS,), x, x_tiles, places, outs[0], flags, *sizes)
    grid = most if slots else min(plan_shape.slots * down, most)
    width = raster_width(most, tile.x_tile_bytes, FRAGMENT_ROWS * w.layout.fragment_bytes)
    product_sizes, counts = (n, steps, plan_shape.height), (ids.size, e, gain)
    for q, out, flags_of_product in zip(matrices, outs, flags, strict=True):
        weights, *_ = q.prepared(weights_map(tile.box_row(w.layout)))
        product_kernel(
            (grid,), (tile.threads,), (weights, x_tiles), (plan, uses_of_columns, ids), out,
            (partials, flags_of_product), product_sizes, (down, width), counts,
        )  # fmt: skip
