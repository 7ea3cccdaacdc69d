"""How long products of strips take on Hopper, as far as a choice between their kernels needs it.

Constants were fitted on an H100 (bench/notes/choice.md); multiprocessors and memory are those of the card. A
bad estimate makes nothing wrong, only slower.
"""

from __future__ import annotations

from typing import NamedTuple

from ...card import Card
from ..gemv.pace import Job, best
from ..gemv.stages import COLUMNS
from ..strips.layout import ROWS, STEP, StripLayout
from . import roles as role_tiles
from .product import STRIPS
from .roles import PIECE

ROLES_US = 3.0  # to order the first activations, to start, to write


class Shape(NamedTuple):
    """Of a product, and what it is made on."""

    m: int
    n: int
    k: int
    layout: StripLayout
    card: Card


def gemv(shape: Shape) -> float:
    """Microseconds of cuda:gemv."""
    card = shape.card
    height = STRIPS * -(-shape.n // (STRIPS * ROWS))
    return best(Job(shape.layout, height, shape.k, shape.m, card.multiprocessors, card.memory))[0]


def roles(shape: Shape) -> float:
    """Microseconds of cuda:roles."""
    stages = -(-shape.k // (PIECE * STEP))
    of_tiles = role_tiles.Shape.on(shape.card, shape.m, shape.n, stages, shape.layout)
    return ROLES_US + role_tiles.best(of_tiles).us


def estimates(shape: Shape) -> dict[str, float]:
    """Of the kernels that take such a shape."""
    found = {"cuda:roles": roles(shape)}
    if shape.m <= COLUMNS[-1]:
        found["cuda:gemv"] = gemv(shape)
    return found
