"""Estimates of the time of cuda:warp_specialized with each tile, and the tile with the lowest one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ...dispatch.card import UNKNOWN, Card
from ..packed.layout import FRAGMENT_ROWS, STEP, TILE_ROWS, PackedLayout
from ..schedule.raster import raster
from ..warp_specialized.late_activations import X_TILE_US, waiting_us
from ..warp_specialized.plain_rows import reads_plain
from ..warp_specialized.tile import UNIT_FRAGMENTS, WarpSpecializedTile
from .constants import constants
from .split import Split, Wave, best_split, split_us
from .stage import PLAIN, SHARE, at_one_time, stage_us

TILES = (
    WarpSpecializedTile(32, 2),
    *map(WarpSpecializedTile, (16, 32, 48, 64, 80, 96, 112, 128, 176, 208, 256)),
)  # fmt: skip
NARROW, MOST_NARROW = 64, 4  # columns of a narrow tile, and the most narrow tiles across
# Where x is read as it lies: rows up to which it was measured, and empty rows of a box up to which it pays;
# and microseconds of a kernel that only clears flags.
MOST_PLAIN, MOST_EMPTY, CLEAR_US = 512, 32, 0.3


class TileEstimate(NamedTuple):
    """A tile, and the estimated microseconds of a product with it."""

    us: float
    tile: WarpSpecializedTile


class WarpSpecializedShape(NamedTuple):
    """The shape of a product, and the facts of its card that estimates need."""

    m: int
    down: int  # tiles of weights
    stages: int
    layout: PackedLayout
    multiprocessors: int
    memory: float = UNKNOWN  # MB a microsecond
    plain: bool = False  # x has 16 bits and is read as it lies where tile and type allow it

    @classmethod
    def on(
        cls, card: Card, m: int, n: int, stages: int, layout: PackedLayout, plain: bool = False
    ) -> WarpSpecializedShape:  # fmt: skip
        """The product on a card."""
        down = -(-n // TILE_ROWS)
        return cls(m, down, stages, layout, card.multiprocessors, card.memory, plain)

    @property
    def columns(self) -> int:
        """Columns of K, filled up to whole stages."""
        return self.stages * UNIT_FRAGMENTS * STEP

    @property
    def weights(self) -> float:
        """MB of the weights of a row of tiles."""
        return self.columns * FRAGMENT_ROWS * self.layout.fragment_bytes / STEP / 1e6

    def across(self, tile: WarpSpecializedTile) -> int:
        """Tiles along the rows of activations."""
        return -(-self.m // tile.columns)

    def reads_plain(self, tile: WarpSpecializedTile) -> bool:
        """True where blocks with a tile read x as it lies."""
        pays = self.m <= MOST_PLAIN and self.across(tile) * tile.columns <= self.m + MOST_EMPTY
        return self.plain and pays and reads_plain(self.layout, tile)

    def wave(self, tile: WarpSpecializedTile, blocks: int) -> Wave:
        """The wave of blocks with a tile, ``blocks`` of them on a multiprocessor."""
        across, activations = self.across(tile), self.columns * 2 * tile.columns / 1e6
        reread = memory_mb(self.weights, self.down, across) + memory_mb(activations, across, self.down)
        stage, memory = stage_us(self.layout, tile.columns, tile.blocks), SHARE * self.memory
        read = self.weights / self.stages / across
        return Wave(
            self.multiprocessors * blocks, blocks, tile.columns, stage, read / memory, reread / memory,
            CLEAR_US * self.reads_plain(tile),
        )  # fmt: skip


def memory_mb(size: float, count: int, times: int) -> float:
    """MB of one operand tile that must come from memory, not L2, when ``times`` tiles read it in turn.

    ``count``: tiles of that operand.
    """
    missed = min(1, size * count / constants().tiles.cached)
    return size * (missed + (1 - missed) / times)


def tile_us(shape: WarpSpecializedShape, tile: WarpSpecializedTile, split: Split, wave: Wave) -> float:
    """Estimated microseconds of a product with a tile and a split."""
    c, across = constants().tiles, shape.across(tile)
    numbers = tile.columns * shape.columns  # of x, for a tile
    tiles = shape.down * across
    allowed = 2 * tiles * TILE_ROWS * numbers / (1e6 * c.power * shape.multiprocessors)
    us = c.start + at_one_time(split_us(split, tiles, shape.stages, wave), allowed)
    if shape.reads_plain(tile):
        return us + across * numbers * c.box / 1e6 - c.saved
    if tile.wide and split.split_tiles < tiles:
        order = raster(across, shape.down, wave.blocks, tile.x_tile_bytes, FRAGMENT_ROWS * PLAIN)
        return us + waiting_us(order.width * numbers, shape.stages * wave.stage_time(wave.blocks))
    return us + across * numbers * X_TILE_US


def estimates(
    shape: WarpSpecializedShape, tiles: Sequence[WarpSpecializedTile] = TILES
) -> list[TileEstimate]:
    """Tiles with their best splits, the lowest estimate first.

    The rows of activations must nearly fill the tile: with few tiles a wide one may seem faster for a single
    row, but most of its traffic would be for nothing. And more than four narrow tiles are never faster than
    half as many of twice the width, which unpack weights half as often.
    """
    m = shape.m
    filled = (tile for tile in tiles if tile.columns < 2 * m + tiles[0].columns)
    able = [tile for tile in filled if tile.columns > NARROW or m <= MOST_NARROW * tile.columns]
    waves = [(tile, shape.wave(tile, tile.blocks)) for tile in able]
    split_tiles = [(t, w, best_split(shape.down * shape.across(t), shape.stages, w)[0]) for t, w in waves]
    timed = (TileEstimate(tile_us(shape, tile, split, wave), tile) for tile, wave, split in split_tiles)
    return sorted(timed, key=lambda estimate: estimate.us)


@lru_cache(4096)
def best_tile(
    shape: WarpSpecializedShape, tiles: Sequence[WarpSpecializedTile] = TILES
) -> TileEstimate:  # fmt: skip
    """The tile with the lowest estimate for a shape."""
    return estimates(shape, tiles)[0]
