"""How long products of 8-bit codes take on Hopper, as far as a choice of tiles and parts of K needs it.

A product takes at least what its weights take to come from memory, what all tiles fetch from the L2, and what
one block does, step by step. The longest of these counts, and a tenth of what a block does, so that of equals
the shorter chain wins. Constants are those of one H200 (bench/notes/codes8.md); another card's memory is as
fast as its clock and width say, its L2 as it has multiprocessors. A bad estimate makes nothing wrong, only
slower.
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
from ..schedule.waves import best

L2, MULTIPROCESSORS = 10.5, 132  # MB a microsecond of an H200, which has so many multiprocessors
WAVE, BESIDE = 1.5, 0.5  # of each further wave of blocks; of each further block on a multiprocessor
STARVED = 1.15  # times as long, where fewer flat blocks than fit on a multiprocessor ask for weights
EXCHANGE = {1: 0.0, 2: 0.1, 3: 0.7, 4: 0.8, 5: 1.1, 6: 1.4, 7: 1.7, 8: 2.0}  # of sums, beyond the start


class Pace(NamedTuple):
    """Microseconds of a kernel."""

    start: float
    step: float  # of 128 columns
    away: float = 1.9  # beside a stream from memory: start, first copy's way, end


PACES: dict[
    Any, Pace
] = {  # of tiles; others are thought to be like the last of codes8/small_m.py, or the first here
    SmallMTile(64, 8, 12, 1): Pace(2.8, 0.111),
    SmallMTile(64, 8, 6, 3): Pace(2.8, 0.163),
    SmallMTile(64, 16, 12, 1): Pace(2.8, 0.121),
    SmallMTile(64, 16, 4, 3): Pace(2.8, 0.232),
    SmallMTile(64, 32, 8, 1): Pace(2.8, 0.157),
    SmallMTile(64, 32, 6, 2): Pace(2.8, 0.187),
    SmallMTile(64, 64, 8, 1, 16): Pace(2.8, 0.256),
    BoxTile(128, 128, 6): Pace(5.4, 0.333),
    BoxTile(128, 64, 8): Pace(3.4, 0.24),
}
PERSISTENT = {64: 0.29, 128: 0.45, 192: 0.62}  # a step, by a tile's columns
TALLEST = 0.75  # with 256 rows


class Plan(NamedTuple):
    """A tile, into how many parts K is cut, and how long that is thought to take."""

    tile: Any
    parts: int
    us: float


class Shape(NamedTuple):
    """A product on a card."""

    m: int
    n: int
    k: int
    multiprocessors: int
    memory: float = UNKNOWN  # MB a microsecond: of card.Card

    @classmethod
    def on(cls, card: Card, m: int, n: int, k: int) -> Shape:
        """On this card."""
        return cls(m, n, k, card.multiprocessors, card.memory)

    @property
    def cache(self) -> float:
        """MB a microsecond of its L2."""
        return L2 * self.multiprocessors / MULTIPROCESSORS

    @property
    def steps(self) -> int:
        """Of 128 columns."""
        return max(1, -(-self.k // STEP))

    def time(self, pace: Pace, tiles: int, parts: int, stage: int, blocks: int = 1) -> float:
        """Microseconds; ``stage``: bytes of a step of a tile, ``blocks`` fit on a multiprocessor."""
        beside = -(-tiles // clusters(self.multiprocessors, parts))
        waves, beside = -(-beside // blocks), min(beside, blocks)
        slower = 1 + (beside - 1) / 2  # of each, where several share a multiprocessor
        chain = pace.start + EXCHANGE[parts] + BESIDE * (beside - 1)
        chain += waves * -(-self.steps // parts) * pace.step * slower
        bytes_once = self.n * self.k + self.m * self.k + 2 * self.m * self.n
        memory, shared = (
            pace.away + bytes_once / self.memory / 1e6 * (STARVED if beside < blocks else 1),
            pace.start + tiles * self.steps * stage / self.cache / 1e6,
        )
        return max(chain, memory, shared) + 0.1 * chain + WAVE * (waves - 1)


def _fastest(plans: Iterable[Plan]) -> Plan:
    return min(plans, key=lambda plan: plan.us)


def asked(tile: Any, parts: int, tiles: Sequence[Any], cuts: Sequence[int]) -> tuple[Any, ...]:
    """What to choose from where a caller names a tile or how many parts; nothing where it names neither."""
    return ((tile,) if tile else tiles, (parts,) if parts else cuts) if tile or parts else ()


@lru_cache(1024)
def small_m(shape: Shape, tiles: Sequence[SmallMTile] = FEW, parts: Sequence[int] = SPLITS) -> Plan:
    """Of tiles that hold all rows of x and no more than they must."""
    columns = min((tile.columns for tile in tiles if tile.columns >= shape.m), default=tiles[-1].columns)
    able = [tile for tile in tiles if tile.columns == columns]
    cuts = [cut for cut in parts if cut <= shape.steps] or [1]

    def plan(tile: SmallMTile, cut: int) -> Plan:
        pace, count = PACES.get(tile, PACES[FEW[-1]]), -(-shape.n // tile.rows)
        return Plan(tile, cut, shape.time(pace, count, cut, tile.stage, tile.blocks))

    return _fastest(plan(tile, cut) for tile in able for cut in cuts)


@lru_cache(1024)
def split_k(
    shape: Shape, tiles: Sequence[BoxTile] = DIVIDED, parts: Sequence[int] = range(2, MOST + 1)
) -> Plan:
    """Only cuts that run at one time, if there are any."""
    cuts = [cut for cut in parts if cut <= shape.steps] or [1]
    able = [(tile, cut) for tile in tiles for cut in cuts]
    fit = [(t, cut) for t, cut in able if t.tiles(shape.m, shape.n) <= clusters(shape.multiprocessors, cut)]

    def plan(tile: BoxTile, cut: int) -> Plan:
        pace, count = PACES.get(tile, PACES[DIVIDED[0]]), tile.tiles(shape.m, shape.n)
        return Plan(tile, cut, shape.time(pace, count, cut, tile.stage))

    return _fastest(plan(tile, cut) for tile, cut in fit or able)


def persistent(shape: Shape) -> Plan:
    """With the tile that schedule/waves.py finds best for floats."""
    tile = best(FLOAT_TILES, shape.m, shape.n, shape.multiprocessors)
    pace = Pace(2.7, TALLEST if tile.rows > 128 else PERSISTENT[tile.columns], 3.9)  # it starts late
    return Plan(tile, 1, shape.time(pace, tile.tiles(shape.m, shape.n), 1, tile.stage))
