"""The C functions that the bridge calls, with their types, found in whichever file has them.

No struct of ggml is read: tensors and graphs stay pointers, so that a library of another year,
whose structs have other fields, still fits. Only ``ggml_init_params`` goes by value.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from ..base.text import printable
from ..errors import MissingDependencyError, UnsupportedError
from .files import HOW, Build

P, TEXT, SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
INT, LONG, BOOL, FLOAT = ctypes.c_int, ctypes.c_int64, ctypes.c_bool, ctypes.c_float


class InitParams(ctypes.Structure):
    """Memory of a context: its size, its address (NULL: ggml allocates), and whether tensors have data."""

    _fields_ = [("mem_size", SIZE), ("mem_buffer", P), ("no_alloc", BOOL)]


# For each function the type of its result and those of its arguments.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ggml_version": (TEXT, []),
    "ggml_commit": (TEXT, []),
    "ggml_type_name": (TEXT, [INT]),
    "ggml_type_size": (SIZE, [INT]),
    "ggml_blck_size": (LONG, [INT]),
    "ggml_quantize_chunk": (SIZE, [INT, P, P, LONG, LONG, LONG, P]),
    # tensors and graphs
    "ggml_init": (P, [InitParams]),
    "ggml_free": (None, [P]),
    "ggml_tensor_overhead": (SIZE, []),
    "ggml_graph_overhead": (SIZE, []),
    "ggml_nbytes": (SIZE, [P]),
    "ggml_new_tensor_2d": (P, [P, INT, LONG, LONG]),
    "ggml_new_tensor_3d": (P, [P, INT, LONG, LONG, LONG]),
    "ggml_mul_mat": (P, [P, P, P]),
    "ggml_mul_mat_id": (P, [P, P, P, P]),
    "ggml_soft_max": (P, [P, P]),
    "ggml_top_k": (P, [P, P, INT]),
    "ggml_argsort_top_k": (P, [P, P, INT]),
    "ggml_get_rows": (P, [P, P, P]),
    "ggml_reshape_3d": (P, [P, P, LONG, LONG, LONG]),
    "ggml_view_2d": (P, [P, P, LONG, LONG, SIZE, SIZE]),
    "ggml_silu": (P, [P, P]),
    "ggml_mul": (P, [P, P, P]),
    "ggml_add": (P, [P, P, P]),
    "ggml_scale": (P, [P, P, ctypes.c_float]),
    "ggml_new_graph": (P, [P]),
    "ggml_build_forward_expand": (None, [P, P]),
    # for a trace, which looks at nodes of llama.cpp's graphs
    "ggml_op_desc": (TEXT, [P]),
    "ggml_get_name": (TEXT, [P]),
    "ggml_get_data": (P, [P]),
    "ggml_new_tensor_4d": (P, [P, INT, LONG, LONG, LONG, LONG]),
    "ggml_view_1d": (P, [P, P, LONG, SIZE]),
    "ggml_view_4d": (P, [P, P, LONG, LONG, LONG, LONG, SIZE, SIZE, SIZE, SIZE]),
    "ggml_view_tensor": (P, [P, P]),
    "ggml_flash_attn_ext": (P, [P, P, P, P, P, FLOAT, FLOAT, FLOAT]),
    "ggml_backend_cpu_buffer_type": (P, []),
    "ggml_backend_buffer_name": (TEXT, [P]),
    "ggml_backend_buffer_is_host": (BOOL, [P]),
    # backends
    "ggml_backend_reg_count": (SIZE, []),
    "ggml_backend_reg_get": (P, [SIZE]),
    "ggml_backend_reg_name": (TEXT, [P]),
    "ggml_backend_reg_dev_count": (SIZE, [P]),
    "ggml_backend_reg_dev_get": (P, [P, SIZE]),
    "ggml_backend_reg_get_proc_address": (P, [P, TEXT]),
    "ggml_backend_load_all_from_path": (None, [TEXT]),
    "ggml_backend_dev_name": (TEXT, [P]),
    "ggml_backend_dev_description": (TEXT, [P]),
    "ggml_backend_dev_type": (INT, [P]),
    "ggml_backend_dev_memory": (None, [P, P, P]),
    "ggml_backend_dev_init": (P, [P, TEXT]),
    "ggml_backend_dev_buffer_type": (P, [P]),
    "ggml_backend_dev_supports_op": (BOOL, [P, P]),
    "ggml_backend_buft_name": (TEXT, [P]),
    "ggml_backend_buft_get_alignment": (SIZE, [P]),
    "ggml_backend_buft_get_alloc_size": (SIZE, [P, P]),
    "ggml_backend_buft_alloc_buffer": (P, [P, SIZE]),
    "ggml_backend_buffer_get_base": (P, [P]),
    "ggml_backend_tensor_alloc": (INT, [P, P, P]),  # before 2025 it returned nothing
    "ggml_backend_view_init": (INT, [P]),
    "ggml_backend_alloc_ctx_tensors_from_buft": (P, [P, P]),
    "ggml_backend_buffer_set_usage": (None, [P, INT]),
    "ggml_backend_buffer_free": (None, [P]),
    "ggml_backend_tensor_set": (None, [P, P, SIZE, SIZE]),
    "ggml_backend_tensor_get": (None, [P, P, SIZE, SIZE]),
    "ggml_backend_graph_compute": (INT, [P, P]),
    "ggml_backend_synchronize": (None, [P]),
}


def words(text: bytes | None) -> str:
    """A name that a library gives, as one printable line; empty where there is none."""
    return printable((text or b"").decode(errors="replace").strip()).replace("\n", r"\n")


class Symbols:
    """``symbols.ggml_nbytes(tensor)``: functions by name, out of all loaded files of a build."""

    def __init__(self, build: Build, *, whole: bool = False) -> None:
        """Load the base alone, or the whole build with its registry and backends."""
        self.build = build
        self.troubles: list[str] = []  # backends that did not load, and why
        self._files = {build.base: _load(build.base)}
        if whole:
            self._load_backends()

    def _load_backends(self) -> None:
        """Load the registry, which brings its backends; where it cannot find them, load them first."""
        if "" in self.build.parts and self._try(self.build.parts[""]):
            return
        for path in self.build.backends.values():
            self._try(path)
        if "" in self.build.parts:
            self._try(self.build.parts[""])

    def _try(self, path: Path) -> bool:
        if path in self._files:
            return True
        try:
            self._files[path] = _load(path)
        except MissingDependencyError as error:
            self.troubles.append(str(error))
            return False
        return True

    def has(self, name: str) -> bool:
        """True where any loaded file exports the function."""
        return any(hasattr(file, name) for file in self._files.values())

    def __getattr__(self, name: str) -> Any:
        for file in self._files.values():
            if hasattr(file, name):
                function = getattr(file, name)
                if name in SIGNATURES:
                    function.restype, function.argtypes = SIGNATURES[name]
                setattr(self, name, function)
                return function
        listed = ", ".join(str(path) for path in self._files)
        more = "".join(f"; {trouble}" for trouble in self.troubles)
        raise UnsupportedError(
            f"libggml: {name} is missing from {listed}{more}; this needs a complete shared build "
            "of ggml from 2025 or later; name its folder"
        )

    def procedure(self, reg: int, name: str, result: Any, *takes: Any) -> Any:
        """A function that a backend offers by name only, or None."""
        address = self.ggml_backend_reg_get_proc_address(reg, name.encode())
        return ctypes.CFUNCTYPE(result, *takes)(address) if address else None


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path.absolute()), mode=getattr(ctypes, "RTLD_GLOBAL", 0))
    except OSError as error:
        raise MissingDependencyError(
            f"libggml: cannot load {path}: {printable(str(error))}; {HOW}"
        ) from error
