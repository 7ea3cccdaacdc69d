"""How long products of strips take on Hopper, as far as a choice between their kernels needs it.

Constants were fitted on an H100 (bench/notes/choice.md); multiprocessors and memory are those of the card. A
bad estimate makes nothing wrong, only slower.
"""

from __future__ import annotations

from typing import NamedTuple

from ...dispatch.card import Card
from ..gemv.stages import COLUMNS
from ..packed.layout import ROWS, STEP, STRIPS, StripLayout
from ..warp_specialized.producer import PIECE
from . import warp_specialized
from .gemv import Job, best

ROLES_US = 3.0  # to order the first activations, to start, to write


class Shape(NamedTuple):
    """Of a product, and what it is made on."""

    m: int
    n: int
    k: int
    layout: StripLayout
    card: Card


def gemv_us(shape: Shape) -> float:
    """Microseconds of cuda:gemv."""
    card = shape.card
    height = STRIPS * -(-shape.n // (STRIPS * ROWS))
    return best(Job(shape.layout, height, shape.k, shape.m, card.multiprocessors, card.memory))[0]


def warp_specialized_us(shape: Shape) -> float:
    """Microseconds of cuda:warp_specialized."""
    stages = -(-shape.k // (PIECE * STEP))
    of_tiles = warp_specialized.Shape.on(shape.card, shape.m, shape.n, stages, shape.layout)
    return ROLES_US + warp_specialized.best(of_tiles).us


def estimates(shape: Shape) -> dict[str, float]:
    """Of the kernels that take such a shape."""
    found = {"cuda:warp_specialized": warp_specialized_us(shape)}
    if shape.m <= COLUMNS[-1]:
        found["cuda:gemv"] = gemv_us(shape)
    return found
