"""Warp-specialised: one warp fetches, two warpgroups unpack and multiply, and blocks make several tiles.

Changed: no warp waits for all others. In cuda:wgmma eight warps fetch together, meet, multiply together and
unpack together, step by step. Here a ninth warp, the producer, has the copy engine fetch: it requests whole
pieces of memory, packed weights and x_tiles (activations/x_tiles.py), as soon as a stage is free, over the
ends of tiles, too. The two consumer warpgroups wait for nothing but full stages, so one has the tensor
cores while the other unpacks.

Tiles are up to 256 rows of activations wide, which halves the cost to unpack weights and to fetch
activations. Blocks stay on the card and split the last wave of tiles along the columns
(schedule/work_units.py), so any shape fills the card, in one kernel: each block of a tile adds up a slice
of the partial sums (warp_specialized/stream_k.py).

Tiles are made in a raster (schedule/raster.py), so that activations stay in the L2 cache while weights go
by. With the widest tiles three more warps make x_tiles of later steps meanwhile
(warp_specialized/late_activations.py).

Activations of 16 bits are read as they lie by tiles of up to 160 rows: lanes take weights in the order of
their columns (packed/natural.py), so no kernel runs before. Activations in float32, and those of wider tiles,
become x_tiles first. float16 is multiplied as float16 with weights as halves, where scales are halves.

Limited by the work around the products, 7 to 12 microseconds to make x_tiles, to start and to add up partial
sums; from some 1000 rows on by the card's power.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.epilogue import PLAIN, Epilogue
from ...dispatch.ladder import register
from ..activations.floats import narrowed
from ..activations.x_tiles import cleared, readable_rows, x_tiles_of
from ..cost.split import best_split
from ..cost.warp_specialized import TILES, WarpSpecializedShape, best_tile
from ..epilogue.gate_factors import MOST_GATED, addend_of
from ..epilogue.results import KIND_NUMBERS, result_of
from ..intrinsics import barrier as barriers
from ..intrinsics import boxes, dependent_launch, ptx
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, int32, types, uint32, uint64
from ..machine import device, tensor_maps
from ..machine.launch import Kernel, family
from ..machine.recorded import between
from ..packed.half_weights import serves_halves
from ..packed.layout import FRAGMENT_ROWS, TILE_ROWS, PackedLayout, layouts
from ..packed.pack import packed_weights
from ..rings.boxed import barrier_initializer
from ..schedule.raster import consumer_locator, locate_for_producer, raster
from ..schedule.work_units import shared_stages
from ..warp_specialized.cluster_split import INBOX_BARRIER, within_clusters
from ..warp_specialized.consumers import HALVES, Products, consumer, dense_results
from ..warp_specialized.late_activations import plan_late
from ..warp_specialized.plain_rows import map_words, reads_plain
from ..warp_specialized.problems import refuses
from ..warp_specialized.producer import weights_map
from ..warp_specialized.stream_k import flag_count
from ..warp_specialized.suppliers import supplier
from ..warp_specialized.tile import CONSUMER_REGISTERS, CONSUMER_WARPS, UNIT_FRAGMENTS, WarpSpecializedTile

# Parameters before the map of x: 112 bytes, so that it is aligned.
BEFORE_MAP = (uint64,) * 3 + (uint32, uint64, uint32) + (uint64,) * 3 + (uint32,) * 10
X_MAP, WORDS = len(BEFORE_MAP), types.UniTuple(uint64, tensor_maps.SIZE // 8 - 1)
NO_MAP = (0,) * (tensor_maps.SIZE // 8 - 1)


@family(lambda: ((layout, tile) for layout in layouts() for tile in TILES))
def kernel(layout: PackedLayout, tile: WarpSpecializedTile) -> Kernel:
    """The kernel of blocks that stay; the last block is the first in the order of schedule/work_units.py."""
    wide, locate = tile.wide, consumer_locator(tile.columns)
    products = Products(layout, tile, reads_plain(layout, tile), halves=True)
    consume = consumer(products, locate, dense_results(tile), within_clusters(layout, tile, locate))
    supply = supplier(layout, tile, locate_for_producer)
    start = barrier_initializer(tile.stages(layout), CONSUMER_WARPS)
    barriers_at, base = tile.stages(layout) * tile.stage(layout), ptx.shared_base
    scratch, put, init = 16 * tile.stages(layout), ptx.put, barriers.init
    first_lane, pinned, let_successor_start = (
        barriers.from_first_lane, barriers.pinned, dependent_launch.let_successor_start
    )  # fmt: skip
    take, x_map = barriers.registers("inc", CONSUMER_REGISTERS), boxes.parameter_map(X_MAP)

    def product(
        fragments: Any,  # tensor map of the packed weights
        x_tiles: Any,  # 16 bits [steps, height, 64]: activations/x_tiles.py; a height of 0: plain_rows.py
        y: Any, y_kind: Any, bias: Any, bias_kind: Any,  # of y [m, n]: epilogue/results.py
        partials: Any, flags: Any,  # float32 [slots, a tile], uint32: warp_specialized/stream_k.py
        x: Any, kind: Any, k: Any,  # [m, k]: late_activations.py, plain_rows.py; or HALVES
        m: Any, n: Any, steps: Any, height: Any,
        across: Any, width: Any, per_sweep: Any, tiles: Any,  # schedule/raster.py
        matrix: Any, words: Any,  # the map of x, or zeros: plain_rows.py
        residual: Any, residual_kind: Any,  # or a gate, of y's shape; or 0: epilogue/gate_factors.py
        counters: Any, ready: Any, sections: Any, section_tickets: Any, tickets: Any,  # late_activations.py
        split_tiles: Any, split_blocks: Any, splits: Any, block_stages: Any, longer_blocks: Any,  # Split
    ) -> None:  # fmt: skip
        let_successor_start()  # it finds no room before blocks of this kernel end, so all of these run
        warp, lane = warp_and_lane()
        warp, lane = first_lane(warp), pinned(lane)
        ring = first_lane(uint32(uint32(base() + uint32(1023)) & uint32(0xFFFFFC00)))
        full = uint32(ring + uint32(barriers_at))
        if uint32(cuda.threadIdx.x) == uint32(0):
            init(uint32(full + uint32(scratch + INBOX_BARRIER)), uint32(1))
            start(full)
            for i in range(2):
                put(uint32(full + uint32(scratch + 4 * i)), int32(0))
        cuda.syncthreads()
        last = uint32(uint32(cuda.gridDim.x) - uint32(1))
        rank = uint32(last - uint32(cuda.blockIdx.x))
        whole_tiles = uint32(tiles - split_tiles)
        split = split_tiles, split_blocks, splits, block_stages, longer_blocks, whole_tiles
        schedule = (across, width, per_sweep, tiles), m
        late = counters, ready, sections, section_tickets, tickets
        begin, end = shared_stages(
            rank, uint32(steps >> uint32(1)), (split_tiles, split_blocks, splits, block_stages, longer_blocks)
        )
        stages_left = uint32(end - begin)
        if uint32(warp) >= uint32(CONSUMER_WARPS):
            sources, work = (fragments, x_tiles, flags, steps, height), (rank, end, stages_left, whole_tiles)
            supply(ring, full, warp, lane, sources, (x, kind, m, k), x_map(), schedule, late, work)
        else:
            if wide:
                take()
            outputs, sizes = ((y, y_kind, bias, bias_kind), partials, flags), (n, steps)
            plain, halves = height == uint32(0), kind == uint32(HALVES)
            consume(
                ring, full, warp, lane, outputs, schedule, sizes, end, stages_left, rank, split, plain,
                halves, (residual, residual_kind),
            )  # fmt: skip

    return Kernel(
        f"warp_specialized of {layout.name}, {tile}", product, *BEFORE_MAP, uint64, WORDS, uint64,
        *(uint32,) * 11,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout), least=(9, 0),
        exact=True, early=True, lto=wide,
    )  # fmt: skip


@register(
    __name__, __doc__, arithmetic="bf16s", accumulate="f16", refuses=refuses, narrow=True, repeats=True,
    ends=True, adds=True, gates=MOST_GATED,
)  # fmt: skip
def launch(
    x: Any, q: QuantArray, out: Any, tile: WarpSpecializedTile | None = None, end: Epilogue = PLAIN,
    plain: bool = True,
) -> None:  # fmt: skip
    """``tile``: another tile than the best by estimate; with a gate it has at most MOST_GATED columns.
    ``plain``: read 16 bits as they lie, where tile and type allow it; else a kernel before makes x_tiles.
    """
    if not (x.size and out.size):
        out.fill(0)
        return
    w, (m, n) = packed_weights(q), out.shape
    # Parts of a unit would round small scales to numbers of few bits.
    halves = x.dtype.char == "e" and serves_halves(w.layout) and w.layout.unit == 1
    (x, kind), steps, card = readable_rows(x), w.fragments.shape[1], device.card_of(device.current())
    if halves:  # moved as they are, like bfloat16; those that do not lie as kernels read them stay halves
        x, kind = (x if kind == "float16" else narrowed(x, "float16")).view(np.uint16), "float16"
    plain = plain and (halves or kind == "bfloat16")
    shape = WarpSpecializedShape.on(card, m, n, steps // UNIT_FRAGMENTS, w.layout, plain)
    tile = tile or best_tile(shape).tile
    if end.gate is not None and tile.columns > MOST_GATED:
        tile = next(each for each in TILES[::-1] if each.columns <= MOST_GATED)
    product = kernel(w.layout, tile)
    across = shape.across(tile)
    wave = shape.wave(tile, device.resident_blocks(tile.blocks, tile.shared(w.layout)))
    split, _ = best_split(shape.down * across, shape.stages, wave)
    w_bytes = FRAGMENT_ROWS * w.layout.fragment_bytes
    order = raster(across, shape.down, wave.blocks, tile.x_tile_bytes, w_bytes)
    through_memory = split.cluster == 1  # partial sums; in clusters they go from block to block
    slots = split.split_blocks + split.split_tiles if through_memory else 0
    flags = flag_count(split.split_blocks, split.split_tiles) if slots else 0
    wave_us = shape.stages * wave.stage_time(wave.blocks)
    late = plan_late(order, tile.wide, tile.columns, steps, split.split_tiles, flags, wave_us)
    flags = between(flags + late.words, np.uint32)
    partials = between((slots * TILE_ROWS * tile.columns,), np.float32)
    words = map_words(x, tile) if shape.reads_plain(tile) else None
    if words:
        x_tiles, height = 0, 0
        if slots:
            cleared(flags)
        else:
            flags = partials = 0
    else:
        before = late.before(order.width * tile.columns)
        x_tiles = x_tiles_of(x, steps, tile.columns, flags, *before, evenly=tile.wide)
        height = x_tiles.shape[1]
    product(
        (split.blocks,), (product.threads,), q.prepared(weights_map(tile.box_row(w.layout)))[0],
        x_tiles, *result_of(out, end.bias), partials, flags,
        x, HALVES if halves else KIND_NUMBERS[kind], x.shape[1], m, n, steps, height, *order,
        x, words or NO_MAP, *addend_of(end), *late, *split.arguments,
        cluster=split.cluster, max_blocks=tile.blocks,
    )  # fmt: skip
