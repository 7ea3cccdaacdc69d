"""Sums of arrays over several GPUs by NCCL, through CuPy, for ``gq.parallel``: one communicator a device.

NCCL adds in an order that depends on the number of devices, how they are linked and the size of the arrays,
not on time: the same call gives the same bits again, and the same on every device.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from ....base import missing
from ....errors import DeviceError, MissingDependencyError
from .. import device

KINDS = {
    "float16": "NCCL_FLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "uint8": "NCCL_UINT8",
}


@cache
def library() -> Any:
    """CuPy's module for NCCL; None where the library is not installed."""
    device.cupy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's warning says less than our errors
        try:
            module = importlib.import_module("cupy.cuda.nccl")
        except ImportError:
            return None
    return module if getattr(module, "available", False) else None


def needed(task: str) -> Any:
    """CuPy's module for NCCL, or an error that says what to install."""
    module = library()
    if module is None:
        raise MissingDependencyError(
            f"{task}: NCCL is not installed; it adds what several GPUs have found; "
            f"{missing.install('nccl')} for CUDA 13, {missing.install('nccl12')} for CUDA 12, or take "
            'sums="copies"'
        )
    return module


def version() -> str | None:
    """The version as people write it, ``"2.27.7"``; None without NCCL."""
    module = library()
    if module is None:
        return None
    number = int(module.get_version())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def kind_of(task: str, dtype: np.dtype[Any]) -> int:
    """NCCL's number for a dtype, or an error if NCCL does not add such arrays here."""
    if dtype.name not in KINDS:
        raise DeviceError(
            f"{task}: NCCL does not add arrays of {dtype}; it takes {', '.join(KINDS)} here; convert them"
        )
    return int(getattr(needed(task), KINDS[dtype.name]))


class Communicators:
    """The communicators of some devices of this process, made at the first sum."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = list(numbers)
        self._communicators: list[Any] | None = None
        self._lock = threading.Lock()  # all devices must be in one call before the next begins

    def _communicators_ready(self, task: str) -> list[Any]:
        if self._communicators is None:
            device.refuse_capture(f"{task}: NCCL has no communicators yet")
            self._communicators = needed(task).NcclCommunicator.initAll(self.numbers)
        return self._communicators

    def sum(self, task: str, arrays: Sequence[Any], lanes: Sequence[Any]) -> None:
        """Add arrays in place, each on its device and stream."""
        library = needed(task)
        kind = kind_of(task, arrays[0].dtype)
        with self._lock:
            try:
                communicators = self._communicators_ready(task)
                library.groupStart()
                try:
                    for one, array, lane in zip(communicators, arrays, lanes, strict=True):
                        with lane.device:
                            at = array.data.ptr
                            one.allReduce(at, at, array.size, kind, library.NCCL_SUM, lane.stream.ptr)
                finally:
                    library.groupEnd()
            except library.NcclError as error:
                self._drop()
                raise DeviceError(
                    f"{task}: NCCL failed on GPUs {self.numbers} ({error}); one of them may be lost, or "
                    'this machine cannot link them; look at NCCL_DEBUG=INFO, or shard with sums="copies"'
                ) from error

    def _drop(self) -> None:
        for one in self._communicators or ():
            with suppress(Exception):  # the device may be lost
                one.abort()
        self._communicators = None
