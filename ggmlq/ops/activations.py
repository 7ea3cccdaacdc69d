"""Activations of gated products, on float32: ``act(gate) ∘ up``, in the memory of their arguments.

They are NumPy's and CuPy's functions alone. Each is a few passes over rows that lie in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

ALPHA, LIMIT = 1.702, 7.0  # of gpt-oss
Gate = Callable[[Any, Any, Any], Any]  # (NumPy or CuPy, gate, up): both float32, and may be overwritten


def _divided(xp: Any, gate: Any, exponent: Any, up: Any) -> Any:
    """``gate · sigmoid(-exponent) · up``; the exponent is overwritten."""
    xp.exp(exponent, out=exponent)
    exponent += np.float32(1)
    xp.divide(gate, exponent, out=gate)
    gate *= up
    return gate


def silu(xp: Any, gate: Any, up: Any) -> Any:
    """``gate · sigmoid(gate) · up``."""
    return _divided(xp, gate, -gate, up)


def gelu_tanh(xp: Any, gate: Any, up: Any) -> Any:
    """``gate · (1 + tanh(√(2/π) (gate + 0.044715 gate³))) / 2 · up``, by a sigmoid of twice that."""
    exponent = gate * gate
    exponent *= np.float32(-2 * math.sqrt(2 / math.pi) * 0.044715)
    exponent -= np.float32(2 * math.sqrt(2 / math.pi))
    exponent *= gate
    return _divided(xp, gate, exponent, up)


def relu(xp: Any, gate: Any, up: Any) -> Any:
    """``max(gate, 0) · up``."""
    xp.maximum(gate, np.float32(0), out=gate)
    gate *= up
    return gate


def swiglu_oai(xp: Any, gate: Any, up: Any) -> Any:
    """gpt-oss's clamped gate: ``(up + 1) · gate · sigmoid(1.702 · gate)``, gate up to 7, up in -7 … 7."""
    xp.minimum(gate, np.float32(LIMIT), out=gate)
    xp.clip(up, np.float32(-LIMIT), np.float32(LIMIT), out=up)
    up += np.float32(1)
    return _divided(xp, gate, gate * np.float32(-ALPHA), up)


FARTHEST = 14.0  # from here on a normal variable lies with a probability that float32 rounds to 0


@cache
def _tail() -> tuple[np.float32, ...]:
    """Coefficients, highest first, of Q in ``erfc(z) = t · exp(Q(t) - z²)``, t = 2 / (2 + z), z < 10."""
    polynomial = np.polynomial.Chebyshev.interpolate(_logarithm, 12, [2 / (2 + FARTHEST / math.sqrt(2)), 1])
    return tuple(np.float32(c) for c in polynomial.convert(kind=np.polynomial.Polynomial).coef[::-1])


def _logarithm(t: Any) -> Any:
    z = 2 / t - 2
    return np.array([math.log(math.erfc(float(n))) + float(n) ** 2 for n in z]) - np.log(t)


def gelu(xp: Any, gate: Any, up: Any) -> Any:
    """``gate · Φ(gate) · up`` with the normal distribution's Φ, by the error function."""
    size = xp.minimum(xp.abs(gate), np.float32(FARTHEST))
    z = size * np.float32(math.sqrt(0.5))
    t = np.float32(2) / (z + np.float32(2))
    first, *rest = _tail()
    q = t * first
    for coefficient in rest[:-1]:
        q += coefficient
        q *= t
    q += rest[-1]
    z *= z
    q -= z
    xp.exp(q, out=q)
    q *= t
    q *= np.float32(0.5)  # the smaller of Φ(gate) and Φ(-gate)
    q *= size
    xp.maximum(gate, np.float32(0), out=gate)
    gate -= q
    gate *= up
    return gate


ACTIVATIONS: dict[str, Gate] = {
    "silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu, "swiglu_oai": swiglu_oai,
}  # fmt: skip
