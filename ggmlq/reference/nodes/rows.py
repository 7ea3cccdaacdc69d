"""Norms, sums, means and orders of rows; softmax; gradients of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .elementwise import sigmoid
from .number import LARGEST, SPREAD, UNIT, Number, Wide, larger, quick, rounding_of_sum
from .registry import Call, Mask, Result, oracle, repeated, settled

# --- norms of rows and of groups of channels ------------------------------------------------------

EPS = "eps:f"


def normed(x: Number, axes: int | tuple[int, ...], eps: float) -> Number:
    """Values less their mean, divided by the root of their variance and epsilon."""
    mean = x.mean(axes)
    away = x - mean
    variance = (away * away).mean(axes)
    if quick():  # the mean of squares less the square of the mean, which cancels
        n = x.value.size // variance.value.size
        squares = np.mean(x.value**2, axis=axes, keepdims=True)
        variance = Number(variance.value, variance.error + (SPREAD * np.sqrt(n) + 4) * UNIT * squares)
    return away / (variance + eps).sqrt()


@oracle("NORM", sources=1, words=EPS)
def norm(c: Call) -> Result:
    """Each row less its mean, by the root of its variance."""
    return settled(normed(c.number(0), -1, c.params["eps"]), c.kind)


@oracle("RMS_NORM", sources=1, words=EPS)
def rms_norm(c: Call) -> Result:
    """Each row by the root of the mean of its squares."""
    x = c.number(0)
    return settled(x / ((x * x).mean(-1) + c.params["eps"]).sqrt(), c.kind)


@oracle("L2_NORM", sources=1, words=EPS)
def l2_norm(c: Call) -> Result:
    """Each row by its length, which counts as epsilon at least."""
    x = c.number(0)
    return settled(x / larger((x * x).sum(-1).sqrt(), c.params["eps"]), c.kind)


@oracle("GROUP_NORM", sources=1, words="groups:i eps:f", rowwise=False)
def group_norm(c: Call) -> Result:
    """Groups of channels (the third axis), each less its mean, by the root of its variance."""
    x, groups = c.number(0), int(c.params["groups"])
    channels = x.shape[1]
    size = -(-channels // groups)
    value, error = np.zeros(x.shape), np.zeros(x.shape)
    for start in range(0, channels, size):
        part = normed(x[:, start : start + size], (1, 2, 3), c.params["eps"])
        value[:, start : start + size], error[:, start : start + size] = part.value, part.error
    return settled(Number(value, error), c.kind)


@oracle("SUM", sources=1, rowwise=False)
def total(c: Call) -> Result:
    """The sum of all elements."""
    x = c.number(0)
    return settled(x.map(lambda v: v.reshape(1, 1, 1, -1)).sum(-1), c.kind)


@oracle("SUM_ROWS", "MEAN", sources=1)
def sum_rows(c: Call) -> Result:
    """The sum or mean of each row."""
    return settled(c.number(0).sum(-1) if c.op == "SUM_ROWS" else c.number(0).mean(-1), c.kind)


@oracle("CUMSUM", sources=1)
def cumsum(c: Call) -> Result:
    """The sum of each row up to each element."""
    x = c.array(0).astype(np.float64)
    value, size = np.cumsum(x, axis=-1), np.cumsum(np.abs(x), axis=-1)
    each = [rounding_of_sum(n + 1, size[..., n], value[..., n]) for n in range(x.shape[-1])]
    # Partial sums are rounded, whose sizes may be larger than that of the last.
    error = np.maximum.accumulate(np.stack(each, axis=-1), axis=-1) if each else np.zeros(x.shape)
    return settled(Number(value, error), c.kind)


@oracle("COUNT_EQUAL", rowwise=False)
def count_equal(c: Call) -> Result:
    """The number of elements that agree in two tensors of integers."""
    count = np.count_nonzero(c.array(0) == c.array(1))
    return Result(np.full((1, 1, 1, 1), count), np.zeros((1, 1, 1, 1)))


@oracle("ARGMAX", sources=1, rowwise=False)
def argmax(c: Call) -> Result:
    """The place of the largest element of each row; among equal ones, any."""
    x = c.array(0)
    rows = x.reshape(-1, x.shape[-1])
    best = rows.argmax(axis=-1)

    def accepts(y: NDArray[Any]) -> Mask:
        at = np.clip(y.reshape(-1), 0, x.shape[-1] - 1)
        right: Mask = (rows[np.arange(len(rows)), at] == rows.max(axis=-1)) & (at == y.reshape(-1))
        return right.reshape(y.shape)

    return Result(best.reshape(1, 1, 1, -1), np.zeros((1, 1, 1, len(best))), accepts=accepts)


@oracle("ARGSORT", sources=1, words="descending:i")
def argsort(c: Call) -> Result:
    """The places of each row's elements in their order; equal ones in any."""
    x = c.array(0)
    key = -x.astype(np.float64) if c.params["descending"] else x
    order = np.argsort(key, axis=-1, kind="stable")
    return Result(order, np.zeros(order.shape), accepts=_ordered(x, order))


def _ordered(x: NDArray[Any], order: NDArray[Any]) -> Callable[[NDArray[Any]], Mask]:
    """The test of an order: places that are all different, with the values that the right order has."""
    values = np.take_along_axis(x, order, axis=-1)

    def accepts(y: NDArray[Any]) -> Mask:
        inside = (y >= 0) & (y < x.shape[-1])
        picked = np.take_along_axis(x, np.where(inside, y, 0).astype(np.int64), axis=-1)
        # NaNs have no place in an order.
        fits = (picked == values) | np.isnan(x).any(axis=-1, keepdims=True)
        right: Mask = inside & fits & ~_twice(y)
        return right

    return accepts


def _twice(y: NDArray[Any]) -> Mask:
    """Places that stand in their row before."""
    order = np.argsort(y, axis=-1, kind="stable")
    ranked = np.take_along_axis(y, order, axis=-1)
    again = np.zeros(y.shape, np.bool_)
    again[..., 1:] = ranked[..., 1:] == ranked[..., :-1]
    mask = np.zeros(y.shape, np.bool_)
    np.put_along_axis(mask, order, again, axis=-1)
    return mask


@oracle("TOP_K", sources=1, rowwise=True)
def top_k(c: Call) -> Result:
    """The places of the k largest elements of each row, in any order."""
    x, k = c.array(0), c.shape[-1]
    order = np.argsort(-x.astype(np.float64), axis=-1, kind="stable")[..., :k]
    values = np.take_along_axis(x, order, axis=-1)

    def accepts(y: NDArray[Any]) -> Mask:
        inside = (y >= 0) & (y < x.shape[-1])
        picked = np.take_along_axis(x, np.where(inside, y, 0).astype(np.int64), axis=-1)
        rank = np.argsort(-picked.astype(np.float64), axis=-1, kind="stable")
        right: Mask = np.zeros(y.shape, np.bool_)
        np.put_along_axis(right, rank, np.take_along_axis(picked, rank, axis=-1) == values, axis=-1)
        right = (right | np.isnan(x).any(axis=-1, keepdims=True)) & inside & ~_twice(y)
        return right

    return Result(order, np.zeros(order.shape), accepts=accepts)


# --- SOFT_MAX with a scale, a mask, ALiBi and sinks -----------------------------------------------


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
    # Rows of nothing, or with a score beyond float32, take infinity from infinity: no result is right.
    none = ~(scores.value <= LARGEST).all(axis=-1, keepdims=True)
    if sinks is None:
        none |= np.isneginf(scores.value).all(axis=-1, keepdims=True)
    return settled(Number(result.value, np.where(none, np.inf, result.errors())), c.kind)


# --- gradients that a model's training computes ---------------------------------------------------


@oracle("SILU_BACK")
def silu_back(c: Call) -> Result:
    """The gradient of y times that of SILU at x."""
    y, x = c.number(0), c.number(1)
    s = sigmoid(x)
    return settled(y * s * (1.0 + x * (1.0 - s)), c.kind)


@oracle("RMS_NORM_BACK", words="eps:f")
def rms_norm_back(c: Call) -> Result:
    """The gradient of x, from that of its norm."""
    y, x = c.number(0), c.number(1)
    n, squares = x.shape[-1], (x * x).sum(-1)
    share = (x * y).sum(-1) / (squares + c.params["eps"] * n)
    return settled((y - x * share) / (squares / float(n) + c.params["eps"]).sqrt(), c.kind)


@oracle("SOFT_MAX_BACK", words="scale:f bias:f")
def soft_max_back(c: Call) -> Result:
    """The gradient of x, from that of its softmax y and y itself."""
    gradient, y = c.number(0), c.number(1)
    return settled((gradient - (gradient * y).sum(-1)) * y * c.params["scale"], c.kind)


@oracle("REPEAT_BACK", sources=1, rowwise=False)
def repeat_back(c: Call) -> Result:
    """Sums of all elements that came from the same one when a tensor was repeated."""
    x, shape = c.array(0).astype(np.float64), c.shape
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    small = (1,) * (4 - len(shape)) + shape
    pairs = [(n // m, m) for n, m in zip(x.shape, small, strict=True)]
    total = Number(x.reshape([n for pair in pairs for n in pair])).sum((0, 2, 4, 6))
    return settled(total.map(lambda v: v.reshape(shape)), c.kind)


@oracle("GET_ROWS_BACK", rowwise=False)
def get_rows_back(c: Call) -> Result:
    """Sums of the gradients of all rows that were taken from the same one."""
    x, ids = c.array(0).astype(np.float64), c.array(1).reshape(-1)
    x = x.reshape(-1, x.shape[-1])
    value, size = np.zeros(c.shape[-2:]), np.zeros(c.shape[-2:])
    np.add.at(value, ids, x)
    np.add.at(size, ids, np.abs(x))
    error = rounding_of_sum(int(np.bincount(ids).max(initial=1)), size, value) + UNIT * np.abs(value)
    return settled(Number(value.reshape(c.shape), error.reshape(c.shape)), c.kind)
