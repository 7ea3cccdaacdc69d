"""Late activations: x_tiles that a product makes while it multiplies, with wide tiles and many rows.

A kernel that makes all x_tiles beforehand takes a tenth of the time of a product with a thousand rows.
Three warps beside the producer have nothing to do: they make the x_tiles that are needed later. The kernel
before makes only the beginning, as much as these warps could not finish while the first tiles are
multiplied. Tiles that blocks share along K come last (tiles.py).

A *section* is some columns of the rows of a raster sweep (tiles.py). Sections are made in the order in
which tiles want them, sweep after sweep, along K:

    section    0   1   2   3 | 4   5   6   7 | 8  …        4 sections a sweep
    made by    kernel before | warps that take tickets, some rows of a section each

A warp increments the section's counter when it finishes a ticket. The producer waits on that counter before
its first load from the section.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import Any, NamedTuple

from ...intrinsics import barrier as barriers
from ...intrinsics import boxes
from ...intrinsics.atoms import inlined
from ...intrinsics.floats import KINDS
from ...intrinsics.lane import address
from ...intrinsics.language import cuda, uint32, uint64
from ...layouts.floats import sixteen_loader
from ...layouts.x_tiles import THREAD_COLUMNS, chunk_placer, chunk_swapper
from .tiles import Raster

LANES, TICKET_ROWS = 32, 8  # lanes of a warp, rows of a ticket
SECTION_STEPS = LANES * THREAD_COLUMNS // 64  # of 64 columns each
MIN_SECTIONS_BEFOREHAND = 2  # that the kernel before makes
MIN_NUMBERS_LEFT = 1 << 21  # to the product, below which it does not pay
# Microseconds: to begin; for a number that the product makes; for a number that is made beforehand.
BEGINNING_US, NUMBER_US, X_TILE_US = 1.9, 6e-6, 1.7e-6
ALL_READY = (1 << 32) - 1


class LateXTiles(NamedTuple):
    """The late sections of a product, as kernels take them: in this order."""

    counters: int  # offset of the counters behind the flags, in words: of tickets taken, then of each section
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
        return (None, None) if self.ready == ALL_READY else (rows, self.ready * SECTION_STEPS)


def plan_late(
    order: Raster, wide: bool, columns: int, steps: int, split_tiles: int, counters: int, wave_us: float
) -> LateXTiles:
    """The sections that are left to the product's own warps.

    There are none where little would be left, or where blocks share all tiles along K and so want all
    sections at once. ``wave_us``: how long a block multiplies at a tile.
    """
    sections, sweeps, rows = (
        -(-steps // SECTION_STEPS),
        -(-order.across // order.width),
        order.width * columns,
    )
    ready = max(
        min(MIN_SECTIONS_BEFOREHAND, sections), ceil(sections * share_beforehand(rows * steps * 64, wave_us))
    )
    if (
        not wide
        or split_tiles == order.tiles
        or (sweeps * sections - ready) * rows * SECTION_STEPS * 64 < MIN_NUMBERS_LEFT
    ):
        return LateXTiles(counters, ALL_READY, 1, 1, 0)
    section_tickets = rows // TICKET_ROWS
    return LateXTiles(
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


class XRows(NamedTuple):
    """The activations that x_tiles are made of."""

    x: Any  # address
    kind: Any  # of the floats, by its place in KINDS; or HALVES
    m: Any  # rows
    k: Any  # columns


@cache
def section_waiter(reorders: bool) -> Any:
    """The device function by which the producer waits for the section of a stage; it returns how many are
    ready.

    ``reorders``: whether warps of this kernel make x_tiles; otherwise all are ready.
    """
    wait_for_sum, see = barriers.wait_for_sum, boxes.publish_to_copy_engine

    if not reorders:
        return inlined(lambda flags, late, sweep, step, ready_sections: ready_sections)

    @inlined
    def wait_for_section(flags: Any, late: Any, sweep: Any, step: Any, ready_sections: Any) -> Any:
        if ready_sections != ALL_READY:
            section = uint32(uint32(sweep * late.sections) + uint32(step // SECTION_STEPS))
            if section >= ready_sections:
                # Only running warps hold tickets, and they wait for nothing between taking one and counting
                # it, so this wait ends even where some blocks of the grid were not started.
                place = uint32(uint32(late.counters + 1) + section)
                wait_for_sum(flags + uint64(place) * 4, late.section_tickets)
                # Threads wrote the x_tiles, the copy engine reads them through another proxy: without a
                # fence on both sides it may read what was there before.
                see()
                ready_sections = uint32(section + 1)
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
        rows: Any, x_tiles: Any, flags: Any, late: Any, steps: Any, height: Any, rows_per_sweep: Any,
        lane: Any,
    ) -> None:  # fmt: skip
        ticket = uint32(0)
        while ticket < late.tickets:
            if lane == 0:
                ticket = take(flags + uint64(late.counters) * 4)
            ticket = first_lane(ticket)
            if ticket < late.tickets:
                which = uint32(ticket // late.section_tickets)
                section = uint32(late.ready + which)
                sweep = uint32(section // late.sections)
                along = uint32(section - uint32(sweep * late.sections))
                row = uint32(uint32(ticket - uint32(which * late.section_tickets)) * TICKET_ROWS)
                row = uint32(row + uint32(sweep * rows_per_sweep))
                sixteen = uint32(uint32(along * LANES) + lane)
                end = rows.m if sixteen < uint32(steps * 4) else 0
                for i in range(0, TICKET_ROWS, 2):
                    at = uint32(row + uint32(i))
                    if rows.kind == 0:
                        order_floats(rows, x_tiles, sixteen, height, at, end)
                    elif rows.kind == 1:
                        order_halves(rows, x_tiles, sixteen, height, at, end)
                    else:
                        order_bfloats(rows, x_tiles, sixteen, height, at, end)
                show()  # each lane's writes, before the first lane counts the ticket for all of them
                meet()
                if lane == 0:
                    counter = uint32(uint32(late.counters + 1) + section)
                    add_release(flags + uint64(counter) * 4, uint32(1))

    return reorder_rows


@cache
def row_pair_reorderer(kind: str) -> Any:
    """The device function for 16 columns of two neighbouring rows, both in flight at one time.

    ``end``: the first row that is not stored. All lanes of a warp take part.
    """
    load, pair, place, size = sixteen_loader(kind), chunk_swapper(), chunk_placer(), KINDS[kind]

    @inlined
    def reorder_pair(rows: Any, x_tiles: Any, sixteen: Any, height: Any, row: Any, end: Any) -> None:
        a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        c, d = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        column, last = uint32(sixteen * THREAD_COLUMNS), uint32(rows.m - 1)
        there, after = min(column, uint32(rows.k - THREAD_COLUMNS)), uint32(row + 1)
        load(address(rows.x, min(row, last), rows.k, there, size), a, b)
        load(address(rows.x, min(after, last), rows.k, there, size), c, d)
        if column >= rows.k:
            for t in range(4):
                a[t] = b[t] = c[t] = d[t] = uint32(0)
        pair(sixteen, a, b)
        pair(sixteen, c, d)
        if row < end:
            place(x_tiles, sixteen, height, row, a, b)
        if after < end:
            place(x_tiles, sixteen, height, after, c, d)

    return reorder_pair
