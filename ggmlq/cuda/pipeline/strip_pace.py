"""How long products of strips take on Hopper, as far as a choice between their kernels needs it.

Constants were fitted on an H100 (bench/NOTES.md); multiprocessors and memory are those of the card. A bad
estimate makes nothing wrong, only slower.
"""

from __future__ import annotations

from typing import NamedTuple

from ...card import Card
from ..gemv.pace import Job, best
from ..gemv.stages import COLUMNS
from ..strips.layout import ROWS, STEP, StripLayout
from . import roles as role_tiles
from .parts import SHORTEST
from .pieces import Turn
from .product import STRIPS
from .roles import PIECE
from .stage_pace import SHARE, longer_us

# cuda:wgmma: to start; a stage of 128 columns of K of q4_0, by the columns of a tile; so much of what other
# types take more in cuda:roles; to add up a million numbers of parts; a million activations.
WGMMA_US, WGMMA_STAGE_US, LONGER = 4.1, {32: 1.17, 64: 1.32, 128: 1.24}, 0.52
ADDED_US, NARROWED_US = 1.9, 1.7
ROLES_US = 2.6


class Shape(NamedTuple):
    """Of a product, and what it is made on."""

    m: int
    n: int
    k: int
    layout: StripLayout
    card: Card

    @property
    def rows(self) -> int:
        """Of tiles."""
        return -(-self.n // (STRIPS * ROWS))


def gemv(shape: Shape) -> float:
    """Microseconds of cuda:gemv."""
    card = shape.card
    height = STRIPS * shape.rows
    return best(Job(shape.layout, height, shape.k, shape.m, card.multiprocessors, card.memory))[0]


def wgmma(shape: Shape) -> float:
    """Microseconds of cuda:wgmma, whose warps unpack between products, however wide the tile is."""
    columns = next((each for each in WGMMA_STAGE_US if each >= shape.m), max(WGMMA_STAGE_US))
    across, each = -(-shape.m // columns), 2 if columns <= 64 else 1
    tiles, blocks = shape.rows * across, shape.card.multiprocessors * each
    parts = max(1, min(blocks // tiles, shape.k // (SHORTEST * STEP)))
    stages = -(-tiles * parts // blocks) * -(-shape.k // (PIECE * STEP * parts))
    own = WGMMA_STAGE_US[columns] + LONGER * longer_us(shape.layout, min(WGMMA_STAGE_US))
    read = STRIPS * PIECE * shape.layout.record / 1e6 / across / (SHARE * shape.card.memory)
    us = WGMMA_US + stages * Turn(blocks, each, columns, own, read).pace(min(tiles * parts, blocks))
    if parts > 1:
        us += parts * shape.m * shape.n / 1e6 * ADDED_US
    return us + shape.m * shape.k / 1e6 * NARROWED_US


def roles(shape: Shape) -> float:
    """Microseconds of cuda:roles."""
    stages = -(-shape.k // (PIECE * STEP))
    of_tiles = role_tiles.Shape.on(shape.card, shape.m, shape.n, stages, shape.layout)
    return ROLES_US + role_tiles.best(of_tiles).us


def estimates(shape: Shape) -> dict[str, float]:
    """Of the kernels that take such a shape."""
    found = {"cuda:wgmma": wgmma(shape), "cuda:roles": roles(shape)}
    if shape.m <= COLUMNS[-1]:
        found["cuda:gemv"] = gemv(shape)
    return found
