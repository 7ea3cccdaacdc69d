"""The oracle of ``attention``: softmax(scale·q·kᵀ + mask)·v in float64, of each head by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..base.devices import to_host
from ..errors import UnsupportedError
from ..ops.attending import Attention, checked, slopes

__all__ = ["attention", "slopes"]

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
        ``"exact"``: everything in float64.
    **options
        scale, causal, mask, lengths, window, softcap, sinks and alibi, as in :func:`ggmlq.attention`.

    >>> import numpy as np, ggmlq as gq
    >>> q, k = np.zeros((1, 1, 1, 32)), np.ones((1, 1, 3, 32))
    >>> gq.reference.attention(q, k, np.arange(3.0).reshape(1, 1, 3, 1))  # all weights are the same
    array([[[[1.]]]])
    """
    request = "reference.attention(q, k, v)"
    if arithmetic != "exact":
        raise UnsupportedError(
            f"{request}: arithmetic {arithmetic!r}; the oracle of attention computes in float64; pass "
            'arithmetic="exact"'
        )
    host = {name: to_host(value) if hasattr(value, "shape") else value for name, value in options.items()}
    a = checked(request, *(to_host(one) for one in (q, k, v)), **host)
    out = np.empty(a.shape)
    group = a.q.shape[1] // a.k.shape[1]
    mask = None if a.mask is None else np.broadcast_to(a.mask, (*a.q.shape[:3], a.k.shape[2]))
    for b, length in enumerate(a.lengths):
        for h in range(a.q.shape[1]):
            keys, values = (_wide(rows[b, h // group])[:length] for rows in (a.k, a.v))
            bias = None if mask is None else _bias(mask[b, h, :, :length])
            out[b, h] = _head(a, h, a.q[b, h].astype(np.float64), keys, values, bias)
    return out


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
            scores = scores + a.slopes[h] * (at - place)
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
