"""Kernels that work as torch does: on its current stream and device, with memory of torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..base.devices import cuda_device, cuda_module, is_over_torch


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
