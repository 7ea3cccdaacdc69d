"""The best split of the tiles of cuda:warp_specialized, by estimate: whole tiles, parts along K, or clusters.

Constants are an H100's, in microseconds (bench/notes/choice.md).
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from ...dispatch.card import clusters
from ..schedule.work_units import MAX_CLUSTER
from .stage import at_one_time

# Microseconds beside those of stages. Those named WIDER are for tiles of 256 columns, and less in proportion.
FINISH_US, EXCHANGE_WIDER_US = 3.18, 7.5  # to finish tiles in parts, with a block on each multiprocessor
CLUSTER_US, CLUSTER_WIDER_US, CLUSTER_MORE_US = 1.61, 4.0, 0.06  # in clusters of two; for each further block
TWICE_WIDER_US = 18.4  # for a block with parts of two tiles
WRITE_WIDER_US = 3.4  # to write a whole tile
NO_NEIGHBOUR = 0.32  # share of a stage's time that a block saves where it is alone on its multiprocessor


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
        block_us = self.stage_us * (1 - NO_NEIGHBOUR * (1 - max(1 / self.resident, running / self.blocks)))
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
    us, best = min(candidates(tiles, stages, wave))
    return best, us


def candidates(tiles: int, stages: int, wave: Wave) -> list[tuple[float, Split]]:
    """The splits of ``tiles`` tiles of ``stages`` stages, and the estimated microseconds of each.

    Blocks that go over the ends of tiles are at different columns at one time, so none reads for the others.
    """
    blocks, wide, rest = wave.blocks, wave.columns / 256, tiles % wave.blocks
    writing, running = WRITE_WIDER_US * wide, min(blocks, tiles)
    us = -(-tiles // blocks) * (stages * wave.stage_time(running) + writing)
    candidates = [(us, Split(running, 0, 0, 0, 0, 0))]
    before = tiles // blocks * (stages * wave.stage_time(blocks) + writing)
    most = blocks // rest if rest else 0

    def finish_us(running: int) -> float:
        return wave.clear_us + FINISH_US + EXCHANGE_WIDER_US * wide * wave.resident * running / blocks

    for splits in range(2, min(most, stages) + 1):
        running = blocks if tiles > rest else rest * splits
        us = before + -(-stages // splits) * wave.stage_time(running)
        candidates.append((us + finish_us(running), Split(running, rest, rest * splits, splits, 0, 0)))
        if wave.takes_clusters(running, splits):
            us += CLUSTER_US + CLUSTER_WIDER_US * wide + CLUSTER_MORE_US * (splits - 2)
            candidates.append((us, Split(running, rest, rest * splits, splits, 0, 0, splits)))
    split_blocks = min(blocks, rest * stages)
    if split_blocks > rest:
        block_stages, longer_blocks = divmod(rest * stages, split_blocks)
        running = blocks if tiles > rest else split_blocks
        most_stages = block_stages + (longer_blocks > 0)
        us = before + max(most_stages * wave.stage_time(running), rest * wave.apart_us)
        us += finish_us(running) + TWICE_WIDER_US * wide
        candidates.append((us, Split(running, rest, split_blocks, 0, block_stages, longer_blocks)))
    return candidates


def least_saved(columns: int, stage_us: float) -> int:
    """The fewest stages that a block must save, so that it pays to cut tiles into parts."""
    return ceil((FINISH_US + EXCHANGE_WIDER_US * columns / 256) / stage_us)


def most_partials(blocks: int, stages: int, worth: int) -> int:
    """The most partial sums that there may be, whatever ``split_last_wave`` decides.

    A split tile has two blocks or more. ``worth``: the result of :func:`least_saved`.
    """
    return blocks * 3 // 2 if worth < stages else 0
