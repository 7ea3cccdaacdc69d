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

from ..words.atoms import inlined
from ..words.language import uint32

# Microseconds beside those of stages, WIDER of them for tiles of 256 columns, less for others in proportion.
FINISH_US, FINISH_WIDER_US, PART_US = 2.0, 5.5, 0.12  # to finish tiles in parts, and for each part
TWICE_US, TWICE_WIDER_US = 7.0, 7.0  # what two tiles of a block take more
CROWDED_US, CROWDED = 1.6, 0.9  # where so much of the blocks that fit is there, and more
WRITE_WIDER_US = 1.5  # to write a whole tile


class Shares(NamedTuple):
    """How tiles are shared out."""

    blocks: int  # of the grid
    divided: int  # tiles, the last ones
    sharing: int  # blocks that share these
    parts: int  # of each tile; 0: over the ends of tiles, and then ...
    each: int  # stages of a block
    extra: int  # blocks with one more


@lru_cache(4096)
def shares(tiles: int, stages: int, blocks: int, columns: int, stage_us: float) -> tuple[Shares, float]:
    """Of tiles with so many columns, and how long blocks are thought to work at them.

    ``blocks``: that run at one time; ``stage_us``: of a stage. Constants: an H200's (bench/NOTES.md).
    """
    rest, wide = tiles % blocks, columns / 256
    of_tile = stages * stage_us + WRITE_WIDER_US * wide
    found = [(-(-tiles // blocks) * of_tile, Shares(min(blocks, tiles), 0, 0, 0, 0, 0))]
    before, ending = tiles // blocks * of_tile, FINISH_US + FINISH_WIDER_US * wide
    most = blocks // rest if rest else 0
    for parts in range(2, min(most, stages) + 1):
        us = before + -(-stages // parts) * stage_us + ending + parts * PART_US
        running = blocks if tiles > rest else rest * parts
        us += CROWDED_US * (running > CROWDED * blocks)
        found.append((us, Shares(running, rest, rest * parts, parts, 0, 0)))
    sharing = min(blocks, rest * stages)
    if sharing > rest:
        each, extra = divmod(rest * stages, sharing)
        us = before + (each + (extra > 0)) * stage_us + ending + TWICE_US + TWICE_WIDER_US * wide
        running = blocks if tiles > rest else sharing
        found.append((us + sharing / rest * PART_US, Shares(running, rest, sharing, 0, each, extra)))
    us, best = min(found)
    return best, us


def worth(columns: int, stage_us: float) -> int:
    """How many stages fewer a block must make where tiles are cut into parts, that it pays."""
    return ceil((FINISH_US + FINISH_WIDER_US * columns / 256 + CROWDED_US) / stage_us)


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
