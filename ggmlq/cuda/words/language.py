"""The words that kernels are written in: Numba's own, without the types that it gives plain Python.

In a kernel ``uint32(x)`` is a conversion, which Numba's annotations do not know.
"""

from __future__ import annotations

from typing import Any

import numba
from numba import cuda as _cuda
from numba.cuda import extending as _extending

cuda: Any = _cuda
types: Any = numba.types
config: Any = numba.config
extending: Any = _extending
float32: Any = numba.float32
float64: Any = numba.float64
int8: Any = numba.int8
int32: Any = numba.int32
int64: Any = numba.int64
uint8: Any = numba.uint8
uint32: Any = numba.uint32
uint64: Any = numba.uint64
