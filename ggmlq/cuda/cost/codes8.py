"""Estimates of the time of products of 8-bit codes on Hopper, which choose the rung, its tile and its split.

A product takes at least as long as its weights need to come from memory, as all tiles need to be fetched
from the L2 cache, and as one block needs, step by step. The estimate is the longest of these times and a
tenth of a block's time, so that of equals the shorter chain wins. Constants are those of one H200. Another
card's memory is as fast as its clock and width say, its L2 in proportion to its multiprocessors. A bad
estimate makes nothing wrong, only slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...dispatch.card import UNKNOWN, Card, clusters
from ..codes8.small_m import SPLITS, SmallMTile
from ..codes8.small_m import TILES as FEW
from ..codes8.split_k import MOST
from ..codes8.split_k import TILES as DIVIDED
from ..codes8.variant import FLOAT_TILES
from ..intrinsics.wgmma8 import STEP
from ..rings.boxed import BoxTile
from ..schedule.waves import best_tile

L2, MULTIPROCESSORS = 10.5, 132  # MB a microsecond of an H200's L2 cache, and its multiprocessors
WAVE, BESIDE = 1.5, 0.5  # microseconds: of each further wave; of each further block on a multiprocessor
STARVED = 1.15  # factor on the time of memory, where a multiprocessor has fewer blocks than it could hold
EXCHANGE = {
    1: 0.0,
    2: 0.1,
    3: 0.7,
    4: 0.8,
    5: 1.1,
    6: 1.4,
    7: 1.7,
    8: 2.0,
}  # of sums among blocks, by their number


class TileCost(NamedTuple):
    """Microseconds of a kernel with some tile."""

    start: float
    step: float  # of 128 columns
    away: float = 1.9  # beside the stream from memory: the start, the way of the first copy, the end


# Tiles without an entry are taken to be like the last of small_m.py, or the first of split_k.py.
TILE_COSTS: dict[Any, TileCost] = {
    SmallMTile(64, 8, 12, 1): TileCost(2.8, 0.111),
    SmallMTile(64, 8, 6, 3): TileCost(2.8, 0.163),
    SmallMTile(64, 16, 12, 1): TileCost(2.8, 0.121),
    SmallMTile(64, 16, 4, 3): TileCost(2.8, 0.232),
    SmallMTile(64, 32, 8, 1): TileCost(2.8, 0.157),
    SmallMTile(64, 32, 6, 2): TileCost(2.8, 0.187),
    SmallMTile(64, 64, 8, 1, 16): TileCost(2.8, 0.256),
    BoxTile(128, 128, 6): TileCost(5.4, 0.333),
    BoxTile(128, 64, 8): TileCost(3.4, 0.24),
}
PERSISTENT = {64: 0.29, 128: 0.45, 192: 0.62}  # microseconds of a step, by a tile's columns
TALLEST = 0.75  # of a step with 256 rows


class TileSplit(NamedTuple):
    """A tile, the parts that K is cut into, and the microseconds that it should take."""

    tile: Any
    splits: int
    us: float


class CodesShape(NamedTuple):
    """The shape of a product, and the facts of its card that estimates need."""

    m: int
    n: int
    k: int
    multiprocessors: int
    memory: float = UNKNOWN  # MB a microsecond, as of Card

    @classmethod
    def on(cls, card: Card, m: int, n: int, k: int) -> CodesShape:
        """The product on a card."""
        return cls(m, n, k, card.multiprocessors, card.memory)

    @property
    def cache(self) -> float:
        """MB a microsecond of the card's L2 cache."""
        return L2 * self.multiprocessors / MULTIPROCESSORS

    @property
    def steps(self) -> int:
        """Steps of 128 columns."""
        return max(1, -(-self.k // STEP))

    def time(self, cost: TileCost, tiles: int, splits: int, stage: int, blocks: int = 1) -> float:
        """Microseconds of the product.

        ``stage``: bytes of a step of a tile; ``blocks``: the blocks that fit on a multiprocessor.
        """
        beside = -(-tiles // clusters(self.multiprocessors, splits))
        waves, beside = -(-beside // blocks), min(beside, blocks)
        slower = 1 + (beside - 1) / 2  # factor, where several blocks share a multiprocessor
        chain = cost.start + EXCHANGE[splits] + BESIDE * (beside - 1)
        chain += waves * -(-self.steps // splits) * cost.step * slower
        bytes_once = self.n * self.k + self.m * self.k + 2 * self.m * self.n
        memory = cost.away + bytes_once / self.memory / 1e6 * (STARVED if beside < blocks else 1)
        shared = cost.start + tiles * self.steps * stage / self.cache / 1e6
        return max(chain, memory, shared) + 0.1 * chain + WAVE * (waves - 1)


def _fastest(plans: Iterable[TileSplit]) -> TileSplit:
    return min(plans, key=lambda plan: plan.us)


def named_choices(tile: Any, splits: int, tiles: Sequence[Any], cuts: Sequence[int]) -> tuple[Any, ...]:
    """The tiles and numbers of parts to choose from, if a caller names one of either; else an empty tuple."""
    return ((tile,) if tile else tiles, (splits,) if splits else cuts) if tile or splits else ()


@lru_cache(1024)
def small_m(
    shape: CodesShape, tiles: Sequence[SmallMTile] = FEW, splits: Sequence[int] = SPLITS
) -> TileSplit:
    """The best tile and split of cuda:small_m, among the narrowest tiles that hold all rows of x."""
    columns = min((tile.columns for tile in tiles if tile.columns >= shape.m), default=tiles[-1].columns)
    able = [tile for tile in tiles if tile.columns == columns]
    cuts = [cut for cut in splits if cut <= shape.steps] or [1]

    def plan(tile: SmallMTile, cut: int) -> TileSplit:
        cost, count = TILE_COSTS.get(tile, TILE_COSTS[FEW[-1]]), -(-shape.n // tile.rows)
        return TileSplit(tile, cut, shape.time(cost, count, cut, tile.stage, tile.blocks))

    return _fastest(plan(tile, cut) for tile in able for cut in cuts)


@lru_cache(1024)
def split_k(
    shape: CodesShape, tiles: Sequence[BoxTile] = DIVIDED, splits: Sequence[int] = range(2, MOST + 1)
) -> TileSplit:
    """The best tile and split of cuda:split_k; those whose blocks all run at one time come first."""
    cuts = [cut for cut in splits if cut <= shape.steps] or [1]
    able = [(tile, cut) for tile in tiles for cut in cuts]
    fit = [(t, cut) for t, cut in able if t.tiles(shape.m, shape.n) <= clusters(shape.multiprocessors, cut)]

    def plan(tile: BoxTile, cut: int) -> TileSplit:
        cost, count = TILE_COSTS.get(tile, TILE_COSTS[DIVIDED[0]]), tile.tiles(shape.m, shape.n)
        return TileSplit(tile, cut, shape.time(cost, count, cut, tile.stage))

    return _fastest(plan(tile, cut) for tile, cut in fit or able)


def persistent(shape: CodesShape) -> TileSplit:
    """The estimate for cuda:persistent, with the tile that schedule/waves.py finds best for floats."""
    tile = best_tile(FLOAT_TILES, shape.m, shape.n, shape.multiprocessors)
    cost = TileCost(2.7, TALLEST if tile.rows > 128 else PERSISTENT[tile.columns], 3.9)  # it starts late
    return TileSplit(tile, 1, shape.time(cost, tile.tiles(shape.m, shape.n), 1, tile.stage))
