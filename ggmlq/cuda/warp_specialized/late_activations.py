"""Panels that a product orders itself, while it multiplies: cuda:warp_specialized with wide tiles and many rows.

A kernel that orders all activations beforehand takes a tenth of the time of a product with a thousand rows.
Beside the warp that fetches three others of its warpgroup have nothing to do: they order what is needed
later, and only the beginning is there before, or as much as they would not be done with while the first
tiles are multiplied. Tiles that blocks share along K come last (schedule/work_units.py).

A part is so many columns of a band of tiles (schedule/raster.py). Parts are made in the order in which tiles want them,
band after band, along K:

    part       0   1   2   3 | 4   5   6   7 | 8  …        4 parts a band
    made by    kernel before | warps that take tickets, some rows of a part each

Whoever has done with a ticket counts it; who fetches waits for a part when it first wants it. Who holds a
ticket runs, so nobody waits for a block that was not started.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import Any, NamedTuple

from ..activations.floats import sixteen_loader
from ..activations.x_tiles import EACH, chunk_placer, chunk_swapper
from ..intrinsics import barrier as barriers
from ..intrinsics import boxes
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import KINDS
from ..intrinsics.language import cuda, uint32, uint64
from ..schedule.raster import Raster

LANES, ROWS = 32, 8  # of a warp; of a ticket
STEPS = LANES * EACH // 64  # of a part
AHEAD = 2  # parts that are there before, at least
LEAST = 1 << 21  # numbers left to order, below which it is not worth it
# Microseconds: for the beginning; of a number that blocks order beside multiplying; or of one ordered before.
BEGINNING_US, NUMBER_US, X_TILE_US = 1.9, 6e-6, 1.7e-6
ALL_READY = (1 << 32) - 1


class LateActivations(NamedTuple):
    """As kernels take it, in this order."""

    counters: int  # where they begin, in words behind the flags: of tickets, and of each part
    ready: int  # parts that are there before
    sections: int  # of a band
    section_tickets: int  # tickets
    tickets: int

    @property
    def words(self) -> int:
        """Of counters."""
        return 0 if self.ready == ALL_READY else 1 + self.ready + self.tickets // self.section_tickets

    def before(self, rows: int) -> tuple[int | None, int | None]:
        """How many rows of x, and steps of theirs, are ordered beforehand, None: all; ``rows``: of a band."""
        return (None, None) if self.ready == ALL_READY else (rows, self.ready * STEPS)


def plan_late(
    order: Raster, wide: bool, columns: int, steps: int, split_tiles: int, counters: int, wave_us: float
) -> LateActivations:
    """What is left to the product's own warps; nothing where it is little, or where blocks share all tiles
    along K, and want all parts at once. ``turn_us``: how long a block multiplies at a tile.
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
    """Of a band's numbers, all of which the first turn may want, the share that it would wait for."""
    return max(0.0, 1 - wave_us / (numbers * NUMBER_US))


def waiting_us(numbers: int, wave_us: float) -> float:
    """How long a product waits for what is there before, of so many numbers of a band."""
    return BEGINNING_US + share_beforehand(numbers, wave_us) * numbers * X_TILE_US


@cache
def section_waiter(reorders: bool) -> Any:
    """The device function of who fetches: until the part of a stage is there, given how many are known to."""
    await_sum, see = barriers.await_sum, boxes.see_what_was_written

    if not reorders:
        return inlined(lambda flags, late, sweep, step, ready_sections: ready_sections)

    @inlined
    def wait_for_section(flags: Any, late: Any, sweep: Any, step: Any, ready_sections: Any) -> Any:
        counters, _, sections, section_tickets, _ = late
        if ready_sections != uint32(ALL_READY):
            section = uint32(uint32(sweep * sections) + uint32(step // uint32(STEPS)))
            if section >= ready_sections:
                place = uint32(uint32(counters + uint32(1)) + section)
                await_sum(flags + uint64(place) * uint64(4), section_tickets)
                see()
                ready_sections = uint32(section + uint32(1))
        return ready_sections

    return wait_for_section


@cache
def reorderer() -> Any:
    """The device function of warps that order rows until no ticket is left."""
    meet, first_lane, take, reach, show = (
        barriers.meet_warp, barriers.of_first_lane, barriers.take_ticket, barriers.reach,
        boxes.see_what_was_written,
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
                    reach(
                        flags + uint64(uint32(uint32(counters + uint32(1)) + section)) * uint64(4), uint32(1)
                    )

    return reorder_rows


@cache
def row_pair_reorderer(kind: str) -> Any:
    """The device function for 16 columns of two neighbouring rows, both under way at one time.

    ``end``: of the rows that are put somewhere; all lanes of a warp take part.
    """
    load, pair, place, size = sixteen_loader(kind), chunk_swapper(), chunk_placer(), KINDS[kind]

    @inlined
    def reorder_pair(
        x: Any, x_tiles: Any, sixteen: Any, height: Any, row: Any, m: Any, k: Any, end: Any
    ) -> None:
        a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        c, d = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        column, last = uint32(sixteen * uint32(EACH)), uint32(m - uint32(1))
        there, after = min(column, uint32(k - uint32(EACH))), uint32(row + uint32(1))
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
