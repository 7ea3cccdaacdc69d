"""Estimate of the warp-specialised product on packed weights: which tile takes least time."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ...dispatch.card import UNKNOWN, Card
from ..packed.layout import ROWS, STEP, STRIPS, StripLayout
from ..schedule.raster import bands
from ..warp_specialized.late_activations import PANEL_US, waiting_us
from ..warp_specialized.producer import PIECE, RoleTile
from .sharing import Turn, shares
from .stage import PLAIN, SHARE, at_one_time, stage_us

TILES = (
    RoleTile(16, 2), RoleTile(32, 2),
    *map(RoleTile, (16, 32, 48, 64, 80, 96, 112, 128, 160, 176, 208, 240, 256)),
)  # fmt: skip


CACHED = 71  # MB of an operand of which an L2 cache of 50 MB holds nothing for those who want it later


NARROW, MOST_NARROW = 64, 4  # columns of a tile, up to which there are no more than so many across


POWER = 5.98e6  # operations a microsecond, of a multiprocessor, that a card's power allows


class Best(NamedTuple):
    """The tile that is thought to be the fastest, and how long blocks work then and wait for panels."""

    us: float
    tile: RoleTile


class Shape(NamedTuple):
    """Of a product, and what it is made on."""

    m: int
    down: int  # tiles of weights
    stages: int
    layout: StripLayout
    multiprocessors: int
    memory: float = UNKNOWN  # MB a microsecond

    @classmethod
    def on(cls, card: Card, m: int, n: int, stages: int, layout: StripLayout) -> Shape:
        """On this card."""
        down = -(-n // (STRIPS * ROWS))
        return cls(m, down, stages, layout, card.multiprocessors, card.memory)

    @property
    def columns(self) -> int:
        """Of K, filled up."""
        return self.stages * PIECE * STEP

    @property
    def weights(self) -> float:
        """MB of the weights of a row of tiles."""
        return self.columns * STRIPS * self.layout.record / STEP / 1e6

    def across(self, tile: RoleTile) -> int:
        """Tiles of activations."""
        return -(-self.m // tile.columns)

    def turn(self, tile: RoleTile, blocks: int) -> Turn:
        """What so many blocks of a multiprocessor do."""
        across, activations = self.across(tile), self.columns * 2 * tile.columns / 1e6
        again = anew(self.weights, self.down, across) + anew(activations, across, self.down)
        pace, memory = stage_us(self.layout, tile.columns, tile.blocks), SHARE * self.memory
        read = self.weights / self.stages / across
        return Turn(self.multiprocessors * blocks, blocks, tile.columns, pace, read / memory, again / memory)


def anew(size: float, count: int, times: int) -> float:
    """Of so many MB, one of ``count`` that so many tiles read one after the other: what comes from memory."""
    missed = min(1, size * count / CACHED)
    return size * (missed + (1 - missed) / times)


@lru_cache(4096)
def best(shape: Shape) -> Best:
    """For a shape.

    Of the tiles that rows fill up: a wide one may be thought faster for a row where there are few tiles, but
    most of what it moves would be for nothing. And more than four narrow ones are never faster than half as
    many that unpack half as often.
    """
    m, down, stages = shape.m, shape.down, shape.stages

    def us(tile: RoleTile) -> float:
        across, of_tile = shape.across(tile), tile.columns * shape.columns  # numbers of x
        turn = shape.turn(tile, tile.blocks)
        share, working = shares(down * across, stages, turn)
        allowed = 2 * down * STRIPS * ROWS * across * of_tile / (POWER * shape.multiprocessors)
        working = at_one_time(working, allowed)
        if tile.wide and share.divided < down * across:
            order = bands(across, down, turn.blocks, tile.panel, STRIPS * PLAIN)
            return working + waiting_us(order.band * of_tile, stages * turn.pace(turn.blocks))
        return working + across * of_tile * PANEL_US

    filled = (tile for tile in TILES if tile.columns < 2 * m + TILES[0].columns)
    able = (tile for tile in filled if tile.columns > NARROW or m <= MOST_NARROW * tile.columns)
    return min((Best(us(tile), tile) for tile in able), key=lambda each: each.us)
