"""The thirteen types of a metadata value, and the read-only sequence that stands for an array of them."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray


class ValueType(IntEnum):
    """A GGUF value type with GGUF's number. ``ValueType.parse`` also takes names in any case."""

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


SHOWN = 4  # elements in the repr


class Array(Sequence[Any]):
    """Elements of one GGUF type; equal to any list or tuple with the same elements.

    Elements come out as ``bool``, ``int``, ``float``, ``str`` or ``Array``. ``np.asarray`` takes
    numbers without a detour over Python objects. ``gq.save`` writes the array with its type.

    >>> from ggmlq.gguf import Array, ValueType
    >>> a = Array(ValueType.UINT8, np.array([1, 2, 3], np.uint8))
    >>> a, a == [1, 2, 3], a[-1], a[1:]
    (<array of 3 uint8: 1, 2, 3>, True, 3, <array of 2 uint8: 2, 3>)
    """

    __slots__ = ("_items", "type")

    def __init__(self, type: ValueType, items: tuple[Any, ...] | NDArray[Any]) -> None:
        self.type = type  # of the elements
        if isinstance(items, np.ndarray):
            items = items.view()
            items.flags.writeable = False
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Array(self.type, self._items[index])
        item = self._items[operator.index(index)]
        return item.item() if isinstance(item, np.generic) else item

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items.tolist() if isinstance(self._items, np.ndarray) else self._items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str | bytes) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._items, dtype, copy=copy)

    def __repr__(self) -> str:
        shown = ", ".join(repr(item) for item in self[:SHOWN])
        more = ", …" if len(self) > SHOWN else ""
        return f"<array of {len(self)} {self.type.word}: {shown}{more}>"
