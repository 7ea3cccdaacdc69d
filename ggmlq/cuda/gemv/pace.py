"""How long cuda:gemv takes on Hopper, by how blocks share the strips; and the way that takes least.

Blocks come in *waves*, as many as multiprocessors hold at once; the last may be smaller. A wave takes a
while to begin and to end, and as long as its block waits for memory; and longer the more of them share a
multiprocessor, for then they wait for each other. So that costs least which fills whole waves.

Numbers are of one H200 (bench/NOTES.md), fitted to 2200 measurements of four types and eight shapes: what
they pick is 1 % slower than the best in the mean, 16 % at worst. A bad estimate makes nothing wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from ..pipeline.stage_pace import unpacking
from ..strips.layout import ROWS, STEP, StripLayout
from .clusters import ALONE, Blocks
from .stages import BOTH, FOUR, SPANS, Stage, columns_of, kinds_of


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
    cluster: float  # to add up what its blocks have
    lone_wave: float  # of blocks that have a multiprocessor for themselves
    lone: Rate
    wave: float  # of small blocks
    waiting: Rate  # in a wave, for the weights of one block
    small: Rate


NONE = Rate(0, 0, 0, 0)
PACES = {  # by rows of activations
    1: Pace(1.4, 1.6, 1.2, Rate(2.0, 0, 23.2, 3.1), 0.7, Rate(24.2, 7.8, 0, 0), Rate(2.1, 3.5, 17.1, 2.7)),
    2: Pace(1.6, 1.5, 1.1, Rate(3.4, 0, 22.1, 3.0), 0.5, Rate(24.5, 8.1, 0, 0), Rate(4.2, 4.3, 15.2, 3.0)),
    4: Pace(2.0, 1.7, 1.1, Rate(7.4, 0, 17.8, 4.3), 0.4, Rate(25.8, 9.0, 0, 0), Rate(5.0, 4.8, 14.2, 3.5)),
    8: Pace(1.2, 2.4, 1.4, Rate(15.2, 11.0, 9.3, 8.0), 0.7, Rate(35.5, 6.8, 0, 0), Rate(2.8, 10.6, 9.3, 7.1)),
    16: Pace(2.1, 3.2, 1.2, Rate(23.8, 19.5, 3.2, 9.6), 0.5, Rate(32, 14, 0, 0), Rate(11.5, 15.1, 3.9, 7.3)),
    32: Pace(1.6, 0, 1.6, Rate(39.0, 0, 0, 20.1), 0, NONE, NONE),
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
        return pace.start + waves * (pace.lone_wave + millions * pace.lone.of(job.layout, strips))
    us = waves * (pace.wave + millions * pace.waiting.of(job.layout, strips))
    us += beside * millions * pace.small.of(job.layout, strips)
    meeting = pace.cluster * min(1, job.height / BOTH / job.multiprocessors)  # fewer blocks are there sooner
    return pace.start + us + meeting * (parts > 1)


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
        for most in range(1, of.blocks + 1):
            if most > 1:
                yield Way(strips, Blocks(1, most))
            for parts, filled in FILLED.items():
                fit = job.height // strips * parts <= filled * most * sms
                if fit and parts <= of.parts and most <= MOST[parts]:
                    yield Way(strips, Blocks(parts, most))


@lru_cache(4096)
def best(job: Job) -> tuple[float, Way]:
    """The way that is thought to take least, and its microseconds."""
    return min(((microseconds(job, way), way) for way in ways(job)), key=lambda each: each[0])
