"""Which steps of which tile a block makes, so that all blocks of a card are busy to the end.

Blocks take whole tiles in turns. What is left for the last turn, fewer tiles than blocks, is divided among
all of them along the columns: block after block takes an equal piece of the steps, over the ends of tiles.

    tile      0                1                2
    steps     |----------------|----------------|----------------|
    block     |- 0 --|- 1 --|- 2 --|- 3 --|- 4 --|- 5 --|- 6 --|     all blocks
              |-  0  -|-  1  -|-  2  -|-  3  -|-  4  -|-  5  -|      or as many of each tile

A block with parts of two tiles finishes both, one after the other, which takes longer than some idle blocks
where tiles are short.

What becomes of the sums of such pieces: warp_specialized/stream_k.py. Blocks are numbered from the last one down, so the
one with the first steps of a tile is the last of its blocks to be started.
"""

from __future__ import annotations

from typing import Any

from ..intrinsics.atoms import inlined
from ..intrinsics.language import uint32

LARGEST = 8  # cluster that any card takes


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
