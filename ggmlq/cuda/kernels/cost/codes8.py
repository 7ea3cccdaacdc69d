"""Estimates of the time of products of 8-bit codes on Hopper, which choose the rung, its tile and its split.

A product takes at least as long as its weights need to come from memory, and as one block needs, step by
step. The estimate is the longer of these times and a tenth of a block's time, so that of equals the shorter
chain wins. Another card's memory is as fast as its clock and width say. A bad estimate makes nothing wrong,
only slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ....dispatch.card import UNKNOWN, Card, clusters
from ...intrinsics.wgmma import STEP
from ..codes8.small_m import SPLITS, SmallMTile
from ..codes8.small_m import TILES as SMALL_M_TILES
from ..codes8.tiles import FLOAT_TILES, MAX_SPLITS, SPLIT_TILES, BoxTile, best_tile
from .stage import at_one_time, constants

UNIT = 128 * 128  # outputs of a tile that constants are for


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
    def steps(self) -> int:
        """Steps of 128 columns."""
        return max(1, -(-self.k // STEP))

    def time(self, tile: Any, tiles: int, splits: int, blocks: int = 1, late: bool = False) -> float:
        """Microseconds of the product.

        ``blocks``: those that fit on a multiprocessor; ``late``: of cuda:persistent.
        """
        c, outputs = constants().codes8, tile.rows * tile.columns / UNIT
        beside = -(-tiles // clusters(self.multiprocessors, splits))
        waves, beside = -(-beside // blocks), min(beside, blocks)
        start = c.start + c.write * outputs
        step = (c.step + c.area * outputs) * (1 + (beside - 1) / 2)
        step = at_one_time(step, c.arrival / tile.stages)
        chain = start + c.beside * (beside - 1)
        chain += c.join + c.exchange * (splits - 2) if splits > 1 else 0
        chain += waves * -(-self.steps // splits) * step
        bytes_once = self.n * self.k + self.m * self.k + 2 * self.m * self.n
        memory = c.away + bytes_once / self.memory / 1e6 * (c.starved if beside < blocks else 1)
        us = max(chain, memory + c.late * late) + 0.1 * chain
        return float(us + c.wave * (waves - 1))


def _fastest(plans: Iterable[TileSplit]) -> TileSplit:
    return min(plans, key=lambda plan: plan.us)


def named_choices(tile: Any, splits: int, tiles: Sequence[Any], cuts: Sequence[int]) -> tuple[Any, ...]:
    """The tiles and numbers of parts to choose from, if a caller names one of either; else an empty tuple."""
    return ((tile,) if tile else tiles, (splits,) if splits else cuts) if tile or splits else ()


@lru_cache(1024)
def small_m(
    shape: CodesShape, tiles: Sequence[SmallMTile] = SMALL_M_TILES, splits: Sequence[int] = SPLITS
) -> TileSplit:
    """The best tile and split of cuda:small_m, among the narrowest tiles that hold all rows of x."""
    columns = min((tile.columns for tile in tiles if tile.columns >= shape.m), default=tiles[-1].columns)
    able = [tile for tile in tiles if tile.columns == columns]
    cuts = [cut for cut in splits if cut <= shape.steps] or [1]

    def plan(tile: SmallMTile, cut: int) -> TileSplit:
        return TileSplit(tile, cut, shape.time(tile, -(-shape.n // tile.rows), cut, tile.blocks))

    return _fastest(plan(tile, cut) for tile in able for cut in cuts)


@lru_cache(1024)
def split_k(
    shape: CodesShape,
    tiles: Sequence[BoxTile] = SPLIT_TILES,
    splits: Sequence[int] = range(2, MAX_SPLITS + 1),
) -> TileSplit:
    """The best tile and split of cuda:split_k; those whose blocks all run at one time come first."""
    cuts = [cut for cut in splits if cut <= shape.steps] or [1]
    able = [(tile, cut) for tile in tiles for cut in cuts]
    fit = [(t, cut) for t, cut in able if t.tiles(shape.m, shape.n) <= clusters(shape.multiprocessors, cut)]

    def plan(tile: BoxTile, cut: int) -> TileSplit:
        return TileSplit(tile, cut, shape.time(tile, tile.tiles(shape.m, shape.n), cut))

    return _fastest(plan(tile, cut) for tile, cut in fit or able)


def persistent(shape: CodesShape) -> TileSplit:
    """The estimate for cuda:persistent, with the tile that kernels/codes8/tiles.py finds best for floats."""
    tile = best_tile(FLOAT_TILES, shape.m, shape.n, shape.multiprocessors)
    return TileSplit(tile, 1, shape.time(tile, tile.tiles(shape.m, shape.n), 1, late=True))
