"""A fragment as the wide operand of ``mma``: codes as they stand in a lane's words, and what sums lack.

    code   bits in the low byte of a bfloat16 without other bits: the stored code × 2**-133 and more (weights.py)
    sum    factor × d + lowest × the sum of activations

So a code costs an instruction or two, and no rounding. Activations are *lifted* before by 2**64, for sums of
such small numbers would leave the range of float32; those of 2**64 and more become infinite. The lowest code,
stored as 0, joins in the sums. Codes that are looked up, and those of eight bits, are whole numbers: nothing
is lifted, and no sum lacks anything.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..intrinsics import bf16x2
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, uint32
from .codes import fp4_bits, step_unpacker
from .layout import PackedLayout
from .weights import LAST_PLACE, RAISED, code_reader, code_shift

LIFT = 64  # exponent of two


class Operand(NamedTuple):
    """How codes become registers of ``mma``, and their sums whole."""

    unpack_step: Any  # (words, s, a, opaque)
    lifts: tuple[int, int]  # exponents of two: of activations in b0, and in b1
    factors: tuple[float, float]  # of the sums of rows g, and of rows g + 8
    lowest: int  # the code that is stored as 0
    needs_sums: bool  # whether the lowest code or offsets need sums of activations


@cache
def operand_of(layout: PackedLayout) -> Operand:
    """The operand of a format's fragments."""
    if layout.fp4:
        factor = 2.0 ** (RAISED - LIFT)
        return Operand(_small_floats, (LIFT, LIFT), (factor, factor), 0, layout.has_offset)
    if layout.levels or layout.low == 8:
        return Operand(step_unpacker(layout), (0, 0), (1.0, 1.0), 0, layout.has_offset)
    code = code_reader(layout)

    @inlined
    def unpack_step(words: Any, s: Any, a: Any, opaque: Any) -> None:
        for r in range(4):
            a[r] = code(words, 4 * s + r, opaque)

    low, high = (2.0 ** (LAST_PLACE - LIFT - code_shift(layout, r)) for r in range(2))
    lifts = LIFT, LIFT - code_shift(layout, 2)
    return Operand(unpack_step, lifts, (low, high), layout.lowest, layout.lowest != 0 or layout.has_offset)


@inlined
def _small_floats(words: Any, s: Any, a: Any, opaque: Any) -> None:
    fp4_bits(words, s, a)


@cache
def lifter(layout: PackedLayout, count: int) -> Any:
    """The device function that lifts ``count`` steps of activations, b0 and b1 each."""
    lifts, fma = operand_of(layout).lifts, bf16x2.fma
    even, odd = (np.uint32(bf16x2.pair(2.0**lift)) for lift in lifts)
    nothing, lifted = np.uint32(bf16x2.pair(-0.0)), any(lifts)

    @inlined
    def lift(b: Any) -> None:
        if lifted:
            for i in range(count):
                b[2 * i], b[2 * i + 1] = fma(b[2 * i], even, nothing), fma(b[2 * i + 1], odd, nothing)

    return lift


@cache
def activation_summer(count: int) -> Any:
    """The device function that sums the activations of ``count`` steps, before they are lifted."""
    sums_into, ones = bf16x2.sums_into, bf16x2.ONES

    @inlined
    def sum_of(b: Any, first: Any) -> Any:
        d = cuda.local.array(4, float32)
        d[0] = d[1] = d[2] = d[3] = float32(0)
        for s in range(count):
            sums_into(d, 0, ones, b, first + 2 * s)
        return d[0], d[1]

    return sum_of
