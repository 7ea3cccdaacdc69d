"""The product of an oracle for all block formats and arithmetics: Σ scale·code·activation - Σ offset·sum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from . import half_lanes
from .identity import Planar, product, times
from .operands import Activations, Weights, Wide, decoded
from .rules import Rule
from .runs import by_run


def multiply(w: Weights, a: Activations, rule: Rule) -> Wide:
    """``a [M, K] @ w [N, K].T`` in float64.

    The products of codes are exact, and so is a code times its scale; what a program rounds on
    purpose (scales, sums, products of scales, integer sums) is rounded where it does so.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # damaged and overflowing scales are data
        if w.values is not None:
            together = half_lanes.product if rule.half_lanes else times
            return together(decoded(a), w.values)
        if rule.half_products:
            return _half_products(w, a, rule)
        if rule.truncate and a.codes is not None:
            return _truncated(w, a, rule.truncate)
        assert w.codes is not None
        assert w.scale is not None
        scaled = (by_run(w.codes, w.group) * w.scale[..., None]).reshape(w.codes.shape)
        sums = None if w.offset is None else block_sums(a, w.group, rule)
        return product(Planar(decoded(a), None, sums), Planar(scaled, w.offset, None))


def block_sums(a: Activations, group: int, rule: Rule) -> Wide:
    """The factors of the offsets [M, K // group]: stored block sums, or the sums of the codes."""
    if rule.sums == "kept" and a.sums is not None:
        values = a.codes if a.codes is not None else a.values
        assert values is not None
        if a.sums.shape[1] * group == values.shape[1]:
            return a.sums
    sums: Wide = by_run(decoded(a), group).sum(axis=-1)
    return sums


def _half_products(w: Weights, a: Activations, rule: Rule) -> Wide:
    """Block by block: scale times scale, and offset times sum, are halves."""
    assert w.scale is not None
    assert w.offset is not None
    sums = block_sums(a, w.group, rule)
    y = np.zeros((len(sums), len(w.scale)))
    for g, dot, scale in dots(w, a):
        y += _half(scale[:, None] * w.scale[:, g]) * dot
        y -= _half(sums[:, g, None] * w.offset[:, g])
    return y


def _half(products: Wide) -> NDArray[np.float16]:
    return products.astype(np.float16)  # exact in float64 and in float32: rounded once


def _truncated(w: Weights, a: Activations, divisor: int) -> Wide:
    """Runs of 32: unit * trunc((Σ s·dot + trunc(Σ dot / 2)) / divisor), in integers.

    Scales are unit * (s + 1/2) / divisor; a run has one group or two.
    """
    assert w.scale is not None
    assert w.unit is not None
    with np.errstate(divide="ignore"):
        s = np.rint(np.where(w.unit == 0, 0, w.scale * divisor / w.unit - 0.5))
    y = np.zeros((len(decoded(a)), len(s)))
    per_run = 32 // w.group
    steps = np.zeros_like(y)
    halves = np.zeros_like(y)
    for g, dot, scale in dots(w, a):
        steps += s[:, g] * dot
        halves += dot
        if (g + 1) % per_run == 0:
            y += scale[:, None] * w.unit[:, g] * np.trunc((steps + np.trunc(halves / 2)) / divisor)
            steps[:], halves[:] = 0, 0
    return y


def dots(w: Weights, a: Activations) -> Iterator[tuple[int, NDArray[np.float32], Wide]]:
    """For each group: its index, the integer dots [M, N], and the scales of the activations [M]."""
    assert w.codes is not None
    assert a.codes is not None
    assert a.scale is not None
    for g in range(w.codes.shape[1] // w.group):
        at = slice(g * w.group, (g + 1) * w.group)
        # float32 holds these integers: at most 256 products of two bytes
        dot = a.codes[:, at].astype(np.float32) @ w.codes[:, at].astype(np.float32).T
        yield g, dot, a.scale[:, g * w.group // a.run]
