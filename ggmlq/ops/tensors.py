"""Products whose activations are torch tensors. The caller has imported torch; this package never does.

A call that is not warm goes the way of arrays, over the memory of its tensors: on a GPU on torch's current
stream, with memory of torch, so that tensors are ordered, freed and recorded in CUDA graphs like those of
torch's own operations. There are no gradients. Weights in torch's memory need no CuPy; those in CuPy's do.

A warm call (warm.py) needs addresses alone: on the host two; on a GPU also torch's current stream, and memory
between kernels. torch gives such memory back to that stream, so later work cannot write to it too early.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.tensors import array_of, bits_of, lacks_numpy_dtype
from ..base.devices import cuda_driver, cuda_module, is_over_torch
from ..dispatch.checks import float_dtype
from ..dispatch.ladder import Rung
from ..errors import DeviceError, DTypeError, ShapeError
from . import warm_device
from .epilogue import fits, unfit
from .torch_context import as_torch_works

HOST = -1  # torch's number of it


class Torch(NamedTuple):
    """The members of torch that each product needs, looked up once."""

    tensor: Any
    parameter: Any
    strided: Any
    float32: Any
    bytes: Any  # its dtype of bytes
    empty: Callable[..., Any]
    empty_like: Callable[[Any], Any]
    kinds: dict[Any, str]  # of x, out and bias: the letters that keys of recordings have for them
    results: dict[Any, Any]  # dtypes of results as a caller may write them, to torch's
    with_gradients: Callable[[], bool]
    stream: Callable[[int], int]  # the address of a device's current stream
    device: Callable[[], int]  # the number of the current device, whose current stream ...
    capturing: Callable[[], bool]  # ... may record a CUDA graph


@cache
def members(torch: Any) -> Torch:
    single, half, bfloat, double = torch.float32, torch.float16, torch.bfloat16, torch.float64
    results = {dtype: dtype for dtype in (single, half, bfloat, double)}
    results |= {None: single, np.float32: single, np.float16: half, np.float64: double}

    def stream(index: int) -> int:
        return int(torch.cuda.current_stream(index).cuda_stream)

    return Torch(
        torch.Tensor, torch.nn.Parameter, torch.strided, single, torch.uint8, torch.empty, torch.empty_like,
        {single: "f", half: "e", bfloat: "H"}, results, torch.is_grad_enabled,
        getattr(torch._C, "_cuda_getCurrentRawStream", stream),
        getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device),
        torch.cuda.is_current_stream_capturing,
    )  # fmt: skip


# --- warm calls -------------------------------------------------------------------------------


def linear(
    x: Any, q: Any, kernel: Any, arithmetic: Any, out: Any, bias: Any, dtype: Any, residual: Any = None
) -> Any | None:  # fmt: skip
    """``x @ q.T + bias + residual`` of tensors, if that is a warm call (an earlier one was recorded); else
    None. On the host that has no residual.
    """
    torch = members(sys.modules["torch"])
    if type(q) is not QuantArray or type(x) is not torch.tensor:
        return None
    shape, on_device = x.shape, x.is_cuda
    letter, index = torch.kinds.get(x.dtype), x.get_device() if on_device else HOST
    if letter is None or (on_device and (not shape or len(q.shape) != 2 or shape[-1] != q.shape[1])):
        return None
    try:
        kind, whole = torch.results.get(dtype), False
        if on_device:
            wanted = kind if out is None else out.dtype
            written = wanted if wanted in torch.kinds else torch.float32
            m = math.prod(shape[:-1])
            added, after = (residual, None) if bias is None and m == 1 else (bias, residual)
            letters = _letters_of(torch, added, after)
            launches, whole = warm_device.recording(
                q, m, kernel, arithmetic, letter, torch.kinds[written], letters
            )
            if residual is not None and not whole:
                return None
        else:
            launches = q.recording((shape, kernel, arithmetic))
    except (TypeError, AttributeError):  # it cannot be hashed, so it is no dtype nor the name of a kernel
        return None
    if kind is None or launches is None or type(launches) is Rung or not _is_plain(torch, x):
        return None
    n = q.shape[0]
    if bias is not None and not is_ordinary(torch, bias, (n,), index, torch.parameter):
        return None
    if out is not None and (not is_ordinary(torch, out, (*shape[:-1], n), index) or out.is_inference()):
        return None
    if residual is not None and not (on_device and _fits(torch, residual, (*shape[:-1], n), index, out)):
        return None
    if on_device:
        written = written if whole else torch.float32
        y = _on_device(torch, launches, x, q, out, bias, written, whole, added, after)
        if y is None or y is out:
            return y
    else:
        if letter != "f":
            x = x.float()
        address = _address(x) if q.immutable and x.is_contiguous() else 0
        if not address:
            return None
        y = x.new_empty(shape[0], n) if len(shape) == 2 else x.new_empty(*shape[:-1], n)
        launches(address, y.data_ptr())
        if q.scale is not None:
            y *= float(q.scale) if not np.ndim(q.scale) else sys.modules["torch"].from_numpy(q.scale.copy())
        if bias is not None:
            y += bias
    if out is not None:
        return out.copy_(y)
    return y if kind is torch.float32 else y.to(kind)


def _on_device(
    torch: Torch, launches: Any, x: Any, q: Any, out: Any, bias: Any, written: Any, whole: bool, added: Any,
    after: Any,
) -> Any | None:  # fmt: skip
    """The product by recorded launches, of the dtype ``written``; ``whole``: they add ``added`` as a bias and
    ``after`` as a residual.
    """
    index, memory = x.get_device(), q.memory
    current = torch.device() if is_over_torch(type(memory)) else cuda_driver().device()
    if not (current == index == memory.data.device_id) or not x.is_contiguous():
        return None
    address, stream = _address(x), torch.stream(index)
    if not address or address % 16 or (stream and (torch.device() != index or torch.capturing())):
        return None
    y = out
    if out is None or out.dtype is not written or out.data_ptr() % 4 or not is_apart(out, x, memory, bias):
        y = torch.empty((*x.shape[:-1], q.shape[0]), dtype=written, device=x.device)
        if not y.data_ptr():  # a mode under which tensors have no memory
            return None
    at = [part.data_ptr() if whole and part is not None else 0 for part in (added, after)]
    if launches.workspace:
        workspace = torch.empty(launches.workspace, dtype=torch.bytes, device=x.device)
        launches(address, y.data_ptr(), stream, workspace.data_ptr(), *at)
    else:
        launches(address, y.data_ptr(), stream, 0, *at)
    if bias is not None and not whole:
        with cuda_module("machine.serving").served_by(is_over_torch(type(memory))):
            add = warm_device.adder(q, math.prod(x.shape[:-1]), torch.kinds[bias.dtype])
        add(bias.data_ptr(), y.data_ptr(), stream)
    return y


def _letters_of(torch: Torch, bias: Any, residual: Any) -> str | None:
    """The letters of what launches add, as warm_device.py has them."""
    letters = None if bias is None else torch.kinds.get(bias.dtype)
    return letters if residual is None else f"{letters or ''}+{torch.kinds.get(residual.dtype)}"


def _fits(torch: Torch, residual: Any, shape: tuple[int, ...], index: int, out: Any) -> bool:
    """True for a residual that launches can add: of the result's shape, ``out`` itself or apart from it.

    They read two numbers of 16 bits at a time.
    """
    if not is_ordinary(torch, residual, shape, index):
        return False
    return not residual.data_ptr() % 4 and (out is None or out is residual or is_apart(out, residual))


def _address(x: Any) -> int:
    """The address of a tensor's first byte; 0 for stand-ins without memory, as under a mode of torch's."""
    try:
        return int(x.data_ptr())
    except RuntimeError:
        return 0


def _is_plain(torch: Torch, x: Any) -> bool:
    """True for a tensor that is nothing but its memory, and of which nobody wants a gradient."""
    if x.requires_grad and torch.with_gradients():
        return False
    return x.layout is torch.strided and not x.is_neg()


def is_ordinary(torch: Torch, tensor: Any, shape: tuple[int, ...], index: int, other: Any = None) -> bool:
    """True for a contiguous tensor of floats, or of that ``other`` class, of this shape on this device."""
    if type(tensor) not in (torch.tensor, other) or tensor.dtype not in torch.kinds or tensor.shape != shape:
        return False
    return tensor.get_device() == index and _is_plain(torch, tensor) and tensor.is_contiguous()


def is_apart(out: Any, x: Any, memory: Any = None, bias: Any = None) -> bool:
    """True if ``out`` shares no memory with what a product reads; all of it is contiguous."""
    spans = [(part.data_ptr(), part.numel() * part.element_size()) for part in (x, bias) if part is not None]
    spans += [] if memory is None else [(memory.data.ptr, memory.nbytes)]
    first, last = out.data_ptr(), out.data_ptr() + out.numel() * out.element_size()
    return not any(at < last and first < at + size for at, size in spans)


# --- other calls, by the way of arrays --------------------------------------------------------


def called(
    operation: Callable[..., Any], request: str, x: Any, operands: tuple[Any, ...], shape: tuple[int, ...],
    out: Any, dtype: Any, bias: Any = None, of_bits: Callable[..., bool] | None = None, residual: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    """The result of ``operation(x, *operands)`` as a tensor of this shape; x, ``out``, ``bias`` are tensors.

    ``of_bits`` multiplies the bits of bfloat16 on a GPU; if no kernel does, it does nothing and gives False.
    """
    torch = sys.modules["torch"]
    kind = kind_named(request, torch, dtype)
    if residual is not None:
        more = (operands, shape, None, torch.float32, bias, of_bits)
        return added(
            request, lambda: called(operation, request, x, *more, **options), x, residual, shape, out, dtype
        )
    refuse_others(request, torch, x=x, bias=bias, out=out)
    bfloat = of_bits is not None and x.is_cuda and x.dtype is torch.bfloat16 and not x.is_neg()
    with as_torch_works(torch, x.device, getattr(operands[0], "memory", None) if operands else None):
        rows = array_of(request, x) if not bfloat else bits_of(request, x.detach().view(torch.int16), "x")
        y = out
        if bfloat and out is None and kind is torch.bfloat16:
            y = torch.empty(shape, dtype=kind, device=x.device)
            bits = dict(options, out=memory_as_kernels_read(request, torch, y, "out"), bias=None)
            if bias is not None:
                bits["bias"] = memory_as_kernels_read(request, torch, bias, "bias")
            if of_bits is not None and of_bits(rows.view(np.uint16), *operands, **bits):
                return y
        if of_bits is not None and out is None and x.is_cuda and kind is x.dtype is torch.float16:
            y = torch.empty(shape, dtype=kind, device=x.device)
        elif out is None or (lacks_numpy_dtype(torch, out) and (out.shape, out.device) == (shape, x.device)):
            y = torch.empty(shape, dtype=torch.float32, device=x.device)
        options["out"] = array_of(request, y, "out")
        if bias is not None:
            options["bias"] = array_of(request, bias, "bias")
        if not bfloat:
            operation(rows, *operands, **options)
        elif of_bits is not None and not of_bits(rows.view(np.uint16), *operands, **options):
            operation(array_of(request, x), *operands, **options)
        if out is None:
            return y.to(kind)
        return out if y is out else out.copy_(y)


def added(
    request: str, product: Callable[[], Any], x: Any, residual: Any, shape: tuple[int, ...], out: Any,
    dtype: Any,
) -> Any:  # fmt: skip
    """``product()``, float32 of this shape, plus a residual, rounded once."""
    torch = sys.modules["torch"]
    kind = kind_named(request, torch, dtype)
    check_residual(request, torch, x, residual, shape, out)
    y = product()
    y += residual
    return y.to(kind) if out is None else out.copy_(y)


def kind_named(request: str, torch: Any, dtype: Any) -> Any:
    """The dtype of torch's that a caller names, by it or by NumPy's."""
    kind = dtype if isinstance(dtype, torch.dtype) else getattr(torch, float_dtype(request, dtype).name)
    if not kind.is_floating_point:
        raise DTypeError(f"{request}: values are floats, {dtype} was asked for; ask for torch.float32")
    return kind


def check_residual(
    request: str, torch: Any, x: Any, residual: Any, shape: tuple[int, ...], out: Any
) -> None:  # fmt: skip
    """Refuse a residual that cannot be added to a result of this shape, or an ``out`` of another."""
    refuse_others(request, torch, x=x, residual=residual, out=out)
    for name, tensor in (("residual", residual), ("out", out)):
        if tensor is not None and tensor.device != x.device:
            raise DeviceError(f"{request}: {name} is on {tensor.device}, x on {x.device}; move it there")
        if tensor is not None:
            array_of(request, tensor, name)
    if not fits(residual.shape, shape):
        raise ShapeError(unfit(request, residual.shape, shape))
    if out is not None and tuple(out.shape) != shape:
        raise ShapeError(f"{request}: out has shape {tuple(out.shape)}, the result {shape}; allocate {shape}")


def memory_as_kernels_read(request: str, torch: Any, tensor: Any, name: str) -> Any:
    """A tensor as an array: of bfloat16 the bits, as uint16."""
    if tensor.dtype is not torch.bfloat16:
        return array_of(request, tensor, name)
    return bits_of(request, tensor.detach().view(torch.int16), name).view(np.uint16)


def refuse_others(request: str, torch: Any, **operands: Any) -> None:
    for name, operand in operands.items():
        if operand is None:
            continue
        if not isinstance(operand, torch.Tensor):
            raise DTypeError(
                f"{request}: x is a tensor, {name} a {type(operand).__name__}; they must be of one kind; "
                f"pass torch.as_tensor({name})"
            )
        if operand.requires_grad and torch.is_grad_enabled():
            raise DTypeError(
                f"{request}: {name} requires a gradient; products of tensors with arrays have none; use "
                f"ggmlq.torch.Linear, which has one; or pass {name}.detach(), or work under torch.no_grad()"
            )
