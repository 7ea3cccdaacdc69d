"""Turning of queries and keys by their positions: pairs of columns, each by an angle of its own.

The angle of pair i at position p is ``p · base^(-2i / dims)``, divided by the pair's factor where the file
has some. A stretched context multiplies it by a scale; YaRN leaves fast pairs as they were trained.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .config import Rope


class Turns(NamedTuple):
    """The turns of some positions: cosine and sine [T, dims / 2].

    ``neox``: pairs are half of them apart; otherwise neighbours.
    """

    neox: bool
    cos: Any
    sin: Any


def turns(
    rope: Rope, positions: NDArray[np.int64], factors: Any = None, steps: bool = False
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Cosine and sine [T, dims / 2], in float64.

    ``steps``: as ggml computes them, in float32, each angle from the one before it.
    """
    real: Any = np.float32 if steps else np.float64
    pairs = rope.dims // 2
    ratio = real(rope.base) ** real(-2.0 / rope.dims)
    if steps:
        away: Any = np.empty((pairs, len(positions)), real)
        angle: Any = positions.astype(real)
        for i in range(pairs):
            away[i] = angle
            angle = angle * ratio
        away = away.T
    else:
        away = positions[:, None] * ratio ** np.arange(pairs)
    if factors is not None:
        away = away / np.asarray(factors, real)
    angle, length = away * real(rope.scale), rope.length
    if rope.mix:
        share = (_slow_pairs(rope, pairs) * rope.mix).astype(real)
        angle = angle * (1 - share) + away * share
        length *= 1 + 0.1 * math.log(1 / rope.scale)
    angle = angle.astype(np.float64)
    return np.cos(angle) * real(length), np.sin(angle) * real(length)


def _slow_pairs(rope: Rope, pairs: int) -> NDArray[np.float64]:
    """The share of the trained angle for each pair: 1 for fast ones, 0 for slow ones, a ramp between."""

    def pair_of(turns_within: float) -> float:
        return rope.dims * math.log(rope.context / (turns_within * 2 * math.pi)) / (2 * math.log(rope.base))

    low = max(0.0, math.floor(pair_of(rope.fast)))
    high = min(rope.dims - 1.0, math.ceil(pair_of(rope.slow)))
    ramp = (np.arange(pairs) - low) / max(0.001, high - low)
    share: NDArray[np.float64] = 1 - np.clip(ramp, 0, 1)
    return share


def turned(x: NDArray[Any], rope: Rope, cos: NDArray[Any], sin: NDArray[Any]) -> NDArray[Any]:
    """Heads [T, H, D] turned; columns beyond ``rope.dims`` stay."""
    pairs = rope.dims // 2
    if rope.neox:
        first, second = slice(0, pairs), slice(pairs, rope.dims)
    else:
        first, second = slice(0, rope.dims, 2), slice(1, rope.dims, 2)
    cos, sin = (part[:, None, :].astype(x.dtype) for part in (cos, sin))
    a, b = x[..., first], x[..., second]
    y = x.copy()
    y[..., first] = a * cos - b * sin
    y[..., second] = a * sin + b * cos
    return y
