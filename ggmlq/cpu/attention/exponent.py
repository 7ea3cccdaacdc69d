"""exp and tanh of vectors of float32, within some units of the last place; their largest lane, and sum."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ..lanes import Lanes, chosen, emitted, order, part, recast, splat
from ..machine.jit import inner
from ..machine.totals import total_of
from .operands import LANES

F32, I32 = types.float32, types.int32
LEAST = np.float32(-87.33654)  # below it exp is smaller than the smallest normal number: 0 here
LOG2E, HIGH, LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
ROUND = np.float32(12582912)  # 1.5 · 2**23: a number added to it is rounded to an integer
SMALL = np.float32(0.3)  # up to here a series of tanh is as good as the exponents


@inner
def exponential(x: Any) -> Any:
    """Exp of lanes that are at most 88; NaN stays NaN."""
    rounded = x * LOG2E + ROUND
    n = rounded - ROUND
    r = x - n * HIGH
    r = r - n * LOW
    y = r * np.float32(1.9875691500e-4) + np.float32(1.3981999507e-3)
    y = y * r + np.float32(8.3334519073e-3)
    y = y * r + np.float32(4.1665795894e-2)
    y = y * r + np.float32(1.6666665459e-1)
    y = y * r + np.float32(5.0000001201e-1)
    y = y * (r * r) + r
    y = y + np.float32(1)
    power = recast((recast(rounded, I32) << 23) + 0x3F800000, F32)
    return chosen(x < LEAST, splat(np.float32(0), F32, LANES), y * power)


@inner
def exponential_of(x: Any) -> Any:
    """Exp of a number, with the bits that it has in a vector."""
    return recast(part(exponential(splat(x, F32, LANES)), 0, 1), F32)


@inner
def tangent(x: Any) -> Any:
    """The hyperbolic tangent of lanes."""
    size = chosen(x < np.float32(0), -x, x)
    far = chosen(size > np.float32(20), splat(np.float32(20), F32, LANES), size)
    power = exponential(far + far)
    large = (power - np.float32(1)) / (power + np.float32(1))
    s = size * size
    y = s * np.float32(62 / 2835) - np.float32(17 / 315)
    y = y * s + np.float32(2 / 15)
    y = y * s - np.float32(1 / 3)
    y = y * s * size + size
    y = chosen(size < SMALL, y, large)
    return chosen(x < np.float32(0), -y, y)


@emitted
def largest(typingctx: Any, lanes: Any) -> Any:
    """The largest lane; one that is NaN counts only beside others that are."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value, n = args[0], lanes.n
        while n > 1:
            n //= 2
            none = ir.Constant(value.type, ir.Undefined)
            low, high = (builder.shuffle_vector(value, none, order(range(at, at + n))) for at in (0, n))
            value = builder.select(builder.fcmp_ordered(">", high, low), high, low)
        return builder.extract_element(value, ir.IntType(32)(0))

    assert isinstance(lanes, Lanes)
    return lanes.of(lanes), codegen


@emitted
def total(typingctx: Any, lanes: Any) -> Any:
    """The sum of lanes: the upper half is added to the lower until one is left."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return total_of(builder, args[0])

    return lanes.of(lanes), codegen
