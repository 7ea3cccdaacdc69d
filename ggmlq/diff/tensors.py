"""Two tensors: the same bytes, the same values, or how far apart and where most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..array import QuantArray
from ..gguf.source import release
from ..ops import dequantize

SLAB = 1 << 18  # elements compared at a time

Doubles = NDArray[np.float64]

SAME_BYTES = "same bytes"
SAME_VALUES = "same values"  # of other types, or bits that mean the same
OTHER_VALUES = "other values"
OTHER_SHAPE = "other shape"
ONLY_A, ONLY_B = "only in A", "only in B"


@dataclass(frozen=True)
class Place:
    """Where two tensors are farthest apart."""

    index: tuple[int, ...]
    a: float
    b: float

    @property
    def error(self) -> float:
        """``|b - a|``; NaN where one of them is."""
        return abs(self.b - self.a)


@dataclass(frozen=True)
class WorstBlock:
    """The block with the largest squared error; its fields where the type has some."""

    row: tuple[int, ...]
    columns: tuple[int, int]  # of the wider block of the two types
    nmse: float
    a: dict[str, Any] | None
    b: dict[str, Any] | None


@dataclass(frozen=True)
class TensorDifference:
    """One name in both files, or in one of them."""

    name: str
    status: str
    types: tuple[str | None, str | None]
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
    nmse: float | None = None  # sum (b - a)^2 / sum a^2
    largest: Place | None = None
    worst: WorstBlock | None = None

    def within(self, tolerance: float) -> bool:
        """Whether this counts as equal; types may differ where a tolerance is given."""
        if self.status == SAME_BYTES:
            return True
        return tolerance > 0 and self.nmse is not None and self.nmse <= tolerance


def compare(name: str, a: QuantArray, b: QuantArray, advance: Callable[[int], None]) -> TensorDifference:
    """Compare; bytes that are the same are not decoded. ``advance`` hears of bytes that are done."""
    types, shapes = (a.format.name, b.format.name), (a.shape, b.shape)
    a, b = _same_axes(a, b.ndim), _same_axes(b, a.ndim)
    if a.shape != b.shape:
        advance(a.nbytes + b.nbytes)
        return TensorDifference(name, OTHER_SHAPE, types, shapes)
    same = 0
    if a.format is b.format:
        for _, mine, theirs in _slabs(a, b):
            if not np.array_equal(mine.raw, theirs.raw):
                break
            same += 1
            _done(mine, theirs, advance)
        else:
            return TensorDifference(name, SAME_BYTES, types, shapes, 0.0)
    tally = _Tally(a, b)
    for i, (row, mine, theirs) in enumerate(_slabs(a, b)):
        tally.add(row, mine, theirs, same=i < same)
        _done(mine, theirs, advance if i >= same else _nothing)
    status = SAME_VALUES if tally.largest is None else OTHER_VALUES
    return TensorDifference(name, status, types, shapes, tally.nmse, tally.largest, tally.worst)


def _same_axes(q: QuantArray, most: int) -> QuantArray:
    """Without leading axes of length 1 that the other one lacks: ggml has no such axes."""
    while q.ndim > max(most, 1) and q.shape[0] == 1:
        q = q[0]
    return q


def _nothing(n: int) -> None:
    """These bytes were counted before."""


def _done(mine: QuantArray, theirs: QuantArray, advance: Callable[[int], None]) -> None:
    release(mine.blocks)
    release(theirs.blocks)
    advance(mine.nbytes + theirs.nbytes)


def _slabs(a: QuantArray, b: QuantArray) -> Iterator[tuple[tuple[int, ...], QuantArray, QuantArray]]:
    """Rows of both with the index of the first of them."""
    if a.ndim < 2:
        yield (), a, b
    elif a.ndim == 2:
        count = max(1, SLAB // max(1, a.shape[-1]))
        for row in range(0, len(a), count):
            yield (row,), a[row : row + count], b[row : row + count]
    else:
        for i in range(len(a)):
            for index, mine, theirs in _slabs(a[i], b[i]):
                yield (i, *index), mine, theirs


def _values(q: QuantArray) -> Doubles:
    """Rows of values. Blocks decode to float32; numbers keep what they have."""
    wide = dequantize(q, np.float32 if q.format.block_size > 1 else np.float64).astype(np.float64, copy=False)
    return np.asarray(wide.reshape(-1, q.shape[-1] if q.shape else 1))


class _Tally:
    """Errors added up, and the worst places so far."""

    def __init__(self, a: QuantArray, b: QuantArray) -> None:
        self._error = self._energy = 0.0
        self._width = max(a.format.block_size, b.format.block_size)
        self._scalar = not a.shape
        self.largest: Place | None = None
        self.worst: WorstBlock | None = None
        self._worst_square = 0.0

    @property
    def nmse(self) -> float:
        if self._error == 0:
            return 0.0
        return self._error / self._energy if self._energy else float("inf")

    def add(self, first: tuple[int, ...], a: QuantArray, b: QuantArray, same: bool) -> None:
        """Rows that start at an index."""
        x = _values(a)
        with np.errstate(invalid="ignore", over="ignore"):
            self._energy += float(np.einsum("ij,ij->", x, x))  # no BLAS, whose sums depend on threads
            if same:
                return
            error = _errors(x, y := _values(b))
            if not error.any():
                return
            self._error += float(np.einsum("ij,ij->", error, error))
            self._note_largest(first, x, y, error)
            if self._width > 1:
                self._note_worst(first, a, b, x, error)

    def _note_largest(self, first: tuple[int, ...], x: Doubles, y: Doubles, error: Doubles) -> None:
        row, column = divmod(int(error.argmax()), error.shape[1])  # NaN is the largest of all
        place = Place(self._index(first, row, column), float(x[row, column]), float(y[row, column]))
        if self.largest is None or _above(place.error, self.largest.error):
            self.largest = place

    def _note_worst(
        self, first: tuple[int, ...], a: QuantArray, b: QuantArray, x: Doubles, error: Doubles
    ) -> None:
        parts = error.reshape(len(error), -1, self._width)
        sums = np.einsum("ijk,ijk->ij", parts, parts)
        row, block = divmod(int(sums.argmax()), sums.shape[1])
        worst = float(sums[row, block])
        if self.worst is not None and not _above(worst, self._worst_square):
            return
        self._worst_square = worst
        columns = block * self._width, (block + 1) * self._width
        column = columns[0] + int(parts[row, block].argmax())
        power = float((x[row, slice(*columns)] ** 2).sum())
        self.worst = WorstBlock(
            self._index(first, row, 0)[:-1],
            columns,
            worst / power if power else float("inf"),
            _fields(a, row, column),
            _fields(b, row, column),
        )

    def _index(self, first: tuple[int, ...], row: int, column: int) -> tuple[int, ...]:
        if self._scalar:
            return ()
        return (*first[:-1], first[-1] + row, column) if first else (column,)


def _errors(x: Doubles, y: Doubles) -> Doubles:
    """``|y - x|``; values that are both NaN, or the same infinity, do not differ."""
    error = np.subtract(y, x)
    np.abs(error, out=error)
    if not np.isfinite(error.sum()):
        error[(x == y) | (np.isnan(x) & np.isnan(y))] = 0
    return error


def _above(found: float, most: float) -> bool:
    return not np.isnan(most) and not found <= most


def _fields(q: QuantArray, row: int, column: int) -> dict[str, Any] | None:
    """The block that holds an element; None for plain numbers."""
    if q.format.dtype.names is None:
        return None
    blocks = q.blocks.reshape(-1, q.shape[-1] // q.format.block_size)
    block = blocks[row, column // q.format.block_size]
    return {name: block[name].tolist() for name in q.format.dtype.names}
