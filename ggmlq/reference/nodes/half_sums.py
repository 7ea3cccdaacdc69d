"""Weights times values, where a program adds them up in halves.

``running`` follows llama.cpp's CPU code position by position: each step is rounded to a half. Both ends of
the interval in which a right sum may lie are rounded, so they stay together until a value comes so near to
the middle of two halves that float32 errors decide; then they part by one half. ``in_tiles`` does not know
the order of sums of tensor cores and bounds their roundings as random ones.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .number import SMALLEST_HALF, SPREAD, UNIT, Number, Wide, half_step

POWER = 2 * UNIT  # error of a float32 exponential, relative
DEEP = 8  # products that a tensor core adds, at least, before it rounds to a half
TILE = 32  # positions, at least, after which a sum is scaled to a new largest score
RAISED = 3 * 0.6931  # what the largest score is raised by, so that sums of halves do not overflow


class Stretch(NamedTuple):
    """The state after some positions: largest score, sum of weights, and the interval of weighted values."""

    top: Wide  # [B, R, 1]
    off: Wide  # how far a program's largest score may be from it
    total: Wide  # [B, R, 1]
    unsure: Wide  # the error of the total
    low: Wide  # [B, R, D]
    high: Wide


def running(scores: Number, v: Wide, sinks: Wide | None, parts: int, lanes: int = 0) -> Number:
    """Attention of scores [B, R, n] to values [B, n, D], [B, R, D]; ``parts`` of them are added apart.

    ``sinks`` [B, R, 1] are scores that only count below. Values are halves, and so is their sum. In whole
    groups of ``lanes`` columns weights are halves too, and a product is added with one rounding.
    """
    n, width = v.shape[-2:]
    fused = np.arange(width) < (width // lanes * lanes if lanes else 0)
    step = -(-n // parts)
    stretches = [
        _stretch(scores[..., start : start + step], v[..., start : start + step, :], fused)
        for start in range(0, n, step)
    ]
    top = np.max([one.top for one in stretches], axis=0)
    if sinks is not None:
        top = np.maximum(top, sinks)
    merges = len(stretches) + 1
    total, value = Number(np.zeros(top.shape)), Number(np.zeros(stretches[0].low.shape))
    for one in stretches:
        seen = np.isfinite(one.top)
        lost = np.where(seen, one.top - top, 0.0)
        factor = Number(np.where(seen, np.exp(lost), 0.0))
        factor = Number(
            factor.value, factor.value * (one.off + UNIT * merges * np.abs(lost) + merges * POWER)
        )
        total = total + Number(one.total, one.unsure) * factor
        middle = (one.low + one.high) / 2
        value = value + Number(middle, (one.high - one.low) / 2) * factor
    if sinks is not None:
        lost = sinks - top
        total = total + Number(np.exp(lost), np.exp(lost) * (UNIT * np.abs(lost) + POWER))
    return value / total


def _stretch(scores: Number, v: Wide, fused: NDArray[np.bool_]) -> Stretch:
    """All positions of a stretch, one after the other; ``fused`` columns are added in lanes of halves."""
    shape = scores.shape[:-1]
    top, off = np.full((*shape, 1), -np.inf), np.zeros((*shape, 1))
    total, unsure = np.zeros((*shape, 1)), np.zeros((*shape, 1))
    low = np.zeros((*shape, v.shape[-1]))
    high = np.zeros(low.shape)
    errors = scores.errors()
    for i in range(v.shape[-2]):
        s, e = scores.value[..., i, None], errors[..., i, None]
        seen = s != -np.inf
        if not seen.any():
            continue
        first = top == -np.inf
        gap = np.where(first | ~seen, 0.0, s - top)
        slack = np.where(first, 0.0, e + off)
        sure = first | (np.abs(gap) > slack)
        rises = first | (gap > 0)
        power = np.exp(-np.abs(gap))
        relative = slack + UNIT * np.abs(gap) + POWER
        least, most = power * (1 - relative), np.minimum(power * (1 + relative), 1.0)
        fresh = seen & rises & sure  # the largest so far: its weight is 1, and the others shrink
        shrink = (np.where(seen & ~(~rises & sure), least, 1.0), np.where(fresh, most, 1.0))
        weight = (np.where(fresh, 1.0, least) * seen, np.where(fresh, 1.0, np.where(sure, most, 1.0)) * seen)
        if fused.any():
            shrink, weight = ((_or_half(a, fused), _or_half(b, fused)) for a, b in (shrink, weight))
        if (shrink[0] < 1).any():
            low, high = _half(_times(low, shrink)[0], fused), _half(_times(high, shrink)[1], fused)
        low, high = _added(low, high, v[..., None, i, :], weight, fresh, fused)
        grown = np.where(seen & rises & ~first, power, 1.0)
        added = np.where(seen, np.where(rises, 1.0, power), 0.0)
        total = total * grown + added
        unsure = unsure * grown + np.where(seen, np.maximum(total, added) * UNIT + added * relative, 0.0)
        unsure = unsure + np.where(seen & rises, (total - added) * (relative + UNIT), 0.0)
        off = np.where(fresh, e, np.where(seen & ~sure, np.maximum(off, e), off))
        top = np.where(seen, np.maximum(top, s), top)
    return Stretch(top, off, total, unsure, low, high)


def _added(
    low: Wide, high: Wide, v: Wide, weight: tuple[Wide, Wide], exact: Any, fused: NDArray[np.bool_]
) -> tuple[Wide, Wide]:
    """The interval with a weighted value added; a product is rounded but by a weight of 1 or if fused."""
    ends = _times(v, weight)
    loss = [np.where(exact | fused, 0.0, UNIT * np.abs(end)) for end in ends]
    return _half(low + ends[0] - loss[0], fused), _half(high + ends[1] + loss[1], fused)


def _times(x: Wide, factor: tuple[Wide, Wide]) -> tuple[Wide, Wide]:
    """The least and the largest of x times a factor that is not negative."""
    return x * np.where(x >= 0, factor[0], factor[1]), x * np.where(x >= 0, factor[1], factor[0])


def _half(x: Wide, fused: NDArray[np.bool_]) -> Wide:
    """Numbers rounded to float32, then to a half, as a program stores a register; fused ones at once."""
    wide: Wide = x.astype(np.float32).astype(np.float16).astype(np.float64)
    return _or_half(x, fused, wide) if fused.any() else wide


def _or_half(x: Wide, fused: NDArray[np.bool_], others: Wide | None = None) -> Wide:
    """Numbers for each column: rounded to a half where it is fused."""
    return np.where(fused, x.astype(np.float16).astype(np.float64), x if others is None else others)


def in_tiles(scores: Number, v: Number, sinks: Wide | None) -> Number:
    """Attention of scores [R, n] to values [n, D] on tensor cores: weights and the sum are halves.

    Roundings of halves are independent of each other. Partial sums of terms t of random signs reach
    |value| + 2·sqrt(Σt²); r roundings of them are r at most, and 2·sqrt(r) are more than four of their
    standard deviations.
    """
    n = v.shape[0]
    top = scores.value.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks)
    lost = np.where(np.isneginf(scores.value), -np.inf, scores.value - top - RAISED)
    error = np.where(np.isneginf(lost), 0.0, scores.errors() + UNIT * np.abs(lost))
    weights = Number(lost, error).exp()
    total = weights.sum(-1)
    if sinks is not None:
        total = total + Number(sinks - top - RAISED, UNIT * np.abs(sinks - top)).exp()
    value = weights.value @ v.value
    sizes = np.abs(v.value)
    squares = weights.value**2 @ v.value**2
    roundings = math.ceil(n / DEEP) + math.ceil(n / TILE) + 4
    partial = half_step(np.abs(value) + 2 * np.sqrt(squares))
    off = weights.errors() @ sizes + weights.value @ v.errors()
    off = off + SPREAD * np.sqrt(half_step(weights.value) ** 2 @ v.value**2)
    off = off + min(roundings, 2 * math.sqrt(roundings)) * partial
    smallest = SMALLEST_HALF * (n / 8) * sizes.max(axis=0, initial=0.0)  # factors that are smallest halves
    return Number(value, off + smallest) / total
