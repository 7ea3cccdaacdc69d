"""How long products of strips take on Hopper, as far as a choice between their kernels needs it.

Constants are those of one H200 (bench/NOTES.md); where they scale with multiprocessors they do here. A bad
estimate makes nothing wrong, only slower.
"""

from __future__ import annotations

from typing import NamedTuple

from ..gemv.clusters import ALONE, blocks_for, strips_for
from ..gemv.stages import BOTH, COLUMNS, FOUR
from ..strips.layout import ROWS, STEP, StripLayout
from .parts import SHORTEST
from .pieces import shares, stages_of
from .product import STRIPS
from .roles import PANEL_US, PIECE, STAGE_US, tile_for
from .stage_pace import longer_us, unpacking

MULTIPROCESSORS = 132  # of the card that constants were read off
# cuda:gemv: to start, and in small blocks; a turn; MB a microsecond that a block reads, and that all do.
START_US, SMALL_US, TURN_US = 1.3, 2.8, 0.85
BLOCK, ALL = 0.05, 4.25
# Microseconds in which a multiprocessor multiplies a million weights: by one kernel of them, a hundred
# instructions of stage_pace.py, and a row, by the strips that share its activations (of four: not measured).
WEIGHTS_US, UNPACKING_US, ROW_US = 10.8, 7.8, {BOTH: 1.1, FOUR: 0.9}
LAST = 0.5  # tiles for which most of the card waits in the end, where blocks take what is left
# cuda:wgmma: to start; a stage of 128 columns of K of q4_0, by the columns of a tile; to add up parts, and a
# million numbers of them; a million activations.
WGMMA_US, WGMMA_STAGE_US = 2.1, {32: 1.16, 64: 1.29, 128: 1.09}
ADD_US, ADDED_US, NARROWED_US = 1.6, 2.2, 0.7
ROLES_US = 3.0


class Shape(NamedTuple):
    """Of a product, and what it is made on."""

    m: int
    n: int
    k: int
    layout: StripLayout
    multiprocessors: int

    @property
    def millions(self) -> float:
        """Of weights."""
        return self.n * self.k / 1e6

    @property
    def megabytes(self) -> float:
        """Of strips."""
        return self.millions * self.layout.record / (ROWS * STEP)

    @property
    def speed(self) -> float:
        """Of the card, beside the one that was measured."""
        return self.multiprocessors / MULTIPROCESSORS


def together(reading: float, multiplying: float) -> float:
    """Of two things that hide each other for the most part: a quarter more where both take as long."""
    return float((reading**3 + multiplying**3) ** (1 / 3))


def gemv(shape: Shape) -> float:
    """Microseconds of cuda:gemv."""
    strips = strips_for(-(-shape.n // (BOTH * ROWS)), shape.m, shape.multiprocessors)
    tiles = -(-shape.n // (strips * ROWS))
    parts, most = blocks = blocks_for(tiles, shape.k, shape.m, shape.multiprocessors, strips)
    weight_us = WEIGHTS_US + UNPACKING_US * unpacking(shape.layout) / 100 + ROW_US[strips] * shape.m
    multiplying = weight_us * strips * ROWS * shape.k / 1e6
    if blocks == ALONE:
        beside, tile = min(tiles, shape.multiprocessors), shape.megabytes / tiles
        reading = max(tile / BLOCK, beside * tile / (ALL * shape.speed))
        return START_US + -(-tiles // shape.multiprocessors) * (TURN_US + together(reading, multiplying))
    load = tiles / shape.multiprocessors  # of a multiprocessor
    load = most / parts if load * parts <= most else load + LAST
    return SMALL_US + together(shape.megabytes / (ALL * shape.speed), load * multiplying)


def wgmma(shape: Shape) -> float:
    """Microseconds of cuda:wgmma, whose warps unpack between products, however wide the tile is."""
    columns = next((each for each in WGMMA_STAGE_US if each >= shape.m), max(WGMMA_STAGE_US))
    tiles = -(-shape.n // (STRIPS * ROWS)) * -(-shape.m // columns)
    blocks = shape.multiprocessors * (2 if columns <= 64 else 1)
    parts = max(1, min(blocks // tiles, shape.k // (SHORTEST * STEP)))
    stages = -(-tiles * parts // blocks) * -(-shape.k // (PIECE * STEP * parts))
    us = WGMMA_US + stages * (WGMMA_STAGE_US[columns] + longer_us(shape.layout, min(WGMMA_STAGE_US)))
    if parts > 1:
        us += ADD_US + parts * shape.m * shape.n / 1e6 * ADDED_US
    return us + shape.m * shape.k / 1e6 * NARROWED_US


def roles(shape: Shape) -> float:
    """Microseconds of cuda:roles."""
    down, stages = -(-shape.n // (STRIPS * ROWS)), -(-shape.k // (PIECE * STEP))
    tile = tile_for(shape.m, down, stages, shape.multiprocessors)
    across, blocks = -(-shape.m // tile.columns), shape.multiprocessors * tile.blocks
    tiles = down * across
    share, us = shares(tiles, stages, blocks, tile.columns, STAGE_US[tile.columns])
    us += longer_us(shape.layout, tile.columns) * stages_of(share, tiles, stages)
    return ROLES_US + us + across * tile.columns * shape.k * PANEL_US


def estimates(shape: Shape) -> dict[str, float]:
    """Of the kernels that take such a shape."""
    found = {"cuda:wgmma": wgmma(shape), "cuda:roles": roles(shape)}
    if shape.m <= COLUMNS[-1]:
        found["cuda:gemv"] = gemv(shape)
    return found
