"""Estimates of the time of cuda:gemv on Hopper, for each way to split a product among blocks; the best split.

Blocks come in *waves*, as many as multiprocessors hold at once; the last may be smaller. A wave takes some
time to begin and to end, and the time that its blocks wait for memory. The fullest multiprocessor issues
instructions for its weights while it fetches them. And no split takes less than all weights need to come from
memory. ``python tools/fit.py`` says how far off the best the choice is. A bad estimate makes nothing wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from ....dispatch.card import UNKNOWN
from ...layouts.layout import ROWS, STEP, PackedLayout
from ..gemv.stages import (
    ALONE,
    FOUR,
    MAX_ROWS_OF_FLOATS,
    SPANS,
    TWO,
    GemvStage,
    SplitBlocks,
    columns_for,
    columns_of,
    kinds_of,
)
from .stage import SHARE, at_one_time, constants, extra_instructions

# Usable share of resident blocks when launched as clusters: some multiprocessors are in incomplete groups.
FILLED = {2: 0.9, 4: 0.82}
# Blocks of clusters that a multiprocessor should hold, by the blocks of a cluster.
MAX_BLOCKS_OF_CLUSTERS = {2: 6, 4: 3}
# Tiles of two fragment rows a multiprocessor, up to which clusters are as large as they can be.
MAX_TILES_OF_LARGE_CLUSTERS = 1 / 3


class GemvSplit(NamedTuple):
    """The fragment rows of a block, and how blocks split a tile."""

    fragment_rows: int
    blocks: SplitBlocks


class GemvShape(NamedTuple):
    """The shape of a product, and the facts of its card that estimates need."""

    layout: PackedLayout
    height: int  # fragment rows: a multiple of eight
    k: int
    m: int  # rows of activations
    multiprocessors: int
    memory: float = UNKNOWN  # MB a microsecond
    wide: bool = True  # whether blocks may have four fragment rows


def microseconds(shape: GemvShape, split: GemvSplit) -> float:
    """Microseconds of a product with one split."""
    c, layout, (fragment_rows, (splits, most)) = constants().gemv, shape.layout, split
    sms, lone, rows = shape.multiprocessors, split.blocks == ALONE, columns_for(shape.m)
    tiles, millions = shape.height // fragment_rows * splits, shape.k * ROWS * fragment_rows / splits / 1e6
    full, left = divmod(tiles, sms * most)
    beside = full * most + -(-left // sms)
    load = millions * (beside + (0 if lone else c.even * (tiles / sms - beside)))
    issued = c.unpack + c.instructions * extra_instructions(layout) / 100
    loaded = c.row * min(rows, MAX_ROWS_OF_FLOATS) + (c.tile if lone else c.small_tile) * max(
        0, rows / MAX_ROWS_OF_FLOATS - 1
    )
    issued += loaded * TWO / fragment_rows
    issued *= c.bytes if rows == 1 else 1
    issued *= c.lone if lone else 1
    weight = layout.fragment_bytes / (ROWS * STEP)
    us = at_one_time(load * issued, load * weight * c.read)
    us += (full + (left > 0)) * ((c.lone_wave if lone else c.small_wave) + millions * c.first)
    us += 0 if splits == 1 else c.pair if splits == 2 else c.cluster
    weights = shape.height * shape.k * layout.fragment_bytes / STEP / 1e6
    return at_one_time(us, weights / (SHARE * shape.memory))


def candidates(shape: GemvShape) -> Iterator[GemvSplit]:
    """The splits worth an estimate: each was as fast as any for some shape."""
    columns, sms, tiles = columns_for(shape.m), shape.multiprocessors, shape.height // TWO
    able = [
        fragment_rows
        for fragment_rows in (TWO, FOUR)[: 1 + shape.wide]
        if columns in columns_of(fragment_rows)
    ]
    kinds = {fragment_rows: kinds_of(fragment_rows, columns) for fragment_rows in able}
    small = {s: GemvStage(shape.layout, columns, SPANS[0], True, s) for s in able if True in kinds[s]}
    if small and tiles <= MAX_TILES_OF_LARGE_CLUSTERS * sms:
        splits = min(small[TWO].most_splits, int(1.5 * sms / tiles))
        yield GemvSplit(TWO, SplitBlocks(splits, -(-tiles * splits // sms)))
        return
    yield from (GemvSplit(fragment_rows, ALONE) for fragment_rows in able if False in kinds[fragment_rows])
    for fragment_rows, stage in small.items():
        for most in range(1, stage.blocks + 1):  # with room for more than there are, some get none
            if 1 < most <= -(-shape.height // fragment_rows // sms):
                yield GemvSplit(fragment_rows, SplitBlocks(1, most))
            for splits, filled in FILLED.items():
                blocks = shape.height // fragment_rows * splits
                fit = most <= -(-blocks // sms) and blocks <= filled * most * sms
                if fit and splits <= stage.most_splits and most <= MAX_BLOCKS_OF_CLUSTERS[splits]:
                    yield GemvSplit(fragment_rows, SplitBlocks(splits, most))


@lru_cache(4096)
def best_split(shape: GemvShape) -> tuple[float, GemvSplit]:
    """The microseconds of the split with the lowest estimate, and that split."""
    timed = ((microseconds(shape, split), split) for split in candidates(shape))
    return min(timed, key=lambda candidate: candidate[0])
