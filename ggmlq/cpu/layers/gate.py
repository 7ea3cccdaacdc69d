"""The kernels of gates: act(gate) · up, for silu, sigmoid, gelu by a tangent, and the clipped swiglu."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from ..attention.softmax import exponential, exponential_of, tangent
from ..lanes import chosen, load, splat, store
from ..machine.jit import inner, jit
from ..machine.memory import floats_at, reader
from .call import Gate, Share

F32 = types.float32
LANES = 16
FAR = np.float32(88)  # exp is infinite from 88.7 on, and its vector form knows none
ROOT, CUBE = np.float32(0.79788456080286535587989211986876), np.float32(0.044715)
SEVEN, STEEP = np.float32(7), np.float32(-1.702)
arguments_of, share_of = reader(Gate), reader(Share)


@inner
def divisor(power: Any) -> Any:
    """1 + exp of lanes."""
    far = splat(FAR, F32, LANES)
    return exponential(chosen(power > FAR, far, power)) + np.float32(1)


@inner
def _silu(gate: Any, up: Any) -> Any:
    return gate / divisor(gate * np.float32(-1)) * up


@inner
def _sigmoid(gate: Any, up: Any) -> Any:
    return up / divisor(gate * np.float32(-1))


@inner
def _gelu(gate: Any, up: Any) -> Any:
    inside = gate * ROOT * (gate * gate * CUBE + np.float32(1))
    return gate * np.float32(0.5) * (tangent(inside) + np.float32(1)) * up


@inner
def _swiglu_oai(gate: Any, up: Any) -> Any:
    seven, less = splat(SEVEN, F32, LANES), splat(-SEVEN, F32, LANES)
    gate = chosen(gate > SEVEN, seven, gate)
    up = chosen(up > SEVEN, seven, chosen(up < -SEVEN, less, up))
    return gate / divisor(gate * STEEP) * (up + np.float32(1))


ACTIVATIONS = {"silu": _silu, "sigmoid": _sigmoid, "gelu": _gelu, "swiglu_oai": _swiglu_oai}


@cache
def gated(activation: str) -> Any:
    """Compiled: parts ``first`` … ``stop`` of the rows of ``Gate``, each of so many columns."""
    act = ACTIVATIONS[activation]

    def work(arguments: int, first: int, stop: int) -> None:
        f = arguments_of(arguments)
        parts = (f.width + f.grain - 1) // f.grain
        last = np.empty((3, LANES), np.float32)
        for number in range(first, stop):
            r, start = number // parts, number % parts * f.grain
            end = min(start + f.grain, f.width)
            gate = floats_at(f.gate + 4 * r * f.gate_pitch, 1, f.width)[0]
            up = floats_at(f.up + 4 * r * f.up_pitch, 1, f.width)[0]
            out = floats_at(f.out + 4 * r * f.width, 1, f.width)[0]
            whole = end - (end - start) % LANES
            for i in range(start, whole, LANES):
                store(out, i, act(load(gate, i, LANES), load(up, i, LANES)))
            if whole < end:
                for i in range(LANES):
                    there = whole + i < end
                    last[0, i] = gate[whole + i] if there else np.float32(0)
                    last[1, i] = up[whole + i] if there else np.float32(0)
                store(last[2], 0, act(load(last[0], 0, LANES), load(last[1], 0, LANES)))
                for i in range(end - whole):
                    out[whole + i] = last[2, i]

    return jit(work)


@cache
def shared() -> Any:
    """Compiled: rows ``first`` … ``stop`` of ``Share``."""

    def work(arguments: int, first: int, stop: int) -> None:
        f = share_of(arguments)
        for r in range(first, stop):
            power = -floats_at(f.gate + 4 * r, 1, 1)[0, 0]
            share = np.float32(1) / (exponential_of(FAR if power > FAR else power) + np.float32(1))
            x = floats_at(f.x + 4 * r * f.width, 1, f.width)[0]
            y = floats_at(f.y + 4 * r * f.width, 1, f.width)[0]
            out = floats_at(f.out + 4 * r * f.width, 1, f.width)[0]
            for i in range(f.width):
                out[i] = x[i] + y[i] * share

    return jit(work)
