"""Which tile serves a shape: the one with which the multiprocessors are done first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..machine import device
from ..rings.boxed import BoxTile


class TileEfficiency(NamedTuple):
    """A tile, and how well its kernel keeps a multiprocessor busy, relative to others."""

    tile: BoxTile
    efficiency: float


def best_tile(tiles: Sequence[TileEfficiency], m: int, n: int, multiprocessors: int = 0) -> BoxTile:
    """Blocks take tiles in turns: what counts is how many the busiest one has."""
    count = multiprocessors or device.multiprocessors()

    def time(each: TileEfficiency) -> float:
        return -(-each.tile.tiles(m, n) // count) * each.tile.rows * each.tile.columns / each.efficiency

    return min(tiles, key=time).tile
