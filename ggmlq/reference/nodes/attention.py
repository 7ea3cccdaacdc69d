"""FLASH_ATTN_EXT: softmax(scale·q·kᵀ + slope·mask)·v of each head, with a bound for each element.

Right kernels differ in what they round: q to the type that K is multiplied with (halves, or 8-bit codes where
K has blocks), weights of the softmax to halves. These are granted. Some add in halves: that is a freedom of
its own (``half_sums``), which a judge grants only where the result needs it.
"""

from __future__ import annotations

import numpy as np

from ...arrays.array import QuantArray
from .number import FREEDOMS, HALF, SPREAD, UNIT, Number, Wide, contract, half_step
from .registry import Call, oracle
from .result import Result, settled
from .softmax import slopes, weights

CODES = 32  # elements that share a scale where q is rounded to 8 bits
LARGE_CODES = 256  # and where K has blocks of 256


def _rounded_query(q: Wide, k: object) -> Number:
    """The query as kernels hold it."""
    if not isinstance(k, QuantArray):
        return Number(q, half_step(q))
    run = min(LARGE_CODES if k.format.block_size == LARGE_CODES else CODES, q.shape[-1])
    if q.shape[-1] % run:
        run = q.shape[-1]
    largest = np.abs(q.reshape(*q.shape[:-1], -1, run)).max(axis=-1, keepdims=True)
    step = np.broadcast_to(largest / 127, (*largest.shape[:-1], run)).reshape(q.shape)
    return Number(q, 0.51 * step + 2.0**-10 * np.abs(q))


def _four(x: np.ndarray) -> np.ndarray:
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


@oracle("FLASH_ATTN_EXT", sources=5, words="scale:f bias:f cap:f", rowwise=False)
def flash_attention(c: Call) -> Result:
    """Attention of q [S, H, M, D] to k, v [S', H', n, D]; the result is [S, M, H, D]."""
    q, k, v = (_four(c.array(i).astype(np.float64)) for i in range(3))
    mask = _four(c.array(3).astype(np.float64)) if c.has(3) else None
    sinks = c.array(4).astype(np.float64).reshape(-1) if c.has(4) else None
    streams, heads, rows, _ = q.shape
    slope, most = slopes(heads, c.params.get("bias", 0.0)), c.params.get("bias", 0.0)
    value = np.zeros((streams, rows, heads, v.shape[-1]))
    error = np.zeros(value.shape)
    for s in range(streams):
        for h in range(heads):
            left = _rounded_query(q[s, h], c.inputs[1])
            ks, vs = (part[s * len(part) // streams, h * part.shape[1] // heads] for part in (k, v))
            bias = None
            if mask is not None:
                bias = mask[s % len(mask), h % mask.shape[1], :rows] * slope[h]
            sink = None if sinks is None else sinks[h : h + 1, None]
            one = _head(left, ks, vs, bias, bool(most), sink, c.params["scale"], c.params.get("cap", 0.0))
            value[s, :, h], error[s, :, h] = one.value, one.errors()
    return settled(Number(value, error), c.kind)


def _head(
    q: Number, k: Wide, v: Wide, bias: Wide | None, alibi: bool, sink: Wide | None, scale: float, cap: float
) -> Number:
    """The attention of one head, [M, D]."""
    halves = FREEDOMS.get().half_sums
    scores = contract("md,nd->mn", q, k, k.shape[-1])
    if halves:
        scores = Number(scores.value, scores.error + in_halves(q.value, k.T, scores.value))
    scores = scores * (scale / (cap or 1.0))
    if cap:
        scores = scores.tanh() * cap
    if bias is not None:
        grown = 8 * UNIT * np.abs(np.where(np.isinf(bias), 0.0, bias)) if alibi else 0.0
        scores = scores + Number(bias, grown)
        scores = Number(scores.value, np.where(np.isinf(scores.value), 0.0, scores.error))
    if halves:
        finite = np.where(np.isinf(scores.value), 0.0, scores.value)
        scores = Number(scores.value, scores.error + half_step(finite))
    share = weights(scores, sink)
    share = Number(share.value, share.errors() + half_step(share.value))
    if halves:  # errors of weights are independent of each other: they add up as random numbers do
        result = contract("mn,nd->md", share.value, v, k.shape[0])
        spread = SPREAD * np.sqrt(share.errors() ** 2 @ v**2)
        result = Number(result.value, result.error + spread + in_halves(share.value, v, result.value))
    else:
        result = contract("mn,nd->md", share, v, k.shape[0])
    nothing = np.isneginf(scores.value).all(axis=-1, keepdims=True)
    return Number(result.value, np.where(nothing, np.inf, result.errors()))


def in_halves(a: Wide, b: Wide, value: Wide) -> Wide:
    """The rounding of sums a @ b that are kept in halves.

    Partial sums of n terms t of random signs reach |value| + 2·sqrt(Σt²); each is rounded once, and sqrt(n)
    such roundings are more than four of their standard deviations.
    """
    partial = np.abs(value) + 2 * np.sqrt(a**2 @ b**2)
    limit: Wide = HALF * np.sqrt(a.shape[-1]) * partial + half_step(partial)
    return limit
