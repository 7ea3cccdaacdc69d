"""Sums, means and orders of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .number import Number, rounding_of_sum
from .registry import Call, oracle
from .result import Mask, Result, settled


@oracle("SUM", sources=1, rowwise=False)
def total(c: Call) -> Result:
    """The sum of all elements."""
    x = c.number(0)
    return settled(x.map(lambda v: v.reshape(1, 1, 1, -1)).sum(-1), c.kind)


@oracle("SUM_ROWS", sources=1)
def sum_rows(c: Call) -> Result:
    """The sum of each row."""
    return settled(c.number(0).sum(-1), c.kind)


@oracle("MEAN", sources=1)
def mean(c: Call) -> Result:
    """The mean of each row."""
    return settled(c.number(0).mean(-1), c.kind)


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
