"""Norms of rows and of groups of channels."""

from __future__ import annotations

import numpy as np

from .number import SPREAD, UNIT, Number, larger, quick
from .registry import Call, oracle
from .result import Result, settled

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
