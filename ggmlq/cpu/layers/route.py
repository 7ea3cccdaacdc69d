"""The kernel that chooses the experts of each token by their shares, and weighs them.

The largest shares come one after the other, of equal ones the expert of the lower number, and last those that
are no numbers: ids are experts whatever the scores are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from ..attention.softmax import exponential, largest, total
from ..lanes import chosen, load, splat, store
from ..machine.intrinsics import from_bits
from ..machine.jit import inner, jit
from ..machine.memory import floats_at, reader, words_at
from .call import Route

F32 = types.float32
LANES = 16
FAR = np.float32(88)  # exp is infinite from 88.7 on, and its vector form knows none
LEAST_SUM = np.float32(2.0**-14)  # of shares that are divided by it
NONE = np.float32(-np.inf)
arguments_of = reader(Route)


@inner
def softmax(row: Any) -> None:
    """Numbers as shares of 1, in place; their count is a multiple of the lanes."""
    peaks, sums = splat(NONE, F32, LANES), splat(np.float32(0), F32, LANES)
    for i in range(0, len(row), LANES):
        x = load(row, i, LANES)
        peaks = chosen(x > peaks, x, peaks)
    peak = largest(peaks)
    for i in range(0, len(row), LANES):
        x = exponential(load(row, i, LANES) - peak)
        sums = sums + x
        store(row, i, x)
    whole = total(sums)
    for i in range(0, len(row), LANES):
        store(row, i, load(row, i, LANES) / whole)


@inner
def sigmoid(row: Any) -> None:
    """1 / (1 + exp(-x)) of each number, in place."""
    one, far = splat(np.float32(1), F32, LANES), splat(FAR, F32, LANES)
    for i in range(0, len(row), LANES):
        power = load(row, i, LANES) * np.float32(-1)
        store(row, i, one / (exponential(chosen(power > FAR, far, power)) + np.float32(1)))


@inner
def best(scores: Any, free: Any) -> int:
    """The number of the largest score that is free; it is taken from then on."""
    place = -1
    for i in range(len(scores)):
        if free[i]:
            first = place < 0 or scores[i] > scores[place]
            if first or (scores[place] != scores[place] and scores[i] == scores[i]):
                place = i
    free[place] = False
    return place


@inner
def keep_groups(scores: Any, groups: int, used: int, free: Any) -> None:
    """Scores of all but the best groups become the least; a group has the sum of its two largest scores."""
    each = len(scores) // groups
    sums, left = np.empty(groups, np.float32), np.ones(groups, np.bool_)
    for g in range(groups):
        part, inside = scores[g * each : (g + 1) * each], free[:each]
        inside[:] = True
        sums[g] = part[best(part, inside)]
        if each > 1:
            sums[g] += part[best(part, inside)]
    for _ in range(used):
        best(sums, left)
    for i in range(len(scores)):
        if left[i // each]:
            scores[i] = NONE


@inner
def weigh(weights: Any, shares: Any, ids: Any, after: int, of_one: int, scale: Any) -> None:
    """The weights of the experts chosen, from all shares."""
    used = len(ids)
    if after:
        row = np.full((used + LANES - 1) // LANES * LANES, NONE, np.float32)
        for u in range(used):
            row[u] = shares[ids[u]]
        softmax(row)
        for u in range(used):
            weights[u] = row[u]
        return
    divisor = np.float32(0)
    for u in range(used):
        divisor += shares[ids[u]]
    divisor = max(divisor, LEAST_SUM) if of_one else np.float32(1)
    for u in range(used):
        weights[u] = shares[ids[u]] / divisor * scale


@cache
def routed() -> Any:
    """Compiled: tokens ``first`` … ``stop`` of ``Route``."""

    def work(arguments: int, first: int, stop: int) -> None:
        f = arguments_of(arguments)
        count = f.experts
        shares = np.empty((count + LANES - 1) // LANES * LANES, np.float32)
        scores, free = np.empty(count, np.float32), np.empty(count, np.bool_)
        for token in range(first, stop):
            logits = floats_at(f.logits + 4 * token * count, 1, count)[0]
            ids = words_at(f.ids + 8 * token * f.used, f.used)
            weights = floats_at(f.weights + 4 * token * f.used, 1, f.used)[0]
            shares[:] = NONE
            for i in range(count):
                shares[i] = logits[i]
            if f.sigmoid:
                sigmoid(shares)
            elif not f.after:
                softmax(shares)
            for i in range(count):
                scores[i] = shares[i]
            if f.bias:
                bias = floats_at(f.bias, 1, count)[0]
                for i in range(count):
                    scores[i] += bias[i]
            if f.groups > 1:
                keep_groups(scores, f.groups, f.used_groups, free)
            free[:] = True
            for u in range(f.used):
                ids[u] = best(scores, free)
            weigh(weights, shares, ids, f.after, f.of_one, from_bits(f.scale))

    return jit(work)
