"""Estimates of the time of cuda:warp_specialized with each tile, and the tile with the lowest one."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ...dispatch.card import UNKNOWN, Card
from ..packed.layout import FRAGMENT_ROWS, STEP, TILE_ROWS, PackedLayout
from ..schedule.raster import raster
from ..warp_specialized.late_activations import X_TILE_US, waiting_us
from ..warp_specialized.plain_rows import reads_plain
from ..warp_specialized.tile import UNIT_FRAGMENTS, WarpSpecializedTile
from .split import Wave, best_split
from .stage import PLAIN, SHARE, at_one_time, stage_us

TILES = (
    WarpSpecializedTile(16, 2), WarpSpecializedTile(32, 2),
    *map(WarpSpecializedTile, (16, 32, 48, 64, 80, 96, 112, 128, 160, 176, 208, 240, 256)),
)  # fmt: skip
CACHED = 71  # MB of an operand, from which an L2 cache of 50 MB holds nothing of it for later tiles
NARROW, MOST_NARROW = 64, 4  # columns of a narrow tile, and the most narrow tiles across
# Where x is read as it lies: rows up to which it was measured, and empty rows of a box up to which it pays;
# microseconds that are saved, since no kernel makes x_tiles, less those for a number that a box brings; and
# those of a kernel that only clears flags.
MOST_PLAIN, MOST_EMPTY, SAVED_US, BOX_US, CLEAR_US = 512, 32, 0.75, 0.75e-6, 0.3
POWER = 5.98e6  # operations a microsecond and multiprocessor that a card's power allows


class TileEstimate(NamedTuple):
    """A tile, and the estimated microseconds that blocks work with it and wait for x_tiles."""

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
    missed = min(1, size * count / CACHED)
    return size * (missed + (1 - missed) / times)


@lru_cache(4096)
def best_tile(shape: WarpSpecializedShape) -> TileEstimate:
    """The tile with the lowest estimate for a shape.

    The rows of activations must nearly fill the tile: with few tiles a wide one may seem faster for a single
    row, but most of its traffic would be for nothing. And more than four narrow tiles are never faster than
    half as many of twice the width, which unpack weights half as often.
    """
    m, down, stages = shape.m, shape.down, shape.stages

    def us(tile: WarpSpecializedTile) -> float:
        across, numbers = shape.across(tile), tile.columns * shape.columns  # of x, for a tile
        wave = shape.wave(tile, tile.blocks)
        split, working = best_split(down * across, stages, wave)
        allowed = 2 * down * TILE_ROWS * across * numbers / (POWER * shape.multiprocessors)
        working = at_one_time(working, allowed)
        if shape.reads_plain(tile):
            return working + across * numbers * BOX_US - SAVED_US
        if tile.wide and split.split_tiles < down * across:
            order = raster(across, down, wave.blocks, tile.x_tile_bytes, FRAGMENT_ROWS * PLAIN)
            return working + waiting_us(order.width * numbers, stages * wave.stage_time(wave.blocks))
        return working + across * numbers * X_TILE_US

    filled = (tile for tile in TILES if tile.columns < 2 * m + TILES[0].columns)
    able = (tile for tile in filled if tile.columns > NARROW or m <= MOST_NARROW * tile.columns)
    return min((TileEstimate(us(tile), tile) for tile in able), key=lambda estimate: estimate.us)
