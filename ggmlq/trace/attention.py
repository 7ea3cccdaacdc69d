"""A trace judges attention that is one node (FLASH_ATTN_EXT) by softmax(scale·q·kᵀ + mask)·v in float64.

Nobody knows the order of the node's sums, or which values it keeps in halves. So the limit is loose, and the
record says so: plain faults are found, small ones are not.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..check.judge import Judgement
from .operands import Node

Wide = NDArray[np.float64]

# NMSE of a row of a head. Right kernels reach, in the worst row: 1e-6 (f16 cache), 7e-5 (q4_0 cache), 3e-4
# (512 tokens in libraries that sum in halves, which longer contexts make worse).
LOOSE = 1e-2
COMPILED = 1 << 24  # products of q and k below which NumPy is done before anything is compiled


def attend(node: Node) -> Wide:
    """The right result of the node, [streams, M, heads, D] as ggml stores it."""
    q, k, v = (node.floats(part).astype(np.float64) for part in "qkv")
    scale, most, cap = node.scales
    streams, heads, rows, _ = q.shape
    slopes, sinks = _slopes(heads, most), np.full(heads, -np.inf)
    if "s" in node.tensors:  # a score of its own for each head, which attends to nothing
        sinks = node.floats("s").reshape(-1)[:heads].astype(np.float64)
    mask = node.floats("m")[:, :, :rows].astype(np.float64) if "m" in node.tensors else None
    compiled = q.size * k.shape[2] >= COMPILED
    one_stream = import_module("ggmlq.cpu.attention").attend if compiled else _attend
    results = [
        one_stream(
            q[i], k[i * len(k) // streams], v[i * len(v) // streams],
            None if mask is None else mask[i * len(mask) // streams], slopes, sinks, scale / (cap or 1), cap,
        )
        for i in range(streams)
    ]  # fmt: skip
    return np.stack(results).swapaxes(1, 2)


def _attend(
    q: Wide, k: Wide, v: Wide, mask: Wide | None, slopes: Wide, sinks: Wide, scale: float, cap: float
) -> Wide:
    """The attention of one stream, [heads, M, D]; ``ggmlq/cpu/attention.py`` computes large ones."""
    k, v = (one.repeat(len(q) // len(one), axis=0) for one in (k, v))
    scores = q @ k.swapaxes(-1, -2) * scale
    if cap:
        scores = cap * np.tanh(scores)
    if mask is not None:
        scores = scores + slopes[:, None, None] * mask.repeat(len(q) // len(mask), axis=0)
    largest = np.maximum(scores.max(axis=-1, keepdims=True), sinks[:, None, None])
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - largest)
        total = weights.sum(axis=-1, keepdims=True) + np.exp(sinks[:, None, None] - largest)
        result: Wide = weights / total @ v
    return result


def judge_attention(node: Node) -> tuple[Judgement, dict[str, Any], int]:
    """The judgement of the node, the worst element of its worst row, and the number of judged rows."""
    expected = attend(node)
    y = node.strided("y").astype(np.float64).reshape(expected.shape)
    error, size = ((y - expected) ** 2).sum(axis=-1), (expected**2).sum(axis=-1)
    floor = 1e-6 * size.mean() if np.isfinite(size).all() else 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        off = error / np.maximum(size, floor + 1e-300)
    finite = np.isfinite(expected).all(axis=-1)  # a row that attends to nothing is NaN
    off = np.where(finite, np.where(np.isnan(off), np.inf, off), 0.0)
    stream, row, head = (int(i) for i in np.unravel_index(int(off.argmax()), off.shape))
    got, right = y[stream, row, head], expected[stream, row, head]
    column = int(np.nan_to_num(np.abs(got - right), nan=np.inf).argmax())
    out = int((off > LOOSE).sum()) * right.size
    whole = float(error[finite].sum() / max(size[finite].sum(), 1e-300))
    worst = {
        "part": f"head {head}", "row": row, "column": column,
        "got": float(got[column]), "wanted": float(right[column]),
        "error": float(abs(got[column] - right[column])),
        "limit": math.sqrt(LOOSE * float(size[stream, row, head])),
    }  # fmt: skip
    return Judgement("attention", float(off.max()), whole, out), worst, int(finite.sum())


def _slopes(heads: int, most: float) -> Wide:
    """The slope of each head under ALiBi; ones without a bias."""
    if not most:
        return np.ones(heads)
    low = 1 << (heads.bit_length() - 1)
    first, second = 2.0 ** (-most / low), 2.0 ** (-most / 2 / low)
    return np.array([first ** (h + 1) if h < low else second ** (2 * (h - low) + 1) for h in range(heads)])
