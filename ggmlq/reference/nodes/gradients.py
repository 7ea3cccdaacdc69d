"""Gradients that a model's training computes: of norms, softmax, rows and repeated tensors."""

from __future__ import annotations

import numpy as np

from .activations import sigmoid
from .number import UNIT, Number, rounding_of_sum
from .registry import Call, oracle
from .result import Result, settled


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
