"""Floats as other floats, subnormal numbers included: CuPy's own kernels flush those to zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from .device import cupy
from .language import cuda, float32, float64
from .launch import Kernel, array, family

THREADS = 256


@family([(True,), (False,)])
def kernel(widen: bool) -> Kernel:
    """Float32 to float64, or back."""
    source, target = (float32, float64) if widen else (float64, float32)

    def convert(x: Any, y: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            y[i] = target(x[i])

    name = "float32 to float64" if widen else "float64 to float32"
    return Kernel(name, convert, array(source, 1), array(target, 1), threads=THREADS)


def converted(x: Any, dtype: np.dtype[Any]) -> Any:
    """A device array in another type of floats, C-contiguous."""
    cp = cupy()
    if {x.dtype, dtype} != {np.dtype(np.float32), np.dtype(np.float64)}:
        return cp.ascontiguousarray(x, dtype)
    y = cp.empty(x.shape, dtype)
    flat = cp.ascontiguousarray(x).reshape(-1)
    kernel(x.dtype == np.float32)((-(-x.size // THREADS),), (THREADS,), flat, y.reshape(-1))
    return y


def aligned_floats(x: Any) -> Any:
    """A device array as contiguous float32 that can be loaded 16 bytes at a time."""
    x = converted(x, np.dtype(np.float32))
    return x.copy() if x.data.ptr % 16 else x
