"""``Library``: ggml's encoders and decoders, called in this process, to compare our bytes and values.

It is for libraries that one trusts, in tests and tools. A library under development may crash: then use
:class:`ggmlq.llama.Bridge`, which keeps it in a process of its own.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingDependencyError, UnsupportedError
from ..formats import FORMATS, Format
from ..formats.format import Bytes, Floats
from . import loaded
from .files import HOW, Build, locate
from .symbols import LONG, P, Symbols, words

ACTIVATIONS = ("q8_1", "q8_K")  # ggml turns activations into these; it has no weights of them
OLD_TYPES = 28  # the highest id of a type that every ggml with backends has, f64
DECODERS = {"f16": "ggml_fp16_to_fp32_row", "bf16": "ggml_bf16_to_fp32_row"}  # the others by their pattern


def is_weight_type(fmt: Format) -> bool:
    """True for a type whose weights ggml multiplies: all blocks but those of activations, and floats."""
    return fmt.name not in ACTIVATIONS and (fmt.block_size > 1 or fmt.can_quantize)


class Library:
    """The C functions of one libggml, checked against our table of types when it is loaded."""

    def __init__(self, path: str | Path | Build | None = None, *, whole: bool = False) -> None:
        build = path if isinstance(path, Build) else locate(path)
        self.path = build.base
        self.symbols = Symbols(build, whole=whole)
        if not self.symbols.has("ggml_quantize_chunk"):
            raise MissingDependencyError(
                f"libggml: {self.path} has no ggml_quantize_chunk; name the file libggml-base; {HOW}"
            )
        if whole:
            loaded.checked(build)
        self._check_types()

    @property
    def version(self) -> str:
        """Version and commit as the library states them, where it does."""
        names = ("ggml_version", "ggml_commit")
        parts = [words(getattr(self.symbols, name)()) for name in names if self.symbols.has(name)]
        return " ".join(filter(None, parts)) or "unknown"

    def _check_types(self) -> None:
        self.types: set[str] = set()
        for fmt in FORMATS.values():
            # A release build does not compare an id with its number of types: it reads behind its table.
            if fmt.id > OLD_TYPES and not self.symbols.has(_decoder(fmt)):
                continue  # an older library that lacks the type
            if self.symbols.ggml_type_name(fmt.id) != fmt.name.encode():
                continue  # or has another one under its id
            sizes = self.symbols.ggml_blck_size(fmt.id), self.symbols.ggml_type_size(fmt.id)
            if sizes != (fmt.block_size, fmt.dtype.itemsize):
                raise UnsupportedError(
                    f"libggml: {self.path} has {fmt.name} as {sizes[0]} weights in {sizes[1]} bytes, "
                    f"ggmlq as {fmt.block_size} in {fmt.dtype.itemsize}; use a library of 2026"
                )
            self.types.add(fmt.name)

    def check_type(self, fmt: Format) -> None:
        """Raise an error for a type that the library does not know: it would abort on the id."""
        if fmt.name not in self.types:
            raise UnsupportedError(
                f"libggml: {self.path} (ggml {self.version}) has no type {fmt.name} (id {fmt.id}); "
                "use a newer library or another type"
            )

    def quantize(self, x: Floats, fmt: Format, imatrix: Floats | None = None) -> Bytes:
        """Rows of floats [N, K] to bytes [N, row bytes], as ``ggml_quantize_chunk`` writes them."""
        self.check_type(fmt)
        x = np.ascontiguousarray(x, np.float32)
        rows, columns = x.shape
        out = np.empty((rows, fmt.row_bytes(columns)), np.uint8)
        if fmt.name in ACTIVATIONS:  # they have no chunk encoder
            self._row_function(f"quantize_row_{fmt.name}_ref")(address(x), address(out), LONG(x.size))
            return out
        weights = None if imatrix is None else np.ascontiguousarray(imatrix, np.float32)
        self.symbols.ggml_quantize_chunk(
            fmt.id, address(x), address(out), 0, rows, columns,
            None if weights is None else address(weights),
        )  # fmt: skip
        return out

    def dequantize(self, raw: Bytes, fmt: Format, out: Floats | None = None) -> Floats:
        """Bytes [N, row bytes] to floats [N, K], as ``dequantize_row_*`` reads them."""
        self.check_type(fmt)
        raw = np.ascontiguousarray(raw)
        columns = raw.shape[-1] // fmt.dtype.itemsize * fmt.block_size
        if out is None:
            out = np.empty((*raw.shape[:-1], columns), np.float32)
        self._row_function(_decoder(fmt))(address(raw), address(out), LONG(out.size))
        return out

    def _row_function(self, name: str) -> ctypes._NamedFuncPointer:
        if not self.symbols.has(name):
            raise UnsupportedError(f"libggml: {self.path} has no {name}; ask another type of it")
        function: ctypes._NamedFuncPointer = getattr(self.symbols, name)
        function.restype, function.argtypes = None, [P, P, LONG]
        return function


def _decoder(fmt: Format) -> str:
    """Name of the function that turns rows of a type into floats."""
    return DECODERS.get(fmt.name, f"dequantize_row_{fmt.name}")


def address(array: NDArray[np.generic]) -> ctypes.c_void_p:
    """The address of an array's bytes as a pointer of C."""
    return ctypes.c_void_p(array.ctypes.data)
