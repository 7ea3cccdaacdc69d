"""SOFT_MAX of rows, with a scale, a mask, ALiBi and sinks."""

from __future__ import annotations

import numpy as np

from .number import UNIT, Number, Wide
from .registry import Call, oracle, repeated
from .result import Result, settled


def slopes(heads: int, most: float) -> Wide:
    """The slope of each head under ALiBi; ones without a bias."""
    if not most:
        return np.ones(heads)
    low = 1 << (heads.bit_length() - 1)
    first, second = 2.0 ** (-most / low), 2.0 ** (-most / 2 / low)
    return np.array([first ** (h + 1) if h < low else second ** (2 * (h - low) + 1) for h in range(heads)])


def weights(scores: Number, sinks: Wide | None) -> Number:
    """Softmax along the last axis; ``sinks`` [heads, 1, 1] are scores of nothing, which only count below."""
    above, below = powers(scores, sinks)
    return above / below


def powers(scores: Number, sinks: Wide | None) -> tuple[Number, Number]:
    """Exponentials of scores less the largest, and their sum along the last axis."""
    largest = scores.value.max(axis=-1, keepdims=True)
    if sinks is not None:
        largest = np.maximum(largest, sinks)
    # What is subtracted cancels, so its error does not count: only the rounding of the difference does.
    each = _minus(scores, largest).exp()
    total = each.sum(-1)
    if sinks is not None:
        total = total + _minus(Number(np.broadcast_to(sinks, largest.shape)), largest).exp()
    return each, total


def _minus(scores: Number, largest: Wide) -> Number:
    value = scores.value - largest
    error = np.where(np.isneginf(value), 0.0, scores.error + UNIT * np.abs(value))
    return Number(value, error)


@oracle("SOFT_MAX", sources=3, words="scale:f bias:f", rowwise=False)
def soft_max(c: Call) -> Result:
    """Exponentials of scale·x + slope·mask, by their row's sum and its head's sink."""
    x = c.number(0)
    heads, rows = x.shape[-3:-1]
    scores = x * c.params["scale"] if c.params["scale"] != 1 else x
    if c.has(1):
        mask = c.number(1).value
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)[:, :, :rows]
        slope = slopes(heads, c.params.get("bias", 0.0))[:, None, None]
        biases = Number(repeated(mask, x.shape))
        if c.params.get("bias"):
            power = 8 * UNIT * np.abs(slope)  # of a power in float32
            biases = biases * Number(slope, power)
        scores = scores + Number(biases.value, np.where(np.isinf(biases.value), 0.0, biases.error))
        scores = Number(scores.value, np.where(np.isinf(scores.value), 0.0, scores.error))
    sinks = c.array(2).astype(np.float64).reshape(-1, 1, 1) if c.has(2) else None
    result = weights(scores, sinks)
    nothing = np.isneginf(scores.value).all(axis=-1, keepdims=True)  # such a row has no right result
    return settled(Number(result.value, np.where(nothing, np.inf, result.errors())), c.kind)
