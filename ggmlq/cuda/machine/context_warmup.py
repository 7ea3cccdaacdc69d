"""A GPU's context made while Python imports CuPy: of a first product both are most of the wait.

The import is Python's work, the context the driver's, some tenths of a second each. CuPy takes the same
context, a GPU's primary one, as it finds it. Where anything fails nothing is said: CuPy will meet the same,
and tells what it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def warm_up(index: int) -> threading.Thread:
    """Begin to make the context of a GPU, by its number."""
    thread = threading.Thread(target=_wake, args=(index,), name="ggmlq: a context", daemon=True)
    thread.start()
    return thread


def _wake(index: int) -> None:
    """Keep the context: it lives as long as the process."""
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL(DRIVER)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
