"""The compilers of kernels for GPUs: which one this process uses, and in what they differ for a launch.

Kernels are written in Numba's words. Two compilers know these words: numba-cuda, and numba-cuda-mlir, which
NVIDIA writes to succeed it. GGMLQ_CUDA_COMPILER picks one. Each has a file of its own with its words
(numba_cuda.py, numba_mlir.py), which language.py imports when something is compiled. Here are the facts that
a launch needs even where nothing is compiled, so this file imports neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from ...base import missing
from ...errors import UnsupportedError

SWITCH = "GGMLQ_CUDA_COMPILER"
ASSEMBLERS = (
    "cuda-core",
    "nvidia-nvjitlink",
    "nvidia-nvvm",
    "nvidia-nvjitlink-cu12",
    "nvidia-cuda-nvcc-cu12",
)


class Compiler(NamedTuple):
    """A compiler: its name in the switch, its package, and the words of an array in a launch of its code."""

    name: str
    package: str
    words: str  # the file beside this one that has its words
    versioned: tuple[str, ...]  # packages whose versions are part of a kernel's key
    is_packed: bool  # the code that comes with the package is made by it
    array_words: Callable[[Any], tuple[int, ...]]
    array_head: int  # how many of these stand before the shape and the strides
    files: tuple[
        str, ...
    ] = ()  # beside this one, that write code of all kernels, and count in a kernel's key

    def is_installed(self) -> bool:
        """True where its package can be imported; it is not imported."""
        return missing.has(self.package.replace("-", "_"))


def _numba_array(array: Any) -> tuple[int, ...]:
    """Numba's own: owner, parent, elements, bytes of one, address, shape, strides in bytes."""
    return (0, 0, array.size, array.itemsize, array.data.ptr, *array.shape, *array.strides)


def _memref(array: Any) -> tuple[int, ...]:
    """MLIR's memref: the address twice, offset, shape, strides in elements."""
    at, size = array.data.ptr, array.itemsize
    return (at, at, 0, *array.shape, *(stride // size for stride in array.strides))


NUMBA = Compiler(
    "numba", "numba-cuda", "numba_cuda", ("numba", "numba-cuda", "llvmlite", *ASSEMBLERS),
    is_packed=True, array_words=_numba_array, array_head=5,
)  # fmt: skip
MLIR = Compiler(
    "mlir", "numba-cuda-mlir", "numba_mlir", ("numba-cuda-mlir", *ASSEMBLERS),
    is_packed=False, array_words=_memref, array_head=3, files=("numba_mlir", "mlir_builder", "mlir_ir"),
)  # fmt: skip
COMPILERS = {compiler.name: compiler for compiler in (NUMBA, MLIR)}


def picked() -> Compiler:
    """The compiler that the environment picks: numba-cuda if it says nothing."""
    name = os.environ.get(SWITCH, "")
    if name and name not in COMPILERS:
        choices = " or ".join(f"{each.name} ({each.package})" for each in COMPILERS.values())
        raise UnsupportedError(
            f"{SWITCH}={name}: no compiler of kernels for GPUs has this name; the names are {choices}; "
            f"without the variable it is {NUMBA.name}"
        )
    return COMPILERS[name or NUMBA.name]


COMPILER = picked()
