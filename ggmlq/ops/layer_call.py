"""Warm products of a layer's tensors on a GPU, with the fewest questions: what eager code in torch calls."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

from ..base.devices import is_over_torch
from ..dispatch.ladder import Rung
from . import warm_device
from .tensors import Torch, is_ordinary, members


class LayerCall(NamedTuple):
    """A product of a layer on a GPU, whole by recorded launches: x and the result have one dtype."""

    launches: Any
    workspace: int  # bytes between its kernels
    shape: tuple[int, ...]  # of the result
    # A view of the weights that looks like a result, or None: an allocation like it takes less time.
    like: Any
    device: int


def of_layer(x: Any, q: Any, bias: Any, shape: Any) -> Any | None:
    """``x @ q.T + bias`` in the dtype of x, if it is a warm call of weights in torch's memory; else None.

    It is :func:`linear` with fewer questions. The caller knows that x is a plain tensor on a GPU of this
    shape, as is the bias, and that nobody wants a gradient.
    """
    torch, dtype = members(sys.modules["torch"]), x.dtype
    key = shape, dtype, None if bias is None else bias.dtype
    call = q.recording(key)
    if call is None and (call := _layer_call(torch, x, q, bias, key)) is None:
        return None
    launches, workspace, result, like, index = call
    address, stream = x.data_ptr(), torch.stream(index)
    if not (torch.device() == index == x.get_device()) or not x.is_contiguous() or address % 16:
        return None
    if not address or (stream and torch.capturing()):
        return None
    at = 0
    if bias is not None:
        if not is_ordinary(torch, bias, result[-1:], index, torch.parameter):
            return None
        at = bias.data_ptr()
    y = torch.empty(result, dtype=dtype, device=x.device) if like is None else torch.empty_like(like)
    if workspace:
        between = torch.empty(workspace, dtype=torch.bytes, device=x.device)
        launches.launch((address, y.data_ptr(), between.data_ptr(), at), stream)
    else:
        launches.launch((address, y.data_ptr(), 0, at), stream)
    return y


def _layer_call(torch: Torch, x: Any, q: Any, bias: Any, key: Any) -> LayerCall | None:
    """The product as it is repeated, kept with the weights; None where it was not recorded whole."""
    letter, shape = torch.kinds.get(x.dtype), x.shape
    if letter is None or not is_over_torch(type(q.memory)) or not shape or shape[-1] != q.shape[1]:
        return None
    added = None if bias is None else torch.kinds.get(bias.dtype)
    if q.scale is not None or (added is None and bias is not None):
        return None
    launches, whole = warm_device.recording(q, math.prod(shape[:-1]), "auto", None, letter, letter, added)
    if launches is None or type(launches) is Rung or not (whole or (letter == "f" and bias is None)):
        return None
    shape = (*shape[:-1], q.shape[0])
    call = LayerCall(launches, launches.workspace, shape, _like(q, shape, x), q.memory.data.device_id)
    q.keep_recording(key, call)
    return call


def _like(q: Any, shape: tuple[int, ...], x: Any) -> Any | None:
    """A view of the weights' bytes with the shape of a result and the dtype of x; None where they are fewer.

    It holds no memory, for arrays of weights only borrow that of a tensor.
    """
    raw, size = q.memory.tensor.reshape(-1), math.prod(shape) * x.element_size()
    return raw[:size].view(x.dtype).reshape(shape) if size <= raw.numel() else None
