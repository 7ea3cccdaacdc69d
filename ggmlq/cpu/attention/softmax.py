"""The step from scores to weights: scale, cap, bias and mask, then exp below a running maximum."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ..lanes import Lanes, chosen, convert, emitted, load, order, part, ramp, recast, splat, store
from ..machine.jit import inner
from ..machine.memory import floats_at
from ..machine.simd import total_of
from .drive import LANES, LARGEST, SUM

F32, I32 = types.float32, types.int32
NONE = np.float32(-np.inf)


@inner
def biased(
    row: Any, count: int, first: int, low: int, high: int, place: int, scale: Any, cap: Any, slope: Any,
    mask: int,
) -> Any:  # fmt: skip
    """Turn products at positions ``first`` … into scores, in place; the result is the largest.

    A position outside of ``low`` … ``high`` is hidden. ``place``: the query's position, for a slope without a
    mask. ``mask``: address of the query's row, or 0.
    """
    peak = splat(NONE, F32, LANES)
    for i in range(0, count, LANES):
        s = load(row, i, LANES) * scale
        if cap != np.float32(0):
            s = tangent(s / cap) * cap
        if mask:
            s = s + load(floats_at(mask + 4 * first, 1, count)[0], i, LANES) * slope
        elif slope != np.float32(0):
            s = s + convert(ramp(I32, LANES, 1) + np.int32(first + i - place), F32) * slope
        if first + i < low or first + i + LANES > high:
            at = ramp(I32, LANES, 1) + np.int32(first + i)
            seen = (at >= np.int32(low)) & (at < np.int32(high))
            s = chosen(seen, s, splat(NONE, F32, LANES))
        store(row, i, s)
        peak = chosen(s > peak, s, peak)
    return largest(peak)


@inner
def weights(row: Any, count: int, top: Any, result: Any, more: int) -> None:
    """Turn scores into weights, in place, and scale the result so far to the new maximum.

    Numbers ``more`` … of ``result`` are the largest score so far and the sum of weights.
    """
    before = result[more + LARGEST]
    peak = top if top > before else before
    sums = splat(np.float32(0), F32, LANES)
    if peak == NONE:  # nothing is seen so far, unless it is NaN
        for i in range(0, count, LANES):
            s = load(row, i, LANES)
            s = chosen(s == NONE, splat(np.float32(0), F32, LANES), s)
            store(row, i, s)
            sums = sums + s
        result[more + SUM] += total(sums)
        return
    if peak > before:
        factor = exponential_of(before - peak)
        for i in range(0, more, LANES):
            store(result, i, load(result, i, LANES) * factor)
        result[more + LARGEST] = peak
        result[more + SUM] *= factor
    for i in range(0, count, LANES):
        w = exponential(load(row, i, LANES) - peak)
        store(row, i, w)
        sums = sums + w
    result[more + SUM] += total(sums)


@inner
def merge(into: Any, part: Any, more: int) -> None:
    """Add the result of a stretch of positions to that of those before it."""
    before, this = into[more + LARGEST], part[more + LARGEST]
    if this == NONE:
        into[more + SUM] += part[more + SUM]
        return
    peak = this if this > before else before
    old, new = exponential_of(before - peak), exponential_of(this - peak)
    for i in range(0, more, LANES):
        store(into, i, load(into, i, LANES) * old + load(part, i, LANES) * new)
    into[more + LARGEST] = peak
    into[more + SUM] = into[more + SUM] * old + part[more + SUM] * new


@inner
def finish(result: Any, more: int, sink: Any, out: Any) -> None:
    """Divide by the sum of weights, that of a sink among them; zeros where nothing was seen."""
    top, weight = result[more + LARGEST], result[more + SUM]
    factor = np.float32(1)
    peak = sink if sink > top else top
    if peak != NONE:
        factor = exponential_of(top - peak)
        weight = weight * factor + exponential_of(sink - peak)
    if weight == np.float32(0):
        factor, weight = np.float32(0), np.float32(1)
    for i in range(len(out)):
        out[i] = result[i] * factor / weight


# --- exp and tanh of vectors of float32, within some units of the last place; their largest lane, and sum

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
