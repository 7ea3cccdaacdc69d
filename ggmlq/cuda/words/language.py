"""The words that kernels are written in: Numba's own, without the types that it gives plain Python.

In a kernel ``uint32(x)`` is a conversion, which Numba's annotations do not know.

Where code of kernels came with the package (``cuda/prebuilt``) most processes compile nothing. Then these
are blanks (blank.py), Numba is not imported, and what has to be compiled after all is compiled by another
process (machine/elsewhere.py). Numba's own words are taken where they cost nothing, because
``numba.cuda`` is imported already, where no GPU is to be expected, and with GGMLQ_COMPILE_HERE=1.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ...errors import MissingDependencyError
from .blank import Blank

INSTALL = 'pip install "ggmlq[cuda]" for CUDA 13 or "ggmlq[cuda12]" for CUDA 12'


def _blank() -> bool:
    """Whether words can be blank: whoever simulates or watches kernels means to compile them."""
    asked = ("GGMLQ_COMPILE_HERE", "GGMLQ_GUARD_WAITS", "NUMBA_ENABLE_CUDASIM")
    if "numba.cuda" in sys.modules or any(os.environ.get(name, "0") not in ("", "0") for name in asked):
        return False
    return bool(sys.executable) and find_spec("cupy") is not None and find_spec("numba_cuda") is not None


BLANK = _blank()

_cuda: Any = Blank("cuda")
_extending: Any = Blank("extending")
_types: Any = Blank("types")
_config: Any = Blank("config")
_ir: Any = Blank("ir")
if not BLANK:
    try:
        from numba import config as _config
        from numba import cuda as _cuda
        from numba import types as _types
        from numba.cuda import extending as _extending

        _ir = import_module("llvmlite.ir")
        problem = None if hasattr(_extending, "register_model") else "is not installed"  # an older is Numba's
    except (ImportError, AttributeError) as error:  # as where NumPy lacks what numba-cuda asks for
        problem = f"cannot be imported ({error})"
    if problem is not None:
        raise MissingDependencyError(
            f"CUDA: numba-cuda {problem}; kernels for a GPU are written in it; {INSTALL}"
        )

cuda: Any = _cuda
types: Any = _types
config: Any = _config
extending: Any = _extending
ir: Any = _ir  # what Numba writes code with: of llvmlite
float32: Any = types.float32
float64: Any = types.float64
int8: Any = types.int8
int16: Any = types.int16
int32: Any = types.int32
int64: Any = types.int64
uint8: Any = types.uint8
uint32: Any = types.uint32
uint64: Any = types.uint64
SIMULATED = not BLANK and bool(config.ENABLE_CUDASIM)


def axes_of(kind: Any) -> int | None:
    """How many axes a parameter has that is an array; None for all others."""
    if isinstance(kind, Blank):
        return kind.given[1] if kind.path == "types.Array()" else None
    return int(kind.ndim) if isinstance(kind, types.Array) else None


def several(kind: Any) -> tuple[Any, int] | None:
    """Of a parameter that is a tuple of words: which, and how many; None for all others."""
    if isinstance(kind, Blank):
        return kind.given if kind.path == "types.UniTuple()" else None
    return (kind.dtype, int(kind.count)) if isinstance(kind, types.UniTuple) else None
