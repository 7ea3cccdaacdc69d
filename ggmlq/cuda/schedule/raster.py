"""The raster of a product: an order of its tiles in which those computed at the same time share operands.

Blocks compute tiles of neighbouring numbers at the same time. A *sweep* goes down all rows of tiles, over
some of their columns; the next sweep follows to the right:

               activations
    weights    0  1  2 |  9 10
               3  4  5 | 11 12
               6  7  8 | 13 14

So the x_tiles of a sweep stay in the L2 cache while weights go by.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

from ..intrinsics.atoms import inlined
from ..intrinsics.language import uint32, uint64
from ..packed.layout import FRAGMENT_ROWS, TILE_ROWS


class Raster(NamedTuple):
    """A raster as kernels take it, in this order."""

    across: int  # tiles along the rows of activations
    width: int  # tiles across a sweep
    per_sweep: int  # tiles of a sweep
    tiles: int


def raster(across: int, down: int, blocks: int, x_bytes: int, w_bytes: int) -> Raster:
    """The raster of ``across`` × ``down`` tiles, ``blocks`` of them computed at the same time.

    ``x_bytes``, ``w_bytes``: bytes that a tile reads of either operand for the same part of K. Sweeps have
    the width with which blocks read the fewest bytes; all are about equally wide, with a tile for each block.
    """
    best, tiles = max(1.0, sqrt(blocks * w_bytes / x_bytes)), across * down
    width = -(-across // max(1, min(round(across / best), tiles // blocks)))
    return Raster(across, width, width * down, tiles)


def raster_width(blocks: int, x_bytes: int, w_bytes: int) -> int:
    """The best width of a sweep where the number of tiles is not known yet."""
    return max(1, round(sqrt(blocks * w_bytes / x_bytes)))


@inlined
def tile_place(number: Any, order: Any) -> Any:
    """The row of tiles and the column of a tile; ``order``: a Raster."""
    across, width, per_sweep, _ = order
    sweep = uint32(number // per_sweep)
    column, within = uint32(sweep * width), uint32(number - uint32(sweep * per_sweep))
    across_here = min(width, uint32(across - column))
    down = uint32(within // across_here)
    return down, uint32(column + uint32(within - uint32(down * across_here)))


@inlined
def locate_for_producer(tile_order: Any, number: Any) -> Any:
    """The place of a tile for the producer: its first fragment row, its column of tiles, its sweep."""
    order, _ = tile_order
    down, column = tile_place(number, order)
    return uint32(down * uint32(FRAGMENT_ROWS)), column, uint32(column // order[1])


def consumer_locator(columns: int) -> Any:
    """The device function for the place of a tile with ``columns`` columns, as consumers need it."""

    @inlined
    def locate(tile_order: Any, number: Any, thread_at: Any) -> Any:
        (order, m), (below, beside) = tile_order, thread_at
        down, right = tile_place(number, order)
        row, column = uint32(down * uint32(TILE_ROWS) + below), uint32(right * uint32(columns) + beside)
        return row, column, m, uint64(0)

    return locate
