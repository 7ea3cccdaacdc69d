"""A GPU's context, made while Python imports CuPy: both together are most of the wait for a first product.

The import is Python's work, the context the driver's, some tenths of a second each. CuPy finds and takes
the same context, a GPU's primary one. Failures are ignored here: CuPy meets the same one, and reports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def warm_up(index: int) -> threading.Thread:
    """Start a thread that makes the context of a GPU, by its number."""
    thread = threading.Thread(target=_wake, args=(index,), name="ggmlq: a context", daemon=True)
    thread.start()
    return thread


def _wake(index: int) -> None:
    """Make the context and keep it: it lives as long as the process."""
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL(DRIVER)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
