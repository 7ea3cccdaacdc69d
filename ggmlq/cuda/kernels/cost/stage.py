"""Estimates of the time of a stage of cuda:warp_specialized, by the columns of its tile and by format.

Tensor cores take the same time for any format. But narrow tiles leave them idle; then two numbers of the
format decide: the instructions that unpack a fragment, and the bytes of a fragment. So formats that nobody
has timed have an estimate, too.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ...layouts.layout import PackedLayout

# The fitted constants of estimates, from costs.json, which ``tools/fit.py --write`` makes anew.
#
# They are microseconds of an H200, unless their names say otherwise; bench/notes/choice.md says to which
# times they were fitted. Multiprocessors, memory and caches come from the card.

PLACE = Path(__file__).parent / "costs.json"


class GemvConstants(NamedTuple):
    """Constants of cuda:gemv, and of cuda:gemv_int16 for one row."""

    lone_wave: float  # to begin and end blocks that have a multiprocessor for themselves
    small_wave: float  # and those that share one
    first: float  # for a million weights of a block whose copies nothing hides
    read: float  # for a million bytes of weights of a multiprocessor
    unpack: float  # for a million weights of q4_0, to unpack and multiply
    instructions: float  # for a hundred instructions more that unpack two fragments
    row: float  # for each of up to eight rows, to load and convert
    tile: float  # for each further eight rows, in lone blocks
    small_tile: float  # and in small ones
    bytes: float  # factor on instructions, where one row is multiplied as bytes
    pair: float  # to add up the sums of two blocks
    cluster: float  # of more
    even: float  # how far towards the mean the fullest multiprocessor's load counts
    lone: float  # factor on the work of lone blocks


class TileConstants(NamedTuple):
    """Constants of cuda:warp_specialized, with all its tiles."""

    start: float  # and end of a kernel, beside cuda:gemv's
    step: float  # of a stage, 128 columns of K
    column: float  # of a stage, for a column of the tile
    instructions: float  # of a stage, for a hundred instructions more that unpack two fragments
    bytes: float  # of a stage, for a hundred bytes more of a fragment
    tensor: float  # of a stage, for a column on the tensor cores
    beside: float  # factor on a stage's time, for a second block on the multiprocessor
    alone: float  # share of a stage's time that such a block saves where it has no neighbour
    write: float  # of a whole tile, for 256 columns
    finish: float  # of tiles in parts
    exchange: float  # of their sums, for 256 columns and a block on each multiprocessor
    cluster: float  # to finish tiles in clusters of two
    cluster_exchange: float  # of their sums, for 256 columns
    cluster_more: float  # for each further block of a cluster
    twice: float  # for a block with parts of two tiles, for 256 columns
    box: float  # for a million numbers that boxes of plain rows bring
    saved: float  # where no kernel before makes x_tiles
    power: float  # million operations a microsecond and multiprocessor that a card's power allows
    cached: float  # MB of an operand, from which an L2 cache of 50 MB holds nothing of it for later tiles


class CodesConstants(NamedTuple):
    """Constants of cuda:small_m, cuda:split_k and cuda:persistent."""

    start: float  # and end of a kernel
    write: float  # for 128 × 128 outputs of a tile
    step: float  # 128 columns of K
    area: float  # of a step, for 128 × 128 outputs
    arrival: float  # of a copy, which as many stages as are in flight share
    join: float  # to add up the sums of two blocks
    exchange: float  # of each further block
    away: float  # beside the stream from memory: the start, the way of the first copy, the end
    late: float  # what cuda:persistent starts later
    wave: float  # each further wave
    beside: float  # each further block on a multiprocessor
    starved: float  # factor on the time of memory, where a multiprocessor has fewer blocks than it could hold


class Constants(NamedTuple):
    """The fitted constants of all kernels."""

    gemv: GemvConstants
    warp_specialized: TileConstants
    codes8: CodesConstants


KINDS = {"gemv": GemvConstants, "warp_specialized": TileConstants, "codes8": CodesConstants}


@cache
def constants() -> Constants:
    """The constants of the package."""
    values = json.loads(PLACE.read_text())
    return Constants(*(kind(**values[name]) for name, kind in KINDS.items()))


# Instructions of a warp that unpack two fragments, beside those of q4_0 (158 with all that a stage of 32
# columns wants): counted in machine code, where the sum is within a tenth for all formats.
SECOND_BIT_PLANE, FEW_LEVELS, LEVELS = 98, 55, 150
OTHER_CODES, FLOATS = 13, 79  # of 8 bits; of four
OFFSET, SCALE = 26, 8  # for each run of a row with an offset; for each byte of scales


PLAIN = 576  # bytes of a fragment of q4_0
SHARE, NORM = 0.94, 6  # share of its memory's rate that a card reaches; the norm of at_one_time()


def at_one_time(us: float, other_us: float) -> float:
    """The time of two things that go on side by side: little more than the longer one takes."""
    return float((us**NORM + other_us**NORM) ** (1 / NORM))


@cache
def extra_instructions(layout: PackedLayout) -> int:
    """Instructions that unpack two fragments, beyond those of q4_0."""
    more = SECOND_BIT_PLANE if layout.high else 0
    if layout.fp4:
        more += FLOATS
    elif layout.low == 8:
        more += OTHER_CODES
    elif layout.levels:
        more += LEVELS if len(layout.levels) > 8 else FEW_LEVELS
    if layout.has_offset:
        more += OFFSET * layout.runs
    if layout.subs and layout.scale != "power":  # powers of two are shifted into place
        more += SCALE * layout.scales
    return more


def stage_us(layout: PackedLayout, columns: int, blocks: int = 1) -> float:
    """Estimated microseconds of a stage: 128 columns of K, where all blocks of a card are busy and memory is
    not the limit. ``blocks``: on a multiprocessor.
    """
    c = constants().warp_specialized
    more = c.instructions * extra_instructions(layout) + c.bytes * (layout.fragment_bytes - PLAIN)
    issue = c.step + c.column * columns + more / 100
    return at_one_time(issue, c.tensor * columns) * (1 + (min(blocks, 2) - 1) * c.beside)
