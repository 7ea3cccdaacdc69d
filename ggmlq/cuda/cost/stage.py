"""Estimates of the time of a stage of cuda:warp_specialized, by the columns of its tile and by format.

Tensor cores take the same time for any format. But narrow tiles leave them idle; then two numbers of the
format decide: the instructions that unpack a fragment, and the bytes of a fragment. So formats that nobody
has timed have an estimate, too.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ..packed.layout import PackedLayout

# Instructions of a warp that unpack two fragments, beside those of q4_0 (158 with all that a stage of 32
# columns wants): counted in machine code, where the sum is within a tenth for all formats.
SECOND_BIT_PLANE, FEW_LEVELS, LEVELS = 98, 55, 150
OTHER_CODES, FLOATS = 13, 79  # of 8 bits; of four
OFFSET, SCALE = 26, 8  # for each run of a row with an offset; for each byte of scales


class StageCost(NamedTuple):
    """Microseconds of 128 columns of K, where all blocks of an H100 are busy and memory is not the limit."""

    plain: float  # of q4_0
    instructions: float = 0.0  # for a hundred more that unpack; the widest tiles hide them
    fetched: float = 0.0  # for a hundred more bytes of a fragment


STAGE_COSTS = {  # by the blocks of a multiprocessor, one or more, and the columns of a tile
    1: {
        16: StageCost(0.271, 0.186, 0.022), 32: StageCost(0.298, 0.186, 0.014),
        48: StageCost(0.342, 0.198, 0.025), 64: StageCost(0.388, 0.218, 0.008),
        80: StageCost(0.42, 0.19, 0.008), 96: StageCost(0.411, 0.2, 0.016),
        112: StageCost(0.497, 0.178, 0.033), 128: StageCost(0.56, 0.169, 0.02),
        144: StageCost(0.64, 0.1, 0.02), 160: StageCost(0.735, 0.052, 0.028),
        176: StageCost(0.861, 0.029, 0.024), 208: StageCost(0.999, 0, 0.024),
        240: StageCost(1.05, 0.02, 0.022), 256: StageCost(1.238),
    },
    2: {
        16: StageCost(0.647, 0.337, 0.043), 32: StageCost(0.715, 0.336, 0.03),
        48: StageCost(0.72, 0.33, 0.045), 64: StageCost(0.89, 0.33, 0.045),
    },
}  # fmt: skip
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


def stage_cost(columns: int, blocks: int) -> StageCost:
    """The cost for a tile with ``columns`` columns and ``blocks`` blocks on a multiprocessor."""
    return STAGE_COSTS[min(blocks, 2)][columns]


def extra_us(layout: PackedLayout, columns: int, blocks: int = 1) -> float:
    """Microseconds that a stage of a format takes longer than a stage of q4_0."""
    stage = stage_cost(columns, blocks)
    return (
        stage.instructions * extra_instructions(layout) + stage.fetched * (layout.fragment_bytes - PLAIN)
    ) / 100


def stage_us(layout: PackedLayout, columns: int, blocks: int = 1) -> float:
    """Estimated microseconds of a stage."""
    return stage_cost(columns, blocks).plain + extra_us(layout, columns, blocks)
