"""Many tokens: sorted by expert on the device, and one product for the tiles of all experts.

Changed: up to 256 uses of an expert, those of a tile, share its weights. There are three kernels, and the
host waits for none. A few blocks count the uses of each expert and give every use a column of a tile
(schedule/groups.py). Rows of activations are narrowed and copied to these columns
(activations/expert_x_tiles.py). And warp-specialised blocks, those of cuda:warp_specialized of linear, take
one tile after the other from the plan, whatever its expert (schedule/grouped.py). The tiles of the last
wave are split along the columns; the kernel counts them itself. Results go straight to the rows of the
uses. Up to a thousand uses of 256 experts the first kernel is left out: the blocks of both others make the
plan for themselves (schedule/block_plan.py).

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

from ...arrays.array import QuantArray
from ...dispatch.experts import refuses_scaled
from ...dispatch.ladder import register
from ...dispatch.problems import ExpertLinear, Linear, Operand
from ..activations.expert_x_tiles import few_gatherer, gatherer
from ..activations.floats import aligned_floats
from ..activations.x_tiles import STEP, THREAD_COLUMNS, THREADS
from ..cost.split import least_saved, most_partials
from ..cost.stage import stage_us
from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, int32, uint32, uint64
from ..machine import device
from ..machine.launch import Kernel, family
from ..packed.layout import FRAGMENT_ROWS, TILE_ROWS, PackedLayout, layouts
from ..packed.pack import packed_weights
from ..rings.boxed import barrier_initializer
from ..schedule import groups
from ..schedule.block_plan import BYTES, MOST_EXPERTS, MOST_USES, planner
from ..schedule.grouped import consumer_locator, producer_locator
from ..schedule.raster import raster_width
from ..schedule.work_units import shared_stages, split_last_wave
from ..warp_specialized import problems
from ..warp_specialized.consumers import Products, consumer, listed_results
from ..warp_specialized.producer import producer, weights_map
from ..warp_specialized.stream_k import store_split, stored_split, through_memory
from ..warp_specialized.tile import (
    CONSUMER_REGISTERS,
    CONSUMER_THREADS,
    CONSUMER_WARPS,
    PRODUCER_REGISTERS,
    SCRATCH,
    UNIT_FRAGMENTS,
    WarpSpecializedTile,
)  # fmt: skip

TILES = (
    *(WarpSpecializedTile(columns, 2) for columns in (16, 32, 48, 64)),
    *map(WarpSpecializedTile, (96, 144, 160, 208, 256)),
)
COST = {  # of a block's stage and its part of what surrounds tiles, by columns; only their ratios count
    16: 1.1, 32: 1.21, 48: 1.42, 64: 1.63, 96: 1.05, 144: 1.36, 160: 1.46, 208: 1.72, 256: 2.1,
}  # fmt: skip


@family(lambda: ((layout, tile) for layout in layouts() for tile in TILES))
def kernel(layout: PackedLayout, tile: WarpSpecializedTile) -> Kernel:
    """The kernel of blocks that stay on the card until the tiles of all experts are computed."""
    wide = tile.wide
    products, locate = Products(layout, tile, natural=False, halves=False), consumer_locator(tile.columns)
    split_epilogue = through_memory(tile, locate, listed=True)
    consume = consumer(products, locate, listed_results(tile), split_epilogue, stored_split)
    produce = producer(layout, tile, producer_locator(), reorders=False)
    start = barrier_initializer(tile.stages(layout), CONSUMER_WARPS)
    barriers_at, base, load_relaxed = (
        tile.stages(layout) * tile.stage(layout),
        ptx.shared_base,
        barriers.load_relaxed,
    )
    scratch_at, columns, put = 16 * tile.stages(layout), tile.columns, ptx.put
    first_lane, pinned, let_successor_start, wait_for_predecessor = (
        barriers.from_first_lane, barriers.pinned, dependent_launch.let_successor_start,
        dependent_launch.wait_for_predecessor,
    )  # fmt: skip
    make_plan, plan_at = planner(tile.threads, stores_experts=False), scratch_at + SCRATCH
    give, take = barriers.registers("dec", PRODUCER_REGISTERS), barriers.registers("inc", CONSUMER_REGISTERS)

    def product(
        fragments: Any,  # tensor map of the packed weights of all experts
        x_tiles: Any,  # bfloat16 [steps, height, 64]: activations/expert_x_tiles.py
        plan: Any, uses_of_columns: Any,  # uint32: schedule/groups.py, or 0; the use of each column
        ids: Any,  # int64 [uses]; without a plan the block makes its own of them: schedule/block_plan.py
        y: Any,  # float32 [uses, n]
        partials: Any, flags: Any,  # float32 [slots, a tile], uint32: warp_specialized/stream_k.py
        n: Any, steps: Any, height: Any, down: Any, width: Any,  # schedule/grouped.py
        uses: Any, experts: Any,
        gain: Any,  # least_saved() of cost/split.py
    ) -> None:  # fmt: skip
        warp, lane = warp_and_lane()
        warp, lane = first_lane(warp), pinned(lane)
        ring = first_lane(uint32(uint32(base() + uint32(1023)) & uint32(0xFFFFFC00)))
        full = uint32(ring + uint32(barriers_at))
        if uint32(cuda.threadIdx.x) == uint32(0):
            start(full)
            for i in range(2):
                put(uint32(full + uint32(scratch_at + 4 * i)), int32(0))
        entries = uint32(full + uint32(plan_at))
        if plan != uint64(0):
            slots = uint32(load_relaxed(plan))  # written before the predecessor let this kernel start
            cuda.syncthreads()
        else:
            slots = make_plan(entries, entries, ids, uses, experts, uint32(columns))
        tiles, stages, blocks = uint32(slots * down), uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        rank = uint32(uint32(blocks - uint32(1)) - uint32(cuda.blockIdx.x))
        split = split_last_wave(tiles, stages, blocks, gain)
        begin, end = shared_stages(rank, stages, split)
        stages_left, whole_tiles = uint32(end - begin), uint32(tiles - split[0])
        if uint32(cuda.threadIdx.x) == uint32(0):
            store_split(split, whole_tiles, uint32(full + uint32(scratch_at)))
        cuda.syncthreads()
        schedule = (plan, entries, experts, down, width, uses_of_columns)
        if uint32(warp) >= uint32(CONSUMER_WARPS):
            if wide:
                give()
            if uint32(cuda.threadIdx.x) == uint32(CONSUMER_THREADS):
                sources, nothing = (fragments, x_tiles, flags, steps, height), (uint32(0), uint32(0))
                produce(ring, full, sources, schedule, nothing, rank, end, stages_left, whole_tiles)
        else:
            if wide:
                take()
            wait_for_predecessor()  # it writes the uses of columns and clears flags
            outputs, sizes = (y, partials, flags), (n, steps)
            consume(
                ring, full, warp, lane, outputs, schedule, sizes, end, stages_left, rank, uint32(0), False,
                False, (uint64(0), uint32(0)),
            )  # fmt: skip
        let_successor_start()  # at the start, where it finds no room anyway, it costs narrow tiles a spill

    return Kernel(
        f"warp_specialized experts of {layout.name}, {tile}", product, *(uint64,) * 8, *(uint32,) * 8,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout) + BYTES, least=(9, 0),
        exact=True, early=True, lto=wide,
    )  # fmt: skip


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
    return problems.refuses(Linear(weights, 1, problem.n, problem.k, device=problem.device, card=card))


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
    blocks = -(-max(rows * sixteens, flags.size) // THREADS)
    sizes = (flags.size, rows, ids.size // rows, k, n, sixteens, plan_shape.height)
    if ids.size <= MOST_USES and e <= MOST_EXPERTS:
        plan, uses_of_columns = 0, empty(plan_shape.height, np.uint32)
        rows_of_uses = x, ids, x_tiles, uses_of_columns, outs[0], flags
        few_gatherer()((blocks,), (THREADS,), *rows_of_uses, *sizes, e, tile.columns)
    else:
        plan, places = groups.sorted_uses(ids, plan_shape)
        uses_of_columns = plan[groups.HEAD + 4 * plan_shape.slots :]
        gatherer()((blocks,), (THREADS,), x, x_tiles, places, outs[0], flags, *sizes)
    grid = most if slots else min(plan_shape.slots * down, most)
    width = raster_width(most, tile.x_tile_bytes, FRAGMENT_ROWS * w.layout.fragment_bytes)
    steps_and_tiles = n, steps, plan_shape.height, down, width
    for q, out, flags_of_product in zip(matrices, outs, flags, strict=True):
        weights, *_ = q.prepared(weights_map(tile.box_row(w.layout)))
        operands = weights, x_tiles, plan, uses_of_columns, ids, out, partials, flags_of_product
        product_kernel((grid,), (tile.threads,), *operands, *steps_and_tiles, ids.size, e, gain)
