"""The indexer and the connections of DeepSeek's newer models."""

from __future__ import annotations

import numpy as np

from .number import Number, contract, half_step, larger, quick
from .registry import Call, oracle
from .result import Result, settled


@oracle("LIGHTNING_INDEXER", sources=4, rowwise=False)
def lightning_indexer(c: Call) -> Result:
    """Scores of positions [S, 1, T, n]: Σ over heads of weight·max(q·k, 0), and the mask.

    A GPU may hold queries and keys as halves.
    """
    q, k, weights = (c.number(i) for i in range(3))
    mask = c.array(3).astype(np.float64)
    if quick():
        q, k = q.to_half(), Number(k.value, k.errors() + half_step(k.value))
    keys = k.map(lambda x: x[..., 0, :])  # [S, n, D]
    products = larger(contract("sthd,snd->sthn", q, keys, q.shape[-1]), 0.0)
    total = contract("sthn,sth->stn", products, weights.map(lambda x: x[:, 0]), q.shape[2])
    bias = np.stack([mask[s % len(mask), 0] for s in range(q.shape[0])])
    result = total + bias
    error = np.where(np.isneginf(bias), 0.0, result.errors())
    return settled(Number(result.value, error).map(lambda x: x[:, None]), c.kind)


@oracle("DSV4_HC_COMB", sources=3, words="eps:f steps:i", rowwise=False)
def hc_comb(c: Call) -> Result:
    """Matrices [T, source, target]: softmax over targets, then sums along both axes made one in turns."""
    mixes, scale, base = (c.number(i) for i in range(3))
    wide = mixes.shape[-1]
    streams = int(np.sqrt(wide + 1)) - 1  # (2 + n)·n numbers of n streams
    first = 2 * streams
    square = mixes.map(lambda x: x.reshape(-1, wide)[:, first:].reshape(-1, streams, streams))
    factor = scale.map(lambda x: x.reshape(-1)[2])
    bias = base.map(lambda x: x.reshape(-1)[first:].reshape(streams, streams))
    scores = square * factor + bias
    powers = (scores - scores.value.max(axis=-1, keepdims=True)).exp()
    mixed = powers / powers.sum(-1) + c.params["eps"]
    mixed = _to_one(mixed, -2, c.params["eps"])
    for _ in range(1, c.params["steps"]):
        mixed = _to_one(_to_one(mixed, -1, c.params["eps"]), -2, c.params["eps"])
    return settled(mixed.map(lambda x: x[None]), c.kind)


def _to_one(x: Number, axis: int, eps: float) -> Number:
    return x / (x.sum(axis) + eps)


@oracle("DSV4_HC_PRE", sources=2, words="scale:f gated:i", rowwise=False)
def hc_pre(c: Call) -> Result:
    """Streams [T, n, E] added up by weights; gated: scale·Σ x·sigmoid(weight), one for each element."""
    x, weights = (c.number(i).map(lambda v: v[0]) for i in range(2))
    if not c.params["gated"]:
        weights = weights.map(lambda v: v.reshape(x.shape[:2]))
        return settled(contract("tse,ts->te", x, weights, x.shape[1]).map(lambda v: v[None, None]), c.kind)
    shares = 1.0 / (1.0 + (-weights).exp())
    result = (x * shares).sum(-2) * c.params["scale"]
    return settled(result.map(lambda v: v[None, None, :, 0]), c.kind)


@oracle("DSV4_HC_POST", sources=4, rowwise=False)
def hc_post(c: Call) -> Result:
    """Streams [T, target, E]: x by the target's weight, and all streams before by the matrix of the token."""
    x, before, post, mixed = (c.number(i) for i in range(4))
    tokens, streams, width = before.shape[1:]
    rows = [x.map(lambda v: v.reshape(tokens, 1, width)), before.map(lambda v: v[0])]
    shares = [post.map(lambda v: v.reshape(tokens, 1, streams)), mixed.map(lambda v: v[0])]
    every, weights = (_joined(parts) for parts in (rows, shares))
    result = contract("tse,tsd->tde", every, weights, streams + 1)
    return settled(result.map(lambda v: v[None]), c.kind)


def _joined(parts: list[Number]) -> Number:
    values, errors = ([one.value for one in parts], [one.errors() for one in parts])
    return Number(np.concatenate(values, axis=1), np.concatenate(errors, axis=1))
