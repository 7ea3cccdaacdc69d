"""The words that kernels are written in: Numba's own, without the types that it gives plain Python.

In a kernel ``uint32(x)`` is a conversion, which Numba's annotations do not know.
"""

from __future__ import annotations

from typing import Any

from ...errors import MissingDependencyError

try:
    import numba
    from numba import cuda as _cuda
    from numba.cuda import extending as _extending

    problem = None if hasattr(_extending, "register_model") else "is not installed"  # an older one is Numba's
except (ImportError, AttributeError) as error:  # as where NumPy lacks what numba-cuda asks for
    problem = f"cannot be imported ({error})"
if problem is not None:
    raise MissingDependencyError(
        f"CUDA: numba-cuda {problem}; kernels for a GPU are written in it; "
        'pip install "ggmlq[cuda]" for CUDA 13 or "ggmlq[cuda12]" for CUDA 12'
    )

cuda: Any = _cuda
types: Any = numba.types
config: Any = numba.config
extending: Any = _extending
float32: Any = numba.float32
float64: Any = numba.float64
int8: Any = numba.int8
int16: Any = numba.int16
int32: Any = numba.int32
int64: Any = numba.int64
uint8: Any = numba.uint8
uint32: Any = numba.uint32
uint64: Any = numba.uint64
