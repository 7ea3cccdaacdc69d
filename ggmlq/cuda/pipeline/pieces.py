"""Which steps of which tile a block makes, so that all blocks of a card are busy to the end.

Blocks take whole tiles in turns. What is left for the last turn, fewer tiles than blocks, is divided among
all of them along the columns, and made first: block after block takes an equal piece of the steps, over the
ends of tiles.

    tile      0                1                2
    steps     |----------------|----------------|----------------|
    block     |- 0 --|- 1 --|- 2 --|- 3 --|- 4 --|- 5 --|- 6 --|

The block with the first steps of a tile finishes it: it adds what the others made of it, in their order, so
a result does not depend on who was there first. Others begin with such a piece and keep its sums in memory.
Blocks are numbered from the last one down: who waits for another waits for one that was started before.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import Any, NamedTuple

from ..words.atoms import inlined
from ..words.language import uint32

STEP_US = 1.45  # of a stage of 128 columns of a tile of 128 by 256, and ...
LEAST_US = 0.27  # of the smallest
FINISH_US, PART_US = 2.0, 1.2  # to finish a tile in parts; and for each part, of a tile of 256


class Shares(NamedTuple):
    """How tiles are shared out."""

    blocks: int  # of the grid
    divided: int  # tiles, the first ones
    sharing: int  # blocks that share these
    each: int  # stages of one of them
    extra: int  # blocks with one more


@lru_cache(4096)
def shares(tiles: int, stages: int, blocks: int, columns: int) -> Shares:
    """Of tiles with so many columns; ``blocks``: that run at one time."""
    rest = tiles % blocks
    stage_us = max(LEAST_US, STEP_US * columns / 256)
    gain = (1 - rest / blocks) * stages * stage_us
    part_us = PART_US * max(columns, 64) / 256
    parts = sqrt(stages * stage_us / part_us)  # of a tile: more cost more than they bring
    sharing = min(blocks, int(rest * parts), rest * stages)
    if not rest or sharing <= rest or gain < FINISH_US:
        return Shares(min(blocks, tiles), 0, 0, 0, 0)
    each, extra = divmod(rest * stages, sharing)
    return Shares(blocks if tiles > rest else sharing, rest, sharing, each, extra)


@inlined
def end_of(rank: Any, each: Any, extra: Any) -> Any:
    """Where a block's shared stages end."""
    return uint32(uint32(rank + uint32(1)) * each + min(uint32(rank + uint32(1)), extra))


@inlined
def length_of(rank: Any, sharing: Any, each: Any, extra: Any) -> Any:
    """How many stages a block has of those that are shared."""
    if rank < sharing:
        return uint32(each + (uint32(1) if rank < extra else uint32(0)))
    return uint32(0)


@inlined
def next_piece(left: Any, end: Any, whole: Any, stages: Any, blocks: Any) -> Any:
    """A block's next piece: its tile, its first stage, the one after its last; and what is left then.

    ``left``: of its shared stages, which end at ``end``; ``whole``: its next whole tile.
    """
    if left > uint32(0):
        at = uint32(end - left)
        tile = uint32(at // stages)
        first = uint32(at - uint32(tile * stages))
        count = min(left, uint32(stages - first))
        return tile, first, uint32(first + count), uint32(left - count), whole
    return whole, uint32(0), stages, left, uint32(whole + blocks)
