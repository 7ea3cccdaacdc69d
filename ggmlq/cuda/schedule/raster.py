"""The raster of a product: an order of its tiles in which those computed at the same time share operands.

Blocks compute tiles of neighbouring numbers at the same time. A *sweep* goes down all rows of tiles, over
some of their columns; the next sweep follows to the right:

               activations
    weights    0  1  2 |  9 10
               3  4  5 | 11 12
               6  7  8 | 13 14

So the x_tiles of a sweep stay in the L2 cache while weights go by.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple

from ..intrinsics.atoms import inlined
from ..intrinsics.language import uint32, uint64
from ..machine import device
from ..packed.layout import FRAGMENT_ROWS, TILE_ROWS
from ..rings.boxed import BoxTile


class Raster(NamedTuple):
    """A raster as kernels take it, in this order."""

    across: int  # tiles along the rows of activations
    width: int  # tiles across a sweep
    per_sweep: int  # tiles of a sweep
    tiles: int


def raster(across: int, down: int, blocks: int, x_bytes: int, w_bytes: int) -> Raster:
    """The raster of ``across`` × ``down`` tiles, ``blocks`` of them computed at the same time.

    ``x_bytes``, ``w_bytes``: bytes that a tile reads of either operand for the same part of K. Sweeps have
    the width with which blocks read the fewest bytes; all are about equally wide, with a tile for each block.
    """
    best, tiles = max(1.0, sqrt(blocks * w_bytes / x_bytes)), across * down
    width = -(-across // max(1, min(round(across / best), tiles // blocks)))
    return Raster(across, width, width * down, tiles)


def raster_width(blocks: int, x_bytes: int, w_bytes: int) -> int:
    """The best width of a sweep where the number of tiles is not known yet."""
    return max(1, round(sqrt(blocks * w_bytes / x_bytes)))


@inlined
def tile_place(number: Any, order: Any) -> Any:
    """The row of tiles and the column of a tile; ``order``: a Raster."""
    across, width, per_sweep, _ = order
    sweep = uint32(number // per_sweep)
    column, within = uint32(sweep * width), uint32(number - uint32(sweep * per_sweep))
    across_here = min(width, uint32(across - column))
    down = uint32(within // across_here)
    return down, uint32(column + uint32(within - uint32(down * across_here)))


@inlined
def locate_for_producer(tile_order: Any, number: Any) -> Any:
    """The place of a tile for the producer: its first fragment row, its column of tiles, its sweep."""
    order, _ = tile_order
    down, column = tile_place(number, order)
    return uint32(down * uint32(FRAGMENT_ROWS)), column, uint32(column // order[1])


def consumer_locator(columns: int) -> Any:
    """The device function for the place of a tile with ``columns`` columns, as consumers need it."""

    @inlined
    def locate(tile_order: Any, number: Any, thread_at: Any) -> Any:
        (order, m), (below, beside) = tile_order, thread_at
        down, right = tile_place(number, order)
        row, column = uint32(down * uint32(TILE_ROWS) + below), uint32(right * uint32(columns) + beside)
        return row, column, m, uint64(0)

    return locate


# Work units: the steps of a tile that a block computes, so that all blocks of a card are busy to the end.
#
# Blocks take whole tiles, wave after wave. The last wave has fewer tiles than blocks. Its tiles are *split*
# among all blocks along the columns: block after block takes an equal length of the steps, across the borders
# of tiles.
#
#     tile      0                1                2
#     steps     |----------------|----------------|----------------|
#     block     |- 0 --|- 1 --|- 2 --|- 3 --|- 4 --|- 5 --|- 6 --|     all blocks
#               |-  0  -|-  1  -|-  2  -|-  3  -|-  4  -|-  5  -|      or as many for each tile
#
# A block with parts of two tiles finishes both, one after the other; where tiles are short this takes longer
# than a few idle blocks.
#
# warp_specialized/stream_k.py says what becomes of partial sums. Blocks are numbered from the last one down,
# so the block with the first steps of a tile is started after all other blocks of that tile.

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


# The choice of a tile by waves: the tile with which the multiprocessors are done first.


class RatedTile(NamedTuple):
    """A tile, and how busy its kernel keeps a multiprocessor, relative to other tiles."""

    tile: BoxTile
    efficiency: float


def best_tile(tiles: Sequence[RatedTile], m: int, n: int, multiprocessors: int = 0) -> BoxTile:
    """The best tile for m × n outputs: blocks take tiles wave after wave, so the busiest block's number of
    tiles counts.
    """
    count = multiprocessors or device.multiprocessors()

    def time(choice: RatedTile) -> float:
        tile = choice.tile
        return -(-tile.tiles(m, n) // count) * tile.rows * tile.columns / choice.efficiency

    return min(tiles, key=time).tile
