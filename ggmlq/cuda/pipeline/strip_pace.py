"""How long products of strips take on Hopper, as far as a choice between their kernels needs it.

Constants are those of one H200 (bench/NOTES.md); where they scale with multiprocessors they do here. A bad
estimate makes nothing wrong, only slower.
"""

from __future__ import annotations

from typing import NamedTuple

from ..gemv.clusters import ALONE, blocks_for
from ..gemv.stages import BOTH, COLUMNS
from ..strips.layout import ROWS, STEP
from .pieces import shares
from .product import STRIPS
from .roles import PANEL_US, PIECE, STAGE_US, tile_for

MULTIPROCESSORS = 132  # of the card that constants were read off
BLOCK, ALL = 0.038, 4.25  # MB a microsecond that a block of gemv reads, and that all do
SMALL, SMALL_US, CLUSTER_US = 3.55, 1.8, 1.0  # the same of small blocks; to start, and in clusters besides
ROUND_US, START_US = 1.0, 1.3
ROW = 0.042  # of gemv's time, for each further row
# cuda:wgmma, by the columns of a tile: to start, and millions of weights a microsecond.
WGMMA = {32: (7.0, 3.7), 64: (8.3, 2.8), 128: (9.5, 1.95)}
ROLES_US = 5.0


class Shape(NamedTuple):
    """Of a product, and what it is made on."""

    m: int
    n: int
    k: int
    bits: float  # of a weight
    multiprocessors: int

    @property
    def megabytes(self) -> float:
        """Of weights."""
        return self.n * self.k * self.bits / 8e6

    @property
    def speed(self) -> float:
        """Of the card, beside the one that was measured."""
        return self.multiprocessors / MULTIPROCESSORS


def gemv(shape: Shape) -> float:
    """Microseconds of cuda:gemv."""
    tiles = -(-shape.n // (BOTH * ROWS))
    blocks = blocks_for(tiles, shape.k, shape.m, shape.multiprocessors)
    rows = 1 + ROW * (shape.m - 1)
    if blocks != ALONE:
        start = SMALL_US + CLUSTER_US * (blocks.parts > 1)
        return start + rows * shape.megabytes / (SMALL * shape.speed)
    beside = min(tiles, shape.multiprocessors)
    tile = shape.megabytes / tiles
    reading = max(tile / BLOCK, beside * tile / (ALL * shape.speed))
    return START_US + rows * -(-tiles // shape.multiprocessors) * (ROUND_US + reading)


def wgmma(shape: Shape) -> float:
    """Microseconds of cuda:wgmma."""
    columns = next((each for each in WGMMA if each >= shape.m), max(WGMMA))
    start, rate = WGMMA[columns]
    return start + -(-shape.m // columns) * shape.n * shape.k / 1e6 / (rate * shape.speed)


def roles(shape: Shape) -> float:
    """Microseconds of cuda:roles."""
    down, stages = -(-shape.n // (STRIPS * ROWS)), -(-shape.k // (PIECE * STEP))
    tile = tile_for(shape.m, down, stages, shape.multiprocessors)
    across, blocks = -(-shape.m // tile.columns), shape.multiprocessors * tile.blocks
    working = shares(down * across, stages, blocks, tile.columns, STAGE_US[tile.columns])[1]
    return ROLES_US + working + across * tile.columns * shape.k * PANEL_US


def estimates(shape: Shape) -> dict[str, float]:
    """Of the kernels that take such a shape."""
    found = {"cuda:wgmma": wgmma(shape), "cuda:roles": roles(shape)}
    if shape.m <= COLUMNS[-1]:
        found["cuda:gemv"] = gemv(shape)
    return found
