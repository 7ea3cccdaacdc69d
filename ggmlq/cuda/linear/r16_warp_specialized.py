"""Roles: one warp fetches, two warpgroups unpack and multiply, and blocks stay until all tiles are made.

Changed: nobody waits for all. In cuda:wgmma eight warps fetch together, meet, multiply together and unpack
together, step by step. Here the copy engine fetches: a ninth warp asks for whole pieces of memory, strips of
weights and panels of activations (activations/x_tiles.py), as soon as a stage is free, over the ends of tiles
too. The two warpgroups wait for nothing but full stages, so one has the tensor cores while the other unpacks.

Tiles are up to 256 rows of activations wide, which halves what the weights cost to unpack and the
activations to fetch. Blocks stay on the card and share the last tiles along the columns
(schedule/work_units.py), so any shape fills it, in one kernel: each of a tile's blocks adds up a slice of what
they made of it (warp_specialized/stream_k.py).

Tiles are made in bands (schedule/raster.py), whose activations stay in the L2 cache while weights go by. With
the widest tiles three more warps order the activations of later steps meanwhile (warp_specialized/late_activations.py).

Limited by what surrounds the products, 7 to 12 microseconds to order activations, to start and to add up
parts; from some 1000 rows on by the card's power.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ...formats import BLOCK_FORMATS, BlockFormat
from ..activations.x_tiles import as_read, panels_of
from ..cost.sharing import shares
from ..cost.warp_specialized import TILES, Shape, best
from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.floats import KINDS
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, int32, uint32, uint64
from ..machine import device, tensor_maps
from ..machine.launch import Kernel, family
from ..packed.layout import ROWS, STRIPS, layout_of
from ..packed.pack import strips
from ..rings.boxed import barrier_initializer
from ..schedule.raster import bands, fetched, written
from ..schedule.work_units import bounds_of
from ..warp_specialized.cluster_split import COMING, sharing_in_clusters
from ..warp_specialized.consumers import worker
from ..warp_specialized.late_activations import maker, making
from ..warp_specialized.producer import MULTIPLY, PIECE, WIDE, RoleTile, filler
from ..warp_specialized.stream_k import flags_of
from .r15_wgmma import multiplier
from .r15_wgmma import refuses as refused

FETCHES, MULTIPLIES = 56, 224  # registers of a thread, where they are given; 168 at the start


@family((fmt, tile) for fmt in BLOCK_FORMATS for tile in TILES)
def kernel(fmt: BlockFormat, tile: RoleTile) -> Kernel:
    """Blocks that stay; the last one is the first in the order of schedule/work_units.py."""
    layout, wide, locate = layout_of(fmt), tile.wide, written(tile.columns)
    way = sharing_in_clusters(layout, tile, locate)
    work = worker(layout, tile, multiplier(tile.columns), locate, way=way)
    fill, start = filler(layout, tile, fetched, wide), barrier_initializer(tile.stages(layout), STRIPS)
    of_barriers, base = tile.stages(layout) * tile.stage(layout), ptx.shared_base
    notes, put, init = 16 * tile.stages(layout), ptx.put, barriers.init
    first_lane, pinned, let_successor_start, wait_for_predecessor = (
        barriers.from_first_lane, barriers.pinned, dependent_launch.let_successor_start,
        dependent_launch.wait_for_predecessor,
    )  # fmt: skip
    order_rows, columns = maker(), tile.columns
    give, take = barriers.registers("dec", FETCHES), barriers.registers("inc", MULTIPLIES)

    def product(
        records: Any,  # map of strips
        panels: Any,  # bfloat16 [steps, height, 64]: activations/x_tiles.py
        y: Any,  # float32 [m, n]
        parts: Any, flags: Any,  # float32 [slots, a tile], uint32: warp_specialized/stream_k.py
        x: Any, kind: Any, k: Any,  # [m, k], of which warp_specialized/late_activations.py orders the rest
        m: Any, n: Any, steps: Any, height: Any,
        across: Any, band: Any, of_band: Any, tiles: Any,  # schedule/raster.py
        counters: Any, ready: Any, along: Any, of_part: Any, tickets: Any,  # warp_specialized/late_activations.py
        divided: Any, sharing: Any, shared: Any, each: Any, extra: Any,  # schedule/work_units.py
    ) -> None:  # fmt: skip
        let_successor_start()  # which finds no room before blocks of this one end: all of them run
        warp, lane = warp_and_lane()
        warp, lane = first_lane(warp), pinned(lane)
        ring = first_lane(uint32(uint32(base() + uint32(1023)) & uint32(0xFFFFFC00)))
        full = uint32(ring + uint32(of_barriers))
        if uint32(cuda.threadIdx.x) == uint32(0):
            init(uint32(full + uint32(notes + COMING)), uint32(1))
            start(full)
            for i in range(2):
                put(uint32(full + uint32(notes + 4 * i)), int32(0))
        cuda.syncthreads()
        last = uint32(uint32(cuda.gridDim.x) - uint32(1))
        rank = uint32(last - uint32(cuda.blockIdx.x))
        wholes = uint32(tiles - divided)
        pieces = divided, sharing, shared, each, extra, wholes
        where, make = ((across, band, of_band, tiles), m), (counters, ready, along, of_part, tickets)
        begin, end = bounds_of(rank, uint32(steps >> uint32(1)), (divided, sharing, shared, each, extra))
        left = uint32(end - begin)
        if uint32(warp) >= uint32(STRIPS):
            if wide:
                give()
            if uint32(cuda.threadIdx.x) == uint32(MULTIPLY):
                sources = (records, panels, flags, steps, height)
                fill(ring, full, sources, where, make, rank, end, left, wholes)
            elif wide and uint32(warp) > uint32(STRIPS) and tickets > uint32(0):
                wait_for_predecessor()  # x may have been made by it, or before
                rows_of_band = uint32(band * uint32(columns))
                order_rows(x, panels, flags, make, (kind, m, k, steps, height), rows_of_band, lane)
        else:
            if wide:
                take()
            ends, given = (y, parts, flags), (n, steps)
            work(ring, full, warp, lane, ends, where, given, end, left, rank, pieces)

    return Kernel(
        f"roles of {fmt.name}, {tile}", product, *(uint64,) * 6, *(uint32,) * 20,
        threads=tile.threads, blocks=tile.blocks, shared=tile.shared(layout), least=(9, 0), exact=True,
        early=True, lto=wide,
    )  # fmt: skip


@cache
def map_of(line: int) -> Callable[[QuantArray], tuple[Any]]:
    """What makes the map of an array's strips: boxes of so many bytes of a block's strips."""

    def make(q: QuantArray) -> tuple[Any]:
        w = strips(q).records
        count, steps, record = w.shape
        pitch = steps * record
        found = tensor_maps.Box(
            w.data.ptr, count, pitch // WIDE, pitch, "uint64", STRIPS, line // WIDE, False
        )
        return (tensor_maps.map_array(found),)

    return make


def refuses(problem: Linear) -> str | None:
    return refused(problem) or (tensor_maps.missing() if problem.card is not None else None)


@register(__name__, __doc__, arithmetic="bf16s", accumulate="f16", refuses=refuses, repeats=True)
def launch(x: Any, q: QuantArray, out: Any, tile: RoleTile | None = None) -> None:
    """``tile``: another than is thought best."""
    if not (x.size and out.size):
        out.fill(0)
        return
    w, (m, n), empty = strips(q), out.shape, device.cupy().empty
    steps = w.records.shape[1]
    shape = Shape.on(device.card_of(device.current()), m, n, steps // PIECE, w.layout)
    tile = tile or best(shape).tile
    across = shape.across(tile)
    turn = shape.turn(tile, device.resident_blocks(tile.blocks, tile.shared(w.layout)))
    share, _ = shares(shape.down * across, shape.stages, turn)
    order = bands(across, shape.down, turn.blocks, tile.panel, STRIPS * w.layout.record)
    apart = share.cluster == 1  # sums of tiles in parts go through global memory, or from block to block
    flags = flags_of(share.sharing, share.divided) if apart else 0
    turn_us = shape.stages * turn.pace(turn.blocks)
    make = making(order, tile.wide, tile.columns, steps, share.divided, flags, turn_us)
    flags = empty(flags + make.words, np.uint32)
    parts = empty((apart * (share.sharing + share.divided) * STRIPS * ROWS * tile.columns,), np.float32)
    x, kind = as_read(x)
    before = make.before(order.band * tile.columns)
    panels = panels_of(x, steps, tile.columns, flags, *before, evenly=tile.wide)
    kernel(q.format, tile)(
        (share.blocks,), (tile.threads,), q.prepared(map_of(tile.line(w.layout)))[0],
        panels, out, parts, flags,
        x, list(KINDS).index(kind), x.shape[1], m, n, steps, panels.shape[1], *order, *make, *share.words,
        cluster=share.cluster, max_blocks=tile.blocks,
    )  # fmt: skip
