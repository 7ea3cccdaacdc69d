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

# Microseconds of a stage of 128 columns of K, by the columns of a tile, where all blocks of an H100 are busy
# and memory is not the limit: of q4_0; more for a hundred instructions; and for a hundred bytes of a record.
# From 176 columns on unpacking is hidden.
STAGE_US = {
    16: 0.56, 32: 0.73, 48: 0.71, 64: 0.86, 96: 0.48, 128: 0.64, 144: 0.68, 160: 0.80,
    176: 0.95, 192: 0.93, 208: 1.09, 224: 1.07, 240: 1.20, 256: 1.31,
}  # fmt: skip
UNPACKING_US = {16: 0.29, 32: 0.29, 48: 0.30, 64: 0.30, 96: 0.15, 128: 0.105, 144: 0.07, 160: 0.035}
FETCHING_US = {16: 0.041, 32: 0.041, 48: 0.041, 64: 0.041, 96: 0.02, 128: 0.017, 144: 0.01, 160: 0.005}
PLAIN = 576  # bytes of a record of q4_0


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


def longer_us(layout: StripLayout, columns: int) -> float:
    """Than q4_0 takes for a stage of a tile with so many columns."""
    unpacked = UNPACKING_US.get(columns, 0.0) * unpacking(layout)
    fetched = FETCHING_US.get(columns, 0.0) * (layout.record - PLAIN)
    return (unpacked + fetched) / 100


def stage_us(layout: StripLayout, columns: int) -> float:
    """Of a tile with so many columns."""
    return STAGE_US[columns] + longer_us(layout, columns)
