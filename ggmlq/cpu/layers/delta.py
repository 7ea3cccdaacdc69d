"""The kernel of the gated delta rule: one head of values, all tokens, from its state to its gated results.

Rows of the state, one for each column of values, go by themselves: a row forgets, gives what the key had,
takes a share of what is new in its place, and gives its product with the query. Queries and keys are made of
length 1 on the way, and what a token reads gets the head's norm and its gate.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from ..attention.softmax import exponential_of, total
from ..lanes import load, splat, store
from ..machine.intrinsics import from_bits, root
from ..machine.jit import inner, jit
from ..machine.memory import floats_at, reader
from .gate import FAR, divisor
from .states import LANES, Delta

F32 = types.float32
ONE, LARGE, SMALL = np.float32(1), np.float32(20), np.float32(-12)
STEPS = 4  # of Newton's method, which doubles right digits
arguments_of = reader(Delta)


@inner
def _exp(x: Any) -> Any:
    return exponential_of(FAR if x > FAR else x)


@inner
def softplus(x: Any) -> Any:
    """log(1 + exp(x)), the zero of exp(y) - 1 - exp(x)."""
    if not x <= LARGE:  # NaN, too
        return x
    power = _exp(x)
    if x < SMALL:
        return power
    y = (x if x > np.float32(0) else np.float32(0)) + np.float32(0.35)
    for _ in range(STEPS):
        y = y - ONE + (ONE + power) * exponential_of(-y)
    return y


@inner
def _normed(x: Any, epsilon: Any, length: Any, to: Any) -> None:
    """A head divided by the root of its mean square, times a length."""
    sums = splat(np.float32(0), F32, LANES)
    for i in range(0, len(x), LANES):
        part = load(x, i, LANES)
        sums = sums + part * part
    factor = ONE / root(total(sums) / np.float32(len(x)) + epsilon) * length
    for i in range(0, len(x), LANES):
        store(to, i, load(x, i, LANES) * factor)


@inner
def _row(state: Any, to: Any, key: Any, query: Any, stays: Any, value: Any, share: Any) -> Any:
    """One row of the state behind a token, and what the query reads from it."""
    had, reads = splat(np.float32(0), F32, LANES), splat(np.float32(0), F32, LANES)
    for i in range(0, len(key), LANES):
        had = had + load(state, i, LANES) * stays * load(key, i, LANES)
    new = (value - total(had)) * share
    for i in range(0, len(key), LANES):
        row = load(state, i, LANES) * stays + load(key, i, LANES) * new
        store(to, i, row)
        reads = reads + row * load(query, i, LANES)
    return total(reads)


@cache
def ruled() -> Any:
    """Compiled: heads ``first`` … ``stop`` of ``Delta``."""

    def work(arguments: int, first: int, stop: int) -> None:
        f = arguments_of(arguments)
        width, epsilon = f.width, from_bits(f.epsilon)
        size = np.float32(width)
        length = ONE / root(size)
        query, key, result = (
            np.empty(width, np.float32),
            np.empty(width, np.float32),
            np.empty(width, np.float32),
        )
        bias, decay = floats_at(f.bias, 1, f.heads)[0], floats_at(f.decay, 1, f.heads)[0]
        weights = floats_at(f.norm, 1, width)[0]
        for head in range(first, stop):
            group = head % f.groups if f.turns else head // (f.heads // f.groups)
            place = head // f.run * 2 * f.run + head % f.run
            square = 4 * head * width * width
            to = floats_at(f.behind + square, width, width)
            state = floats_at(f.before + square, width, width)
            for t in range(f.tokens):
                row = f.mixed + 4 * t * f.pitch
                q, k = row + 4 * group * width, row + 4 * (f.groups + group) * width
                _normed(floats_at(q, 1, width)[0], epsilon / size, length * length, query)
                _normed(floats_at(k, 1, width)[0], epsilon / size, length, key)
                value = floats_at(row + 4 * (2 * f.groups + head) * width, 1, width)[0]
                speed = floats_at(f.speed + 4 * (t * f.speed_pitch + place), 1, 1)[0, 0]
                share = floats_at(f.share + 4 * (t * f.share_pitch + place), 1, 1)[0, 0]
                share = ONE / (ONE + _exp(-share))
                stays = _exp(softplus(speed + bias[head]) * decay[head])
                for j in range(width):
                    result[j] = _row(state[j], to[j], key, query, stays, value[j], share)
                state = to
                _normed(result, epsilon, ONE, result)
                z = floats_at(f.z + 4 * (t * f.z_pitch + head * width), 1, width)[0]
                out = floats_at(f.out + 4 * ((t * f.heads + head) * width), 1, width)[0]
                for i in range(0, width, LANES):
                    gate = load(z, i, LANES)
                    silu = gate / divisor(gate * np.float32(-1))
                    store(out, i, load(result, i, LANES) * load(weights, i, LANES) * silu)

    return jit(work)
