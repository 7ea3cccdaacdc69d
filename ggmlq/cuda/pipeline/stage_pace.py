"""How long a stage of cuda:roles takes, by the columns of its tile and what the records of a format hold.

Tensor cores need as long whatever the format is. But narrow tiles leave them idle: there it counts how many
instructions unpack a record, and how many bytes it has. So formats are told apart by these two, and those
that nobody has timed have an estimate, too.
"""

from __future__ import annotations

from functools import cache

from ..strips.layout import StripLayout

# Instructions of a warp that unpack two records, beside those of q4_0 (158 with all that a stage of 32
# columns wants): counted in machine code, where the sum is within a tenth for all formats.
SECOND_PLANE, FEW_LEVELS, LEVELS = 98, 55, 150
OTHER_CODES, FLOATS = 13, 79  # of 8 bits; of four
OFFSET, SCALE = 26, 8  # for each run of a row with an offset; for each byte of scales

# Microseconds of a stage of 128 columns of K, by the blocks of a multiprocessor, one or more, and the columns
# of a tile, where all blocks of an H100 are busy and memory is not the limit: of q4_0; more for a hundred
# instructions; and for a hundred bytes of a record. With the widest tiles both are hidden.
STAGE_US = {
    1: {
        16: 0.271, 32: 0.298, 48: 0.342, 64: 0.388, 80: 0.42, 96: 0.411, 112: 0.497, 128: 0.56, 144: 0.64,
        160: 0.735, 176: 0.861, 208: 0.999, 240: 1.05, 256: 1.238,
    },
    2: {16: 0.647, 32: 0.715, 48: 0.72, 64: 0.89},
}  # fmt: skip
UNPACKING_US = {
    1: {
        16: 0.186, 32: 0.186, 48: 0.198, 64: 0.218, 80: 0.19, 96: 0.20, 112: 0.178, 128: 0.169, 144: 0.10,
        160: 0.052, 176: 0.029, 240: 0.02,
    },
    2: {16: 0.337, 32: 0.336, 48: 0.33, 64: 0.33},
}  # fmt: skip
FETCHING_US = {
    1: {
        16: 0.022, 32: 0.014, 48: 0.025, 64: 0.008, 80: 0.008, 96: 0.016, 112: 0.033, 128: 0.02, 144: 0.02,
        160: 0.028, 176: 0.024, 208: 0.024, 240: 0.022,
    },
    2: {16: 0.043, 32: 0.03, 48: 0.045, 64: 0.045},
}  # fmt: skip
PLAIN = 576  # bytes of a record of q4_0
SHARE, NORM = 0.94, 6  # of its memory's rate that a card reaches under products of strips


def at_one_time(us: float, other_us: float) -> float:
    """How long two things take together that go on side by side: little longer than the longer one."""
    return float((us**NORM + other_us**NORM) ** (1 / NORM))


@cache
def unpacking(layout: StripLayout) -> int:
    """Instructions beyond those of q4_0."""
    more = SECOND_PLANE if layout.high else 0
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


def longer_us(layout: StripLayout, columns: int, blocks: int = 1) -> float:
    """Than q4_0 takes for a stage of a tile with so many columns, and so many blocks on a multiprocessor."""
    beside = min(blocks, 2)
    unpacked = UNPACKING_US[beside].get(columns, 0.0) * unpacking(layout)
    fetched = FETCHING_US[beside].get(columns, 0.0) * (layout.record - PLAIN)
    return (unpacked + fetched) / 100


def stage_us(layout: StripLayout, columns: int, blocks: int = 1) -> float:
    """Of such a tile."""
    return STAGE_US[min(blocks, 2)][columns] + longer_us(layout, columns, blocks)
