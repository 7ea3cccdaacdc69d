"""Many tokens: sorted by expert on the device, and one product for the tiles of all experts.

Changed: from one to two and a half hundred uses of an expert share its weights. Three kernels, none of which
the host waits for: a few blocks count the uses of each expert and give every use a column of a tile
(schedule/groups.py); rows of activations are narrowed and copied to these columns
(activations/expert_x_tiles.py); and blocks with roles, those of cuda:warp_specialized of linear, take one tile after the
other from the plan, whatever its expert (schedule/grouped.py). The tiles of the last turn are shared along
the columns, as many of them as there turn out to be. Results go straight to the rows of the uses.
Up to a thousand uses of 256 experts the first kernel is left out: the blocks of both others make the plan
for themselves (schedule/block_plan.py).

So neither the number of launches nor the size of a grid depends on what the ids say. How wide tiles are is
decided by how many uses an expert has on average: wide ones unpack weights less often, narrow ones waste
less where an expert's last tile is filled in part.

Limited, with few uses an expert, by the instructions that unpack types with bytes of scales, for others by
memory and some ten microseconds around the products; with many by the card's power in the product itself, and
by sorting and copying rows, a third of the time where K is short.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.experts import of_arrays
from ...dispatch.ladder import register
from ...dispatch.problems import ExpertLinear, Linear, Operand
from ...formats import BLOCK_FORMATS, BlockFormat
from ..activations.expert_x_tiles import few_gatherer, gatherer
from ..activations.floats import aligned_floats
from ..activations.x_tiles import EACH, STEP, THREADS
from ..cost.sharing import least_saved, room
from ..cost.stage import stage_us
from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, int32, uint32, uint64
from ..linear.r15_wgmma import multiplier
from ..linear.r16_warp_specialized import FETCHES, MULTIPLIES, map_of
from ..linear.r16_warp_specialized import refuses as refused_by_roles
from ..machine import device
from ..machine.launch import Kernel, family
from ..packed.layout import ROWS, STRIPS, layout_of
from ..packed.pack import strips
from ..rings.boxed import barrier_initializer
from ..schedule import groups
from ..schedule.block_plan import BYTES, MOST_EXPERTS, MOST_USES, planner
from ..schedule.grouped import fetched, written
from ..schedule.raster import band_of
from ..schedule.work_units import bounds_of, shared_out
from ..warp_specialized.consumers import worker
from ..warp_specialized.producer import MULTIPLY, OF_NOTES, PIECE, RoleTile, filler
from ..warp_specialized.stream_k import note_down, noted

TILES = (
    RoleTile(16, 2), RoleTile(32, 2), RoleTile(48, 2), RoleTile(64, 2), RoleTile(96), RoleTile(144),
    RoleTile(160), RoleTile(208), RoleTile(256),
)  # fmt: skip
COST = {  # of a block's stage and its part of what surrounds tiles, by columns; they count beside each other
    16: 1.1, 32: 1.21, 48: 1.42, 64: 1.63, 96: 1.05, 144: 1.36, 160: 1.46, 208: 1.72, 256: 2.1,
}  # fmt: skip


@family((fmt, tile) for fmt in BLOCK_FORMATS for tile in TILES)
def kernel(fmt: BlockFormat, tile: RoleTile) -> Kernel:
    """Blocks that stay."""
    layout, wide = layout_of(fmt), tile.wide
    work = worker(layout, tile, multiplier(tile.columns), written(tile.columns), noted, listed=True)
    fill, start = (
        filler(layout, tile, fetched(), makes=False),
        barrier_initializer(tile.stages(layout), STRIPS),
    )
    of_barriers, base, seen = tile.stages(layout) * tile.stage(layout), ptx.shared_base, barriers.load_relaxed
    of_notes, columns, put = 16 * tile.stages(layout), tile.columns, ptx.put
    first_lane, pinned, let_successor_start, wait_for_predecessor = (
        barriers.from_first_lane, barriers.pinned, dependent_launch.let_successor_start,
        dependent_launch.wait_for_predecessor,
    )  # fmt: skip
    make_plan, of_plan = planner(tile.threads, keeps=False), of_notes + OF_NOTES
    give, take = barriers.registers("dec", FETCHES), barriers.registers("inc", MULTIPLIES)

    def product(
        records: Any,  # map of the strips of all experts
        panels: Any,  # bfloat16 [steps, height, 64]: activations/expert_x_tiles.py
        plan: Any, of_column: Any,  # uint32: schedule/groups.py, or 0; the use of each column
        ids: Any,  # int64 [uses], of which the block makes the plan if there is none: schedule/block_plan.py
        y: Any,  # float32 [uses, n]
        parts: Any, flags: Any,  # float32 [slots, a tile], uint32: warp_specialized/stream_k.py
        n: Any, steps: Any, height: Any, down: Any, band: Any,  # schedule/grouped.py
        uses: Any, experts: Any,
        gain: Any,  # least_saved() of schedule/work_units.py
    ) -> None:  # fmt: skip
        warp, lane = warp_and_lane()
        warp, lane = first_lane(warp), pinned(lane)
        ring = first_lane(uint32(uint32(base() + uint32(1023)) & uint32(0xFFFFFC00)))
        full = uint32(ring + uint32(of_barriers))
        if uint32(cuda.threadIdx.x) == uint32(0):
            start(full)
            for i in range(2):
                put(uint32(full + uint32(of_notes + 4 * i)), int32(0))
        entries = uint32(full + uint32(of_plan))
        if plan != uint64(0):
            slots = uint32(seen(plan))  # there since the predecessor began to write panels
            cuda.syncthreads()
        else:
            slots = make_plan(entries, entries, ids, uses, experts, uint32(columns))
        tiles, stages, blocks = uint32(slots * down), uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        rank = uint32(uint32(blocks - uint32(1)) - uint32(cuda.blockIdx.x))
        pieces = shared_out(tiles, stages, blocks, gain)
        begin, end = bounds_of(rank, stages, pieces)
        left, wholes = uint32(end - begin), uint32(tiles - pieces[0])
        if uint32(cuda.threadIdx.x) == uint32(0):
            note_down(pieces, wholes, uint32(full + uint32(of_notes)))
        cuda.syncthreads()
        where = (plan, entries, experts, down, band, of_column)
        if uint32(warp) >= uint32(STRIPS):
            if wide:
                give()
            if uint32(cuda.threadIdx.x) == uint32(MULTIPLY):
                sources, nothing = (records, panels, flags, steps, height), (uint32(0), uint32(0))
                fill(ring, full, sources, where, nothing, rank, end, left, wholes)
        else:
            if wide:
                take()
            wait_for_predecessor()  # it writes the uses of columns, and flags
            ends, given = (y, parts, flags), (n, steps)
            work(ring, full, warp, lane, ends, where, given, end, left, rank, uint32(0))
        let_successor_start()  # at the start, where it finds no room anyway, it costs narrow tiles a spill

    return Kernel(
        f"roles for experts of {fmt.name}, {tile}", product, *(uint64,) * 8, *(uint32,) * 8,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout) + BYTES, least=(9, 0),
        exact=True, early=True, lto=wide,
    )  # fmt: skip


@lru_cache(4096)
def tile_for(tokens: int, used: int, experts: int) -> RoleTile:
    """With which an expert that has its share of uses, give or take chance, is done first."""

    def us(tile: RoleTile) -> float:
        slots = groups.expected_slots(tokens, used, experts, tile.columns)
        return slots * COST[tile.columns] / tile.blocks

    return min(TILES, key=us)


def refuses(problem: ExpertLinear) -> str | None:
    if (refused := of_arrays(problem)) is not None:
        return refused
    uses = problem.t * problem.u
    if not 0 < problem.e <= groups.MOST:
        return f"takes 1 to {groups.MOST} experts"
    if uses * max(problem.k, STEP * PIECE) >= 1 << 36 or problem.n >= 1 << 28:
        return "takes up to 2**36 elements of activations and 2**28 rows of weights"
    weights, card = problem.weights, problem.card
    assert not isinstance(weights, Operand)
    return refused_by_roles(Linear(weights, 1, problem.n, problem.k, device=problem.device, card=card))


@register(__name__, __doc__, arithmetic="bf16s", accumulate="f16", refuses=refuses)
def launch(x: Any, q: QuantArray, ids: Any, out: Any, tile: RoleTile | None = None) -> None:
    """``tile``: another than is thought best."""
    assert isinstance(q.format, BlockFormat)
    w, x, (e, n, k), empty = strips(q), aligned_floats(x), q.shape, device.cupy().empty
    steps, down, (rows, _) = w.records.shape[1], -(-n // (STRIPS * ROWS)), x.shape
    tile = tile or tile_for(*ids.shape, e)
    of, made = groups.Plan(ids.size, e, tile.columns), kernel(q.format, tile)
    most = device.multiprocessors() * device.resident_blocks(tile.blocks, made.shared)
    gain, stages = least_saved(tile.columns, stage_us(w.layout, tile.columns, tile.blocks)), steps // PIECE
    kept = room(most, stages, gain)
    parts, flags = empty(kept * STRIPS * ROWS * tile.columns, np.float32), empty(kept + 1, np.uint32)
    panels = empty((steps, of.height, STEP), np.uint16)
    sixteens = steps * STEP // EACH
    blocks = -(-max(rows * sixteens, flags.size) // THREADS)
    sizes = (flags.size, rows, ids.size // rows, k, n, sixteens, of.height)
    if ids.size <= MOST_USES and e <= MOST_EXPERTS:
        plan, of_column = 0, empty(of.height, np.uint32)
        few_gatherer()((blocks,), (THREADS,), x, ids, panels, of_column, out, flags, *sizes, e, tile.columns)
    else:
        plan, places = groups.sorted_uses(ids, of)
        of_column = plan[groups.HEAD + 4 * of.slots :]
        gatherer()((blocks,), (THREADS,), x, panels, places, out, flags, *sizes)
    grid = most if kept else min(of.slots * down, most)
    operands = (q.prepared(map_of(tile.line(w.layout)))[0], panels, plan, of_column, ids, out, parts, flags)
    band = band_of(most, tile.panel, STRIPS * w.layout.record)
    made((grid,), (tile.threads,), *operands, n, steps, of.height, down, band, ids.size, e, gain)
