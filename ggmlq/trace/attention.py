"""Large attention in one node: a quick oracle picks the rows that the oracle with a bound then judges.

The quick one is compiled, and knows no bound: what kernels round on the way differs by type and device.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from ..base.indices import evenly_spaced
from ..llama.captured import Node
from ..reference.nodes.softmax import slopes

Wide = NDArray[np.float64]

ROWS = 8  # the most suspicious, and as many others, which are judged one by one
COMPILED = 1 << 24  # products of q and k below which NumPy is done before anything is compiled


def attend(node: Node) -> Wide:
    """The right result of the node, [streams, M, heads, D] as ggml stores it."""
    q, k, v = (node.floats(part).astype(np.float64) for part in "qkv")
    scale, most, cap = (float(x) for x in np.array(node.words[:3], np.int32).view(np.float32))
    streams, heads, rows, _ = q.shape
    slope, sinks = slopes(heads, most), np.full(heads, -np.inf)
    if "s" in node.tensors:  # a score of its own for each head, which attends to nothing
        sinks = node.floats("s").reshape(-1)[:heads].astype(np.float64)
    mask = node.floats("m")[:, :, :rows].astype(np.float64) if "m" in node.tensors else None
    compiled = q.size * k.shape[2] >= COMPILED
    one_stream = import_module("ggmlq.cpu.attention.oracle").attend if compiled else _attend
    results = [
        one_stream(
            q[i], k[i * len(k) // streams], v[i * len(v) // streams],
            None if mask is None else mask[i * len(mask) // streams], slope, sinks, scale / (cap or 1), cap,
        )
        for i in range(streams)
    ]  # fmt: skip
    return np.stack(results).swapaxes(1, 2)


def _attend(
    q: Wide, k: Wide, v: Wide, mask: Wide | None, slope: Wide, sinks: Wide, scale: float, cap: float
) -> Wide:
    """The attention of one stream, [heads, M, D]; ``ggmlq/cpu/attention/oracle.py`` computes large ones."""
    k, v = (one.repeat(len(q) // len(one), axis=0) for one in (k, v))
    scores = q @ k.swapaxes(-1, -2) * scale
    if cap:
        scores = cap * np.tanh(scores)
    if mask is not None:
        scores = scores + slope[:, None, None] * mask.repeat(len(q) // len(mask), axis=0)
    largest = np.maximum(scores.max(axis=-1, keepdims=True), sinks[:, None, None])
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - largest)
        total = weights.sum(axis=-1, keepdims=True) + np.exp(sinks[:, None, None] - largest)
        result: Wide = weights / total @ v
    return result


def suspects(node: Node) -> NDArray[np.intp] | None:
    """Rows of a large attention that are furthest from a quick oracle, and some others; None: judge all.

    Only the oracle with a bound decides (``ggmlq/reference/nodes/attention.py``), on these rows.
    """
    ne = node.tensors["q"]["ne"]
    if ne[0] * ne[1] * ne[2] * ne[3] * node.tensors["k"]["ne"][1] < COMPILED or ne[1] <= 2 * ROWS:
        return None
    expected = attend(node)
    y = node.strided("y").astype(np.float64).reshape(expected.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = ((y - expected) ** 2).sum(axis=-1) / ((expected**2).sum(axis=-1) + 1e-300)
    error = np.where(np.isnan(expected).any(axis=-1), 0.0, np.where(np.isnan(error), np.inf, error))
    worst = np.argsort(-error.max(axis=(0, 2)), kind="stable")[:ROWS]
    return np.union1d(worst, evenly_spaced(ne[1], ROWS))
