"""The product of an oracle for all block formats and arithmetics: Σ scale·code·activation - Σ offset·sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .operands import Activations, Weights, Wide, by_run, decoded, rounded
from .rules import Rule

# --- the product that oracles share: operands are scales times codes less zero points -------------
#
# Σ Sa(qa - Za) · Sb(qb - Zb)  =  Sa·Sb·(Σ qa·qb - Za·Σ qb - Zb·Σ qa + n·Za·Zb)
#
# With a scale S for each group of codes, and the offset O = S·Z (of a block format, or of a zero point), it
# reads
#
# Σ a·b  =  Σ (Sa·qa)·(Sb·qb)  -  Oa·Σ Sb·qb  -  Ob·Σ Sa·qa  +  n·Oa·Ob
#
# So each offset is multiplied with a sum of the *other* operand: -8·s of q4_0, the minima of K types, the
# zero point of INT8 activations. Block formats and scaled arrays both come here.

SMALL = 1 << 23  # terms of a product


class Planar(NamedTuple):
    """An operand as scaled codes, offsets of groups, and sums of groups."""

    scaled: Wide  # [rows, K]: codes times their scale
    offset: Wide | None  # [rows, groups]: scale times zero point
    sums: Wide | None  # [rows, groups]: of ``scaled``, or what a program takes for them


def times(a: Wide, b: Wide) -> Wide:
    """``a @ b.T``; small products without BLAS, whose threads would have to wait on a busy machine."""
    small = len(a) * b.size <= SMALL
    products: Wide = np.einsum("mk,nk->mn", a, b) if small else a @ b.T
    return products


def product(a: Planar, b: Planar, lengths: Any = 0) -> Wide:
    """``a @ b.T`` in float64; ``lengths`` of the groups, where both have offsets."""
    y = times(a.scaled, b.scaled)
    if b.offset is not None:
        assert a.sums is not None
        y -= times(a.sums, b.offset)
    if a.offset is not None:
        assert b.sums is not None
        y -= a.offset @ b.sums.T
        if b.offset is not None:
            y += (a.offset * lengths) @ b.offset.T
    return y


def multiply(w: Weights, a: Activations, rule: Rule) -> Wide:
    """``a [M, K] @ w [N, K].T`` in float64.

    The products of codes are exact, and so is a code times its scale; what a program rounds on
    purpose (scales, sums, products of scales, integer sums) is rounded where it does so.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # damaged and overflowing scales are data
        if w.values is not None:
            together = lane_product if rule.half_lanes else times
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
    sums = block_sums(a, w.group, rule)  # products are exact in float64 and in float32: rounded once
    y = np.zeros((len(sums), len(w.scale)))
    for g, dot, scale in dots(w, a):
        y += (scale[:, None] * w.scale[:, g]).astype(np.float16) * dot
        y -= (sums[:, g, None] * w.offset[:, g]).astype(np.float16)
    return y


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


# --- sums in halves, as llama.cpp makes them for f16 weights on a CPU with AVX512-FP16 ------------
#
# Four vectors of 32 halves take 128 products a step, each fused and rounded once. At the end the vectors are
# added in pairs, and so are the two sides of what is left, down to one lane; columns beyond the last whole
# step are added to that in floats. (``ggml_vec_dot_f16`` since March 2026; ``_mm512_reduce_add_ph`` by gcc.)

VECTORS, LANES = 4, 32
STEP = VECTORS * LANES
AT_ONCE = 1 << 14  # elements of a result, each with its 128 lanes


def lane_product(x: Wide, w: Wide) -> Wide:
    """``x [M, K] @ w [N, K].T`` of halves."""
    y = np.empty((len(x), len(w)))
    rows = max(1, AT_ONCE // max(len(w), 1))
    for start in range(0, len(x), rows):
        y[start : start + rows] = _lane_product_of_rows(x[start : start + rows], w)
    return y


def _lane_product_of_rows(x: Wide, w: Wide) -> Wide:
    whole = x.shape[1] // STEP * STEP
    lanes = np.zeros((len(x), len(w), STEP))
    for at in range(0, whole, STEP):
        step = slice(at, at + STEP)
        lanes = rounded(lanes + x[:, None, step] * w[:, step], "f16")  # exact in float64: 22 bits beside 11
    while lanes.shape[-1] > 1:
        width = lanes.shape[-1] // 2
        lanes = rounded(lanes[..., :width] + lanes[..., width:], "f16")
    rest: Wide = lanes[..., 0] + x[:, whole:] @ w[:, whole:].T
    return rest
