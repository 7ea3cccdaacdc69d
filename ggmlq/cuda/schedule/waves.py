"""The choice of a tile by waves: the tile with which the multiprocessors are done first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..machine import device
from ..rings.boxed import BoxTile


class RatedTile(NamedTuple):
    """A tile, and how busy its kernel keeps a multiprocessor, relative to other tiles."""

    tile: BoxTile
    efficiency: float


def best_tile(tiles: Sequence[RatedTile], m: int, n: int, multiprocessors: int = 0) -> BoxTile:
    """The best tile for m × n outputs: blocks take tiles wave after wave, so the busiest block's number of
    tiles counts.
    """
    count = multiprocessors or device.multiprocessors()

    def time(choice: RatedTile) -> float:
        tile = choice.tile
        return -(-tile.tiles(m, n) // count) * tile.rows * tile.columns / choice.efficiency

    return min(tiles, key=time).tile
