"""The best split of the tiles of cuda:warp_specialized, by estimate: whole tiles, parts along K, or clusters.

A stage takes its time in all blocks at once. Whole tiles are written at their end; those in parts are
finished by blocks that wait for each other, or meet in clusters.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from ...dispatch.card import clusters
from ..schedule.work_units import MAX_CLUSTER
from .constants import constants
from .stage import at_one_time


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
        block_us = self.stage_us * (1 - constants().tiles.alone * (1 - neighbours))
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
    c, wide = constants().tiles, wave.columns / 256
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
    c = constants().tiles
    return ceil((c.finish + c.exchange * columns / 256) / stage_us)


def most_partials(blocks: int, stages: int, worth: int) -> int:
    """The most partial sums that there may be, whatever ``split_last_wave`` decides.

    A split tile has two blocks or more. ``worth``: the result of :func:`least_saved`.
    """
    return blocks * 3 // 2 if worth < stages else 0
