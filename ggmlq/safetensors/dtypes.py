"""The element types of safetensors files, and the kind of array that each becomes.

Types that ggml has become QuantArrays, 8-bit floats the codes of ScaledArrays, and types that only NumPy has
NumPy arrays. Of all other types the table has the size, so that files with such tensors open and their other
tensors can be read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..codes import CODES, Code
from ..formats import FORMATS, Format


class ElementType(NamedTuple):
    """A type: its name in the file, its bits, and what reads it."""

    name: str
    bits: int
    format: Format | None = None
    code: Code | None = None
    dtype: np.dtype[Any] | None = None  # what NumPy sees of it


def _of_format(name: str) -> ElementType:
    fmt = FORMATS[name]
    return ElementType(name, 8 * fmt.dtype.itemsize, format=fmt, dtype=fmt.dtype)


def _of_numpy(name: str, dtype: str) -> ElementType:
    numpy = np.dtype(dtype)
    return ElementType(name, 8 * numpy.itemsize, dtype=numpy)


TYPES = {
    kind.name: kind
    for kind in (
        *map(_of_format, ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8")),
        ElementType("F8_E4M3", 8, code=CODES["e4m3"], dtype=np.dtype("u1")),
        ElementType("F8_E5M2", 8, code=CODES["e5m2"], dtype=np.dtype("u1")),
        ElementType("F8_E8M0", 8, dtype=np.dtype("u1")),  # powers of two: scales
        *(_of_numpy(n, d) for n, d in (("U8", "u1"), ("U16", "<u2"), ("U32", "<u4"), ("U64", "<u8"))),
        *(_of_numpy(n, d) for n, d in (("BOOL", "?"), ("C64", "<c8"))),
        *(ElementType(name, 8) for name in ("F8_E4M3FNUZ", "F8_E5M2FNUZ")),
        *(ElementType(name, bits) for name, bits in (("F4", 4), ("F6_E2M3", 6), ("F6_E3M2", 6))),
    )
}  # fmt: skip

BY_DTYPE = {kind.dtype: kind.name for kind in TYPES.values() if kind.dtype is not None and kind.code is None}
BY_DTYPE[np.dtype("u1")] = "U8"  # not F8_E8M0, which has its bits
BY_DTYPE[np.dtype("<u2")] = "U16"  # not BF16
BY_FORMAT = {kind.format.name: kind.name for kind in TYPES.values() if kind.format is not None}
BY_CODE = {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2", "int8": "I8", "int8_full": "I8", "uint8": "U8"}
BY_CODE |= {"int16": "I16", "uint16": "U16"}
