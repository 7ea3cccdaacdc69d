"""Where the tiles of a product stand, so that those which are made at one time read little.

Blocks make tiles of neighbouring numbers at one time. Bands of some columns of tiles are made one after the
other, each row by row:

               activations
    weights    0  1  2 |  9 10
               3  4  5 | 11 12
               6  7  8 | 13 14

So the panels of a band stay in the L2 cache, while strips of weights go by.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

from ..intrinsics.atoms import inlined
from ..intrinsics.language import uint32, uint64
from ..packed.layout import FRAGMENT_ROWS, TILE_ROWS


class Raster(NamedTuple):
    """As kernels take them, in this order."""

    across: int  # tiles along the rows of activations
    width: int  # of them in a band
    per_sweep: int  # tiles of a band
    tiles: int


def raster(across: int, down: int, blocks: int, of_x: int, of_w: int) -> Raster:
    """Of ``across`` times ``down`` tiles, made by so many blocks at one time.

    ``of_x`` and ``of_w``: bytes that a tile reads of both for the same part of K. Bands are as wide as makes
    the bytes of all blocks least, all about equally wide, with a tile for each block.
    """
    best, tiles = max(1.0, sqrt(blocks * of_w / of_x)), across * down
    width = -(-across // max(1, min(round(across / best), tiles // blocks)))
    return Raster(across, width, width * down, tiles)


def raster_width(blocks: int, of_x: int, of_w: int) -> int:
    """How wide bands are meant to be where nobody knows yet how many tiles there are."""
    return max(1, round(sqrt(blocks * of_w / of_x)))


@inlined
def tile_place(number: Any, of: Any) -> Any:
    """The row of tiles and the column that a tile stands in; ``of``: Bands."""
    across, width, per_sweep, _ = of
    which = uint32(number // per_sweep)
    column, own = uint32(which * width), uint32(number - uint32(which * per_sweep))
    wide = min(width, uint32(across - column))
    down = uint32(own // wide)
    return down, uint32(column + uint32(own - uint32(down * wide)))


@inlined
def locate_for_producer(where: Any, number: Any) -> Any:
    """What who fetches asks (warp_specialized/producer.py): the tile's first strip, its column of tiles, its band."""
    order, _ = where
    down, column = tile_place(number, order)
    return uint32(down * uint32(FRAGMENT_ROWS)), column, uint32(column // order[1])


def consumer_locator(columns: int) -> Any:
    """The device function that who multiplies asks (warp_specialized/consumers.py), of tiles with so many columns."""

    @inlined
    def locate(where: Any, number: Any, thread_at: Any) -> Any:
        (order, m), (below, beside) = where, thread_at
        down, over = tile_place(number, order)
        row, column = uint32(down * uint32(TILE_ROWS) + below), uint32(over * uint32(columns) + beside)
        return row, column, m, uint64(0)

    return locate
