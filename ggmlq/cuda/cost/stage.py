"""Estimates of the time of a stage of cuda:warp_specialized, by the columns of its tile and by format.

Tensor cores take the same time for any format. But narrow tiles leave them idle; then two numbers of the
format decide: the instructions that unpack a fragment, and the bytes of a fragment. So formats that nobody
has timed have an estimate, too.
"""

from __future__ import annotations

from functools import cache

from ..packed.layout import PackedLayout
from .constants import constants

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
    c = constants().tiles
    more = c.instructions * extra_instructions(layout) + c.bytes * (layout.fragment_bytes - PLAIN)
    issue = c.step + c.column * columns + more / 100
    return at_one_time(issue, c.tensor * columns) * (1 + (min(blocks, 2) - 1) * c.beside)
