"""The step from scores to weights: scale, cap, bias and mask, then exp below a running maximum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ..lanes import chosen, convert, load, ramp, splat, store
from ..machine.jit import inner
from ..machine.memory import floats_at
from .exponent import exponential, exponential_of, largest, tangent, total
from .operands import LANES, LARGEST, SUM

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
