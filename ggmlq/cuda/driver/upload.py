"""Uploads of a model to a GPU: locked memory, a stream of copies, events that tell what has arrived.

Memory for tensors is allocated on the caller's stream, as the pool reuses memory of that stream: copies
wait until it has come so far. At the end the host has waited for the copies, so that any stream may read
the tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import DeviceError, DeviceMemoryError
from . import device


class Buffer:
    """Locked host memory of CuPy's pool, which keeps it for the next load."""

    def __init__(self, cp: Any, nbytes: int) -> None:
        try:
            self._memory = cp.cuda.alloc_pinned_memory(nbytes)
        except cp.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(
                f"CUDA: {nbytes} bytes of host memory could not be locked ({error}); copies to a GPU go "
                "through such memory; let other programs give memory back, or use fewer threads"
            ) from error
        self.data = np.frombuffer(self._memory, np.uint8, nbytes)
        self.address = int(self.data.ctypes.data)
        self.fetched = cp.cuda.Event(
            block=True, disable_timing=True
        )  # waiting threads sleep and leave the core to others

    def wait(self) -> None:
        """Wait until the GPU has fetched the bytes that were sent; at once if there were none."""
        self.fetched.synchronize()


class Link:
    """Copies to one GPU, in a stream of their own."""

    def __init__(self, name: str) -> None:
        self._device = device.named(name)
        self._cp = device.cupy()
        self.device = f"cuda:{self._device.id}"
        with self._device:
            self._callers = self._cp.cuda.get_current_stream()
            self._stream = self._cp.cuda.Stream(non_blocking=True)
            self._before = self._cp.cuda.Event(disable_timing=True)

    def __enter__(self) -> Link:
        self._device.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._device.__exit__(*error)

    def use(self) -> None:
        """Make this GPU the thread's device, which is GPU 0 otherwise."""
        self._device.use()

    def empty(self, shape: tuple[int, ...]) -> Any:
        """Bytes on the GPU that no launch so far writes to."""
        try:
            array = self._cp.empty(shape, np.uint8)
        except MemoryError as error:
            raise DeviceMemoryError(str(error)) from None
        self._before.record(self._callers)
        self._stream.wait_event(self._before)
        return array

    def buffer(self, nbytes: int) -> Buffer:
        """A buffer of locked memory."""
        return Buffer(self._cp, nbytes)

    def send(self, buffer: Buffer, at: int, nbytes: int, target: Any, start: int) -> None:
        """Queue a copy; the buffer must not change until it was fetched."""
        runtime = self._cp.cuda.runtime
        runtime.memcpyAsync(
            target.data.ptr + start, buffer.address + at, nbytes, runtime.memcpyHostToDevice, self._stream.ptr
        )

    def sent(self, buffer: Buffer) -> None:
        """Note that all copies from the buffer are queued."""
        buffer.fetched.record(self._stream)

    def finish(self) -> None:
        """Wait for all copies."""
        self._stream.synchronize()

    def drop(self, arrays: list[Any]) -> None:
        """Give the memory of arrays back to the GPU, once no copy is in flight."""
        self._stream.synchronize()
        arrays.clear()
        self._cp.get_default_memory_pool().free_all_blocks()

    def room(self) -> tuple[int, int]:
        """Bytes that are free for arrays, and all bytes of the GPU."""
        free, total = self._device.mem_info
        pool = self._cp.get_default_memory_pool()
        limit = pool.get_limit()
        return (min(free, max(limit - pool.used_bytes(), 0)) if limit else free), total
