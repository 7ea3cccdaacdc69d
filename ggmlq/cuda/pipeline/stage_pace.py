"""How much longer than with q4_0 a stage of cuda:roles takes, by what the records of a format hold.

Tensor cores need as long whatever the format is. But narrow tiles leave them idle: there it counts how many
instructions unpack a record, and how many bytes it has. So formats are told apart by these two, and those
that nobody has timed have an estimate, too.
"""

from __future__ import annotations

from functools import cache

from ..strips.layout import StripLayout

# Instructions of a warp that unpack two records, beside those of q4_0 (209 with all that a stage of 32
# columns wants): counted in machine code, where the sum is within a tenth for all formats.
SECOND_PLANE, FEW_LEVELS, LEVELS = 98, 55, 150
OTHER_CODES = 54  # of 8 bits, or floats of four
OFFSET, SCALE = 16, 12  # for each run of a row with an offset; for each byte of scales

# Microseconds, by the columns of a tile: for a hundred instructions, which four warps to a scheduler issue
# in 0.24, and for a hundred bytes of a record. From 192 columns on unpacking is hidden.
UNPACKING_US = {32: 0.28, 64: 0.28, 128: 0.07}
FETCHING_US = {32: 0.041, 64: 0.041}
PLAIN = 576  # bytes of a record of q4_0


@cache
def unpacking(layout: StripLayout) -> int:
    """Instructions beyond those of q4_0."""
    more = SECOND_PLANE if layout.high else 0
    if layout.fp4 or layout.low == 8:
        more += OTHER_CODES
    elif layout.levels:
        more += LEVELS if len(layout.levels) > 8 else FEW_LEVELS
    if layout.has_offset:
        more += OFFSET * layout.runs
    if layout.subs and layout.scale != "power":  # powers of two are shifted into place
        more += SCALE * layout.scales
    return more


def longer_us(layout: StripLayout, columns: int) -> float:
    """Of a stage of a tile with so many columns."""
    unpacked = UNPACKING_US.get(columns, 0.0) * unpacking(layout)
    fetched = FETCHING_US.get(columns, 0.0) * (layout.record - PLAIN)
    return (unpacked + fetched) / 100
