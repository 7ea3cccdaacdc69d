"""Many tokens: uses sorted by expert on the device, and one product for the tiles of all experts.

Changed: up to 256 uses of an expert, those of a tile, share its weights. A few blocks count the uses of each
expert and give every use a column of a tile (schedule/groups.py). Then warp-specialised blocks, those of
cuda:warp_specialized of linear, take one tile after the other from the plan, whatever its expert
(schedule/grouped.py). Rows of activations are not gathered: the warps beside the consumers copy those of a
tile from where they lie (warp_specialized/use_rows.py). The tiles of the last wave are split along the
columns; the kernel counts them itself. Results go straight to the rows of the uses. Up to a thousand uses of
256 experts the blocks find the expert of a tile themselves (schedule/block_plan.py), and fetch its first
weights while the plan is made.

Activations of 16 bits are multiplied as they are, float16 with weights as halves where scales are halves;
those in float32 become bfloat16 first, a row once for all its experts.

So neither the number of launches nor the size of a grid depends on the values of ids. The uses that an
expert has on average decide how wide tiles are: wide ones unpack weights less often, narrow ones waste less
where an expert's last tile is filled in part.

Limited, with few uses an expert, by the instructions that unpack types with bytes of scales, for others by
memory and some ten microseconds around the products; with many by the card's power in the product itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.experts import refuses_scaled
from ...dispatch.ladder import register
from ...dispatch.problems import ExpertLinear, Linear, Operand
from ..activations.expert_rows import sorted_uses_and_rows
from ..activations.floats import narrowed, narrowed_for_wgmma
from ..activations.x_tiles import rows_of_kind
from ..cost.split import least_saved, most_partials
from ..cost.stage import stage_us
from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, int32, uint32, uint64
from ..machine import device
from ..machine.launch import Kernel, family
from ..packed import natural
from ..packed.half_weights import halved, keeps_halves
from ..packed.layout import FRAGMENT_ROWS, STEP, TILE_ROWS, PackedLayout, layouts
from ..packed.pack import packed_weights
from ..schedule import groups
from ..schedule.block_plan import BYTES, MOST_EXPERTS, MOST_USES, planner
from ..schedule.grouped import consumer_locator, producer_locator
from ..schedule.raster import raster_width
from ..schedule.uses import lost_row_writer
from ..schedule.work_units import shared_stages, split_last_wave
from ..warp_specialized import problems
from ..warp_specialized.consumers import Products, consumer, listed_results
from ..warp_specialized.plain_rows import row_producer
from ..warp_specialized.producer import weights_map
from ..warp_specialized.stream_k import store_split, stored_split, through_memory
from ..warp_specialized.tile import (
    CONSUMER_REGISTERS,
    CONSUMER_WARPS,
    PRODUCER_REGISTERS,
    SCRATCH,
    UNIT_FRAGMENTS,
    WarpSpecializedTile,
)  # fmt: skip
from ..warp_specialized.use_rows import barrier_maker, copying_threads, use_fetcher

TILES = (
    *(WarpSpecializedTile(columns, 2) for columns in (16, 32)),
    *map(WarpSpecializedTile, (48, 64, 96, 144, 160, 208, 256)),
)
COST = {  # of a block's stage and its part of what surrounds tiles, by columns; only their ratios count
    16: 1.1, 32: 1.21, 48: 0.74, 64: 0.84, 96: 1.05, 144: 1.36, 160: 1.46, 208: 1.72, 256: 2.1,
}  # fmt: skip


def kinds_of(layout: PackedLayout, tile: WarpSpecializedTile) -> tuple[str, ...]:
    """The kinds of x by kernel: one serves both, but where blocks that share a multiprocessor have no
    registers for that.
    """
    if not keeps_halves(layout):
        return ("bf16",)
    return ("bf16", "f16") if tile.blocks > 1 else ("bf16 f16",)


def cases() -> Iterator[tuple[PackedLayout, WarpSpecializedTile, str]]:
    """All kernels: of layouts, tiles, and kinds of x."""
    for layout in layouts():
        for tile in TILES:
            yield from ((layout, tile, kinds) for kinds in kinds_of(layout, tile))


@family(cases)
def kernel(layout: PackedLayout, tile: WarpSpecializedTile, kinds: str) -> Kernel:
    """The kernel of blocks that stay on the card until the tiles of all experts are computed."""
    wide, in_order, locate = tile.wide, natural.serves(layout), consumer_locator(tile.columns)
    products = Products(layout, tile, in_order, True, tuple(kinds.split()))
    split_epilogue = through_memory(tile, locate, listed=True)
    consume = consumer(products, locate, listed_results(tile), split_epilogue, stored_split)
    produce = row_producer(layout, tile, producer_locator(tile.columns), use_fetcher(layout, tile))
    start = barrier_maker(tile.stages(layout), copying_threads(tile))
    barriers_at, base, load_relaxed = (
        tile.stages(layout) * tile.stage(layout),
        ptx.shared_base,
        barriers.load_relaxed,
    )
    write_lost_rows = lost_row_writer(CONSUMER_WARPS)
    scratch_at, columns, put = 16 * tile.stages(layout), tile.columns, ptx.put
    first_lane, pinned, let_successor_start, wait_for_predecessor = (
        barriers.from_first_lane, barriers.pinned, dependent_launch.let_successor_start,
        dependent_launch.wait_for_predecessor,
    )  # fmt: skip
    make_plan, plan_at = planner(tile.threads), scratch_at + SCRATCH
    give, take = barriers.registers("dec", PRODUCER_REGISTERS), barriers.registers("inc", CONSUMER_REGISTERS)

    def product(
        fragments: Any,  # tensor map of the packed weights of all experts
        x: Any, halves: Any, k: Any, per: Any,  # 16 bits [uses / per, k], float16 or bfloat16
        plan: Any, uses_of_columns: Any,  # uint32: schedule/groups.py, or 0; the use of each column
        ids: Any,  # int64 [uses]; without a plan the block makes its own of them: schedule/block_plan.py
        y: Any,  # float32 [uses, n]
        partials: Any, flags: Any,  # float32 [slots, a tile], uint32: warp_specialized/stream_k.py
        n: Any, steps: Any, down: Any, width: Any,  # schedule/grouped.py
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
            wait_for_predecessor()  # it makes the plan
            slots = uint32(load_relaxed(plan))
            cuda.syncthreads()
        else:
            slots = make_plan(entries, ids, uses, experts, uint32(columns))
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
            sources = fragments, (x, k, per)
            produce(ring, full, sources, steps, schedule, rank, end, stages_left, whole_tiles)
        else:
            if wide:
                take()
            wait_for_predecessor()  # it lists the uses and clears flags
            write_lost_rows(ids, uses, experts, y, n, warp, lane)
            outputs, sizes = (y, partials, flags), (n, steps)
            consume(
                ring, full, warp, lane, outputs, schedule, sizes, end, stages_left, rank, uint32(0),
                in_order, halves != uint32(0), (uint64(0), uint32(0)),
            )  # fmt: skip
        let_successor_start()  # at the start, where it finds no room anyway, it costs narrow tiles a spill

    return Kernel(
        f"warp_specialized experts of {layout.name}, {tile}, {kinds}", product,
        uint64, uint64, *(uint32,) * 3, *(uint64,) * 6, *(uint32,) * 7,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout) + BYTES, least=(9, 0),
        exact=True, early=True, lto=wide,
    )  # fmt: skip


def kernel_for(layout: PackedLayout, tile: WarpSpecializedTile, halves: bool) -> Kernel:
    """The kernel for x in bfloat16, or in float16."""
    return kernel(layout, tile, kinds_of(layout, tile)[-1 if halves else 0])


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
    if uses * max(problem.k, STEP * UNIT_FRAGMENTS) >= 1 << 35 or problem.n >= 1 << 28:
        return "takes up to 2**35 elements of activations and 2**28 rows of weights"
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
    """The products of x with experts of one type and shape in several arrays; uses are sorted once for all.

    A use without an expert makes a row of NaN.
    """
    w, (e, n, k) = packed_weights(matrices[0]), matrices[0].shape
    steps, down, empty = w.fragments.shape[1], -(-n // TILE_ROWS), device.cupy().empty
    tile = tile or tile_for(*ids.shape, e)
    plan_shape, halves = groups.UsePlan(ids.size, e, tile.columns), halved(x, w.layout)
    product_kernel = kernel_for(w.layout, tile, halves)
    most = device.multiprocessors() * device.resident_blocks(tile.blocks, product_kernel.shared)
    gain = least_saved(tile.columns, stage_us(w.layout, tile.columns, tile.blocks))
    slots = most_partials(most, steps // UNIT_FRAGMENTS, gain)
    # A product begins when the one before ends, so all have the same partial sums.
    partials = empty(slots * TILE_ROWS * tile.columns, np.float32)
    flags = empty((len(matrices), slots + 1), np.uint32)
    plan, rows = plan_and_rows(x, ids, plan_shape, flags, natural.serves(w.layout), halves)
    uses_of_columns = plan[groups.HEAD + 4 * plan_shape.slots :]
    if ids.size <= MOST_USES and e <= MOST_EXPERTS:
        plan = 0
    grid = most if slots else min(plan_shape.slots * down, most)
    width = raster_width(most, tile.x_tile_bytes, FRAGMENT_ROWS * w.layout.fragment_bytes)
    for q, out, flags_of_product in zip(matrices, outs, flags, strict=True):
        weights, *_ = q.prepared(weights_map(tile.box_row(w.layout)))
        product_kernel(
            (grid,), (tile.threads,), weights, rows, int(halves), k, ids.size // len(rows), plan,
            uses_of_columns, ids, out, partials, flags_of_product, n, steps, down, width, ids.size, e, gain,
        )  # fmt: skip


def plan_and_rows(
    x: Any, ids: Any, plan_shape: groups.UsePlan, flags: Any, in_order: bool, halves: bool
) -> tuple[Any, Any]:
    """The plan, and rows of x as kernels read them: those that lie so are not copied. Flags are cleared."""
    x, kind = rows_of_kind(x, halves)
    if kind == "float32":
        return sorted_uses_and_rows(ids, plan_shape, flags, x, in_order)
    if not in_order:
        x = narrowed_for_wgmma(x)
    elif not halves and kind == "float16":
        x = narrowed(x, "bfloat16")
    return groups.sorted_uses(ids, plan_shape, flags)[0], x
