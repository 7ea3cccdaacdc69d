"""Estimates of the time of cuda:warp_specialized with each tile, and the tile with the lowest one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from ....dispatch.card import UNKNOWN, Card, clusters
from ...layouts.layout import FRAGMENT_ROWS, STEP, TILE_ROWS, PackedLayout
from ..hopper.tiles import (
    MAX_CLUSTER,
    UNIT_FRAGMENTS,
    X_TILE_US,
    WarpSpecializedTile,
    plan_raster,
    reads_plain,
    waiting_us,
)
from .stage import PLAIN, SHARE, at_one_time, constants, stage_us

# The best split of the tiles of cuda:warp_specialized, by estimate: whole tiles, parts along K, or clusters.
#
# A stage takes its time in all blocks at once. Whole tiles are written at their end; those in parts are
# finished by blocks that wait for each other, or meet in clusters.


class Wave(NamedTuple):
    """The blocks that run at one time."""

    blocks: int
    resident: int  # on a multiprocessor
    columns: int  # of a tile
    stage_us: float
    read_us: float = 0.0  # for memory to bring the weights of a stage, for each of the blocks
    apart_us: float = 0.0  # for memory to bring a tile's operands that no cache holds for other blocks
    clear_us: float = 0.0  # for a kernel before that clears the flags of blocks outside clusters

    def takes_clusters(self, running: int, blocks: int) -> bool:
        """True where ``running`` blocks fit at one time in clusters of ``blocks``."""
        if blocks > MAX_CLUSTER or running % blocks:
            return False
        return running // blocks <= clusters(self.blocks // self.resident, blocks) * self.resident

    def stage_time(self, running: int) -> float:
        """Microseconds of a stage, where ``running`` blocks run."""
        neighbours = max(1 / self.resident, running / self.blocks)
        block_us = self.stage_us * (1 - constants().warp_specialized.alone * (1 - neighbours))
        return at_one_time(block_us, running * self.read_us)


class Split(NamedTuple):
    """The split of tiles among blocks."""

    blocks: int  # of the grid
    split_tiles: int  # the last tiles, which blocks share
    split_blocks: int  # the blocks that share them
    splits: int  # parts of each of these tiles; 0: blocks go over the ends of tiles, and then ...
    block_stages: int  # ... stages of a block
    longer_blocks: int  # ... blocks with one stage more
    cluster: int = 1  # blocks of a cluster: as many as ``splits``, or 1

    @property
    def arguments(self) -> tuple[int, ...]:
        """The fields that kernels take."""
        return self[1:6]


@lru_cache(4096)
def best_split(tiles: int, stages: int, wave: Wave) -> tuple[Split, float]:
    """The best split of ``tiles`` tiles of ``stages`` stages, and the estimated microseconds of the work."""
    us, best = min((split_us(split, tiles, stages, wave), split) for split in splits(tiles, stages, wave))
    return best, us


def splits(tiles: int, stages: int, wave: Wave) -> Iterator[Split]:
    """The splits of ``tiles`` tiles of ``stages`` stages."""
    blocks, rest = wave.blocks, tiles % wave.blocks
    yield Split(min(blocks, tiles), 0, 0, 0, 0, 0)
    for parts in range(2, min(blocks // rest if rest else 0, stages) + 1):
        running = blocks if tiles > rest else rest * parts
        yield Split(running, rest, rest * parts, parts, 0, 0)
        if wave.takes_clusters(running, parts):
            yield Split(running, rest, rest * parts, parts, 0, 0, parts)
    split_blocks = min(blocks, rest * stages)
    if split_blocks > rest:
        running = blocks if tiles > rest else split_blocks
        yield Split(running, rest, split_blocks, 0, *divmod(rest * stages, split_blocks))


def split_us(split: Split, tiles: int, stages: int, wave: Wave) -> float:
    """Estimated microseconds of a split.

    Blocks that go over the ends of tiles are at different columns at one time, so none reads for the others.
    """
    c, wide = constants().warp_specialized, wave.columns / 256
    writing, stage_us = c.write * wide, wave.stage_time(split.blocks)
    if not split.split_tiles:
        return -(-tiles // wave.blocks) * (stages * stage_us + writing)
    us = tiles // wave.blocks * (stages * wave.stage_time(wave.blocks) + writing)
    if split.cluster > 1:
        us += -(-stages // split.splits) * stage_us
        return us + c.cluster + c.cluster_exchange * wide + c.cluster_more * (split.splits - 2)
    finishing = c.finish + c.exchange * wide * wave.resident * split.blocks / wave.blocks
    if split.splits:
        return us + -(-stages // split.splits) * stage_us + wave.clear_us + finishing
    most_stages = split.block_stages + (split.longer_blocks > 0)
    us += max(most_stages * stage_us, split.split_tiles * wave.apart_us)
    return us + wave.clear_us + finishing + c.twice * wide


def least_saved(columns: int, stage_us: float) -> int:
    """The fewest stages that a block must save, so that it pays to cut tiles into parts."""
    c = constants().warp_specialized
    return ceil((c.finish + c.exchange * columns / 256) / stage_us)


def most_partials(blocks: int, stages: int, worth: int) -> int:
    """The most partial sums that there may be, whatever ``split_last_wave`` decides.

    A split tile has two blocks or more. ``worth``: the result of :func:`least_saved`.
    """
    return blocks * 3 // 2 if worth < stages else 0


TILES = tuple(map(WarpSpecializedTile, (16, 32, 48, 64, 80, 96, 112, 128, 176, 208, 256)))
NARROW_COLUMNS, MAX_NARROW_TILES = 64, 4  # columns of a narrow tile, and the most narrow tiles across
# Empty rows of the last box up to which x is read as it lies, and the part of the rows of tiles that they may
# be; tiles across whose boxes nothing hides; microseconds of a kernel that only clears flags.
MAX_EMPTY_ROWS, EMPTY_PART, MAX_LATE_BOXES, CLEAR_US = 32, 5, 4, 0.3


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
        rows = self.across(tile) * tile.columns
        pays = rows - self.m <= max(MAX_EMPTY_ROWS, rows // (8 * EMPTY_PART) * 8)  # see rows_alike
        return self.plain and pays and reads_plain(self.layout, tile)

    def wave(self, tile: WarpSpecializedTile, blocks: int) -> Wave:
        """The wave of blocks with a tile, ``blocks`` of them on a multiprocessor."""
        across, activations = self.across(tile), self.columns * 2 * tile.columns / 1e6
        weights = self.weights
        reread = memory_mb(weights, self.down, across) + memory_mb(activations, across, self.down)
        stage, memory = stage_us(self.layout, tile.columns, tile.blocks), SHARE * self.memory
        read = weights / self.stages / across
        return Wave(
            self.multiprocessors * blocks, blocks, tile.columns, stage, read / memory, reread / memory,
            CLEAR_US * self.reads_plain(tile),
        )  # fmt: skip


def memory_mb(size: float, count: int, times: int) -> float:
    """MB of one operand tile that must come from memory, not L2, when ``times`` tiles read it in turn.

    ``count``: tiles of that operand.
    """
    missed = min(1, size * count / constants().warp_specialized.cached)
    return size * (missed + (1 - missed) / times)


def tile_us(shape: WarpSpecializedShape, tile: WarpSpecializedTile, split: Split, wave: Wave) -> float:
    """Estimated microseconds of a product with a tile and a split."""
    c, across = constants().warp_specialized, shape.across(tile)
    numbers = tile.columns * shape.columns  # of x, for a tile
    tiles = shape.down * across
    allowed = 2 * tiles * TILE_ROWS * numbers / (1e6 * c.power * shape.multiprocessors)
    us = c.start + at_one_time(split_us(split, tiles, shape.stages, wave), allowed)
    if shape.reads_plain(tile):
        return us + min(across, MAX_LATE_BOXES) * numbers * c.box / 1e6 - c.saved
    if tile.wide and split.split_tiles < tiles:
        order = plan_raster(across, shape.down, wave.blocks, tile.x_tile_bytes, FRAGMENT_ROWS * PLAIN)
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
    able = [tile for tile in filled if tile.columns > NARROW_COLUMNS or m <= MAX_NARROW_TILES * tile.columns]
    waves = [(tile, shape.wave(tile, tile.blocks)) for tile in able]
    split_tiles = [(t, w, best_split(shape.down * shape.across(t), shape.stages, w)[0]) for t, w in waves]
    timed = (TileEstimate(tile_us(shape, tile, split, wave), tile) for tile, wave, split in split_tiles)
    return sorted(timed, key=lambda estimate: estimate.us)


def best_tile(
    shape: WarpSpecializedShape, tiles: Sequence[WarpSpecializedTile] = TILES
) -> TileEstimate:  # fmt: skip
    """The tile with the lowest estimate for a shape."""
    return _best_tile(shape._replace(m=rows_alike(shape.m)), tiles)


def rows_alike(m: int) -> int:
    """The first number of rows that has the estimates of ``m`` rows.

    Tiles have multiples of 16 columns. So within eight rows, up to a multiple of eight, they are as many, and
    as wide ones are tried. Only with the last of the eight rows another tile may read x as it lies.
    """
    return m if m % 8 == 0 else m // 8 * 8 + 1


@lru_cache(4096)
def _best_tile(shape: WarpSpecializedShape, tiles: Sequence[WarpSpecializedTile]) -> TileEstimate:
    return estimates(shape, tiles)[0]
