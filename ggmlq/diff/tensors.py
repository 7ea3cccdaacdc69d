"""Compares two tensors: same bytes, same values, or else their NMSE and the places that differ most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.companion import by_row, multiply, same_scales
from ..gguf.header import piece
from ..gguf.source import release
from ..ops import dequantize

SLAB = 1 << 18  # elements compared at a time

Doubles = NDArray[np.float64]

SAME_BYTES = "same bytes"
SAME_BLOCKS = "same values, other byte order"  # of one type
SAME_VALUES = "same values"  # of other types, or bits that mean the same
OTHER_VALUES = "other values"
OTHER_SHAPE = "other shape"
ONLY_A, ONLY_B = "only in A", "only in B"
SAME = (SAME_BYTES, SAME_BLOCKS)  # equal without any tolerance


@dataclass(frozen=True)
class Place:
    """The element in which two tensors differ most, and its two values."""

    index: tuple[int, ...]
    a: float
    b: float

    @property
    def error(self) -> float:
        """The difference ``|b - a|``; NaN if one of them is NaN."""
        return abs(self.b - self.a)


@dataclass(frozen=True)
class WorstBlock:
    """The block with the largest squared error, and its fields in ``a`` and ``b`` if the types have some."""

    row: tuple[int, ...]
    columns: tuple[int, int]  # of the wider block of the two types
    nmse: float
    a: dict[str, Any] | None
    b: dict[str, Any] | None


@dataclass(frozen=True)
class TensorDifference:
    """The comparison of the tensors of one name, which may be in one file only."""

    name: str
    status: str
    types: tuple[str | None, str | None]
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
    nmse: float | None = None  # sum (b - a)^2 / sum a^2
    largest: Place | None = None
    worst: WorstBlock | None = None

    def within(self, tolerance: float) -> bool:
        """True where this counts as equal; types may differ where there is a tolerance."""
        if self.status in SAME:
            return True
        return tolerance > 0 and self.nmse is not None and self.nmse <= tolerance


def compare(name: str, a: QuantArray, b: QuantArray, advance: Callable[[int], None]) -> TensorDifference:
    """Compare two tensors; equal bytes are not decoded. ``advance`` gets numbers of bytes that are done."""
    result = at_once(name, a, b)
    if result is not None:
        advance(a.nbytes + b.nbytes)
        return result
    whole = 0, prod(a.shape)
    alike = a.format is b.format and same_scales(a.scale, b.scale)
    same = same_slabs(a, b, whole, advance) if alike else 0
    if same is None:
        return equal_bytes(name, a, b)
    tally = Tally()
    tally.walk(a, b, whole, advance, same)
    return differing(name, a, b, tally)


def at_once(name: str, a: QuantArray, b: QuantArray) -> TensorDifference | None:
    """The result for tensors of different shapes or without elements; None if bytes must be read."""
    types, shapes = (a.format.name, b.format.name), (a.shape, b.shape)
    if same_axes(a, b.ndim).shape != same_axes(b, a.ndim).shape:
        return TensorDifference(name, OTHER_SHAPE, types, shapes)
    if 0 in a.shape:  # any number of rows without an element
        status = SAME_BYTES if a.format is b.format else SAME_VALUES
        return TensorDifference(name, status, types, shapes, 0.0)
    return None


def equal_bytes(name: str, a: QuantArray, b: QuantArray) -> TensorDifference:
    """The result for two tensors of one type with the same bytes."""
    status = SAME_BYTES if a.blocks.dtype == b.blocks.dtype else SAME_BLOCKS
    return TensorDifference(name, status, (a.format.name, b.format.name), (a.shape, b.shape), 0.0)


def differing(name: str, a: QuantArray, b: QuantArray, tally: Tally) -> TensorDifference:
    """The result for two tensors whose values were compared, from their tally."""
    types, shapes = (a.format.name, b.format.name), (a.shape, b.shape)
    status = SAME_VALUES if tally.largest is None else OTHER_VALUES
    return TensorDifference(name, status, types, shapes, tally.nmse, tally.largest, tally.worst)


def same_slabs(
    a: QuantArray, b: QuantArray, part: tuple[int, int], advance: Callable[[int], None]
) -> int | None:
    """The number of slabs with the same bytes before the first that differs; None: all of them."""
    for same, (_, ours, theirs) in enumerate(_slabs(a, b, part)):
        if not np.array_equal(ours.raw, theirs.raw):
            return same
        _done(ours, theirs, advance)
    return None


def same_axes(q: QuantArray, most: int) -> QuantArray:
    """The array without leading axes of length 1 beyond ``most`` axes: ggml has no such axes."""
    while q.ndim > max(most, 1) and q.shape[0] == 1:
        q = q[0]
    return q


def _nothing(n: int) -> None:
    """These bytes were counted before."""


def _done(ours: QuantArray, theirs: QuantArray, advance: Callable[[int], None]) -> None:
    release(ours.blocks)
    release(theirs.blocks)
    advance(ours.nbytes + theirs.nbytes)


def _slabs(
    a: QuantArray, b: QuantArray, part: tuple[int, int]
) -> Iterator[tuple[int, QuantArray, QuantArray]]:
    """Slabs of both tensors, each with the number of its first element.

    Elements are counted through all axes, so lengths of rows do not matter: a file may have many short ones
    or a single long one.
    """
    for start in range(*part, SLAB):
        shape = (min(SLAB, part[1] - start),)
        yield start, piece(a, start, shape), piece(b, start, shape)


def _values(part: QuantArray, whole: QuantArray, first: int) -> Doubles:
    """The values of a slab in float64; blocks are decoded to float32 first, plain numbers lose nothing.

    They are multiplied by the companion scale of the whole tensor.
    """
    wide = dequantize(part, np.float32 if part.format.block_size > 1 else np.float64)
    if whole.scale is not None:
        rows = (first + np.arange(len(wide))) // whole.shape[-1]
        multiply(wide, by_row(np.asarray(whole.scale), whole.shape[:-1]).reshape(-1)[rows])
    return np.asarray(wide, np.float64)


class Tally:
    """The sums of squared errors of two tensors, and the worst element and block so far."""

    def __init__(self) -> None:
        self._sums: list[tuple[float, float]] = []  # energy and error of each slab: sums keep their order
        self.largest: Place | None = None
        self.worst: WorstBlock | None = None
        self._worst_square = 0.0

    @property
    def nmse(self) -> float:
        energy = error = 0.0
        for ours, lost in self._sums:
            energy, error = energy + ours, error + lost
        if error == 0:
            return 0.0
        return error / energy if energy else float("inf")

    def take(self, other: Tally) -> None:
        """Add the tally of the slabs that follow."""
        self._sums += other._sums
        if other.largest is not None and (
            self.largest is None or _above(other.largest.error, self.largest.error)
        ):
            self.largest = other.largest
        if other.worst is not None and (
            self.worst is None or _above(other._worst_square, self._worst_square)
        ):
            self.worst, self._worst_square = other.worst, other._worst_square

    def walk(
        self, a: QuantArray, b: QuantArray, part: tuple[int, int], advance: Callable[[int], None], same: int
    ) -> None:
        """Add a range of elements; ``same``: leading slabs with equal bytes, already told to ``advance``."""
        a, b = same_axes(a, b.ndim), same_axes(b, a.ndim)
        for i, (first, ours, theirs) in enumerate(_slabs(a, b, part)):
            self._add(first, ours, theirs, (a, b), same=i < same)
            _done(ours, theirs, advance if i >= same else _nothing)

    def _add(
        self, first: int, a: QuantArray, b: QuantArray, whole: tuple[QuantArray, QuantArray], same: bool
    ) -> None:
        """Add one slab, which begins at element ``first``, of the whole tensors."""
        shape = whole[0].shape
        x = _values(a, whole[0], first)
        with np.errstate(invalid="ignore", over="ignore"):
            energy = float(np.einsum("i,i->", x, x))  # no BLAS, whose sums depend on threads
            error = None if same else _errors(x, y := _values(b, whole[1], first))
            if error is None or not error.any():
                self._sums.append((energy, 0.0))
                return
            self._sums.append((energy, float(np.einsum("i,i->", error, error))))
            self._note_largest(first, x, y, error, shape)
            if max(a.format.block_size, b.format.block_size) > 1:
                self._note_worst(first, a, b, x, error, shape)

    def _note_largest(
        self, first: int, x: Doubles, y: Doubles, error: Doubles, shape: tuple[int, ...]
    ) -> None:
        at = int(error.argmax())  # NaN is the largest of all
        place = Place(_index(first + at, shape), float(x[at]), float(y[at]))
        if self.largest is None or _above(place.error, self.largest.error):
            self.largest = place

    def _note_worst(
        self, first: int, a: QuantArray, b: QuantArray, x: Doubles, error: Doubles, shape: tuple[int, ...]
    ) -> None:
        width = max(a.format.block_size, b.format.block_size)
        parts = error.reshape(-1, width)
        sums = np.einsum("ij,ij->i", parts, parts)
        block = int(sums.argmax())
        worst = float(sums[block])
        if self.worst is not None and not _above(worst, self._worst_square):
            return
        self._worst_square = worst
        start = block * width
        *row, column = _index(first + start, shape)
        power = float((x[start : start + width] ** 2).sum())
        at = start + int(parts[block].argmax())
        self.worst = WorstBlock(
            tuple(row),
            (column, column + width),
            worst / power if power else float("inf"),
            _fields(a, at),
            _fields(b, at),
        )


def _index(element: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(element, shape)))


def _errors(x: Doubles, y: Doubles) -> Doubles:
    """``|y - x|``; values that are both NaN, or the same infinity, do not differ."""
    error = np.subtract(y, x)
    np.abs(error, out=error)
    if not np.isfinite(error.sum()):
        error[(x == y) | (np.isnan(x) & np.isnan(y))] = 0
    return error


def _above(value: float, most: float) -> bool:
    return not np.isnan(most) and not value <= most


def _fields(q: QuantArray, element: int) -> dict[str, Any] | None:
    """The block that holds an element; None for plain numbers."""
    if q.format.dtype.names is None:
        return None
    block = q.blocks[element // q.format.block_size]
    return {name: block[name].tolist() for name in q.format.dtype.names}
