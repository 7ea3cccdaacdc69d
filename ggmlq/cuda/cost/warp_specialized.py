"""Estimate of the warp-specialised product on packed weights: which tile takes least time."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ...dispatch.card import UNKNOWN, Card
from ..packed.layout import FRAGMENT_ROWS, STEP, TILE_ROWS, PackedLayout
from ..schedule.raster import raster
from ..warp_specialized.late_activations import X_TILE_US, waiting_us
from ..warp_specialized.tile import UNIT_FRAGMENTS, WarpSpecializedTile
from .split import Wave, best_split
from .stage import PLAIN, SHARE, at_one_time, stage_us

TILES = (
    WarpSpecializedTile(16, 2), WarpSpecializedTile(32, 2),
    *map(WarpSpecializedTile, (16, 32, 48, 64, 80, 96, 112, 128, 160, 176, 208, 240, 256)),
)  # fmt: skip


CACHED = 71  # MB of an operand of which an L2 cache of 50 MB holds nothing for those who want it later


NARROW, MOST_NARROW = 64, 4  # columns of a tile, up to which there are no more than so many across


POWER = 5.98e6  # operations a microsecond, of a multiprocessor, that a card's power allows


class TileEstimate(NamedTuple):
    """The tile that is thought to be the fastest, and how long blocks work then and wait for panels."""

    us: float
    tile: WarpSpecializedTile


class WarpSpecializedShape(NamedTuple):
    """Of a product, and what it is made on."""

    m: int
    down: int  # tiles of weights
    stages: int
    layout: PackedLayout
    multiprocessors: int
    memory: float = UNKNOWN  # MB a microsecond

    @classmethod
    def on(cls, card: Card, m: int, n: int, stages: int, layout: PackedLayout) -> WarpSpecializedShape:
        """On this card."""
        down = -(-n // (TILE_ROWS))
        return cls(m, down, stages, layout, card.multiprocessors, card.memory)

    @property
    def columns(self) -> int:
        """Of K, filled up."""
        return self.stages * UNIT_FRAGMENTS * STEP

    @property
    def weights(self) -> float:
        """MB of the weights of a row of tiles."""
        return self.columns * FRAGMENT_ROWS * self.layout.fragment_bytes / STEP / 1e6

    def across(self, tile: WarpSpecializedTile) -> int:
        """Tiles of activations."""
        return -(-self.m // tile.columns)

    def wave(self, tile: WarpSpecializedTile, blocks: int) -> Wave:
        """What so many blocks of a multiprocessor do."""
        across, activations = self.across(tile), self.columns * 2 * tile.columns / 1e6
        again = memory_mb(self.weights, self.down, across) + memory_mb(activations, across, self.down)
        stage, memory = stage_us(self.layout, tile.columns, tile.blocks), SHARE * self.memory
        read = self.weights / self.stages / across
        return Wave(self.multiprocessors * blocks, blocks, tile.columns, stage, read / memory, again / memory)


def memory_mb(size: float, count: int, times: int) -> float:
    """Of so many MB, one of ``count`` that so many tiles read one after the other: what comes from memory."""
    missed = min(1, size * count / CACHED)
    return size * (missed + (1 - missed) / times)


@lru_cache(4096)
def best_tile(shape: WarpSpecializedShape) -> TileEstimate:
    """For a shape.

    Of the tiles that rows fill up: a wide one may be thought faster for a row where there are few tiles, but
    most of what it moves would be for nothing. And more than four narrow ones are never faster than half as
    many that unpack half as often.
    """
    m, down, stages = shape.m, shape.down, shape.stages

    def us(tile: WarpSpecializedTile) -> float:
        across, of_tile = shape.across(tile), tile.columns * shape.columns  # numbers of x
        wave = shape.wave(tile, tile.blocks)
        split, working = best_split(down * across, stages, wave)
        allowed = 2 * down * TILE_ROWS * across * of_tile / (POWER * shape.multiprocessors)
        working = at_one_time(working, allowed)
        if tile.wide and split.split_tiles < down * across:
            order = raster(across, down, wave.blocks, tile.x_tile_bytes, FRAGMENT_ROWS * PLAIN)
            return working + waiting_us(order.width * of_tile, stages * wave.stage_time(wave.blocks))
        return working + across * of_tile * X_TILE_US

    filled = (tile for tile in TILES if tile.columns < 2 * m + TILES[0].columns)
    able = (tile for tile in filled if tile.columns > NARROW or m <= MOST_NARROW * tile.columns)
    return min((TileEstimate(us(tile), tile) for tile in able), key=lambda each: each.us)
