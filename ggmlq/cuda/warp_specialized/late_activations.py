"""Late activations: x_tiles that a product makes while it multiplies, with wide tiles and many rows.

A kernel that makes all x_tiles beforehand takes a tenth of the time of a product with a thousand rows.
Three warps beside the producer have nothing to do: they make the x_tiles that are needed later. The kernel
before makes only the beginning, as much as these warps could not finish while the first tiles are
multiplied. Tiles that blocks share along K come last (schedule/work_units.py).

A *section* is some columns of the rows of a raster sweep (schedule/raster.py). Sections are made in the
order in which tiles want them, sweep after sweep, along K:

    section    0   1   2   3 | 4   5   6   7 | 8  …        4 sections a sweep
    made by    kernel before | warps that take tickets, some rows of a section each

A warp increments the section's counter when it finishes a ticket. The producer waits on that counter before
its first load from the section. Only running warps hold tickets, so this cannot deadlock.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import Any, NamedTuple

from ..activations.floats import sixteen_loader
from ..activations.x_tiles import THREAD_COLUMNS, chunk_placer, chunk_swapper
from ..intrinsics import barrier as barriers
from ..intrinsics import boxes
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import KINDS
from ..intrinsics.language import cuda, uint32, uint64
from ..schedule.raster import Raster

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
