"""Numba's words as GPU kernels import them (``cuda``, ``uint32``, …), or blanks where nothing is compiled.

All are typed ``Any``: in a kernel ``uint32(x)`` is a conversion, which Numba's annotations do not know.

Where code of kernels came with the package (``cuda/prebuilt``) most processes compile nothing. Then the words
are blanks (blank.py), Numba is not imported, and a kernel that must be compiled after all is compiled by
another process (machine/compile_process.py). Numba's own words are taken where they cost nothing, because
``numba.cuda`` is imported already, where there is no CuPy and so no GPU, and with GGMLQ_COMPILE_HERE=1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

import numpy as np

from ...base import missing
from ...errors import MissingDependencyError
from .blank import Blank

WATCHED = ("GGMLQ_COMPILE_HERE", "GGMLQ_GUARD_WAITS", "NUMBA_ENABLE_CUDASIM")


def _blank() -> bool:
    """Words can be blank beside CuPy, unless kernels are simulated or watched, and so compiled here.

    Without numba-cuda kernels that come with the package run, and others say so when they are loaded.
    """
    if not missing.has("cupy") or any(os.environ.get(name, "0") not in ("", "0") for name in WATCHED):
        return False
    return not missing.has("numba_cuda") or ("numba.cuda" not in sys.modules and bool(sys.executable))


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


def _refuse(problem: str) -> NoReturn:
    if not missing.has("cupy") and not missing.has("numba_cuda"):
        raise MissingDependencyError(
            f"CUDA: CuPy is not installed; arrays on a GPU are CuPy's; {missing.install_for_gpu()}"
        )
    raise MissingDependencyError(
        f"CUDA: numba-cuda {problem}; kernels that this process compiles are written in it; "
        f"{missing.install_compiler()}, or leave {' and '.join(WATCHED)} out of the environment"
    )


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

        if not hasattr(_extending, "register_model"):  # an older one is Numba's own
            _refuse("is not installed")
        if not _config.ENABLE_CUDASIM:
            with _row_stack():
                import_module("numba.cuda.np.npyimpl")
        _ir = import_module("llvmlite.ir")
    except (ImportError, AttributeError) as error:  # as where a package beside it is of another age
        _refuse(f"cannot be imported ({error})")

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
    """The number of axes of an array parameter; None for all others."""
    if isinstance(kind, Blank):
        return kind.arguments[1] if kind.path == "types.Array()" else None
    return int(kind.ndim) if isinstance(kind, types.Array) else None


def several(kind: Any) -> tuple[Any, int] | None:
    """The type and the length of a parameter that is a tuple of words; None for all others."""
    if isinstance(kind, Blank):
        return kind.arguments if kind.path == "types.UniTuple()" else None
    return (kind.dtype, int(kind.count)) if isinstance(kind, types.UniTuple) else None
