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
from ..activations.x_tiles import EACH, pairer, placer
from ..intrinsics import barrier as barriers
from ..intrinsics import boxes
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import KINDS
from ..intrinsics.language import cuda, uint32, uint64
from ..schedule.raster import Bands

LANES, ROWS = 32, 8  # of a warp; of a ticket
STEPS = LANES * EACH // 64  # of a part
AHEAD = 2  # parts that are there before, at least
LEAST = 1 << 21  # numbers left to order, below which it is not worth it
# Microseconds: for the beginning; of a number that blocks order beside multiplying; or of one ordered before.
BEGINNING_US, NUMBER_US, PANEL_US = 1.9, 6e-6, 1.7e-6
ALL = (1 << 32) - 1


class Making(NamedTuple):
    """As kernels take it, in this order."""

    counters: int  # where they begin, in words behind the flags: of tickets, and of each part
    ready: int  # parts that are there before
    parts: int  # of a band
    of_part: int  # tickets
    tickets: int

    @property
    def words(self) -> int:
        """Of counters."""
        return 0 if self.ready == ALL else 1 + self.ready + self.tickets // self.of_part

    def before(self, rows: int) -> tuple[int | None, int | None]:
        """How many rows of x, and steps of theirs, are ordered beforehand, None: all; ``rows``: of a band."""
        return (None, None) if self.ready == ALL else (rows, self.ready * STEPS)


def making(
    order: Bands, wide: bool, columns: int, steps: int, divided: int, counters: int, turn_us: float
) -> Making:
    """What is left to the product's own warps; nothing where it is little, or where blocks share all tiles
    along K, and want all parts at once. ``turn_us``: how long a block multiplies at a tile.
    """
    parts, bands, rows = -(-steps // STEPS), -(-order.across // order.band), order.band * columns
    ready = max(min(AHEAD, parts), ceil(parts * beforehand(rows * steps * 64, turn_us)))
    if not wide or divided == order.tiles or (bands * parts - ready) * rows * STEPS * 64 < LEAST:
        return Making(counters, ALL, 1, 1, 0)
    of_part = rows // ROWS
    return Making(counters, ready, parts, of_part, (bands * parts - ready) * of_part)


def beforehand(numbers: int, turn_us: float) -> float:
    """Of a band's numbers, all of which the first turn may want, the share that it would wait for."""
    return max(0.0, 1 - turn_us / (numbers * NUMBER_US))


def waiting_us(numbers: int, turn_us: float) -> float:
    """How long a product waits for what is there before, of so many numbers of a band."""
    return BEGINNING_US + beforehand(numbers, turn_us) * numbers * PANEL_US


@cache
def awaiter(makes: bool) -> Any:
    """The device function of who fetches: until the part of a stage is there, given how many are known to."""
    wait_for_sum, see = barriers.wait_for_sum, boxes.publish_to_copy_engine

    if not makes:
        return inlined(lambda flags, make, band, step, known: known)

    @inlined
    def until_there(flags: Any, make: Any, band: Any, step: Any, known: Any) -> Any:
        counters, _, parts, of_part, _ = make
        if known != uint32(ALL):
            part = uint32(uint32(band * parts) + uint32(step // uint32(STEPS)))
            if part >= known:
                place = uint32(uint32(counters + uint32(1)) + part)
                wait_for_sum(flags + uint64(place) * uint64(4), of_part)
                see()
                known = uint32(part + uint32(1))
        return known

    return until_there


@cache
def maker() -> Any:
    """The device function of warps that order rows until no ticket is left."""
    meet, first_lane, take, reach, show = (
        barriers.sync_warp, barriers.from_first_lane, barriers.take_ticket, barriers.add_release,
        boxes.publish_to_copy_engine,
    )  # fmt: skip
    order_floats, order_halves, order_bfloats = (pair_orderer(kind) for kind in KINDS)

    @inlined
    def order(x: Any, panels: Any, flags: Any, make: Any, given: Any, rows_of_band: Any, lane: Any) -> None:
        (counters, ready, parts, of_part, tickets), (kind, m, k, steps, height) = make, given
        ticket = uint32(0)
        while ticket < tickets:
            if lane == uint32(0):
                ticket = take(flags + uint64(counters) * uint64(4))
            ticket = first_lane(ticket)
            if ticket < tickets:
                which = uint32(ticket // of_part)
                part = uint32(ready + which)
                band = uint32(part // parts)
                slab = uint32(part - uint32(band * parts))
                row = uint32(uint32(ticket - uint32(which * of_part)) * uint32(ROWS))
                row = uint32(row + uint32(band * rows_of_band))
                own = uint32(uint32(slab * uint32(LANES)) + lane)
                end = m if own < uint32(steps * uint32(4)) else uint32(0)
                for i in range(0, ROWS, 2):
                    at = uint32(row + uint32(i))
                    if kind == uint32(0):
                        order_floats(x, panels, own, height, at, m, k, end)
                    elif kind == uint32(1):
                        order_halves(x, panels, own, height, at, m, k, end)
                    else:
                        order_bfloats(x, panels, own, height, at, m, k, end)
                show()
                meet()
                if lane == uint32(0):
                    reach(flags + uint64(uint32(uint32(counters + uint32(1)) + part)) * uint64(4), uint32(1))

    return order


@cache
def pair_orderer(kind: str) -> Any:
    """The device function for 16 columns of two neighbouring rows, both under way at one time.

    ``end``: of the rows that are put somewhere; all lanes of a warp take part.
    """
    load, pair, place, size = sixteen_loader(kind), pairer(), placer(), KINDS[kind]

    @inlined
    def order(x: Any, panels: Any, own: Any, height: Any, row: Any, m: Any, k: Any, end: Any) -> None:
        a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        c, d = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        column, last = uint32(own * uint32(EACH)), uint32(m - uint32(1))
        there, after = min(column, uint32(k - uint32(EACH))), uint32(row + uint32(1))
        load(address(x, min(row, last), k, there, size), a, b)
        load(address(x, min(after, last), k, there, size), c, d)
        if column >= k:
            for t in range(4):
                a[t] = b[t] = c[t] = d[t] = uint32(0)
        pair(own, a, b)
        pair(own, c, d)
        if row < end:
            place(panels, own, height, row, a, b)
        if after < end:
            place(panels, own, height, after, c, d)

    return order
