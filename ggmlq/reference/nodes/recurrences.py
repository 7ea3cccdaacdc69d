"""Operations that carry a state from token to token, and the triangular system that some models solve.

The errors of a state are carried with it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .elementwise import softplus
from .number import Number, Wide, combined, contract, half_step, larger, quick
from .registry import Call, Result, oracle, settled


def _joined(parts: list[Number], shape: tuple[int, ...]) -> Number:
    """Numbers one behind the other, as a tensor of that shape: outputs first, then states."""
    return combined(np.concatenate, [part.map(np.ravel) for part in parts]).map(lambda v: v.reshape(shape))


def _snapshots(states: list[Number], count: int) -> Number:
    """The last states, the latest first; slots that no token filled are not judged."""
    filled = combined(np.stack, states[::-1][:count])
    missing = count - len(filled.value)
    if missing <= 0:
        return filled
    shape = (missing, *filled.shape[1:])
    return combined(np.concatenate, [filled, Number(np.zeros(shape), np.inf)])


@oracle("SSM_CONV", rowwise=False)
def ssm_conv(c: Call) -> Result:
    """Windows of each channel times its kernel: [S, channels, kernel - 1 + T] to [S, T, channels]."""
    x, kernel = c.array(0).astype(np.float64), c.array(1).astype(np.float64)
    size = kernel.shape[-1]
    windows = np.lib.stride_tricks.sliding_window_view(x, size, axis=-1)
    kernel = kernel.reshape(kernel.shape[-2:])
    result = contract("zsitj,ij->zsti", windows, kernel, size)
    return settled(result.map(lambda v: v.reshape(c.params.get("shape", v.shape))), c.kind)


@oracle("SSM_SCAN", sources=7, words="states:i", rowwise=False)
def ssm_scan(c: Call) -> Result:
    """Mamba: state = state·exp(dt·A) + B·x·dt, output = state·C; B and C serve groups of heads."""
    s0, x, dt, a, b, out = (c.array(i).astype(np.float64) for i in range(6))
    ids = c.array(6).reshape(-1)
    sequences, tokens, heads, dim = x.shape
    width = s0.shape[-1]
    s0 = s0.reshape(-1, heads, dim, width)
    dt, a = dt.reshape(sequences, tokens, heads), a.reshape(heads, 1, -1)
    group = np.arange(heads) // (heads // b.shape[2])
    outputs, ends = list[Number](), list[list[Number]]()
    for i in range(sequences):
        state, every = Number(s0[ids[i]]), list[Number]()
        for t in range(tokens):
            step = softplus(Number(dt[i, t][:, None, None]))
            decay = (step * a).exp()
            state = state * decay + Number(x[i, t][..., None]) * step * b[i, t][group][:, None, :]
            outputs.append(contract("hdn,hn->hd", state, out[i, t][group], width))
            every.append(state)
        ends.append(every)
    by_slot = _slots(ends, max(c.params.get("states", 1), 1))
    return settled(_joined([combined(np.stack, outputs), by_slot], c.shape), c.kind)


def _slots(ends: list[list[Number]], count: int) -> Number:
    """States [slot, sequence, ..], the latest slot first."""
    return combined(np.stack, [_snapshots(every, count) for every in ends], 1)


def _heads(c: Call, i: int) -> Wide:
    """Source number i as [T, heads, size]."""
    x = c.array(i).astype(np.float64)
    return x.reshape(-1, *x.shape[-2:])


def _scan(
    c: Call, sequences: int, tokens: int, state: Wide, step: Callable[[int, Number], tuple[Number, Number]]
) -> Result:
    """Outputs of all tokens, then the last state of each sequence."""
    outputs, ends = list[Number](), list[Number]()
    for i in range(sequences):
        current = Number(state[i])
        for t in range(i * tokens // sequences, (i + 1) * tokens // sequences):
            out, current = step(t, current)
            outputs.append(out)
        ends.append(current)
    return settled(_joined([combined(np.stack, outputs), combined(np.stack, ends)], c.shape), c.kind)


def _states(c: Call, i: int, heads: int, size: int) -> Wide:
    return c.array(i).astype(np.float64).reshape(-1, heads, size, size)


@oracle("RWKV_WKV6", sources=6, rowwise=False)
def wkv6(c: Call) -> Result:
    """RWKV 6: output = r·(first·k·v + state), state = state·decay + k·v."""
    k, v, r = (_heads(c, i) for i in range(3))
    tokens, heads, size = k.shape
    first, decay = c.array(3).astype(np.float64).reshape(heads, size), _heads(c, 4)
    state = _states(c, 5, heads, size)

    def step(t: int, s: Number) -> tuple[Number, Number]:
        product = Number(k[t][:, :, None]) * v[t][:, None, :]
        out = contract("hij,hi->hj", product * first[:, :, None] + s, r[t], size)
        return out, s * decay[t].reshape(heads, size, 1) + product

    return _scan(c, len(state), tokens, state, step)


@oracle("GATED_LINEAR_ATTN", sources=5, words="scale:f", rowwise=False)
def gated_linear_attention(c: Call) -> Result:
    """A gated state: state = state·gate + k·v, output = scale·q·state."""
    k, v, q, g = (_heads(c, i) for i in range(4))
    tokens, heads, size = k.shape
    state = _states(c, 4, heads, size)

    def step(t: int, s: Number) -> tuple[Number, Number]:
        s = s * g[t].reshape(heads, size, 1) + Number(k[t][:, :, None]) * v[t][:, None, :]
        return contract("hij,hi->hj", s, Number(q[t]) * c.params["scale"], size), s

    return _scan(c, len(state), tokens, state, step)


@oracle("RWKV_WKV7", sources=7, rowwise=False)
def wkv7(c: Call) -> Result:
    """RWKV 7: state = state·w + v·k + (state·a)·b, output = state·r."""
    r, w, k, v, a, b = (_heads(c, i) for i in range(6))
    tokens, heads, size = k.shape
    state = _states(c, 6, heads, size)

    def step(t: int, s: Number) -> tuple[Number, Number]:
        along = contract("hij,hj->hi", s, a[t], size)[:, :, None]
        s = s * w[t][:, None, :] + Number(v[t][:, :, None]) * k[t][:, None, :] + along * b[t][:, None, :]
        return contract("hij,hj->hi", s, r[t], size), s

    return _scan(c, len(state), tokens, state, step)


@oracle("GATED_DELTA_NET", sources=6, words="states:i", rowwise=False)
def gated_delta_net(c: Call) -> Result:
    """The delta rule with gates: the state forgets, corrects itself by v, and gives its product with q.

    ``turned``: rows of the state belong to k, as before 13 March 2026.
    """
    q, k, v, g, beta, state = (c.array(i).astype(np.float64) for i in range(6))
    sequences, tokens, heads, size = v.shape
    turned: Callable[[Wide], Wide] = lambda x: x.swapaxes(-1, -2) if c.params.get("turned") else x
    state = turned(state.reshape(-1, heads, size, size))  # rows belong to v, columns to k
    scale = Number(1 / np.sqrt(size), 4 * 2.0**-24 / np.sqrt(size))
    outputs, ends = list[Number](), list[list[Number]]()
    of_q, of_k = np.arange(heads) % q.shape[2], np.arange(heads) % k.shape[2]
    for i in range(sequences):
        s, every = Number(state[i]), list[Number]()
        for t in range(tokens):
            left, key = (p[i * len(p) // sequences, t][at] for p, at in ((q, of_q), (k, of_k)))
            s = s * Number(g[i, t][:, None, :]).exp()
            delta = (Number(v[i, t]) - contract("hji,hi->hj", s, key, size)) * beta[i, t]
            s = s + delta[:, :, None] * key[:, None, :]
            outputs.append(contract("hji,hi->hj", s, left, size) * scale)
            every.append(s.map(turned))
        ends.append(every)
    slots = _slots(ends, max(c.params.get("states", 1), 1))
    return settled(_joined([combined(np.stack, outputs), slots], c.shape), c.kind)


@oracle("SOLVE_TRI", rowwise=False)
def solve_tri(c: Call) -> Result:
    """The solution X of A·X = B for lower triangular A, row by row."""
    a, b = c.array(0).astype(np.float64), c.array(1).astype(np.float64)
    rows = list[Number]()
    for i in range(a.shape[-1]):
        rest = Number(b[..., i, :])
        if rows:
            solved = combined(np.stack, rows, -2)
            rest = rest - contract("zst,zstk->zsk", a[..., i, :i], solved, i)
        rows.append(rest / a[..., i, i, None])
    return settled(combined(np.stack, rows, -2), c.kind)


# --- the indexer and the connections of DeepSeek's newer models -----------------------------------


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
    every, weights = (combined(np.concatenate, parts, 1) for parts in (rows, shares))
    result = contract("tse,tsd->tde", every, weights, streams + 1)
    return settled(result.map(lambda v: v[None]), c.kind)
