"""Torch under CuPy's names: what kernels for GPUs ask of a library of arrays, over memory of torch.

Products of torch's tensors with weights in memory of torch run with it (device.py), so that they need neither
CuPy nor its memory: on torch's current device and stream, with memory of torch, and the driver's own calls
for code and for launches. The caller has imported torch; we never do.
"""

from __future__ import annotations

import math
import operator
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ...errors import MissingDependencyError
from . import calls

# ``TorchArray``: an array on a GPU over the memory of a torch tensor, with what is used of CuPy's face.
#
# Kernels, checks and rungs see what they see of CuPy's arrays: shape, strides in bytes, NumPy's dtypes, an
# address, views with a base. Views and arithmetic are torch's. The caller has imported torch; we never do.

KINDS = (
    "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bool",
)  # fmt: skip


def torch_kind(dtype: Any) -> Any:
    """Torch's dtype of NumPy's."""
    return getattr(sys.modules["torch"], np.dtype(dtype).name)


_KINDS: dict[Any, np.dtype[Any]] = {}  # torch's dtypes, to NumPy's


def numpy_kind(dtype: Any) -> np.dtype[Any]:
    """NumPy's dtype of torch's."""
    if not _KINDS or dtype not in _KINDS:
        torch = sys.modules["torch"]
        _KINDS.update({getattr(torch, kind): np.dtype(kind) for kind in KINDS if hasattr(torch, kind)})
    return _KINDS[dtype]


class Pointer(NamedTuple):
    """An array's first byte: its address, its device, and the tensor whose memory it is."""

    ptr: int
    device_id: int
    tensor: Any


class Device:
    """A GPU by its number; in a ``with`` block it is torch's current one."""

    def __init__(self, number: int | None = None) -> None:
        cuda = sys.modules["torch"].cuda
        self.id = int(cuda.current_device() if number is None else number)
        self._current = cuda.device(self.id)

    def __enter__(self) -> Device:
        self._current.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._current.__exit__(*error)

    @property
    def mem_info(self) -> tuple[int, int]:
        """Free bytes and all bytes."""
        free, total = sys.modules["torch"].cuda.mem_get_info(self.id)
        return int(free), int(total)


class Flags(NamedTuple):
    """The order of an array's elements in memory."""

    c_contiguous: bool


def _by_torch(operation: Callable[[Any, Any], Any]) -> Any:
    """The method of an array that takes torch's operator."""
    return lambda array, other: TorchArray.over(operation(array.tensor, _as_torch(other)))


class TorchArray:
    """An array over a tensor's memory. ``base`` is the array that it is a view of."""

    over_torch = True  # by which base/devices.py knows the class
    __array_priority__ = 100
    __array_ufunc__ = None
    base: TorchArray | None = None

    def __init__(self, shape: Any, dtype: Any, memory: Pointer, strides: Any = None) -> None:
        """A view of other memory, as CuPy's arrays are made: the tensor has this dtype."""
        size = np.dtype(dtype).itemsize
        tensor = memory.tensor
        if strides is not None:
            steps = [step // size for step in strides]
            tensor = tensor.as_strided(tuple(shape), steps, tensor.storage_offset())
        self._take(tensor, None)

    def _take(self, tensor: Any, base: TorchArray | None) -> None:
        self.tensor, self.base = tensor, base
        self.dtype = numpy_kind(tensor.dtype)
        self.shape = tuple(tensor.shape)
        self.data = Pointer(tensor.data_ptr(), tensor.get_device(), tensor)

    @classmethod
    def over(cls, tensor: Any, base: TorchArray | None = None) -> TorchArray:
        """The array over a tensor's memory."""
        array = TorchArray.__new__(TorchArray)
        array._take(tensor, base)
        return array

    def _view(self, tensor: Any) -> TorchArray:
        """A part of this array's memory, or a copy, where torch had to make one."""
        same = tensor.untyped_storage().data_ptr() == self.tensor.untyped_storage().data_ptr()
        return TorchArray.over(tensor, self if same else None)

    # --- facts ----------------------------------------------------------------------------------

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.dtype.itemsize)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from element to element along each axis; of contiguous arrays as NumPy has them."""
        if self.tensor.is_contiguous():
            lengths = [max(length, 1) for length in self.shape]
            return tuple(self.itemsize * math.prod(lengths[i + 1 :]) for i in range(len(lengths)))
        return tuple(step * self.itemsize for step in self.tensor.stride())

    @property
    def flags(self) -> Flags:
        """The order of the elements."""
        return Flags(bool(self.tensor.is_contiguous()))

    @property
    def device(self) -> Device:
        """The GPU that has the memory."""
        return Device(self.data.device_id)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __repr__(self) -> str:
        return f"<array {self.dtype} {self.shape} over memory of torch, cuda:{self.data.device_id}>"

    # --- views and copies ------------------------------------------------------------------------

    @property
    def T(self) -> TorchArray:
        """The view with its axes reversed."""
        return self._view(self.tensor.permute(*reversed(range(self.ndim))))

    def reshape(self, *shape: Any) -> TorchArray:
        """The elements in another shape: a view where rows lie together."""
        lengths = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return self._view(self.tensor.reshape(tuple(int(length) for length in lengths)))

    def view(self, dtype: Any) -> TorchArray:
        """A view of the bytes as elements of another dtype."""
        return self._view(self.tensor.view(torch_kind(dtype)))

    def __getitem__(self, index: Any) -> TorchArray:
        return self._view(self.tensor[_as_torch(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tensor[_as_torch(index)] = _as_torch(value)

    def fill(self, value: Any) -> None:
        """Set all elements to one value."""
        self.tensor.fill_(value)

    def copy(self) -> TorchArray:
        """A contiguous copy of the values."""
        empty = sys.modules["torch"].empty(self.shape, dtype=self.tensor.dtype, device=self.tensor.device)
        return TorchArray.over(empty.copy_(self.tensor))

    def astype(self, dtype: Any, order: str = "C", copy: bool = True) -> TorchArray:
        """The values in another dtype; the array itself if they are, unless ``copy``."""
        if self.dtype == np.dtype(dtype):
            return self.copy() if copy or not self.flags.c_contiguous else self
        return TorchArray.over(self.tensor.to(torch_kind(dtype)).contiguous())

    def get(self) -> Any:
        """The values on the host; it waits for them."""
        return self.tensor.cpu().numpy()

    def tolist(self) -> Any:
        """The values as lists; it waits for them."""
        return self.tensor.tolist()

    # --- arithmetic -------------------------------------------------------------------------------

    def __iadd__(self, other: Any) -> TorchArray:
        self.tensor += _as_torch(other)
        return self

    def __imul__(self, other: Any) -> TorchArray:
        self.tensor *= _as_torch(other)
        return self

    __lt__, __ge__, __or__ = map(_by_torch, (operator.lt, operator.ge, operator.or_))
    __and__, __floordiv__ = map(_by_torch, (operator.and_, operator.floordiv))

    def __int__(self) -> int:
        return int(self.tensor)


def _as_torch(value: Any) -> Any:
    """An operand or an index as torch takes it."""
    if isinstance(value, TorchArray):
        return value.tensor
    if isinstance(value, tuple):
        return tuple(_as_torch(part) for part in value)
    return value.item() if isinstance(value, np.generic) else value


FUNCTION_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def byte_bounds(array: TorchArray) -> tuple[int, int]:
    """The addresses where an array's memory begins and ends."""
    last = sum((length - 1) * step for length, step in zip(array.shape, array.strides, strict=True))
    first = array.data.ptr
    return first, first + (last + array.itemsize if array.size else 0)


def share(a: TorchArray, b: TorchArray) -> bool:
    """True where two arrays may share memory."""
    (first, last), (other_first, other_last) = byte_bounds(a), byte_bounds(b)
    return first < other_last and other_first < last


class TorchLibrary:
    """Functions that make arrays; ``cuda`` has streams, memory, code and facts of cards."""

    ndarray = TorchArray
    share = staticmethod(share)

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._lasting = threading.local()
        self.cuda = _cuda(self)

    # --- where --------------------------------------------------------------------------------

    def current(self) -> int:
        """The number of torch's current device."""
        return int(self._torch.cuda.current_device())

    def stream(self, index: int) -> calls.Stream:
        """Torch's current stream of a device."""
        return calls.Stream(int(self._torch.cuda.current_stream(index).cuda_stream))

    def enter(self, index: int) -> None:
        """Give this thread a context for the driver's calls, if it has none: that of a device."""
        if not calls.has_context():
            calls.make_current(index)

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """A context in which memory is made to outlive whatever the caller does with torch's pools.

        torch.compile with CUDA graphs runs a product once with all memory of its thread in a graph's pool,
        and refuses what is left there; replays would write to it. A thread of its own is in no such pool.
        """
        before = getattr(self._lasting, "on", False)
        self._lasting.on = True
        try:
            yield
        finally:
            self._lasting.on = before

    # --- arrays -------------------------------------------------------------------------------

    def empty(self, shape: Any, dtype: Any = np.float32) -> TorchArray:
        """An array of memory as it is, on the current device."""
        lengths = tuple(map(int, shape)) if isinstance(shape, tuple | list) else (int(shape),)
        if getattr(self._lasting, "on", False):
            return TorchArray.over(self._outside_pools(lengths, torch_kind(dtype)))
        return TorchArray.over(self._allocate(lengths, torch_kind(dtype), self.current()))

    def _allocate(self, shape: tuple[int, ...], kind: Any, index: int) -> Any:
        return self._torch.empty(shape, dtype=kind, device=self._torch.device("cuda", index))

    def _outside_pools(self, shape: tuple[int, ...], kind: Any) -> Any:
        """Memory that another thread allocates, on the default stream, which the current one waits for."""
        index, outcome, cuda = self.current(), list[Any](), self._torch.cuda

        def allocate() -> None:
            try:
                outcome.append(self._allocate(shape, kind, index))
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=allocate, name="ggmlq: memory")
        thread.start()
        thread.join()
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        cuda.current_stream(index).wait_stream(cuda.default_stream(index))
        outcome[0].record_stream(cuda.current_stream(index))
        return outcome[0]

    def zeros(self, shape: Any, dtype: Any = np.float32) -> TorchArray:
        """An array of zeros on the current device."""
        return self.full(shape, 0, dtype)

    def full(self, shape: Any, value: Any, dtype: Any = np.float32) -> TorchArray:
        """An array of one value on the current device."""
        array = self.empty(shape, dtype)
        array.fill(value)
        return array

    def zeros_like(self, array: TorchArray) -> TorchArray:
        """Zeros of an array's shape and dtype."""
        return self.zeros(array.shape, array.dtype)

    def ascontiguousarray(self, array: TorchArray, dtype: Any = None) -> TorchArray:
        """The array itself if it is contiguous and has this dtype, else a copy that does."""
        if not array.flags.c_contiguous:
            array = array.copy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def asarray(self, values: Any, dtype: Any = None) -> TorchArray:
        """Values of the host on the current device; arrays there as they are."""
        if isinstance(values, TorchArray):
            return values if dtype is None else values.astype(dtype, copy=False)
        host = np.ascontiguousarray(values, dtype)
        array = self.empty(host.shape, host.dtype)
        array.tensor.copy_(self._torch.from_numpy(host if host.flags.writeable else host.copy()))
        return array

    def from_dlpack(self, tensor: Any) -> TorchArray:
        """The array over a tensor's memory."""
        return TorchArray.over(tensor)

    def matmul(self, a: TorchArray, b: TorchArray, out: TorchArray | None = None) -> TorchArray:
        """The product by torch, in ``out`` if it is there."""
        y = self._torch.matmul(a.tensor, b.tensor)
        if out is None:
            return TorchArray.over(y)
        out[...] = TorchArray.over(y)
        return out

    def where(self, condition: TorchArray, a: Any, b: Any) -> TorchArray:
        """Values of a where the condition holds, else of b."""
        pair = [part.tensor if isinstance(part, TorchArray) else part for part in (a, b)]
        return TorchArray.over(self._torch.where(condition.tensor, *pair))

    def argsort(self, array: TorchArray, kind: str = "stable") -> TorchArray:
        """The order that sorts the elements; equal ones stay in their order."""
        return TorchArray.over(self._torch.argsort(array.tensor, stable=True))

    def bincount(self, array: TorchArray, minlength: int = 0) -> TorchArray:
        """Counts of the numbers from 0 on."""
        return TorchArray.over(self._torch.bincount(array.tensor, minlength=minlength))

    def cumsum(self, array: TorchArray) -> TorchArray:
        """Sums of all elements up to each one."""
        return TorchArray.over(self._torch.cumsum(array.tensor, 0))

    def borrowed(self, tensor: Any) -> TorchArray:
        """The array over the bytes of a contiguous tensor, which it does not keep alive."""
        if not tensor.numel():
            return self.empty(0, np.uint8)
        with Device(tensor.get_device()):
            bytes_there = _Bytes(tensor.data_ptr(), tensor.numel())
            return TorchArray.over(self._torch.as_tensor(bytes_there, device=tensor.device))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingDependencyError(
            f"CUDA: this kernel asks for {name} of CuPy's, which torch does not stand in for; "
            "torch.ops.ggmlq works without CuPy, other products of arrays need it; pip install cupy-cuda13x"
        )


class _Bytes:
    """Bytes on a GPU under the protocol by which torch takes memory that it does not own."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


# --- what CuPy has in cupy.cuda -------------------------------------------------------------------


def _cuda(library: TorchLibrary) -> Any:
    """Streams, memory, code and facts of cards, under the names that CuPy has for them."""
    torch = sys.modules["torch"]

    def alloc(size: int) -> Pointer:
        return library.empty(size, np.uint8).data

    def properties(index: int) -> dict[str, Any]:
        facts = torch.cuda.get_device_properties(index)
        return {
            "name": facts.name.encode(), "major": facts.major, "minor": facts.minor,
            "multiProcessorCount": facts.multi_processor_count, "totalGlobalMem": facts.total_memory,
        }  # fmt: skip

    runtime = SimpleNamespace(
        CUDARuntimeError=calls.CUDADriverError, getDeviceCount=torch.cuda.device_count,
        getDevice=library.current, getDeviceProperties=properties,
        deviceGetAttribute=calls.attribute, driverGetVersion=calls.version,
        deviceSynchronize=torch.cuda.synchronize,
        free=lambda address: calls.make_current(library.current()),
    )  # fmt: skip
    driver = SimpleNamespace(
        CUDADriverError=calls.CUDADriverError, funcSetAttribute=calls.set_attribute,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=FUNCTION_SHARED,
    )  # fmt: skip

    def event(disable_timing: bool = False) -> Any:
        return torch.cuda.Event(enable_timing=not disable_timing)

    def kept_for_graphs(size: int) -> Any:
        return alloc(size)

    kept_for_graphs.kept_for_graphs = True  # type: ignore[attr-defined]  # torch keeps it with the graph
    return SimpleNamespace(
        Device=Device, Stream=calls.Stream, Memory=calls.Memory, alloc=alloc,
        function=SimpleNamespace(Module=calls.Module), runtime=runtime, driver=driver,
        Event=event, get_elapsed_time=lambda start, stop: start.elapsed_time(stop),
        get_allocator=lambda: kept_for_graphs, using_allocator=nullcontext,
    )  # fmt: skip
