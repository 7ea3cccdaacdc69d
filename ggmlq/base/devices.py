"""The device of an array (host or GPU) and access to the modules for GPUs, without an import of CuPy."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..errors import DeviceMemoryError
from .hooks import Hook

_DEVICE = Hook("devices and memory of CuPy")


def is_host(x: object) -> bool:
    """True for an array in host memory: any that is neither CuPy's nor over torch's memory on a GPU."""
    kind: Any = type(x)
    return lives_on_host(kind)


@cache
def lives_on_host(kind: Any) -> bool:
    """True for a class of arrays in host memory."""
    return str(kind.__module__).partition(".")[0] != "cupy" and not is_over_torch(kind)


def is_over_torch(kind: Any) -> bool:
    """True for the class of arrays over torch's memory on a GPU."""
    return getattr(kind, "over_torch", False) is True


def device_of(x: Any) -> str:
    """``"cpu"``, or ``"cuda:0"`` and so on."""
    return "cpu" if is_host(x) else f"cuda:{x.device.id}"


def to_host(x: Any) -> Any:
    """A CuPy array as a NumPy array, a QuantArray on the host; anything else as it is."""
    if not is_host(x):
        return x.get()
    return x.to("cpu") if hasattr(type(x), "dequantize") else x


@cache
def cuda_module(name: str) -> Any:
    """A module of ``ggmlq.cuda`` by name, imported at its first use."""
    return importlib.import_module(f"ggmlq.cuda.{name}")


@cache
def cuda_device() -> Any:
    """The module of ``ggmlq.cuda`` that calls CuPy for devices and memory."""
    return _DEVICE.room()


def cuda_driver() -> Any:
    """The functions that each product on a GPU calls: CuPy's, or torch's for weights in its memory."""
    return cuda_device().driver()


class Place(NamedTuple):
    """A device with the facts that decide between its kernels."""

    device: str  # "cpu" or "cuda"
    card: Any  # what of the GPU decides between kernels, None on the host

    @property
    def on_host(self) -> bool:
        """True in host memory."""
        return self.device == "cpu"

    @property
    def share(self) -> Any:
        """The function that tells whether two arrays there may share memory."""
        return np.may_share_memory if self.on_host else cuda_driver().share

    @property
    def xp(self) -> Any:
        """The module of its arrays: NumPy, CuPy, or torch under CuPy's names."""
        return np if self.on_host else cuda_device().cupy()


HOST = Place("cpu", None)


def place_at(device: str) -> Place:
    """The place of a device by its name: ``"cpu"``, ``"cuda:0"`` and so on."""
    if device == "cpu":
        return HOST
    return Place("cuda", cuda_driver().card(int(device.rpartition(":")[2])))


def place_of(x: Any) -> Place:
    """The place on which an array's products are computed."""
    return place_at(device_of(x))


@contextmanager
def on_device_of(request: object, x: Any, q: Any = None) -> Iterator[None]:
    """Make the device of an array current; raise an error that names the request where its memory runs out.

    Where the work is recorded as a CUDA graph, the memory that it takes stays with ``q``.
    """
    if is_host(x):
        yield
        return
    with x.device:
        try:
            if q is not None and cuda_device().capturing(x.device.id):
                with cuda_device().recording(request, q.recorded):
                    yield
            else:
                yield
        except DeviceMemoryError:
            raise
        except MemoryError as error:
            free, total = x.device.mem_info
            raise DeviceMemoryError(
                f"{request}: {device_of(x)} is out of memory ({error}); {free >> 20} of {total >> 20} MiB "
                "are free; drop arrays, give cached memory back with "
                "cupy.get_default_memory_pool().free_all_blocks(), or work on fewer rows at a time"
            ) from None


def namespace(x: Any) -> Any:
    """The module of an array's type: NumPy or CuPy."""
    return np if is_host(x) else cuda_device().cupy()
