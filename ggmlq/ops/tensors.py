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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.tensors import array_of, bits_of, lacks_numpy_dtype
from ..base.devices import cuda_device, cuda_driver, cuda_module, is_host, is_over_torch
from ..dispatch.checks import float_dtype
from ..dispatch.ladder import Rung
from ..errors import DeviceError, DTypeError, ShapeError
from . import warm
from .epilogue import fits, unfit

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
            launches, whole = warm.recording(q, m, kernel, arithmetic, letter, torch.kinds[written], letters)
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
            add = warm.adder(q, math.prod(x.shape[:-1]), torch.kinds[bias.dtype])
        add(bias.data_ptr(), y.data_ptr(), stream)
    return y


def _letters_of(torch: Torch, bias: Any, residual: Any) -> str | None:
    """The letters of what launches add, as warm.py has them."""
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


# --- torch's stream, device and memory ----------------------------------------------------------


@contextmanager
def as_torch_works(torch: Any, device: Any, memory: Any = None) -> Iterator[None]:
    """A context in which kernels work on torch's current stream and with memory of torch; for GPUs.

    ``memory``: that of the weights. If it is torch's, CuPy is not used, and need not be there.
    """
    if device.type != "cuda":
        yield
        return
    if is_over_torch(type(memory)):
        with torch.cuda.device(device), cuda_module("machine.serving").served_by() as library:
            library.enter(device.index)
            yield
        return
    cuda = cuda_device().cupy().cuda

    stream = cuda.Stream.from_external(_Stream(torch.cuda.current_stream(device).cuda_stream))
    memory = _Memory(torch, cuda, device)
    with torch.cuda.device(device), cuda.Device(device.index), stream, cuda.using_allocator(memory):
        yield


class _Memory:
    """An allocator of CuPy that takes memory of torch."""

    kept_for_graphs = True  # torch keeps what it gave while a CUDA graph was recorded

    def __init__(self, torch: Any, cuda: Any, device: Any) -> None:
        self.torch, self.cuda, self.device = torch, cuda, device

    def __call__(self, size: int) -> Any:
        owner = self.torch.empty(size, dtype=self.torch.uint8, device=self.device)
        memory = self.cuda.UnownedMemory(owner.data_ptr(), size, owner, self.device.index)
        return self.cuda.MemoryPointer(memory, 0)


class _Stream:
    """A stream under the protocol that CuPy takes and that older versions of torch lack."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


# --- warm products of a layer, with the fewest questions: for eager code in torch ---------------


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
    launches, whole = warm.recording(q, math.prod(shape[:-1]), "auto", None, letter, letter, added)
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


def linear_added(
    request: str, product: Callable[..., bool], memory: Any, x: Any, residual: Any, shape: tuple[int, ...],
    out: Any, dtype: Any, bias: Any,
) -> Any | None:  # fmt: skip
    """A product on a GPU whose kernel adds the residual and rounds; None where no kernel does, or a tensor
    does not lie as kernels read it.

    ``product(x, out=…, bias=…, residual=…)`` takes arrays; ``memory``: that of the weights.
    """
    torch = sys.modules["torch"]
    members_of, kind = members(torch), kind_named(request, torch, dtype)
    check_residual(request, torch, x, residual, shape, out)
    refuse_others(request, torch, bias=bias)
    kind = kind if out is None else out.dtype
    parts = [part for part in (x, residual, bias, out) if part is not None]
    if not x.is_cuda or kind not in members_of.kinds or residual.shape != shape or 0 in shape:
        return None
    if is_host(memory) or any(part.device != x.device for part in parts):  # which is said elsewhere
        return None
    if not all(p.dtype in members_of.kinds and p.is_contiguous() and not p.is_neg() for p in parts):
        return None
    apart = out is None or (is_apart(out, x, memory, bias) and (out is residual or is_apart(out, residual)))
    if not apart or (out is not None and out.data_ptr() % 4):
        return None
    with as_torch_works(torch, x.device, memory):
        y = torch.empty(shape, dtype=kind, device=x.device) if out is None else out
        arrays = {"out": y, "residual": residual} | ({} if bias is None else {"bias": bias})
        views = {name: memory_as_kernels_read(request, torch, part, name) for name, part in arrays.items()}
        return y if product(memory_as_kernels_read(request, torch, x, "x"), **views) else None
