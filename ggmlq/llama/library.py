"""A ggml library found on this machine, through ctypes: its encoders and decoders.

Nothing of ggml is shipped. ``GGMLQ_LIBGGML`` names a library file or a folder that holds one;
without it an installed llama-cpp-python is looked for.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingDependencyError, UnsupportedError
from ..formats import FORMATS, Format
from ..formats.format import Bytes, Floats

VARIABLE = "GGMLQ_LIBGGML"
STEMS = ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll", "libggml.so", "libggml.dylib")

HOW = f"set {VARIABLE} to a libggml-base or a llama.cpp build folder, or `pip install llama-cpp-python`"


def find() -> Path | None:
    """The library file to use, or None where there is none."""
    if named := os.environ.get(VARIABLE):
        path = Path(named)
        return path if path.is_file() else _in_folder(path)
    package = importlib.util.find_spec("llama_cpp")
    if package is None or package.origin is None:
        return None
    return _in_folder(Path(package.origin).parent)


def _in_folder(folder: Path) -> Path | None:
    for place in (folder, folder / "lib", folder / "bin", folder / "src", folder / "ggml" / "src"):
        for stem in STEMS:
            if (place / stem).is_file():
                return place / stem
    return None


class Library:
    """The C functions of one libggml, checked against our table of types when it is loaded."""

    def __init__(self, path: str | Path | None = None) -> None:
        found = Path(path) if path is not None else find()
        if found is None:
            raise MissingDependencyError(f"libggml: none found; {HOW}")
        self.path = found
        try:
            self._lib = ctypes.CDLL(str(found))
        except OSError as error:
            raise MissingDependencyError(f"libggml: cannot load {found}: {error}; {HOW}") from error
        if not hasattr(self._lib, "ggml_quantize_chunk"):
            raise MissingDependencyError(
                f"libggml: {found} has no ggml_quantize_chunk; name the file libggml-base; {HOW}"
            )
        self._lib.ggml_quantize_chunk.restype = ctypes.c_size_t
        self._lib.ggml_type_size.restype = ctypes.c_size_t
        self._lib.ggml_blck_size.restype = ctypes.c_int64
        self._lib.ggml_type_name.restype = ctypes.c_char_p
        self._check_types()

    @property
    def version(self) -> str:
        """Version and commit as the library states them, where it does."""
        words = []
        for name in ("ggml_version", "ggml_commit"):
            if hasattr(self._lib, name):
                function = getattr(self._lib, name)
                function.restype = ctypes.c_char_p
                words.append(function().decode())
        return " ".join(words) or "unknown"

    def _check_types(self) -> None:
        self.types: set[str] = set()
        for fmt in FORMATS.values():
            name = self._lib.ggml_type_name(fmt.id)
            if name is None or name.decode() != fmt.name:
                continue  # an older library that lacks the type
            sizes = self._lib.ggml_blck_size(fmt.id), self._lib.ggml_type_size(fmt.id)
            if sizes != (fmt.block_size, fmt.dtype.itemsize):
                raise UnsupportedError(
                    f"libggml: {self.path} has {fmt.name} as {sizes[0]} weights in {sizes[1]} bytes, "
                    f"ggmlq as {fmt.block_size} in {fmt.dtype.itemsize}; use a library of 2026"
                )
            self.types.add(fmt.name)

    def quantize(self, x: Floats, fmt: Format, imatrix: Floats | None = None) -> Bytes:
        """Rows of floats [N, K] to bytes [N, row bytes], as ``ggml_quantize_chunk`` writes them."""
        x = np.ascontiguousarray(x, np.float32)
        rows, columns = x.shape
        out = np.empty((rows, fmt.row_bytes(columns)), np.uint8)
        if fmt.name in ("q8_1", "q8_K"):  # activation types have no chunk encoder
            self._row_function("quantize_row_{}_ref", fmt)(_at(x), _at(out), ctypes.c_int64(x.size))
            return out
        weights = None if imatrix is None else np.ascontiguousarray(imatrix, np.float32)
        self._lib.ggml_quantize_chunk(
            fmt.id, _at(x), _at(out), ctypes.c_int64(0), ctypes.c_int64(rows),
            ctypes.c_int64(columns), None if weights is None else _at(weights),
        )  # fmt: skip
        return out

    def dequantize(self, raw: Bytes, fmt: Format) -> Floats:
        """Bytes [N, row bytes] to floats [N, K], as ``dequantize_row_*`` reads them."""
        raw = np.ascontiguousarray(raw)
        columns = raw.shape[-1] // fmt.dtype.itemsize * fmt.block_size
        out = np.empty((*raw.shape[:-1], columns), np.float32)
        self._row_function("dequantize_row_{}", fmt)(_at(raw), _at(out), ctypes.c_int64(out.size))
        return out

    def _row_function(self, pattern: str, fmt: Format) -> ctypes._NamedFuncPointer:
        if fmt.name in ("f16", "bf16"):
            pattern = "ggml_fp16_to_fp32_row" if fmt.name == "f16" else "ggml_bf16_to_fp32_row"
        name = pattern.format(fmt.name)
        if not hasattr(self._lib, name):
            raise UnsupportedError(f"libggml: {self.path} has no {name}; ask another type of it")
        function: ctypes._NamedFuncPointer = getattr(self._lib, name)
        function.restype = None
        return function


def _at(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
