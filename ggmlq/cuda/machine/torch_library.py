"""Torch under CuPy's names: what kernels for GPUs ask of a library of arrays, over memory of torch.

Products of torch's tensors with weights in memory of torch run with it (device.py), so that they need neither
CuPy nor its memory: on torch's current device and stream, with memory of torch, and the driver's own calls
for code and for launches. The caller has imported torch; we never do.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...errors import MissingDependencyError
from . import driver_calls
from .torch_array import Device, Pointer, TorchArray, torch_kind

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

    def stream(self, index: int) -> driver_calls.Stream:
        """Torch's current stream of a device."""
        return driver_calls.Stream(int(self._torch.cuda.current_stream(index).cuda_stream))

    def enter(self, index: int) -> None:
        """Give this thread a context for the driver's calls, if it has none: that of a device."""
        if not driver_calls.has_context():
            driver_calls.make_current(index)

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
        CUDARuntimeError=driver_calls.CUDADriverError, getDeviceCount=torch.cuda.device_count,
        getDevice=library.current, getDeviceProperties=properties,
        deviceGetAttribute=driver_calls.attribute, driverGetVersion=driver_calls.version,
        deviceSynchronize=torch.cuda.synchronize,
        free=lambda address: driver_calls.make_current(library.current()),
    )  # fmt: skip
    driver = SimpleNamespace(
        CUDADriverError=driver_calls.CUDADriverError, funcSetAttribute=driver_calls.set_attribute,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=FUNCTION_SHARED,
    )  # fmt: skip

    def event(disable_timing: bool = False) -> Any:
        return torch.cuda.Event(enable_timing=not disable_timing)

    def kept_for_graphs(size: int) -> Any:
        return alloc(size)

    kept_for_graphs.kept_for_graphs = True  # type: ignore[attr-defined]  # torch keeps it with the graph
    return SimpleNamespace(
        Device=Device, Stream=driver_calls.Stream, Memory=driver_calls.Memory, alloc=alloc,
        function=SimpleNamespace(Module=driver_calls.Module), runtime=runtime, driver=driver,
        Event=event, get_elapsed_time=lambda start, stop: start.elapsed_time(stop),
        get_allocator=lambda: kept_for_graphs, using_allocator=nullcontext,
    )  # fmt: skip
