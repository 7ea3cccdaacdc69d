"""Attention that is one node (FLASH_ATTN_EXT) against softmax(scale·q·kᵀ + mask)·v in float64.

It is no product, and nothing is known of the order of its sums or of what it keeps in halves: the limit is
a loose one, which the record says. It finds what is plainly wrong, not what is slightly off.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..check.judge import Judgement
from .operands import Node

Wide = NDArray[np.float64]

# NMSE of a row of a head. Seen of right kernels, in the worst row: 1e-6 (f16 cache), 7e-5 (q4_0 cache), 3e-4
# (512 tokens in libraries that sum in halves, which longer contexts make worse).
LOOSE = 1e-2


def attend(node: Node) -> Wide:
    """What the node should be, [streams, M, heads, D] as ggml stores it."""
    q, k, v = (node.floats(part).astype(np.float64) for part in "qkv")
    scale, most, cap = node.scales
    heads = q.shape[1]
    k, v = (_for_heads(one, q.shape[:2]) for one in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (scale / cap if cap else scale)
    if cap:
        scores = cap * np.tanh(scores)
    if "m" in node.tensors:
        mask = node.floats("m")[:, :, : q.shape[2]].astype(np.float64)
        scores = scores + _slopes(heads, most)[:, None, None] * _for_heads(mask, q.shape[:2])
    largest = scores.max(axis=-1, keepdims=True)
    if "s" in node.tensors:  # a score of its own for each head, which attends to nothing
        sinks = node.floats("s").reshape(-1)[:heads].astype(np.float64)[:, None, None]
        largest = np.maximum(largest, sinks)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - largest)
        total = weights.sum(axis=-1, keepdims=True)
        if "s" in node.tensors:
            total = total + np.exp(sinks - largest)
        found: Wide = (weights / total @ v).swapaxes(1, 2)
    return found


def judge_attention(node: Node) -> tuple[Judgement, dict[str, Any], int]:
    """The verdict, the worst element of the worst row, and how many rows were judged."""
    wanted = attend(node)
    y = node.strided("y").astype(np.float64).reshape(wanted.shape)
    error, size = ((y - wanted) ** 2).sum(axis=-1), (wanted**2).sum(axis=-1)
    floor = 1e-6 * size.mean() if np.isfinite(size).all() else 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        off = error / np.maximum(size, floor + 1e-300)
    known = np.isfinite(wanted).all(axis=-1)  # a row that may attend to nothing is not a number
    off = np.where(known, np.where(np.isnan(off), np.inf, off), 0.0)
    stream, row, head = (int(i) for i in np.unravel_index(int(off.argmax()), off.shape))
    got, right = y[stream, row, head], wanted[stream, row, head]
    column = int(np.nan_to_num(np.abs(got - right), nan=np.inf).argmax())
    out = int((off > LOOSE).sum()) * right.size
    whole = float(error[known].sum() / max(size[known].sum(), 1e-300))
    worst = {
        "part": f"head {head}", "row": row, "column": column,
        "got": float(got[column]), "wanted": float(right[column]),
        "error": float(abs(got[column] - right[column])),
        "limit": math.sqrt(LOOSE * float(size[stream, row, head])),
    }  # fmt: skip
    return Judgement("attention", float(off.max()), whole, out), worst, int(known.sum())


def _for_heads(one: Wide, wanted: tuple[int, ...]) -> Wide:
    """[streams, heads, …]: a head of keys serves several of queries, a mask all."""
    streams, heads = wanted
    if one.shape[0] != streams:
        one = one.repeat(streams // one.shape[0], axis=0)
    return one if one.shape[1] == heads else one.repeat(heads // one.shape[1], axis=1)


def _slopes(heads: int, most: float) -> Wide:
    """ALiBi: how much each head minds distance; without a bias all alike."""
    if not most:
        return np.ones(heads)
    low = 1 << (heads.bit_length() - 1)
    first, second = 2.0 ** (-most / low), 2.0 ** (-most / 2 / low)
    return np.array([first ** (h + 1) if h < low else second ** (2 * (h - low) + 1) for h in range(heads)])
