"""Devices: is CuPy there, is there a GPU, and copies to it."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

from ..errors import DeviceError, MissingDependencyError

_usable: list[ModuleType | None] = [None]  # CuPy, once it has found a GPU


def cupy() -> ModuleType:
    """CuPy with at least one usable GPU, or an error that says what is missing."""
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError(
            f"CUDA: CuPy cannot be imported ({error}); device arrays need it; "
            'pip install "ggmlq[cuda]" for CUDA 13 or "ggmlq[cuda12]" for CUDA 12'
        ) from error
    if _usable[0] is not cupy:
        _refuse_without_gpu(cupy)
        _usable[0] = cupy
    return cupy  # type: ignore[no-any-return]


def _refuse_without_gpu(cupy: ModuleType) -> None:
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(
            f"CUDA: no usable GPU ({error}); a driver that fits CUDA is needed; "
            'work on the host with device "cpu"'
        ) from error
    if not count:
        raise DeviceError('CUDA: no GPU found; work on the host with device "cpu"')


def current() -> int:
    """The number of CuPy's current device."""
    return int(cupy().cuda.runtime.getDevice())


@cache
def _facts(index: int) -> tuple[tuple[int, int], int]:
    found = cupy().cuda.runtime.getDeviceProperties(index)
    return (int(found["major"]), int(found["minor"])), int(found["multiProcessorCount"])


def capability() -> tuple[int, int] | None:
    """Compute capability of CuPy's current device; None where there is no GPU."""
    try:
        return _facts(current())[0]
    except (MissingDependencyError, DeviceError):
        return None


def older_than(least: tuple[int, int]) -> str | None:
    """Why a kernel for GPUs from ``least`` on cannot run here; None if it can, or without a GPU."""
    found = capability()
    if found is None or found >= least:
        return None
    return "needs compute capability {}.{}, this GPU has {}.{}".format(*least, *found)


def multiprocessors() -> int:
    """Multiprocessors of CuPy's current device."""
    return _facts(current())[1]


def number(device: str) -> int | None:
    """``"cuda:1"`` to 1; ``"cuda"`` to None, which means CuPy's current device."""
    kind, _, index = str(device).partition(":")
    if kind != "cuda" or not (index.isdecimal() or device == "cuda"):
        raise DeviceError(f'device {device!r}: devices are "cpu", "cuda" and "cuda:0", "cuda:1", …')
    return int(index) if index else None


def named(device: str) -> Any:
    """CuPy's object for ``"cuda"`` or ``"cuda:1"``, if this machine has that GPU."""
    index = number(device)
    cp = cupy()
    count = cp.cuda.runtime.getDeviceCount()
    if index is not None and index >= count:
        raise DeviceError(f"device {device!r}: this machine has {count} GPU; use cuda:0")
    return cp.cuda.Device(index)


def upload(array: Any, device: str) -> Any:
    """A host or device array as a contiguous CuPy array on that device."""
    with named(device):
        return cupy().ascontiguousarray(cupy().asarray(array))


def describe() -> list[dict[str, Any]]:
    """The GPUs that CuPy sees, for ``ggmlq doctor``."""
    cp = cupy()
    found = []
    for index in range(cp.cuda.runtime.getDeviceCount()):
        facts = cp.cuda.runtime.getDeviceProperties(index)
        found.append(
            {
                "device": f"cuda:{index}",
                "name": facts["name"].decode(),
                "compute_capability": f"{facts['major']}.{facts['minor']}",
                "memory_bytes": int(facts["totalGlobalMem"]),
                "multiprocessors": int(facts["multiProcessorCount"]),
                "driver_cuda": cp.cuda.runtime.driverGetVersion(),
                "runtime_cuda": cp.cuda.runtime.runtimeGetVersion(),
            }
        )
    return found
