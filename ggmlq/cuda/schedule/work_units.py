"""Work units: the steps of a tile that a block computes, so that all blocks of a card are busy to the end.

Blocks take whole tiles, wave after wave. The last wave has fewer tiles than blocks. Its tiles are *split*
among all blocks along the columns: block after block takes an equal length of the steps, across the borders
of tiles.

    tile      0                1                2
    steps     |----------------|----------------|----------------|
    block     |- 0 --|- 1 --|- 2 --|- 3 --|- 4 --|- 5 --|- 6 --|     all blocks
              |-  0  -|-  1  -|-  2  -|-  3  -|-  4  -|-  5  -|      or as many for each tile

A block with parts of two tiles finishes both, one after the other; where tiles are short this takes longer
than a few idle blocks.

warp_specialized/stream_k.py says what becomes of partial sums. Blocks are numbered from the last one down,
so the block with the first steps of a tile is started after all other blocks of that tile.
"""

from __future__ import annotations

from typing import Any

from ..intrinsics.atoms import inlined
from ..intrinsics.language import uint32

MAX_CLUSTER = 8  # blocks of the largest cluster that any card takes


@inlined
def split_last_wave(tiles: Any, stages: Any, blocks: Any, least_saved: Any) -> Any:
    """The split of the last wave, where the kernel alone knows the number of tiles: Split's fields after
    ``blocks``.

    Each tile of the last wave is cut into as many parts as there are blocks for, if that saves a block at
    least ``least_saved`` stages.
    """
    rest = uint32(tiles % blocks)
    splits = min(uint32(blocks // max(rest, uint32(1))), stages)
    longest = uint32(uint32(uint32(stages + splits) - uint32(1)) // splits)
    if rest == uint32(0) or uint32(longest + least_saved) > stages:
        rest, splits = uint32(0), uint32(0)
    return rest, uint32(rest * splits), splits, uint32(0), uint32(0)


@inlined
def shared_stages(rank: Any, stages: Any, split: Any) -> Any:
    """The begin and end of a block's steps in the tiles that are split, in stages; both are 0 for blocks
    without any.
    """
    _, split_blocks, splits, block_stages, longer_blocks = split
    if rank >= split_blocks:
        return uint32(0), uint32(0)
    if splits > uint32(0):
        tile = uint32(rank // splits)
        at, begin = uint32(rank - uint32(tile * splits)), uint32(tile * stages)
        end = uint32(uint32(uint32(at + uint32(1)) * stages) // splits)
        return uint32(begin + uint32(uint32(at * stages) // splits)), uint32(begin + end)
    begin = uint32(uint32(rank * block_stages) + min(rank, longer_blocks))
    return begin, uint32(begin + block_stages + (uint32(1) if rank < longer_blocks else uint32(0)))


@inlined
def block_of_stage(stage: Any, block_stages: Any, longer_blocks: Any) -> Any:
    """The block that computes a stage, where the steps of a block cross the borders of tiles."""
    longer = uint32(block_stages + uint32(1))
    border = uint32(longer_blocks * longer)
    if stage < border:
        return uint32(stage // longer)
    return uint32(longer_blocks + uint32(uint32(stage - border) // block_stages))


@inlined
def blocks_of_tile(tile: Any, stages: Any, split: Any) -> Any:
    """The first block of a tile that is split, and the number of its blocks."""
    _, _, splits, block_stages, longer_blocks = split
    if splits > uint32(0):
        return uint32(tile * splits), splits
    begin = uint32(tile * stages)
    first = block_of_stage(begin, block_stages, longer_blocks)
    last = block_of_stage(uint32(begin + uint32(stages - uint32(1))), block_stages, longer_blocks)
    return first, uint32(uint32(last - first) + uint32(1))


@inlined
def next_work_unit(
    stages_left: Any, end: Any, next_whole: Any, stages: Any, blocks: Any, whole_tiles: Any
) -> Any:
    """A block's next work unit: its tile, its first stage, the one after its last; then what is left for
    the block.

    ``next_whole``: the block's next tile among the ``whole_tiles``, which come first. ``stages_left``: of
    its stages in tiles that are split; they end at ``end``.
    """
    if next_whole < whole_tiles:
        return next_whole, uint32(0), stages, stages_left, uint32(next_whole + blocks)
    at = uint32(end - stages_left)
    tile = uint32(at // stages)
    first = uint32(at - uint32(tile * stages))
    count = min(stages_left, uint32(stages - first))
    return uint32(whole_tiles + tile), first, uint32(first + count), uint32(stages_left - count), next_whole
