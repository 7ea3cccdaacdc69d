"""Estimates of the time of cuda:gemv on Hopper, for each way to split a product among blocks; the best split.

Blocks come in *waves*, as many as multiprocessors hold at once; the last may be smaller. A wave takes some
time to begin and to end, and the time that its blocks wait for memory. It takes longer the more blocks share
a multiprocessor, for then they wait for each other. So the split that fills whole waves costs least. And no
split takes less than its weights need to come from memory.

Constants were fitted to 3500 measurements of three types and sixty shapes on an H100 (bench/notes/choice.md):
their split is 0.6 to 0.9 % slower than the best in the mean, 16 % at worst. A bad estimate makes nothing
wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from ...dispatch.card import UNKNOWN
from ..gemv.clusters import ALONE, SplitBlocks
from ..gemv.stages import FOUR, SPANS, TWO, GemvStage, columns_of, kinds_of
from ..packed.layout import ROWS, STEP, PackedLayout
from .stage import SHARE, at_one_time, extra_instructions


class Rate(NamedTuple):
    """The microseconds in which a multiprocessor's blocks multiply a million weights, one after the other."""

    two: float  # with two fragment rows a block, whatever the codes are
    four: float  # with four
    byte: float  # for each byte of a weight
    hundred: float  # for each hundred instructions that unpack two fragments, beyond those of q4_0

    def us(self, layout: PackedLayout, fragment_rows: int) -> float:
        weight = layout.fragment_bytes / (ROWS * STEP)
        plain = self.two if fragment_rows == TWO else self.four
        return plain + weight * self.byte + extra_instructions(layout) / 100 * self.hundred


class GemvCost(NamedTuple):
    """The parts of the estimated microseconds of a kernel."""

    start: float
    pair: float  # to add up the sums of the two blocks of a cluster
    cluster: float  # to add up those of more blocks
    lone_wave: float  # a wave of blocks that have a multiprocessor for themselves
    lone_next: float  # each further wave
    lone: Rate
    wave: float  # a wave of small blocks
    next: float  # each further wave
    waiting: Rate  # of a wave, for the weights of one block
    small: Rate
    even: float  # how far towards the mean the fullest multiprocessor's load counts


NO_RATE = Rate(0, 0, 0, 0)
COSTS = {  # by rows of activations
    1: GemvCost(
        0.80, 1.17, 1.03, 0.74, 2.05, Rate(3.99, 5.0, 19.15, 0.3),
        0.69, 1.96, Rate(21.89, 11.07, 0, 0), Rate(1.18, 3.54, 21.17, 0.3), 0.60,
    ),
    2: GemvCost(
        0.96, 1.00, 0.77, 0.95, 1.91, Rate(7.33, 5.0, 15.07, 0.3),
        0.72, 1.81, Rate(14.98, 9.74, 0, 0), Rate(6.58, 4.8, 20.74, 0.3), 0.62,
    ),
    4: GemvCost(
        1.02, 0.81, 0.67, 0.91, 1.78, Rate(9.12, 5.0, 15.49, 1.3),
        0.84, 1.85, Rate(11.39, 9.04, 0, 0), Rate(9.58, 6.36, 20.97, 0.3), 0.66,
    ),
    8: GemvCost(
        1.20, 0.58, 0.34, 0.87, 1.83, Rate(15.41, 12.89, 9.12, 4.01),
        1.09, 1.63, Rate(9.38, 22.62, 0, 0), Rate(14.8, 0, 18.37, 1.72), 0.51,
    ),
    16: GemvCost(
        1.54, 1.19, 1.24, 1.14, 1.71, Rate(18.26, 14.91, 13.18, 7.91),
        1.00, 1.48, Rate(9.51, 13.01, 0, 0), Rate(14.0, 7.84, 19.14, 5.34), 0.32,
    ),
    32: GemvCost(1.27, 0, 0, 1.27, 2.76, Rate(33.25, 0, 17.24, 12.63), 0, 0, NO_RATE, NO_RATE, 0),
}  # fmt: skip
# Usable share of resident blocks when launched as clusters: some multiprocessors are in incomplete groups.
FILLED = {2: 0.9, 4: 0.82}
MOST = {2: 6, 4: 3}  # blocks of clusters that a multiprocessor should hold, by the blocks of a cluster
FEW = 1 / 3  # tiles of two fragment rows a multiprocessor, up to which clusters are as large as they can be


class GemvSplit(NamedTuple):
    """The fragment rows of a block, and how blocks split a tile."""

    fragment_rows: int
    blocks: SplitBlocks


class GemvShape(NamedTuple):
    """The shape of a product, and the facts of its card that estimates need."""

    layout: PackedLayout
    height: int  # fragment rows: a multiple of eight
    k: int
    m: int
    multiprocessors: int
    memory: float = UNKNOWN  # MB a microsecond
    wide: bool = True  # whether blocks may have four fragment rows


def rows_for(m: int) -> int:
    """The rows of activations of the smallest kernel that takes ``m`` rows."""
    return next(columns for columns in columns_of(TWO) if columns >= m)


def microseconds(shape: GemvShape, split: GemvSplit) -> float:
    """Microseconds of a product with one split."""
    cost, (fragment_rows, (splits, most)) = COSTS[rows_for(shape.m)], split
    tiles, millions = shape.height // fragment_rows * splits, shape.k * ROWS * fragment_rows / splits / 1e6
    full, left = divmod(tiles, shape.multiprocessors * most)
    waves, beside = full + (left > 0), full * most + -(-left // shape.multiprocessors)
    if split.blocks == ALONE:
        us = cost.lone_wave + (waves - 1) * cost.lone_next
        us += waves * millions * cost.lone.us(shape.layout, fragment_rows)
    else:
        load = beside + cost.even * (tiles / shape.multiprocessors - beside)
        us = cost.wave + (waves - 1) * cost.next
        us += waves * millions * cost.waiting.us(shape.layout, fragment_rows)
        us += load * millions * cost.small.us(shape.layout, fragment_rows)
        us += 0 if splits == 1 else cost.pair if splits == 2 else cost.cluster
    weights = shape.height * shape.k * shape.layout.fragment_bytes / STEP / 1e6
    return at_one_time(cost.start + us, 1 + weights / (SHARE * shape.memory))


def candidates(shape: GemvShape) -> Iterator[GemvSplit]:
    """The splits worth an estimate: each was as fast as any for some shape."""
    columns, sms, tiles = rows_for(shape.m), shape.multiprocessors, shape.height // TWO
    able = [
        fragment_rows
        for fragment_rows in (TWO, FOUR)[: 1 + shape.wide]
        if columns in columns_of(fragment_rows)
    ]
    kinds = {fragment_rows: kinds_of(fragment_rows, columns) for fragment_rows in able}
    small = {s: GemvStage(shape.layout, columns, SPANS[0], True, s) for s in able if True in kinds[s]}
    if small and tiles <= FEW * sms:
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
                if fit and splits <= stage.most_splits and most <= MOST[splits]:
                    yield GemvSplit(fragment_rows, SplitBlocks(splits, most))


@lru_cache(4096)
def best_split(shape: GemvShape) -> tuple[float, GemvSplit]:
    """The microseconds of the split with the lowest estimate, and that split."""
    timed = ((microseconds(shape, split), split) for split in candidates(shape))
    return min(timed, key=lambda candidate: candidate[0])
