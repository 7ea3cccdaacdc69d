"""Which steps of which tile a block makes, so that all blocks of a card are busy to the end.

Blocks take whole tiles in turns. What is left for the last turn, fewer tiles than blocks, is divided among
all of them along the columns: block after block takes an equal piece of the steps, over the ends of tiles.

    tile      0                1                2
    steps     |----------------|----------------|----------------|
    block     |- 0 --|- 1 --|- 2 --|- 3 --|- 4 --|- 5 --|- 6 --|     all blocks
              |-  0  -|-  1  -|-  2  -|-  3  -|-  4  -|-  5  -|      or as many of each tile

A block with parts of two tiles finishes both, one after the other, which takes longer than some idle blocks
where tiles are short.

What becomes of the sums of such pieces: shared_tiles.py. Blocks are numbered from the last one down, so the
one with the first steps of a tile is the last of its blocks to be started.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

from ...card import clusters
from ..words.atoms import inlined
from ..words.language import uint32
from .stage_pace import at_one_time

# Microseconds beside those of stages, WIDER of them for tiles of 256 columns, less for others in proportion.
FINISH_US, EXCHANGE_WIDER_US = 3.18, 7.5  # to finish tiles in parts, with a block on each multiprocessor
CLUSTER_US, CLUSTER_WIDER_US, CLUSTER_MORE_US = 1.61, 4.0, 0.06  # in clusters of two; for each further block
TWICE_WIDER_US = 18.4  # what two tiles of a block take more
WRITE_WIDER_US = 3.4  # to write a whole tile
LARGEST = 8  # cluster that any card takes
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


@inlined
def shared_out(tiles: Any, stages: Any, blocks: Any, worth: Any) -> Any:
    """Where a kernel alone knows how many tiles there are: what ``Shares`` has after ``blocks``.

    Those of the last turn are cut into as many parts as there are blocks for, if a block makes ``worth``
    stages less then.
    """
    rest = uint32(tiles % blocks)
    parts = min(uint32(blocks // max(rest, uint32(1))), stages)
    longest = uint32(uint32(uint32(stages + parts) - uint32(1)) // parts)
    if rest == uint32(0) or uint32(longest + worth) > stages:
        rest, parts = uint32(0), uint32(0)
    return rest, uint32(rest * parts), parts, uint32(0), uint32(0)


@inlined
def bounds_of(rank: Any, stages: Any, share: Any) -> Any:
    """Where a block's shared stages begin and end; none are left to those beyond ``sharing``."""
    _, sharing, parts, each, extra = share
    if rank >= sharing:
        return uint32(0), uint32(0)
    if parts > uint32(0):
        tile = uint32(rank // parts)
        at, begin = uint32(rank - uint32(tile * parts)), uint32(tile * stages)
        end = uint32(uint32(uint32(at + uint32(1)) * stages) // parts)
        return uint32(begin + uint32(uint32(at * stages) // parts)), uint32(begin + end)
    begin = uint32(uint32(rank * each) + min(rank, extra))
    return begin, uint32(begin + each + (uint32(1) if rank < extra else uint32(0)))


@inlined
def rank_of(stage: Any, each: Any, extra: Any) -> Any:
    """Which block makes a stage, where they go over the ends of tiles."""
    longer = uint32(each + uint32(1))
    border = uint32(extra * longer)
    if stage < border:
        return uint32(stage // longer)
    return uint32(extra + uint32(uint32(stage - border) // each))


@inlined
def sharers_of(tile: Any, stages: Any, share: Any) -> Any:
    """Of a tile that is shared: the first of its blocks, and how many they are."""
    _, _, parts, each, extra = share
    if parts > uint32(0):
        return uint32(tile * parts), parts
    begin = uint32(tile * stages)
    first = rank_of(begin, each, extra)
    last = rank_of(uint32(begin + uint32(stages - uint32(1))), each, extra)
    return first, uint32(uint32(last - first) + uint32(1))


@inlined
def next_piece(left: Any, end: Any, whole: Any, stages: Any, blocks: Any, wholes: Any) -> Any:
    """A block's next piece: its tile, its first stage, the one after its last; and what is left then.

    ``whole``: its next tile among the ``wholes`` that come first; ``left``: of its shared stages, which end
    at ``end``.
    """
    if whole < wholes:
        return whole, uint32(0), stages, left, uint32(whole + blocks)
    at = uint32(end - left)
    tile = uint32(at // stages)
    first = uint32(at - uint32(tile * stages))
    count = min(left, uint32(stages - first))
    return uint32(wholes + tile), first, uint32(first + count), uint32(left - count), whole
