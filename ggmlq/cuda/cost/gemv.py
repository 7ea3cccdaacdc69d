"""How long cuda:gemv takes on Hopper, by how blocks share the strips; and the way that takes least.

Blocks come in *waves*, as many as multiprocessors hold at once; the last may be smaller. A wave takes a
while to begin and to end, and as long as its block waits for memory; and longer the more of them share a
multiprocessor, for then they wait for each other. So that costs least which fills whole waves. And no way
takes less than its weights take to come from memory.

Numbers were fitted to 3500 measurements of three types and sixty shapes on an H100 (bench/notes/choice.md):
what they pick is 0.6 to 0.9 % slower than the best in the mean, 16 % at worst. A bad estimate makes nothing
wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from ...dispatch.card import UNKNOWN
from ..gemv.clusters import ALONE, Blocks
from ..gemv.stages import BOTH, FOUR, SPANS, Stage, columns_of, kinds_of
from ..packed.layout import ROWS, STEP, StripLayout
from .stage import SHARE, at_one_time, unpacking


class Rate(NamedTuple):
    """Microseconds of a million weights that blocks of a multiprocessor multiply one after the other."""

    two: float  # of two strips a block, whatever the codes are
    four: float
    byte: float  # for each byte of a weight
    hundred: float  # for each hundred instructions that unpack two records, beyond those of q4_0

    def of(self, layout: StripLayout, strips: int) -> float:
        weight = layout.record / (ROWS * STEP)
        whatever = self.two if strips == BOTH else self.four
        return whatever + weight * self.byte + unpacking(layout) / 100 * self.hundred


class Pace(NamedTuple):
    """Microseconds of a kernel."""

    start: float
    pair: float  # to add up what the two blocks of a cluster have
    cluster: float  # or more of them
    lone_wave: float  # of blocks that have a multiprocessor for themselves
    lone_next: float  # each after the first
    lone: Rate
    wave: float  # of small blocks
    next: float
    waiting: Rate  # in a wave, for the weights of one block
    small: Rate
    even: float  # how far towards the mean the fullest multiprocessor's load counts


NONE = Rate(0, 0, 0, 0)
PACES = {  # by rows of activations
    1: Pace(
        0.80, 1.17, 1.03, 0.74, 2.05, Rate(3.99, 5.0, 19.15, 0.3),
        0.69, 1.96, Rate(21.89, 11.07, 0, 0), Rate(1.18, 3.54, 21.17, 0.3), 0.60,
    ),
    2: Pace(
        0.96, 1.00, 0.77, 0.95, 1.91, Rate(7.33, 5.0, 15.07, 0.3),
        0.72, 1.81, Rate(14.98, 9.74, 0, 0), Rate(6.58, 4.8, 20.74, 0.3), 0.62,
    ),
    4: Pace(
        1.02, 0.81, 0.67, 0.91, 1.78, Rate(9.12, 5.0, 15.49, 1.3),
        0.84, 1.85, Rate(11.39, 9.04, 0, 0), Rate(9.58, 6.36, 20.97, 0.3), 0.66,
    ),
    8: Pace(
        1.20, 0.58, 0.34, 0.87, 1.83, Rate(15.41, 12.89, 9.12, 4.01),
        1.09, 1.63, Rate(9.38, 22.62, 0, 0), Rate(14.8, 0, 18.37, 1.72), 0.51,
    ),
    16: Pace(
        1.54, 1.19, 1.24, 1.14, 1.71, Rate(18.26, 14.91, 13.18, 7.91),
        1.00, 1.48, Rate(9.51, 13.01, 0, 0), Rate(14.0, 7.84, 19.14, 5.34), 0.32,
    ),
    32: Pace(1.27, 0, 0, 1.27, 2.76, Rate(33.25, 0, 17.24, 12.63), 0, 0, NONE, NONE, 0),
}  # fmt: skip
# Of the blocks that fit at once, how many clusters may have: some places are in no group of multiprocessors.
FILLED = {2: 0.9, 4: 0.82}
MOST = {2: 6, 4: 3}  # blocks of clusters that a multiprocessor should hold
FEW = 1 / 3  # tiles of two strips for a multiprocessor, up to which clusters are as large as they can be


class Way(NamedTuple):
    """Strips of a block, and how blocks share them."""

    strips: int
    blocks: Blocks


class Job(NamedTuple):
    """A product, and what it is made on."""

    layout: StripLayout
    height: int  # strips of all rows: a multiple of eight
    k: int
    m: int
    multiprocessors: int
    memory: float = UNKNOWN  # MB a microsecond
    wide: bool = True  # whether blocks may have four strips


def rows_for(m: int) -> int:
    """Rows of activations that the kernel for so many takes."""
    return next(columns for columns in columns_of(BOTH) if columns >= m)


def microseconds(job: Job, way: Way) -> float:
    """Of one way."""
    pace, (strips, (parts, most)) = PACES[rows_for(job.m)], way
    tiles, millions = job.height // strips * parts, job.k * ROWS * strips / parts / 1e6
    full, left = divmod(tiles, job.multiprocessors * most)
    waves, beside = full + (left > 0), full * most + -(-left // job.multiprocessors)
    if way.blocks == ALONE:
        us = pace.lone_wave + (waves - 1) * pace.lone_next
        us += waves * millions * pace.lone.of(job.layout, strips)
    else:
        load = beside + pace.even * (tiles / job.multiprocessors - beside)
        us = pace.wave + (waves - 1) * pace.next
        us += waves * millions * pace.waiting.of(job.layout, strips)
        us += load * millions * pace.small.of(job.layout, strips)
        us += 0 if parts == 1 else pace.pair if parts == 2 else pace.cluster
    weights = job.height * job.k * job.layout.record / STEP / 1e6
    return at_one_time(pace.start + us, 1 + weights / (SHARE * job.memory))


def ways(job: Job) -> Iterator[Way]:
    """Those that were as fast as any for some shape."""
    columns, sms, tiles = rows_for(job.m), job.multiprocessors, job.height // BOTH
    able = [strips for strips in (BOTH, FOUR)[: 1 + job.wide] if columns in columns_of(strips)]
    kinds = {strips: kinds_of(strips, columns) for strips in able}
    small = {s: Stage(job.layout, columns, SPANS[0], True, s) for s in able if True in kinds[s]}
    if small and tiles <= FEW * sms:
        parts = min(small[BOTH].parts, int(1.5 * sms / tiles))
        yield Way(BOTH, Blocks(parts, -(-tiles * parts // sms)))
        return
    yield from (Way(strips, ALONE) for strips in able if False in kinds[strips])
    for strips, of in small.items():
        for most in range(1, of.blocks + 1):  # with room for more than there are, some get none
            if 1 < most <= -(-job.height // strips // sms):
                yield Way(strips, Blocks(1, most))
            for parts, filled in FILLED.items():
                blocks = job.height // strips * parts
                fit = most <= -(-blocks // sms) and blocks <= filled * most * sms
                if fit and parts <= of.parts and most <= MOST[parts]:
                    yield Way(strips, Blocks(parts, most))


@lru_cache(4096)
def best(job: Job) -> tuple[float, Way]:
    """The way that is thought to take least, and its microseconds."""
    return min(((microseconds(job, way), way) for way in ways(job)), key=lambda each: each[0])
