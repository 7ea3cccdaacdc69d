"""Slots: the places of a recorded launch that each call fills with an address of its own.

A product is recorded once, then repeated with other operands. While it is recorded, its operands, its result
and the memory between its kernels are views with a label, and views of those have it, too. So a recorder
reads from an argument which address a call brings. An argument without a label stays the same in all calls.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np


class Slot(NamedTuple):
    """An address that each call brings: its number among the call's addresses, and an offset in bytes."""

    number: int
    offset: int = 0

    def __add__(self, nbytes: int) -> Slot:  # type: ignore[override]
        return Slot(self.number, self.offset + nbytes)


class _Label(NamedTuple):
    """The slot of a labelled array, and the addresses where its memory begins and ends."""

    slot: Slot
    first: int
    end: int


class _Labelled:
    """A label beside what NumPy's or CuPy's arrays have."""

    _label: _Label | None = None

    def __array_finalize__(self, parent: Any) -> None:
        super().__array_finalize__(parent)  # type: ignore[misc]
        self._label = getattr(parent, "_label", None)


@cache
def _labelled_kind(kind: Any) -> Any:
    if issubclass(kind, _Labelled):
        return kind
    return type("LabelledArray", (_Labelled, kind), {"__module__": kind.__module__})


def labelled(array: Any, slot: Slot) -> Any:
    """A view of an array that has a slot."""
    kind: Any = type(array)
    kind = _labelled_kind(kind)
    if isinstance(array, np.ndarray):  # twice: NumPy skips a base between two arrays of one type
        view = array.view(type=kind).view(type=kind)
    else:
        view = kind(array.shape, array.dtype, array.data, array.strides)
    last = [step * (size - 1) for size, step in zip(array.shape, array.strides, strict=True) if size > 1]
    before = sum(step for step in last if step < 0)
    first, nbytes = _address(array) + before, array.dtype.itemsize + sum(map(abs, last))
    view._label = _Label(slot + before, first, first + nbytes)
    return view


def slot_of(array: Any) -> Slot | None:
    """The slot of an array that is labelled, or a view of one; None for all others, copies included."""
    view = array
    while view is not None and getattr(view, "_label", None) is None:
        view = getattr(view, "base", None)
    if view is None:
        return None
    slot, first, end = view._label
    at = _address(array)
    return slot + (at - first) if first <= at < end else None


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
