"""The thirteen types of a metadata value, with GGUF's numbers."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Literal

import numpy as np


class ValueType(IntEnum):
    """A GGUF value type. ``ValueType.parse`` also takes names in any case."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12

    @property
    def word(self) -> str:
        """The name in lower case, as NumPy spells it: ``"uint8"``."""
        return self.name.lower()

    @classmethod
    def parse(cls, key: object) -> ValueType | None:
        """A type from itself, its number or its name; None for anything else."""
        if isinstance(key, str):
            return cls.__members__.get(key.upper())
        return cls(key) if isinstance(key, int) and key in _NUMBERS else None


_NUMBERS = frozenset(ValueType)

# One number in a file, in little-endian order; strings and arrays are not here. A bool is a byte.
NUMBERS: dict[ValueType, np.dtype[Any]] = {
    kind: np.dtype("u1" if kind is ValueType.BOOL else kind.word).newbyteorder("<")
    for kind in ValueType
    if kind not in (ValueType.STRING, ValueType.ARRAY)
}

# What one element of a type takes at least: a length, or an array's type and length.
LEAST_BYTES = {ValueType.STRING: 8, ValueType.ARRAY: 12} | {k: d.itemsize for k, d in NUMBERS.items()}

MAX_DEPTH = 16  # arrays within arrays; the reader and the writer recurse no deeper
MAX_NAME_BYTES = 65535  # GGUF's limit for keys, applied to names of tensors too


def order_sign(byteorder: str) -> Literal["<", ">"]:
    """``"little"`` and ``"big"`` as NumPy and ``struct`` write them."""
    return "<" if byteorder == "little" else ">"
