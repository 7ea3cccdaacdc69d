"""The oracle of ``attention``: softmax(scale·q·kᵀ + mask)·v in float64, of each head by itself.

In an arithmetic of llama.cpp's it is that of the node FLASH_ATTN_EXT, with causality, windows and lengths as
a mask.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..base.devices import to_host
from ..dispatch.checks import finite
from ..errors import DTypeError, UnsupportedError
from ..ops.attention import Attention, checked, slopes
from .nodes import ATTENTIONS, node
from .nodes.registry import Result

__all__ = ["attention", "attention_bound", "slopes"]

Wide = NDArray[np.float64]


def attention(q: Any, k: Any, v: Any, *, arithmetic: str = "exact", **options: Any) -> Wide:
    """Attention in float64 on the host, [B, H, T, DV], of the operands of :func:`ggmlq.attention`.

    Parameters
    ----------
    q : array of floats
        Queries [B, H, T, D], on any device.
    k, v : QuantArray, ScaledArray or array of floats
        Keys [B, HK, S, D] and values [B, HK, S, DV], decoded exactly.
    arithmetic : str
        ``"exact"``: everything in float64. Or the name of another one of ``reference.ATTENTIONS``: what
        llama.cpp rounds on the way is rounded there.
    **options
        scale, causal, mask, lengths, window, softcap, sinks and alibi, as in :func:`ggmlq.attention`; with
        an arithmetic of llama.cpp's also ``parts``, the number of threads that share the positions of a row.

    >>> import numpy as np, ggmlq as gq
    >>> q, k = np.zeros((1, 1, 1, 32)), np.ones((1, 1, 3, 32))
    >>> gq.reference.attention(q, k, np.arange(3.0).reshape(1, 1, 3, 1))  # all weights are the same
    array([[[[1.]]]])
    """
    request = "reference.attention(q, k, v)"
    if arithmetic != "exact":
        return _node(request, q, k, v, arithmetic, options).value.swapaxes(1, 2)
    a = _checked(request, q, k, v, options)
    out = np.empty(a.shape)
    group = a.q.shape[1] // a.k.shape[1]
    mask = None if a.mask is None else np.broadcast_to(a.mask, (*a.q.shape[:3], a.k.shape[2]))
    for b, length in enumerate(a.lengths):
        for h in range(a.q.shape[1]):
            keys, values = (_wide(rows[b, h // group])[:length] for rows in (a.k, a.v))
            bias = None if mask is None else _bias(mask[b, h, :, :length])
            out[b, h] = _head(a, h, a.q[b, h].astype(np.float64), keys, values, bias)
    return out


def attention_bound(q: Any, k: Any, v: Any, *, arithmetic: str, **options: Any) -> Wide:
    """The largest distance of a right kernel's result from :func:`attention`, for each element.

    It holds for kernels that compute in this arithmetic, whatever the order in which they add float32. A row
    that sees no position has no bound: it is infinite.

    >>> import numpy as np, ggmlq as gq
    >>> q, k = (np.linspace(-1, 1, 3 * 32, dtype=np.float32).reshape(1, 1, 3, 32) for _ in "qk")
    >>> y = gq.attention(q, k, k, causal=True)
    >>> error = y - gq.reference.attention(q, k, k, causal=True)
    >>> bool((np.abs(error) <= gq.reference.attention_bound(q, k, k, causal=True, arithmetic="f32")).all())
    True
    """
    bound = _node("reference.attention_bound(q, k, v)", q, k, v, arithmetic, options).bound
    return np.asarray(bound).swapaxes(1, 2)


def _checked(request: str, q: Any, k: Any, v: Any, options: dict[str, Any]) -> Attention:
    host = {name: to_host(value) if hasattr(value, "shape") else value for name, value in options.items()}
    return checked(request, *(to_host(one) for one in (q, k, v)), **host)


def _node(request: str, q: Any, k: Any, v: Any, arithmetic: str, options: dict[str, Any]) -> Result:
    """The result of the node that llama.cpp computes this attention with."""
    if arithmetic not in ATTENTIONS:
        raise UnsupportedError(
            f"{request}: arithmetic {arithmetic!r}; this version computes attention in "
            f"{', '.join(map(repr, ATTENTIONS))}; use one of these"
        )
    parts = options.pop("parts", 1)
    if not isinstance(parts, int) or parts < 1:
        raise DTypeError(f"{request}: parts is {parts!r}; it is a number of threads, from 1 on; leave it out")
    a = _checked(request, q, k, v, options)
    rows = [one.dequantize() if isinstance(one, ScaledArray) else one for one in (a.k, a.v)]
    rows = [
        one if isinstance(one, QuantArray) or one.dtype == np.float16 else one.astype(np.float32)
        for one in rows
    ]
    alibi = 0.0 if a.slopes is None else finite(options["alibi"])
    if alibi is None:
        raise DTypeError(
            f"{request}: alibi has slopes, and arithmetic {arithmetic!r} takes the largest bias, from which "
            "llama.cpp has them; pass a number"
        )
    params = {
        "scale": a.scale, "bias": alibi, "cap": a.softcap, "arithmetic": arithmetic, "parts": parts,
        "kinds": tuple(_kind(one) for one in (a.k, a.v)),
    }  # fmt: skip
    inputs = [np.asarray(a.q, np.float32), *rows, _whole_mask(a)]
    return node("FLASH_ATTN_EXT", inputs if a.sinks is None else [*inputs, a.sinks], params)


def _kind(rows: Any) -> str:
    if isinstance(rows, QuantArray):
        return rows.format.name
    if isinstance(rows, ScaledArray):
        return "f32"
    return {"float16": "f16", "bfloat16": "bf16"}.get(rows.dtype.name, "f32")


def _whole_mask(a: Attention) -> Wide | None:
    """Everything that says which positions a query sees, as one mask [B, H, T, S]; None where it sees all."""
    batch, heads, queries = a.q.shape[:3]
    positions = a.k.shape[2]
    whole = np.zeros((batch, 1 if a.mask is None else heads, queries, positions))
    at = np.arange(positions)
    for b, length in enumerate(a.lengths):
        place = np.arange(queries)[:, None] + int(length) - queries
        if a.mask is not None:
            whole[b] = np.broadcast_to(_bias(a.mask), (batch, heads, queries, positions))[b]
        elif a.slopes is not None:
            whole[b] = -abs(at - place)
        hidden = np.broadcast_to(at >= length, whole.shape[-2:])
        if a.causal or a.window:
            hidden = hidden | (at > place)
        if a.window:
            hidden = hidden | (at <= place - a.window)
        whole[b, :, hidden] = -np.inf
    return whole if whole.any() else None


def _head(a: Attention, h: int, q: Wide, k: Wide, v: Wide, bias: Wide | None) -> Wide:
    """The attention of a head, [T, DV]; zeros for a query that sees nothing."""
    with np.errstate(all="ignore"):
        scores = q @ k.T * a.scale
        if a.softcap:
            scores = a.softcap * np.tanh(scores / a.softcap)
        place, at = np.arange(len(q))[:, None] + len(k) - len(q), np.arange(len(k))
        if bias is not None:
            scores = scores + (bias if a.slopes is None else a.slopes[h] * bias)
        elif a.slopes is not None:
            scores = scores - a.slopes[h] * abs(at - place)
        seen = np.ones(scores.shape, bool)
        if a.causal or a.window:
            seen &= at <= place
        if a.window:
            seen &= at > place - a.window
        if bias is not None:
            seen &= bias != -np.inf
        scores = np.where(seen, scores, -np.inf)
        sink = -np.inf if a.sinks is None else float(a.sinks[h])
        top = np.maximum(scores.max(axis=1, initial=-np.inf), sink)[:, None]
        weights = np.where(scores == -np.inf, 0.0, np.exp(scores - top))
        total = weights.sum(axis=1, keepdims=True) + np.exp(sink - top)
        result: Wide = weights / total @ v
        result[~np.any(seen, axis=1)] = 0
    return result


def _bias(mask: NDArray[Any]) -> Wide:
    """A mask as numbers that are added to scores."""
    bias: Wide = np.where(mask, 0.0, -np.inf) if mask.dtype.kind == "b" else mask.astype(np.float64)
    return bias


def _wide(rows: Any) -> Wide:
    decoded = rows.dequantize() if isinstance(rows, QuantArray | ScaledArray) else rows
    return np.asarray(decoded).astype(np.float64)
