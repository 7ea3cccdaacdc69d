"""The ordinary product of torch's tensors: floats beside their weights, on the current device, done before.

On the host a plan takes two addresses: that of x and that of a new tensor. On a GPU three numbers are what
:mod:`ggmlq.ops.torch` does with streams and allocators of CuPy: where x lies, where its result, and torch's
current stream. Whatever is not ordinary goes back there: the first products of a shape, which plans are made
of, and all that a CUDA graph records.

Memory is torch's: the result, and what one kernel hands to the next. torch gives both to its current stream,
which is the one that the kernels go to; when the latter is given back, before they have run, torch hands it
to work of this stream alone, which runs after them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.tensors import bits_of
from ..base.devices import cuda_driver
from . import fast_path

HOST = -1  # what torch numbers it by


class Torch(NamedTuple):
    """What of torch each product needs, looked up once."""

    tensor: Any
    parameter: Any
    strided: Any
    float32: Any
    bytes: Any  # its type of them
    empty: Callable[..., Any]
    kinds: dict[Any, str]  # of x, out and bias: the letters that plans know them by
    results: dict[Any, Any]  # of results: torch's own types, by what they may be asked for
    with_gradients: Callable[[], bool]
    stream: Callable[[int], int]  # the address of a device's current one
    device: Callable[[], int]  # the number of the current one, whose current stream ...
    capturing: Callable[[], bool]  # ... may record a CUDA graph


@cache
def _of(torch: Any) -> Torch:
    single, half, bfloat, double = torch.float32, torch.float16, torch.bfloat16, torch.float64
    results = {each: each for each in (single, half, bfloat, double)}
    results |= {None: single, np.float32: single, np.float16: half, np.float64: double}

    def stream(index: int) -> int:
        return int(torch.cuda.current_stream(index).cuda_stream)

    return Torch(
        torch.Tensor, torch.nn.Parameter, torch.strided, single, torch.uint8, torch.empty,
        {single: "f", half: "e", bfloat: "H"}, results, torch.is_grad_enabled,
        getattr(torch._C, "_cuda_getCurrentRawStream", stream),
        torch.cuda.current_device, torch.cuda.is_current_stream_capturing,
    )  # fmt: skip


def linear(x: Any, q: Any, kernel: Any, arithmetic: Any, out: Any, bias: Any, dtype: Any) -> Any | None:
    """``x @ q.T + bias`` of tensors, if it was done before; None for all others."""
    torch = _of(sys.modules["torch"])
    if type(q) is not QuantArray or type(x) is not torch.tensor:
        return None
    if not x.is_cuda:
        return _on_host(torch, x, q, kernel, arithmetic, out, bias, dtype)
    if type(kernel) is not str or not (arithmetic is None or type(arithmetic) is str):
        return None
    shape, size, letter = x.shape, q.shape, torch.kinds.get(x.dtype)
    if letter is None or not shape or len(size) != 2 or shape[-1] != size[1]:
        return None
    m = shape[0] if len(shape) == 2 else math.prod(shape[:-1])
    plan = q.plan(fast_path.key_of(m, kernel, arithmetic, letter))
    index = x.get_device()
    if plan is None or not (cuda_driver().device() == index == q.memory.data.device_id):
        return None
    if not _is_plain(torch, x) or not x.is_contiguous():
        return None
    address = _address(x)
    if not address or address % 16:
        return None
    stream = torch.stream(index)
    if stream and (torch.device() != index or torch.capturing()):
        return None
    try:
        kind = torch.results.get(dtype)
    except TypeError:  # what cannot be a key is no type either
        return None
    result = (*shape[:-1], size[0])
    if kind is None:
        return None
    if bias is not None and not _fits(torch, bias, size[:1], index, torch.parameter):
        return None
    if out is not None and (not _fits(torch, out, result, index) or out.is_inference()):
        return None
    device, y = x.device, out
    if out is None or out.dtype is not torch.float32 or not _is_apart(out, x, q.memory, bias):
        y = torch.empty(result, dtype=torch.float32, device=device)
        if not y.data_ptr():  # a mode under which tensors have no memory
            return None
    if plan.workspace:
        memory = torch.empty(plan.workspace, dtype=torch.bytes, device=device)
        plan(address, y.data_ptr(), stream, memory.data_ptr())
    else:
        plan(address, y.data_ptr(), stream)
    if bias is not None:
        fast_path.adder(q, m, torch.kinds[bias.dtype])(bias.data_ptr(), y.data_ptr(), stream)
    if out is None:
        return y if kind is torch.float32 else y.to(kind)
    return out if y is out else out.copy_(y)


def _on_host(
    torch: Torch, x: Any, q: Any, kernel: Any, arithmetic: Any, out: Any, bias: Any, dtype: Any
) -> Any | None:
    """The same of tensors in the host's memory."""
    shape, floats = x.shape, x.dtype
    try:
        kind, plan = torch.results.get(dtype), q.plan((shape, kernel, arithmetic))
    except TypeError:  # what cannot be a key is no type and no kernel either
        return None
    if kind is None or plan is None or floats not in torch.kinds or not _is_plain(torch, x) or not q.lasting:
        return None
    n = q.shape[0]
    if bias is not None and not _fits(torch, bias, (n,), HOST, torch.parameter):
        return None
    if out is not None and (not _fits(torch, out, (*shape[:-1], n), HOST) or out.is_inference()):
        return None
    if floats is not torch.float32:
        x = x.float()
    address = _address(x) if x.is_contiguous() else 0
    if not address:
        return None
    y = x.new_empty(shape[0], n) if len(shape) == 2 else x.new_empty(*shape[:-1], n)
    plan(address, y.data_ptr())
    if bias is not None:
        y += bias
    if out is not None:
        return out.copy_(y)
    return y if kind is torch.float32 else y.to(kind)


def _address(x: Any) -> int:
    """The first byte of a tensor; 0 of tensors that stand for others, as under a mode of torch's."""
    try:
        return int(x.data_ptr())
    except RuntimeError:
        return 0


def _is_plain(torch: Torch, x: Any) -> bool:
    """Whether a tensor is its memory, and nobody wants a gradient of it."""
    if x.requires_grad and torch.with_gradients():
        return False
    return x.layout is torch.strided and not x.is_neg()


def _fits(torch: Torch, array: Any, shape: tuple[int, ...], index: int, or_of: Any = None) -> bool:
    """Whether it is a contiguous tensor of floats, or of that class, of this shape and on this device."""
    if type(array) not in (torch.tensor, or_of) or array.dtype not in torch.kinds or array.shape != shape:
        return False
    return array.get_device() == index and _is_plain(torch, array) and array.is_contiguous()


def _is_apart(out: Any, x: Any, memory: Any, bias: Any) -> bool:
    """Whether ``out`` shares no memory with what a product reads; all of it is contiguous."""
    places = [(each.data_ptr(), each.numel() * each.element_size()) for each in (x, bias) if each is not None]
    first = out.data_ptr()
    last = first + out.numel() * out.element_size()
    return not any(
        at < last and first < at + size for at, size in (*places, (memory.data.ptr, memory.nbytes))
    )


def recorded(product: Callable[..., Any], x: Any, rows: Any, q: Any, *, out: Any, **asked: Any) -> None:
    """``product(rows, q)`` to ``out``, of CuPy's arrays; as x has them where kernels read bfloat16.

    So plans are made of such products, too.
    """
    torch = sys.modules["torch"]
    if x.is_cuda and x.dtype is torch.bfloat16 and not x.is_neg():
        bits = bits_of("linear(x, q)", x.detach().view(torch.int16), "x").view(np.uint16)
        given = asked["kernel"], asked["arithmetic"], out, asked.get("bias"), np.float32
        if fast_path.linear(bits, q, *given, kinds="H") is not None:
            return
    product(rows, q, out=out, **asked)
