"""How long products of strips take on Hopper, as far as a choice between their kernels needs it.

Constants are those of one H200 (bench/NOTES.md); where they scale with multiprocessors they do here. A bad
estimate makes nothing wrong, only slower.
"""

from __future__ import annotations

from typing import NamedTuple

from ..gemv.pace import Job, best
from ..gemv.stages import COLUMNS
from ..strips.layout import ROWS, STEP, StripLayout
from .parts import SHORTEST
from .product import STRIPS
from .roles import PIECE
from .roles import best as best_tile
from .stage_pace import longer_us

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


def gemv(shape: Shape) -> float:
    """Microseconds of cuda:gemv."""
    count = STRIPS * -(-shape.n // (STRIPS * ROWS))
    return best(Job(shape.layout, count, shape.k, shape.m, shape.multiprocessors))[0]


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
    return ROLES_US + best_tile(shape.m, down, stages, shape.multiprocessors, shape.layout).us


def estimates(shape: Shape) -> dict[str, float]:
    """Of the kernels that take such a shape."""
    found = {"cuda:wgmma": wgmma(shape), "cuda:roles": roles(shape)}
    if shape.m <= COLUMNS[-1]:
        found["cuda:gemv"] = gemv(shape)
    return found
