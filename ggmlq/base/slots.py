"""Slots: the places of a recorded launch that each call fills with an address of its own.

A product is recorded once, then repeated with other operands. While it is recorded, its operands, its result
and the memory between its kernels are views with a label, and views of those have it, too. So a recorder
reads from an argument which address a call brings. An argument without a label stays the same in all calls.

The number of rows may differ from call to call, too. While a product is recorded it is a :class:`Rows`, and
so is every number that is said to follow from it. Any other number stays the same: nothing is guessed from
equal values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np


class Slot(NamedTuple):
    """An address that each call brings: its number among the call's addresses, and an offset in bytes."""

    number: int
    offset: int = 0

    def __add__(self, nbytes: int) -> Slot:  # type: ignore[override]
        return Slot(self.number, self.offset + nbytes)


def itself(rows: int) -> int:
    """The number of rows."""
    return rows


class Rows(int):
    """A number that follows from the rows of a recorded product: another one for each number of rows.

    ``of``: the function that has it from the number of rows. Arithmetic gives plain numbers, which belong to
    these rows alone; :func:`following` gives what other rows may have, too. ``min`` and ``max`` belong into
    such a function: they give one of their operands, which then follows from rows as it did.
    """

    of: Callable[[int], int]

    def __new__(cls, value: int, of: Callable[[int], int] = itself) -> Rows:
        number = super().__new__(cls, value)
        number.of = of
        return number


@dataclass(frozen=True)
class After:
    """The function that has a number from what another one has from rows; equal ones are computed once."""

    function: Callable[[int], Any]
    of: Callable[[int], int]

    def __call__(self, rows: int) -> Any:
        return self.function(self.of(rows))


def _after(function: Callable[[int], Any], of: Callable[[int], int]) -> Callable[[int], Any]:
    return function if of is itself else After(function, of)


def following(rows: int, function: Callable[[int], int]) -> int:
    """``function(rows)``; while a product is recorded, as a number that follows from its rows."""
    if type(rows) is not Rows:
        return function(rows)
    return Rows(function(int(rows)), _after(function, rows.of))


@dataclass(frozen=True)
class Element:
    """The function for one of several numbers that follow from rows, by its place among them."""

    numbers: Callable[[int], tuple[int, ...]]
    place: int

    def __call__(self, rows: int) -> int:
        return self.numbers(rows)[self.place]


def all_following(rows: int, function: Callable[[int], tuple[int, ...]]) -> tuple[int, ...]:
    """``function(rows)``, several numbers; each as :func:`following` gives it."""
    numbers = function(int(rows))
    if type(rows) is not Rows:
        return numbers
    others = _after(function, rows.of)
    return tuple(Rows(number, Element(others, i)) for i, number in enumerate(numbers))


class _Label(NamedTuple):
    """The slot of a labelled array, the addresses where its memory begins and ends, its number of rows."""

    slot: Slot
    first: int
    end: int
    rows: int | None


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


def labelled(array: Any, slot: Slot, rows: int | None = None) -> Any:
    """A view of an array that has a slot; ``rows``: its length, where that follows from a product's rows."""
    kind: Any = type(array)
    kind = _labelled_kind(kind)
    if isinstance(array, np.ndarray):  # twice: NumPy skips a base between two arrays of one type
        view = array.view(type=kind).view(type=kind)
    else:
        view = kind(array.shape, array.dtype, array.data, array.strides)
    last = [step * (size - 1) for size, step in zip(array.shape, array.strides, strict=True) if size > 1]
    before = sum(step for step in last if step < 0)
    first, nbytes = _address(array) + before, array.dtype.itemsize + sum(map(abs, last))
    view._label = _Label(slot + before, first, first + nbytes, rows)
    return view


def slot_of(array: Any, at: int | None = None) -> Slot | None:
    """The slot of an array that is labelled, or a view of one; None for all others, copies included.

    ``at``: its address, if the caller knows it.
    """
    label = _label_of(array)
    if label is None:
        return None
    at = _address(array) if at is None else at
    return label.slot + (at - label.first) if label.first <= at < label.end else None


def rows_of(array: Any) -> int:
    """The rows of an array [rows, ...]: as a number that follows from a product's where it is labelled so."""
    label, rows = _label_of(array), len(array)
    if label is None or label.rows is None:
        return rows
    assert label.rows == rows, "a view of other rows has no label of its own"
    return label.rows


def _label_of(array: Any) -> _Label | None:
    """The label of an array, or of the one that it is a view of."""
    view = array
    while view is not None:
        label: _Label | None = None if type(view) is np.ndarray else getattr(view, "_label", None)
        if label is not None:
            return label
        view = getattr(view, "base", None)
    return None


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
