"""The door of the operations: an array of any kind is looked at once, and becomes an operand.

Three adapters, of NumPy, CuPy and torch, say what an array is: its memory, shape, strides, dtype, device and
owner. Behind the door there are NumPy's arrays, and those on a GPU under CuPy's names; nobody asks again.
Anything that NumPy makes an array of comes in as that: lists, numbers, objects with ``__array__``.

Products come in by :func:`enter`, those of tensors on torch's current stream and with memory of torch, so
that tensors are ordered, freed and recorded in CUDA graphs like those of torch's own operations. There are no
gradients. Weights in torch's memory need no CuPy; those in CuPy's do. The caller has imported torch; we never
do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ..arrays.buffers import address_of
from ..arrays.tensors import array_of, bits_of, is_tensor, lacks_numpy_dtype
from ..base.devices import cuda_device, cuda_module, is_host, is_over_torch, lives_on_host
from ..dispatch.checks import as_array, as_floats, float_dtype
from ..errors import DeviceError, DTypeError, ShapeError
from .epilogue import Wishes, fits, unfit

FLOATS = tuple(np.dtype(kind) for kind in (np.float32, np.float16, np.float64))


class Operand(NamedTuple):
    """An array as operations see it."""

    array: Any  # NumPy's, or on a GPU
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    dtype: np.dtype[Any]
    device: str  # "cpu", "cuda:0" …
    owner: Any  # the caller's array, in whose memory the floats lie unless they were converted
    writable: bool

    @property
    def on_host(self) -> bool:
        """True in host memory."""
        return self.device == "cpu"


def operand(request: str, x: Any, name: str = "x", bfloat16: bool = False) -> Operand:
    """Floats as an operand; bfloat16 becomes float32, that of ml_dtypes not if ``bfloat16`` is True."""
    return ADAPTERS[type(x)].operand(request, x, name, bfloat16)


def _of_numpy(request: str, x: Any, name: str, bfloat16: bool) -> Operand:
    ordinary = type(x) is np.ndarray and x.dtype in FLOATS
    return _over_host(x if ordinary else as_floats(request, x, name, bfloat16), x)


def _of_gpu(request: str, x: Any, name: str, bfloat16: bool) -> Operand:
    return _over_gpu(as_floats(request, x, name, bfloat16), x)


def _of_torch(request: str, x: Any, name: str, bfloat16: bool) -> Operand:
    array = array_of(request, x, name)
    return (_of_numpy if is_host(array) else _of_gpu)(request, array, name, bfloat16)._replace(owner=x)


def _over_host(array: Any, owner: Any) -> Operand:
    at, writable = address_of(array), array.flags.writeable
    return Operand(array, at, array.shape, array.strides, array.dtype, "cpu", owner, writable)


def _over_gpu(array: Any, owner: Any) -> Operand:
    at, device = array.data.ptr, f"cuda:{array.device.id}"
    return Operand(array, at, array.shape, array.strides, array.dtype, device, owner, True)


def integers(request: str, x: Any, name: str = "ids", way: str = "an array of integers") -> Operand:
    """Ids, lengths or positions as an operand of the dtype that they have; ``way``: what errors advise."""
    array = x
    if is_tensor(x):
        array = bits_of(request, x.float() if lacks_numpy_dtype(sys.modules["torch"], x) else x, name)
    array = as_array(request, array, name, way)
    return (_over_host if is_host(array) else _over_gpu)(array, x)


class Adapter(NamedTuple):
    """The ways of a kind of arrays into an operation: one array, or the call of a product."""

    operand: Callable[..., Operand]
    enter: Callable[..., Any]


class Adapters(dict[type, Adapter]):
    """The adapters of classes of arrays, each found when its first array comes."""

    def __missing__(self, kind: Any) -> Adapter:
        torch = sys.modules.get("torch")
        if torch is not None and issubclass(kind, torch.Tensor):
            adapter = Adapter(_of_torch, by_tensors)
        else:
            adapter = Adapter(_of_numpy if lives_on_host(kind) else _of_gpu, _by_arrays)
        return self.setdefault(kind, adapter)


ADAPTERS = Adapters()


# --- products -----------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """The declaration of a product.

    ``multiply(q, x, wishes, **options)`` takes arrays. With ``bits`` it also takes ``lies=True``: bfloat16
    lies on a GPU as its bits, and it gives None where no kernel reads them. ``shape(q, x, **options)`` is
    that of the result for a tensor x; by default [..., N]. Without ``floats`` the result is no tensor.
    """

    request: str
    multiply: Callable[..., Any]
    bits: bool = False
    floats: bool = True
    shape: Callable[..., tuple[int, ...]] = lambda q, x, **options: (*x.shape[:-1], q.shape[0])


def enter(operation: Operation, q: Any, x: Any, wishes: Wishes, **options: Any) -> Any:
    """The result of a product of x, an array of any kind, with weights."""
    return ADAPTERS[type(x)].enter(operation, q, x, wishes, options)


def _by_arrays(operation: Operation, q: Any, x: Any, wishes: Wishes, options: dict[str, Any]) -> Any:
    return operation.multiply(q, x, wishes, **options)


class Way(NamedTuple):
    """A way to multiply tensors: how x and the rest are read, what is written, and who adds a residual."""

    x_of: Callable[..., Any]
    rest_of: Callable[..., Any]
    written: Any  # torch's dtype
    adds: bool = True


def by_tensors(operation: Operation, q: Any, x: Any, wishes: Wishes, options: dict[str, Any]) -> Any:
    """The result of a product as a tensor; x and what the wishes hold are tensors.

    torch adds a residual that no kernel adds, and rounds what no kernel rounds.
    """
    torch, request, memory = sys.modules["torch"], operation.request, getattr(q, "memory", None)
    if not operation.floats:
        return operation.multiply(q, array_of(request, x), wishes, **options)
    kind, out, residual = kind_named(request, torch, wishes.dtype), wishes.out, wishes.residual
    shape, bits = operation.shape(q, x, **options), operation.bits and not wishes.invariant
    _check(request, torch, x, wishes, shape)
    kind = kind if out is None else out.dtype
    is_wrong = out is not None and (out.shape != shape or out.device != x.device)  # said by checks of arrays
    with as_torch_works(torch, x.device, memory):
        for way in _ways(torch, x, memory, shape, kind, wishes, bits):
            rows = way.x_of(request, x, "x")
            direct = out is not None and way.adds and (out.dtype is way.written or is_wrong)
            y = out if direct else torch.empty(shape, dtype=way.written, device=x.device)
            parts = {"out": y, "bias": wishes.bias, "residual": residual if way.adds else None}
            arrays: dict[str, Any] = {
                name: None if part is None else way.rest_of(request, part, name)
                for name, part in parts.items()
            }
            more = {"lies": True} if way.x_of is as_kernels_read else {}
            asked = wishes._replace(**arrays, dtype=np.float32)
            if operation.multiply(q, rows, asked, **options, **more) is not None:
                break
    if residual is not None and not way.adds:
        y += residual
    if out is None:
        return y.to(kind)
    return out if y is out else out.copy_(y)


def _ways(
    torch: Any, x: Any, memory: Any, shape: tuple[int, ...], kind: Any, wishes: Wishes, bits: bool
) -> Iterator[Way]:  # fmt: skip
    """The ways to multiply tensors, the best first; the last one always goes."""
    single, bfloat, out = torch.float32, torch.bfloat16, wishes.out
    if wishes.residual is not None:
        if bits and _all_lie(torch, x, memory, shape, wishes, kind):
            yield Way(as_kernels_read, as_kernels_read, kind)
        if bits and x.is_cuda and x.dtype is bfloat and not x.is_neg():
            yield Way(as_kernels_read, array_of, single, adds=False)
        yield Way(array_of, array_of, single, adds=False)
        return
    plain = single if out is None or lacks_numpy_dtype(torch, out) else out.dtype
    if bits and x.is_cuda and x.dtype is bfloat and not x.is_neg():
        if out is None and kind is bfloat:
            yield Way(as_kernels_read, as_kernels_read, bfloat)
        yield Way(as_kernels_read, array_of, plain)
    elif bits and x.is_cuda and out is None and kind is x.dtype is torch.float16:
        plain = kind
    yield Way(array_of, array_of, plain)


def _all_lie(
    torch: Any, x: Any, memory: Any, shape: tuple[int, ...], wishes: Wishes, kind: Any
) -> bool:  # fmt: skip
    """True for tensors on a GPU that a kernel which adds the residual reads and writes as they lie."""
    bias, residual, out = wishes.bias, wishes.residual, wishes.out
    if not x.is_cuda or is_host(memory) or residual.shape != shape or 0 in shape:
        return False
    kinds = torch.float32, torch.float16, torch.bfloat16
    parts = [part for part in (x, residual, bias, out) if part is not None]
    if kind not in kinds or any(part.device != x.device for part in parts):
        return False
    if not all(part.dtype in kinds and part.is_contiguous() and not part.is_neg() for part in parts):
        return False
    if out is None:
        return True
    apart = is_apart(out, x, memory, bias) and (out is residual or is_apart(out, residual))
    return apart and not out.data_ptr() % 4


def kind_named(request: str, torch: Any, dtype: Any) -> Any:
    """The dtype of torch's that a caller names, by it or by NumPy's."""
    kind = dtype if isinstance(dtype, torch.dtype) else getattr(torch, float_dtype(request, dtype).name)
    if not kind.is_floating_point:
        raise DTypeError(f"{request}: values are floats, {dtype} was asked for; ask for torch.float32")
    return kind


def _check(request: str, torch: Any, x: Any, wishes: Wishes, shape: tuple[int, ...]) -> None:
    """Refuse operands that are no tensors, or want a gradient; and a residual that cannot be added."""
    out, residual = wishes.out, wishes.residual
    operands = {"x": x, "residual": residual, "out": out, "bias": wishes.bias}
    if residual is None:
        operands = {"x": x, "bias": wishes.bias, "out": out}
    for name, operand in operands.items():
        if operand is not None:
            _refuse_other(request, torch, name, operand)
    if residual is None:
        return
    for name, tensor in (("residual", residual), ("out", out)):
        if tensor is not None and tensor.device != x.device:
            raise DeviceError(f"{request}: {name} is on {tensor.device}, x on {x.device}; move it there")
        if tensor is not None:
            array_of(request, tensor, name)
    if not fits(residual.shape, shape):
        raise ShapeError(unfit(request, residual.shape, shape))
    if out is not None and tuple(out.shape) != shape:
        raise ShapeError(f"{request}: out has shape {tuple(out.shape)}, the result {shape}; allocate {shape}")


def _refuse_other(request: str, torch: Any, name: str, operand: Any) -> None:
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


def as_kernels_read(request: str, tensor: Any, name: str) -> Any:
    """A tensor as an array: of bfloat16 the bits, as uint16."""
    torch = sys.modules["torch"]
    if tensor.dtype is not torch.bfloat16:
        return array_of(request, tensor, name)
    return bits_of(request, tensor.detach().view(torch.int16), name).view(np.uint16)


def is_apart(out: Any, x: Any, memory: Any = None, bias: Any = None) -> bool:
    """True if the tensor ``out`` shares no memory with what a product reads; all of it is contiguous."""
    spans = [(part.data_ptr(), part.numel() * part.element_size()) for part in (x, bias) if part is not None]
    spans += [] if memory is None else [(memory.data.ptr, memory.nbytes)]
    first, last = out.data_ptr(), out.data_ptr() + out.numel() * out.element_size()
    return not any(at < last and first < at + size for at, size in spans)


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
        with torch.cuda.device(device), cuda_module("driver.serving").served_by() as library:
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
