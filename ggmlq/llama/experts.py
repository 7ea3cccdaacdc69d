"""Checks the operands of a bridge's product (plain, in batches or of experts) before they are sent."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..base.devices import to_host
from ..dispatch.checks import as_floats
from ..errors import ShapeError, UnsupportedError
from ..ops.operands import check_linear, check_matrices, experts
from .protocol import Arrays


def operands(request: str, x: Any, q: QuantArray, ids: Any) -> tuple[Arrays, tuple[int, ...]]:
    """The arrays to send for a plain product, or with ids one of experts, and the shape of the result."""
    if ids is None:
        x = np.asarray(check_linear(request, x, q), np.float32)
        return [x.reshape(-1, x.shape[-1]), q.raw], (*x.shape[:-1], q.shape[0])
    call = experts(request, x, q, ids, look=True)
    if not isinstance(q, QuantArray):
        raise UnsupportedError(f"{request}: ggml has no weights with scales beside them; pass a QuantArray")
    t = call.ids.shape[0]
    rows = np.asarray(call.x, np.float32).reshape(t, len(call.x) // max(t, 1), q.shape[2])
    return [rows, q.raw, call.ids.astype(np.int32)], call.shape


def batches(request: str, x: Any, q: QuantArray) -> tuple[Arrays, tuple[int, ...]]:
    """The arrays to send for x [.., M, K] and weights [.., N, K], and the shape of the result [.., M, N]."""
    x = np.asarray(as_floats(request, to_host(x)), np.float32)
    x_lead, q_lead = x.shape[:-2], q.shape[:-2]
    fits = len(q_lead) <= len(x_lead) <= 2 <= q.ndim and x.shape[-1] == q.shape[-1]
    if not fits or any(length % times for length, times in zip(x_lead[::-1], q_lead[::-1], strict=False)):
        raise ShapeError(
            f"{request}: x has shape {x.shape}, q {q.shape}; in batches they are [.., M, K] and [.., N, K] "
            "of up to 4 axes, and each axis of x is a multiple of that of q; pass x of such a shape"
        )
    return [x, q.raw], (*x.shape[:-1], q.shape[-2])


def layer(x: Any, weights: Any, used: int, device: str) -> tuple[str, dict[str, Any], Arrays]:
    """The request of a layer of experts for error messages, the message to send, and its arrays."""
    router, *matrices = weights
    request = "expert_layer(x, (router, gate, up, down), used)"
    for q in matrices:
        check_matrices(request, q)
        if not isinstance(q, QuantArray):
            raise UnsupportedError(f"{request}: {q!r}; ggml has no weights with scales beside them")
    x = np.asarray(as_floats(request, to_host(x)), np.float32)
    e, f, c = matrices[0].shape
    fits = [q.shape for q in matrices] == [(e, f, c), (e, f, c), (e, c, f)] and router.shape == (e, c)
    if not (fits and x.ndim == 2 and x.shape[1] == c and 1 <= used <= e and len(x)):
        raise ShapeError(
            f"{request}: x {x.shape}, router {router.shape}, {used} of experts "
            f"{[q.shape for q in matrices]}; they are [T, C], [E, C], and [E, F, C] twice and [E, C, F]; "
            "pass weights of one layer"
        )
    message = {"do": "expert_layer", "device": device, "formats": [q.format.name for q in matrices]}
    arrays = [x, np.asarray(router, np.float32), *(q.raw for q in matrices)]
    return request, message | {"sizes": [e, used, f, c]}, arrays
