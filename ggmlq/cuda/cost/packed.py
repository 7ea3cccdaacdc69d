"""How long products of strips take on Hopper, as far as a choice between their kernels needs it.

Constants were fitted on an H100 (bench/notes/choice.md); multiprocessors and memory are those of the card. A
bad estimate makes nothing wrong, only slower.
"""

from __future__ import annotations

from typing import NamedTuple

from ...dispatch.card import Card
from ..gemv.stages import COLUMNS
from ..packed.layout import FRAGMENT_ROWS, STEP, TILE_ROWS, PackedLayout
from ..warp_specialized.tile import UNIT_FRAGMENTS
from . import warp_specialized
from .gemv import GemvShape, best_split

WARP_SPECIALIZED_US = 3.0  # to order the first activations, to start, to write


class PackedShape(NamedTuple):
    """Of a product, and what it is made on."""

    m: int
    n: int
    k: int
    layout: PackedLayout
    card: Card


def gemv_us(shape: PackedShape) -> float:
    """Microseconds of cuda:gemv."""
    card = shape.card
    height = FRAGMENT_ROWS * -(-shape.n // (TILE_ROWS))
    return best_split(GemvShape(shape.layout, height, shape.k, shape.m, card.multiprocessors, card.memory))[0]


def warp_specialized_us(shape: PackedShape) -> float:
    """Microseconds of cuda:warp_specialized."""
    stages = -(-shape.k // (UNIT_FRAGMENTS * STEP))
    of_tiles = warp_specialized.WarpSpecializedShape.on(shape.card, shape.m, shape.n, stages, shape.layout)
    return WARP_SPECIALIZED_US + warp_specialized.best_tile(of_tiles).us


def estimates(shape: PackedShape) -> dict[str, float]:
    """Of the kernels that take such a shape."""
    found = {"cuda:warp_specialized": warp_specialized_us(shape)}
    if shape.m <= COLUMNS[-1]:
        found["cuda:gemv"] = gemv_us(shape)
    return found
