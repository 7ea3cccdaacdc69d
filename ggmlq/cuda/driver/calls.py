"""The driver's own calls, for arrays that are not CuPy's: code, streams, memory, contexts, facts of a card.

They are ctypes on the driver's library, so a machine needs nothing but a driver. Names are those that CuPy
has for the same things.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from ...base.system import CUDA
from ...errors import DeviceError

WORD, ADDRESS, INTEGER = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
RECORDING = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE


@cache
def library() -> Any:
    """The driver, as a library."""
    return ctypes.CDLL(CUDA)


class CUDADriverError(DeviceError):
    """A call that the driver refused: the name of the error, and its words."""

    def __init__(self, status: int) -> None:
        name, words = ctypes.c_char_p(), ctypes.c_char_p()
        library().cuGetErrorName(INTEGER(status), ctypes.byref(name))
        library().cuGetErrorString(INTEGER(status), ctypes.byref(words))
        text = [part.value.decode() for part in (name, words) if part.value]
        super().__init__(": ".join(text) or f"error {status} of the CUDA driver")
        self.status = status


def call(name: str, *arguments: Any) -> None:
    """Call a function of the driver; an error says which status it returned."""
    status = getattr(library(), name)(*arguments)
    if status:
        raise CUDADriverError(status)


class Function:
    """A kernel that is loaded; it keeps its module."""

    def __init__(self, module: Module, ptr: int) -> None:
        self.module, self.ptr = module, ptr


class Module:
    """Code on the current device, for as long as the process lives: kernels are loaded once."""

    def __init__(self) -> None:
        self._at = ADDRESS()

    def load(self, code: bytes) -> None:
        """Load machine code, or PTX, which ends with a zero."""
        call("cuModuleLoadData", ctypes.byref(self._at), ctypes.c_char_p(code + b"\0"))

    def get_function(self, name: str) -> Function:
        """The kernel of that name."""
        at = ADDRESS()
        call("cuModuleGetFunction", ctypes.byref(at), self._at, ctypes.c_char_p(name.encode()))
        return Function(self, int(at.value or 0))


def set_attribute(function: int, attribute: int, value: int) -> None:
    """Set a loaded kernel's attribute."""
    call("cuFuncSetAttribute", ADDRESS(function), INTEGER(attribute), INTEGER(value))


def attribute(which: int, index: int) -> int:
    """The attribute of a device by its number."""
    value = INTEGER()
    call("cuDeviceGetAttribute", ctypes.byref(value), INTEGER(which), INTEGER(index))
    return value.value


def version() -> int:
    """The newest CUDA version that the driver knows: 13000 for 13.0."""
    value = INTEGER()
    call("cuDriverGetVersion", ctypes.byref(value))
    return value.value


def make_current(index: int) -> None:
    """Make the context of a device, the one that all libraries share, this thread's."""
    context = ADDRESS()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), INTEGER(index))
    call("cuCtxSetCurrent", context)


def has_context() -> bool:
    """True where this thread has a current context; a thread that has not used a GPU yet has none."""
    context = ADDRESS()
    call("cuCtxGetCurrent", ctypes.byref(context))
    return bool(context.value)


class Stream:
    """A stream by its address; without one a new stream of the current device."""

    def __init__(self, ptr: int | None = None, non_blocking: bool = True) -> None:
        if ptr is None:
            at = ADDRESS()
            call("cuStreamCreate", ctypes.byref(at), ctypes.c_uint(NON_BLOCKING * non_blocking))
            ptr = int(at.value or 0)
        self.ptr = ptr

    def is_capturing(self) -> bool:
        """True while the stream records a CUDA graph."""
        status = INTEGER()
        call("cuStreamIsCapturing", ADDRESS(self.ptr), ctypes.byref(status))
        return status.value == RECORDING

    def synchronize(self) -> None:
        """Wait until all work that was queued is done."""
        call("cuStreamSynchronize", ADDRESS(self.ptr))


class Memory:
    """Memory of the current device that is not given back."""

    def __init__(self, nbytes: int) -> None:
        at = WORD()
        call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(nbytes))
        self.ptr = at.value
