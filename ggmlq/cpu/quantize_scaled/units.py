"""The units that threads take: whole tiles that the cache holds, or parts of tiles too large for it.

*Near*: a unit is one row of tiles, and of it as many columns as the cache holds; their extremes, scales
and codes are made one after the other. *Far*: a unit is a part of one tile; the extremes of all units are
computed and put together. *Flat*: a unit is a part of a tile, or of a few beside each other, which is encoded
under scales that are known by then.
"""

from __future__ import annotations

from typing import NamedTuple

from ...codes.tiling import Tiling

SMALL = 16 << 10  # bytes of a unit of small tiles: the first cache holds them
NEAR = 256 << 10  # of a unit of larger ones: a part of the second cache
LARGEST = 512 << 10  # of a tile that is still near


class Cut(NamedTuple):
    """Units over [rows, columns], by bands of r rows; the last of each may be shorter."""

    rows: int
    columns: int
    r: int  # rows of a band: of a tile
    c: int  # columns of a tile
    high: int  # rows of a unit
    wide: int  # columns of a unit: tiles, or a part of one
    parts: int  # units below each other in a band
    across: int  # units beside each other

    @property
    def bands(self) -> int:
        """The number of rows of tiles."""
        return -(-self.rows // self.r)

    @property
    def units(self) -> int:
        """The number of units."""
        return self.bands * self.parts * self.across


def near(over: Tiling, itemsize: int) -> Cut | None:
    """Units of whole tiles, or None where a tile is too large."""
    tile = over.r * over.c * itemsize
    if tile > LARGEST:
        return None
    tiles = max(1, (SMALL if 4 * tile <= SMALL else NEAR) // tile)
    return _cut(over, over.r, tiles * over.c)


def far(over: Tiling, itemsize: int) -> Cut:
    """Units for extremes of large tiles: parts of tiles that a thread reads in one go, each of one tile."""
    wide = min(over.c, NEAR // itemsize)
    high = min(over.r, max(1, NEAR // (wide * itemsize)))
    if wide < over.c < over.columns:
        return _cut(over, high, over.c)  # a unit never holds parts of two tiles
    return _cut(over, high, wide)


def flat(over: Tiling, itemsize: int) -> Cut:
    """Units for encoding under known scales: rows of tiles, in parts."""
    near_by = NEAR // itemsize
    columns = near_by if over.c >= over.columns else max(over.c, near_by // over.c * over.c)
    high = min(over.r, max(1, NEAR // (min(columns, over.columns) * itemsize)))
    return _cut(over, high, columns)


def _cut(over: Tiling, high: int, wide: int) -> Cut:
    wide = min(wide, max(over.columns, 1))
    return Cut(*over, high, wide, -(-over.r // high), -(-over.columns // wide))
