"""The producer: one thread that lets the copy engine fetch weights and x_tiles into the ring of stages.

x_tiles are contiguous pieces of memory. Weights are boxes of a tensor map with elements of eight bytes.
tile.py has the picture of a stage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import ceil
from typing import Any, NamedTuple

from ...arrays.array import QuantArray
from ...base.slots import all_following, rows_of
from ..activations.floats import sixteen_loader
from ..activations.x_tiles import THREAD_COLUMNS, chunk_placer, chunk_swapper
from ..intrinsics import barrier as barriers
from ..intrinsics import boxes, dependent_launch
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import KINDS
from ..intrinsics.lane import address
from ..intrinsics.language import cuda, uint32, uint64
from ..machine import tensor_maps
from ..packed import operand
from ..packed.layout import FRAGMENT_ROWS, STEP, PackedLayout
from ..packed.pack import packed_weights
from ..rings.boxed import stage_advancer
from ..schedule.raster import Raster, next_work_unit
from .tile import MAP_ELEMENT, UNIT_FRAGMENTS, X_ROW_BYTES, WarpSpecializedTile


def requester(layout: PackedLayout, tile: WarpSpecializedTile, transposed: bool = False) -> Any:
    """The device functions that request a stage: its weights, announcing the bytes of all of it; and its
    x_tiles.

    ``transposed``: stages follow each other down the rows of weights, and tiles along their columns.
    """
    length, x_tile_bytes, size = tile.stage(layout), tile.x_tile_bytes, tile.size(layout)
    count = tile.boxes(layout)
    box_row, wide, fragments_each = tile.box_row(layout), tile.box_row(layout) // MAP_ELEMENT, tile.fragments
    weights_at = tile.fragments * x_tile_bytes
    expect, fetch, fetch_line = barriers.expect, boxes.fetch, boxes.fetch_line

    @inlined
    def request_weights(ring: Any, full: Any, stage: Any, fragments: Any, i: Any, row: Any) -> None:
        done, to = uint32(full + stage * uint32(8)), uint32(ring + stage * uint32(length))
        expect(done, uint32(size))
        if transposed:
            i, row = uint32(row // uint32(FRAGMENT_ROWS)), uint32(i * uint32(FRAGMENT_ROWS))
        for box in range(count):
            column = uint32(uint32(uint32(i * uint32(count)) + uint32(box)) * uint32(wide))
            fetch(
                uint32(to + uint32(weights_at + box * FRAGMENT_ROWS * box_row)), fragments, column, row, done
            )

    @inlined
    def request_x(ring: Any, full: Any, stage: Any, source: Any, apart: Any) -> None:
        done, to = uint32(full + stage * uint32(8)), uint32(ring + stage * uint32(length))
        for fragment in range(fragments_each):
            at, x_tile = uint32(to + uint32(fragment * x_tile_bytes)), source + uint64(fragment) * apart
            fetch_line(at, x_tile, uint32(x_tile_bytes), done)

    return request_weights, request_x


def producer(layout: PackedLayout, tile: WarpSpecializedTile, locate: Any, reorders: bool) -> Any:
    """The device function of the producer; it fetches the weights of the first stages before the
    predecessor ends.

    ``locate``: the device function (tile_order, number of a tile) for the tile's first fragment row, its
    column of x_tiles and its raster sweep. ``reorders``: whether other warps of this kernel make x_tiles
    meanwhile (producer.py).
    """
    stages, x_tile_bytes, fragments_each = tile.stages(layout), tile.x_tile_bytes, tile.fragments
    (request_weights, request_x), after = requester(layout, tile), stage_advancer(stages)
    wait_for_section = section_waiter(reorders)
    stages_per_unit, wait, prefetch = UNIT_FRAGMENTS // tile.fragments, barriers.wait, boxes.prefetch
    wait_for_predecessor = dependent_launch.wait_for_predecessor

    @inlined
    def produce(ring: Any, full: Any, origins: Any, tile_order: Any, late: Any, work: Any) -> None:
        fragments, x_tiles, flags, steps, height = origins
        next_whole, end, stages_left, whole_tiles = work
        stage, phase, begun, ready = uint32(0), uint32(0), uint32(0), late[1]
        stages_of_tile, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        apart = uint64(height) * uint64(X_ROW_BYTES)
        prefetch(fragments)
        while stages_left > uint32(0) or next_whole < whole_tiles:
            number, i, last, stages_left, next_whole = next_work_unit(
                stages_left, end, next_whole, stages_of_tile, blocks, whole_tiles
            )
            row, column, sweep = locate(tile_order, number)
            i, last = uint32(i * uint32(stages_per_unit)), uint32(last * uint32(stages_per_unit))
            if number >= whole_tiles:
                ready = late[1]  # the unit may begin within K: its earlier sections were not waited for
            x_tile = (
                x_tiles
                + uint64(uint32(i * uint32(fragments_each))) * apart
                + uint64(column) * uint64(x_tile_bytes)
            )
            if begun == uint32(0):
                begun, ahead, at = uint32(1), min(uint32(last - i), uint32(stages)), uint32(0)
                while at < ahead:
                    request_weights(ring, full, at, fragments, uint32(i + at), row)
                    at = uint32(at + uint32(1))
                wait_for_predecessor()  # it makes x
                at = uint32(0)
                while at < ahead:
                    step = uint32(uint32(i + at) * uint32(fragments_each))
                    ready = wait_for_section(flags, late, sweep, step, ready)
                    request_x(ring, full, at, x_tile, apart)
                    x_tile, at = x_tile + uint64(fragments_each) * apart, uint32(at + uint32(1))
                i, stage = uint32(i + ahead), ahead
                if ahead == uint32(stages):
                    stage, phase = uint32(0), uint32(1)
            while i < last:
                wait(uint32(full + uint32(8 * stages) + stage * uint32(8)), uint32(phase ^ uint32(1)))
                request_weights(ring, full, stage, fragments, i, row)
                ready = wait_for_section(flags, late, sweep, uint32(i * uint32(fragments_each)), ready)
                request_x(ring, full, stage, x_tile, apart)
                x_tile, i = x_tile + uint64(fragments_each) * apart, uint32(i + uint32(1))
                stage, phase = after(stage, phase)
        if begun == uint32(0):
            wait_for_predecessor()

    return produce


@cache
def weights_map(box_row: int) -> Callable[[QuantArray], tuple[Any]]:
    """The function that makes the tensor map of an array's packed weights, in boxes of ``box_row`` bytes a
    fragment row.
    """

    def map_weights_at(q: QuantArray) -> tuple[Any]:
        w = packed_weights(q).fragments
        count, steps, fragment_bytes = w.shape
        pitch = steps * fragment_bytes
        box = tensor_maps.Box(
            w.data.ptr,
            count,
            pitch // MAP_ELEMENT,
            pitch,
            "uint64",
            FRAGMENT_ROWS,
            box_row // MAP_ELEMENT,
            False,
        )
        return (tensor_maps.map_array(box),)

    return map_weights_at


@cache
def map_finder(box_row: int) -> Callable[[QuantArray], Any]:
    """The function that finds that map, for ``part`` of machine/recorded.py."""
    make = weights_map(box_row)
    return lambda q: q.prepared(make)[0]


# Late activations: x_tiles that a product makes while it multiplies, with wide tiles and many rows.
#
# A kernel that makes all x_tiles beforehand takes a tenth of the time of a product with a thousand rows.
# Three warps beside the producer have nothing to do: they make the x_tiles that are needed later. The kernel
# before makes only the beginning, as much as these warps could not finish while the first tiles are
# multiplied. Tiles that blocks share along K come last (schedule/raster.py).
#
# A *section* is some columns of the rows of a raster sweep (schedule/raster.py). Sections are made in the
# order in which tiles want them, sweep after sweep, along K:
#
#     section    0   1   2   3 | 4   5   6   7 | 8  …        4 sections a sweep
#     made by    kernel before | warps that take tickets, some rows of a section each
#
# A warp increments the section's counter when it finishes a ticket. The producer waits on that counter before
# its first load from the section. Only running warps hold tickets, so this cannot deadlock.

LANES, ROWS = 32, 8  # lanes of a warp, rows of a ticket
STEPS = LANES * THREAD_COLUMNS // 64  # of a section, 64 columns each
AHEAD = 2  # sections that are made beforehand, at least
LEAST = 1 << 21  # numbers left to the product, below which it does not pay
# Microseconds: to begin; for a number that the product makes; for a number that is made beforehand.
BEGINNING_US, NUMBER_US, X_TILE_US = 1.9, 6e-6, 1.7e-6
ALL_READY = (1 << 32) - 1


class LateActivations(NamedTuple):
    """The late sections of a product, as kernels take them: in this order."""

    counters: int  # offset of the counters behind the flags, in words: of tickets, then of each section
    ready: int  # sections that are made beforehand
    sections: int  # of a sweep
    section_tickets: int  # of a section
    tickets: int

    @property
    def words(self) -> int:
        """The words that the counters take."""
        return 0 if self.ready == ALL_READY else 1 + self.ready + self.tickets // self.section_tickets

    def before(self, rows: int) -> tuple[int | None, int | None]:
        """Rows of x, and steps of theirs, that are made beforehand; None means all. ``rows``: of a sweep."""
        return (None, None) if self.ready == ALL_READY else (rows, self.ready * STEPS)


def plan_late(
    order: Raster, wide: bool, columns: int, steps: int, split_tiles: int, counters: int, wave_us: float
) -> LateActivations:
    """The sections that are left to the product's own warps.

    There are none where little would be left, or where blocks share all tiles along K and so want all
    sections at once. ``wave_us``: how long a block multiplies at a tile.
    """
    sections, sweeps, rows = -(-steps // STEPS), -(-order.across // order.width), order.width * columns
    ready = max(min(AHEAD, sections), ceil(sections * share_beforehand(rows * steps * 64, wave_us)))
    if not wide or split_tiles == order.tiles or (sweeps * sections - ready) * rows * STEPS * 64 < LEAST:
        return LateActivations(counters, ALL_READY, 1, 1, 0)
    section_tickets = rows // ROWS
    return LateActivations(
        counters, ready, sections, section_tickets, (sweeps * sections - ready) * section_tickets
    )


def share_beforehand(numbers: int, wave_us: float) -> float:
    """The share of a sweep's numbers that must be made beforehand, since the first wave would have to wait
    for it.
    """
    return max(0.0, 1 - wave_us / (numbers * NUMBER_US))


def waiting_us(numbers: int, wave_us: float) -> float:
    """The time that a product waits for the x_tiles that are made beforehand, with ``numbers`` of them in a
    sweep.
    """
    return BEGINNING_US + share_beforehand(numbers, wave_us) * numbers * X_TILE_US


@cache
def section_waiter(reorders: bool) -> Any:
    """The device function by which the producer waits for the section of a stage; it returns how many are
    ready.
    """
    wait_for_sum, see = barriers.wait_for_sum, boxes.publish_to_copy_engine

    if not reorders:
        return inlined(lambda flags, late, sweep, step, ready_sections: ready_sections)

    @inlined
    def wait_for_section(flags: Any, late: Any, sweep: Any, step: Any, ready_sections: Any) -> Any:
        counters, _, sections, section_tickets, _ = late
        if ready_sections != uint32(ALL_READY):
            section = uint32(uint32(sweep * sections) + uint32(step // uint32(STEPS)))
            if section >= ready_sections:
                place = uint32(uint32(counters + uint32(1)) + section)
                wait_for_sum(flags + uint64(place) * uint64(4), section_tickets)
                see()
                ready_sections = uint32(section + uint32(1))
        return ready_sections

    return wait_for_section


@cache
def reorderer() -> Any:
    """The device function of warps that make x_tiles until no ticket is left."""
    meet, first_lane, take, add_release, show = (
        barriers.sync_warp, barriers.from_first_lane, barriers.take_ticket, barriers.add_release,
        boxes.publish_to_copy_engine,
    )  # fmt: skip
    order_floats, order_halves, order_bfloats = (row_pair_reorderer(kind) for kind in KINDS)

    @inlined
    def reorder_rows(
        x: Any, x_tiles: Any, flags: Any, late: Any, sizes: Any, rows_per_sweep: Any, lane: Any
    ) -> None:
        (counters, ready, sections, section_tickets, tickets), (kind, m, k, steps, height) = late, sizes
        ticket = uint32(0)
        while ticket < tickets:
            if lane == uint32(0):
                ticket = take(flags + uint64(counters) * uint64(4))
            ticket = first_lane(ticket)
            if ticket < tickets:
                which = uint32(ticket // section_tickets)
                section = uint32(ready + which)
                sweep = uint32(section // sections)
                along = uint32(section - uint32(sweep * sections))
                row = uint32(uint32(ticket - uint32(which * section_tickets)) * uint32(ROWS))
                row = uint32(row + uint32(sweep * rows_per_sweep))
                sixteen = uint32(uint32(along * uint32(LANES)) + lane)
                end = m if sixteen < uint32(steps * uint32(4)) else uint32(0)
                for i in range(0, ROWS, 2):
                    at = uint32(row + uint32(i))
                    if kind == uint32(0):
                        order_floats(x, x_tiles, sixteen, height, at, m, k, end)
                    elif kind == uint32(1):
                        order_halves(x, x_tiles, sixteen, height, at, m, k, end)
                    else:
                        order_bfloats(x, x_tiles, sixteen, height, at, m, k, end)
                show()
                meet()
                if lane == uint32(0):
                    add_release(
                        flags + uint64(uint32(uint32(counters + uint32(1)) + section)) * uint64(4), uint32(1)
                    )

    return reorder_rows


@cache
def row_pair_reorderer(kind: str) -> Any:
    """The device function for 16 columns of two neighbouring rows, both in flight at one time.

    ``end``: the first row that is not stored. All lanes of a warp take part.
    """
    load, pair, place, size = sixteen_loader(kind), chunk_swapper(), chunk_placer(), KINDS[kind]

    @inlined
    def reorder_pair(
        x: Any, x_tiles: Any, sixteen: Any, height: Any, row: Any, m: Any, k: Any, end: Any
    ) -> None:
        a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        c, d = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        column, last = uint32(sixteen * uint32(THREAD_COLUMNS)), uint32(m - uint32(1))
        there, after = min(column, uint32(k - uint32(THREAD_COLUMNS))), uint32(row + uint32(1))
        load(address(x, min(row, last), k, there, size), a, b)
        load(address(x, min(after, last), k, there, size), c, d)
        if column >= k:
            for t in range(4):
                a[t] = b[t] = c[t] = d[t] = uint32(0)
        pair(sixteen, a, b)
        pair(sixteen, c, d)
        if row < end:
            place(x_tiles, sixteen, height, row, a, b)
        if after < end:
            place(x_tiles, sixteen, height, after, c, d)

    return reorder_pair


# Plain rows: activations of 16 bits that a product fetches as they lie, without a kernel before.
#
# The copy engine fetches boxes of x, 64 columns of a tile's rows, whose map is a parameter of the kernel.
# Rows beyond M and columns beyond K come as zeros. Consumers take weights in the same order (consumers.py).


def reads_plain(layout: PackedLayout, tile: WarpSpecializedTile) -> bool:
    """True where blocks with a tile can read x as it lies; producer.py serves wide tiles."""
    return not tile.wide and operand.serves(layout)


def map_words(x: Any, tile: WarpSpecializedTile) -> tuple[int, ...] | None:
    """The words of the map of x behind its address; None where the driver makes no such map."""
    rows, k = rows_of(x), x.shape[1]
    if plain_words(int(rows), k, tile.columns) is None:
        return None

    def words(rows: int) -> tuple[int, ...]:
        encoded = plain_words(rows, k, tile.columns)
        assert encoded is not None, "the driver makes such maps for all rows or for none"
        return encoded

    return all_following(rows, words)


def plain_words(rows: int, k: int, columns: int) -> tuple[int, ...] | None:
    """The words of the map of a matrix [rows, k] behind its address, in boxes of ``columns`` rows."""
    box = tensor_maps.Box(0, rows, k, 2 * k, "bfloat16", columns, STEP)
    return tensor_maps.words_behind_address(box)


def box_requester(layout: PackedLayout, tile: WarpSpecializedTile) -> Any:
    """The device function that requests a stage's boxes of x."""
    length, x_tile_bytes, fragments_each = tile.stage(layout), tile.x_tile_bytes, tile.fragments
    fetch = boxes.fetch

    @inlined
    def request_x(ring: Any, full: Any, stage: Any, x_map: Any, i: Any, row: Any) -> None:
        done, to = uint32(full + stage * uint32(8)), uint32(ring + stage * uint32(length))
        for fragment in range(fragments_each):
            step = uint32(uint32(i * uint32(fragments_each)) + uint32(fragment))
            fetch(uint32(to + uint32(fragment * x_tile_bytes)), x_map, uint32(step * uint32(STEP)), row, done)

    return request_x


def plain_producer(
    layout: PackedLayout, tile: WarpSpecializedTile, locate: Any, transposed: bool = False
) -> Any:  # fmt: skip
    """The device function of the thread that fetches weights and boxes of x; weights of the first stages
    before the predecessor ends. ``locate``, ``transposed``: as in producer.py.
    """
    stages, columns = tile.stages(layout), tile.columns
    (request_weights, _), request_x = requester(layout, tile, transposed), box_requester(layout, tile)
    stages_per_unit, wait, prefetch = UNIT_FRAGMENTS // tile.fragments, barriers.wait, boxes.prefetch
    after, wait_for_predecessor = stage_advancer(stages), dependent_launch.wait_for_predecessor

    @inlined
    def produce(ring: Any, full: Any, maps: Any, steps: Any, tile_order: Any, work: Any) -> None:
        (fragments, x_map), (next_whole, end, stages_left, whole_tiles) = maps, work
        stage, phase, begun = uint32(0), uint32(0), uint32(0)
        stages_of_tile, blocks = uint32(steps >> uint32(1)), uint32(cuda.gridDim.x)
        prefetch(fragments)
        prefetch(x_map)
        while stages_left > uint32(0) or next_whole < whole_tiles:
            number, i, last, stages_left, next_whole = next_work_unit(
                stages_left, end, next_whole, stages_of_tile, blocks, whole_tiles
            )
            row, column, _ = locate(tile_order, number)
            x_row = uint32(column * uint32(columns))
            i, last = uint32(i * uint32(stages_per_unit)), uint32(last * uint32(stages_per_unit))
            if begun == uint32(0):
                begun, ahead, at = uint32(1), min(uint32(last - i), uint32(stages)), uint32(0)
                while at < ahead:
                    request_weights(ring, full, at, fragments, uint32(i + at), row)
                    at = uint32(at + uint32(1))
                wait_for_predecessor()  # it may have made x
                at = uint32(0)
                while at < ahead:
                    request_x(ring, full, at, x_map, uint32(i + at), x_row)
                    at = uint32(at + uint32(1))
                i, stage = uint32(i + ahead), ahead
                if ahead == uint32(stages):
                    stage, phase = uint32(0), uint32(1)
            while i < last:
                wait(uint32(full + uint32(8 * stages) + stage * uint32(8)), uint32(phase ^ uint32(1)))
                request_weights(ring, full, stage, fragments, i, row)
                request_x(ring, full, stage, x_map, i, x_row)
                stage, phase = after(stage, phase)
                i = uint32(i + uint32(1))
        if begun == uint32(0):
            wait_for_predecessor()

    return produce
