"""The read-only sequence that stands for an array in GGUF metadata."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .valuetype import ValueType

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
