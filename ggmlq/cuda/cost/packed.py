"""Estimates of the time of products of packed weights on Hopper: the two gemv against cuda:warp_specialized.

Constants are those of costs.json (bench/notes/choice.md); multiprocessors and memory are those of the card.
A bad estimate makes nothing wrong, only slower.
"""

from __future__ import annotations

from typing import NamedTuple

from ...dispatch.card import Card
from ..gemv.stages import COLUMNS
from ..kernels.hopper.tiles import UNIT_FRAGMENTS
from ..packed import codes
from ..packed.layout import FRAGMENT_ROWS, STEP, TILE_ROWS, PackedLayout
from . import warp_specialized
from .gemv import GemvShape, best_split

INT16 = 0.92  # the time of cuda:gemv_int16 beside cuda:gemv: 0.86 to 0.97 (bench/notes/gemv.md)


class PackedShape(NamedTuple):
    """The shape of a product, the layout of its packed weights, and its card."""

    m: int
    n: int
    k: int
    layout: PackedLayout
    card: Card
    narrow: bool = False  # activations have 16 bits


def gemv_us(shape: PackedShape) -> float:
    """Estimated microseconds of cuda:gemv, or of cuda:gemv_int16 for one row."""
    card = shape.card
    height = FRAGMENT_ROWS * -(-shape.n // TILE_ROWS)
    return best_split(GemvShape(shape.layout, height, shape.k, shape.m, card.multiprocessors, card.memory))[0]


def warp_specialized_us(shape: PackedShape) -> float:
    """Estimated microseconds of cuda:warp_specialized."""
    stages = -(-shape.k // (UNIT_FRAGMENTS * STEP))
    facts = shape.layout, shape.narrow
    tiled = warp_specialized.WarpSpecializedShape.on(shape.card, shape.m, shape.n, stages, *facts)
    return warp_specialized.best_tile(tiled).us


def estimates(shape: PackedShape, every: bool = False) -> dict[str, float]:
    """Estimated microseconds of kernels that may be best for a shape, or of all, by the names of rungs."""
    us_of = {}
    if shape.m == 1 and codes.serves_bytes(shape.layout):
        us = gemv_us(shape)
        us_of = {"cuda:gemv_int16": us, "cuda:gemv": us / INT16}
        if not every:
            return us_of
    us_of["cuda:warp_specialized"] = warp_specialized_us(shape)
    if shape.m <= COLUMNS[-1]:
        us_of["cuda:gemv"] = gemv_us(shape) / (INT16 if shape.m == 1 else 1)
    return us_of
