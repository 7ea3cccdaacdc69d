"""Estimate of how tiles are best divided among the blocks of a card: whole, split along K, or in clusters.

Constants are an H100's, in microseconds.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from ...dispatch.card import clusters
from ..schedule.work_units import LARGEST
from .stage import at_one_time

# Microseconds beside those of stages, WIDER of them for tiles of 256 columns, less for others in proportion.
FINISH_US, EXCHANGE_WIDER_US = 3.18, 7.5  # to finish tiles in parts, with a block on each multiprocessor


CLUSTER_US, CLUSTER_WIDER_US, CLUSTER_MORE_US = 1.61, 4.0, 0.06  # in clusters of two; for each further block


TWICE_WIDER_US = 18.4  # what two tiles of a block take more


WRITE_WIDER_US = 3.4  # to write a whole tile


ALONE = 0.32  # so much less takes a stage of a block that is meant to have a neighbour, and has none


class Turn(NamedTuple):
    """What blocks do that run at one time."""

    blocks: int
    each: int  # of a multiprocessor
    columns: int  # of a tile
    stage_us: float
    read_us: float = 0.0  # in which memory brings the weights of a stage, for each of the blocks
    apart_us: float = 0.0  # and all of a tile's operands, as far as no cache holds them for others

    def takes_clusters(self, running: int, blocks: int) -> bool:
        """Whether so many blocks run at one time in clusters of so many."""
        if blocks > LARGEST or running % blocks:
            return False
        return running // blocks <= clusters(self.blocks // self.each, blocks) * self.each

    def pace(self, running: int) -> float:
        """Of a stage, where so many blocks run."""
        own = self.stage_us * (1 - ALONE * (1 - max(1 / self.each, running / self.blocks)))
        return at_one_time(own, running * self.read_us)


class Shares(NamedTuple):
    """How tiles are shared out."""

    blocks: int  # of the grid
    divided: int  # tiles, the last ones
    sharing: int  # blocks that share these
    parts: int  # of each tile; 0: over the ends of tiles, and then ...
    each: int  # stages of a block
    extra: int  # blocks with one more
    cluster: int = 1  # blocks of one: as many as parts, or 1

    @property
    def words(self) -> tuple[int, ...]:
        """As kernels take them."""
        return self[1:6]


@lru_cache(4096)
def shares(tiles: int, stages: int, turn: Turn) -> tuple[Shares, float]:
    """Of so many tiles, and how long blocks are thought to work at them.

    Blocks that go over the ends of tiles are at different columns at one time: what they read they do not
    read for others. Constants: an H100's (bench/notes/choice.md).
    """
    blocks, wide, rest = turn.blocks, turn.columns / 256, tiles % turn.blocks
    writing, running = WRITE_WIDER_US * wide, min(blocks, tiles)
    us = -(-tiles // blocks) * (stages * turn.pace(running) + writing)
    found = [(us, Shares(running, 0, 0, 0, 0, 0))]
    before = tiles // blocks * (stages * turn.pace(blocks) + writing)
    most = blocks // rest if rest else 0

    def ending(running: int) -> float:
        return FINISH_US + EXCHANGE_WIDER_US * wide * turn.each * running / blocks

    for parts in range(2, min(most, stages) + 1):
        running = blocks if tiles > rest else rest * parts
        us = before + -(-stages // parts) * turn.pace(running)
        found.append((us + ending(running), Shares(running, rest, rest * parts, parts, 0, 0)))
        if turn.takes_clusters(running, parts):
            us += CLUSTER_US + CLUSTER_WIDER_US * wide + CLUSTER_MORE_US * (parts - 2)
            found.append((us, Shares(running, rest, rest * parts, parts, 0, 0, parts)))
    sharing = min(blocks, rest * stages)
    if sharing > rest:
        each, extra = divmod(rest * stages, sharing)
        running = blocks if tiles > rest else sharing
        us = before + max((each + (extra > 0)) * turn.pace(running), rest * turn.apart_us)
        us += ending(running) + TWICE_WIDER_US * wide
        found.append((us, Shares(running, rest, sharing, 0, each, extra)))
    us, best = min(found)
    return best, us


def least_saved(columns: int, stage_us: float) -> int:
    """How many stages fewer a block must make where tiles are cut into parts, that it pays."""
    return ceil((FINISH_US + EXCHANGE_WIDER_US * columns / 256) / stage_us)


def room(blocks: int, stages: int, worth: int) -> int:
    """How many sums of parts there may be, whatever ``shared_out`` finds: two blocks at least have a tile."""
    return blocks * 3 // 2 if worth < stages else 0
