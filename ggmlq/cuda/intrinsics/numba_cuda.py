"""numba-cuda's words, and llvmlite's names for the code that instructions are written with.

Importing this file imports Numba, which takes a second: language.py does so only where kernels are compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

with (
    warnings.catch_warnings()
):  # numba-cuda 0.30 makes a timedelta without a unit, which NumPy 2.5 deprecates
    warnings.filterwarnings("ignore", "The 'generic' unit for NumPy timedelta", DeprecationWarning)
    from numba import cuda, types
    from numba.cuda import extending

__all__ = ["SIMULATED", "cuda", "extending", "ir", "types"]


@contextmanager
def _row_stack() -> Iterator[None]:
    """NumPy with ``row_stack``, which 2.5 removed and numba-cuda 0.30 names while its typing is loaded."""
    names = vars(np)
    if "row_stack" in names:
        yield
        return
    names["row_stack"] = np.vstack
    try:
        yield
    finally:
        del names["row_stack"]


if not hasattr(extending, "register_model"):  # an older one is Numba's own
    raise ImportError("numba-cuda is not there, only Numba's own older part for CUDA")
SIMULATED = bool(import_module("numba.core.config").ENABLE_CUDASIM)
if not SIMULATED:
    with _row_stack():
        import_module("numba.cuda.np.npyimpl")
ir: Any = import_module("llvmlite.ir")
