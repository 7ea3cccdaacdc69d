"""Estimate of how tiles are best divided among the blocks of a card: whole, split along K, or in clusters.

Constants are an H100's, in microseconds.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from ...dispatch.card import clusters
from ..schedule.work_units import MAX_CLUSTER
from .stage import at_one_time

# Microseconds beside those of stages, WIDER of them for tiles of 256 columns, less for others in proportion.
FINISH_US, EXCHANGE_WIDER_US = 3.18, 7.5  # to finish tiles in parts, with a block on each multiprocessor


CLUSTER_US, CLUSTER_WIDER_US, CLUSTER_MORE_US = 1.61, 4.0, 0.06  # in clusters of two; for each further block


TWICE_WIDER_US = 18.4  # what two tiles of a block take more


WRITE_WIDER_US = 3.4  # to write a whole tile


NO_NEIGHBOUR = 0.32  # so much less takes a stage of a block that is meant to have a neighbour, and has none


class Wave(NamedTuple):
    """What blocks do that run at one time."""

    blocks: int
    each: int  # of a multiprocessor
    columns: int  # of a tile
    stage_us: float
    read_us: float = 0.0  # in which memory brings the weights of a stage, for each of the blocks
    apart_us: float = 0.0  # and all of a tile's operands, as far as no cache holds them for others

    def takes_clusters(self, running: int, blocks: int) -> bool:
        """Whether so many blocks run at one time in clusters of so many."""
        if blocks > MAX_CLUSTER or running % blocks:
            return False
        return running // blocks <= clusters(self.blocks // self.each, blocks) * self.each

    def stage_time(self, running: int) -> float:
        """Of a stage, where so many blocks run."""
        own = self.stage_us * (1 - NO_NEIGHBOUR * (1 - max(1 / self.each, running / self.blocks)))
        return at_one_time(own, running * self.read_us)


class Split(NamedTuple):
    """How tiles are shared out."""

    blocks: int  # of the grid
    split_tiles: int  # tiles, the last ones
    split_blocks: int  # blocks that share these
    splits: int  # of each tile; 0: over the ends of tiles, and then ...
    each: int  # stages of a block
    longer_blocks: int  # blocks with one more
    cluster: int = 1  # blocks of one: as many as parts, or 1

    @property
    def arguments(self) -> tuple[int, ...]:
        """As kernels take them."""
        return self[1:6]


@lru_cache(4096)
def best_split(tiles: int, stages: int, wave: Wave) -> tuple[Split, float]:
    """Of so many tiles, and how long blocks are thought to work at them.

    Blocks that go over the ends of tiles are at different columns at one time: what they read they do not
    read for others. Constants: an H100's (bench/notes/choice.md).
    """
    blocks, wide, rest = wave.blocks, wave.columns / 256, tiles % wave.blocks
    writing, running = WRITE_WIDER_US * wide, min(blocks, tiles)
    us = -(-tiles // blocks) * (stages * wave.stage_time(running) + writing)
    candidates = [(us, Split(running, 0, 0, 0, 0, 0))]
    before = tiles // blocks * (stages * wave.stage_time(blocks) + writing)
    most = blocks // rest if rest else 0

    def finish_us(running: int) -> float:
        return FINISH_US + EXCHANGE_WIDER_US * wide * wave.each * running / blocks

    for splits in range(2, min(most, stages) + 1):
        running = blocks if tiles > rest else rest * splits
        us = before + -(-stages // splits) * wave.stage_time(running)
        candidates.append((us + finish_us(running), Split(running, rest, rest * splits, splits, 0, 0)))
        if wave.takes_clusters(running, splits):
            us += CLUSTER_US + CLUSTER_WIDER_US * wide + CLUSTER_MORE_US * (splits - 2)
            candidates.append((us, Split(running, rest, rest * splits, splits, 0, 0, splits)))
    split_blocks = min(blocks, rest * stages)
    if split_blocks > rest:
        each, longer_blocks = divmod(rest * stages, split_blocks)
        running = blocks if tiles > rest else split_blocks
        us = before + max((each + (longer_blocks > 0)) * wave.stage_time(running), rest * wave.apart_us)
        us += finish_us(running) + TWICE_WIDER_US * wide
        candidates.append((us, Split(running, rest, split_blocks, 0, each, longer_blocks)))
    us, best = min(candidates)
    return best, us


def least_saved(columns: int, stage_us: float) -> int:
    """How many stages fewer a block must make where tiles are cut into parts, that it pays."""
    return ceil((FINISH_US + EXCHANGE_WIDER_US * columns / 256) / stage_us)


def most_partials(blocks: int, stages: int, worth: int) -> int:
    """How many sums of parts there may be, whatever ``shared_out`` finds: two blocks at least have a tile."""
    return blocks * 3 // 2 if worth < stages else 0
