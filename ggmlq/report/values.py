"""The values of a tensor, for ``ggmlq report``: their histogram, dead rows, outlying rows and columns.

It reads the tensor twice, a slab at a time, so that memory does not grow with the tensor. The first pass adds
up squares, by row and by column too. The second counts values in units of the tensor's root mean square,
which the first gave: in these units tensors are comparable and outliers show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..gguf.source import release
from ..gguf.tensors import piece
from ..ops import dequantize

SLAB = 1 << 20  # elements decoded at a time
REACH = 8  # root mean squares to both sides: an outlier is a value beyond
BINS = 127  # over that reach; an odd number, so that zeros lie in the middle of one
OUTLYING = 8.0  # times the median: a row or column whose root mean square is that large stands out
MOST_ROWS = 1 << 22  # and as many columns: of more of them no sums are kept
LISTED = 16  # rows, columns and places that are named
FLOATS = ("f16", "bf16", "f32")  # held exactly by float32
EDGES = np.linspace(-REACH, REACH, BINS + 1)

Doubles = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass
class Values:
    """Facts about a tensor's values. Rows are counted through all leading axes."""

    elements: int
    nan: int = 0
    infinite: int = 0
    zeros: int = 0
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    rms: float | None = None
    outliers: int = 0  # beyond REACH times the root mean square
    histogram: Counts = field(default_factory=lambda: np.zeros(BINS + 2, np.int64))  # first and last: beyond
    dead_rows: int = 0  # all zero
    dead_columns: int = 0
    outlier_rows: int = 0  # OUTLYING times the median
    outlier_columns: int = 0
    named: dict[str, list[int]] = field(default_factory=dict)  # the first LISTED of each of these four

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        plain = {key: value for key, value in vars(self).items() if key not in ("histogram", "named")}
        unit = self.rms if self.rms is not None and isfinite(self.rms) else 0.0
        spread = {
            "from": -REACH * unit, "to": REACH * unit,
            "below": int(self.histogram[0]), "counts": self.histogram[1:-1].tolist(),
            "above": int(self.histogram[-1]),
        }  # fmt: skip
        return {**plain, "first": self.named, "histogram": spread}


def examine(q: QuantArray, advance: Callable[[int], None]) -> Values:
    """The facts about all values of a tensor; ``advance`` gets numbers of bytes, ``q.nbytes`` in all."""
    values = Values(prod(q.shape))
    if not values.elements:
        return values
    sums = _Sums(q)
    half = q.nbytes // 2
    for start, x, nbytes in _slabs(q):
        sums.add(values, start, x)
        advance(nbytes // 2)
    sums.finish(values)
    unit = values.rms or 0.0
    if unit and isfinite(unit) and isfinite(BINS / (2 * REACH) / unit):
        for _, x, nbytes in _slabs(q):
            _count(values, x, unit)
            advance(nbytes - nbytes // 2)
    else:  # all zero, or nothing finite: there is no spread
        advance(q.nbytes - half)
        values.histogram[1 + BINS // 2] = values.zeros
    values.outliers = int(values.histogram[0] + values.histogram[-1])
    return values


def _slabs(q: QuantArray) -> Iterator[tuple[int, NDArray[Any], int]]:
    """Elements from a first one on as floats: whole rows, or pieces of a row that is longer than a slab."""
    size, columns, block = prod(q.shape), _columns(q), q.format.block_size
    step = SLAB // columns * columns or SLAB // block * block
    wide = np.float32 if block > 1 or q.format.name in FLOATS else np.float64
    start = 0
    while start < size:
        row_end = size if columns <= SLAB else (start // columns + 1) * columns
        end = min(start + step, row_end)
        part = piece(q, start, (end - start,))
        yield start, np.asarray(dequantize(part, wide)), part.nbytes
        release(part.blocks)
        start = end


def _columns(q: QuantArray) -> int:
    return q.shape[-1] if q.shape else 1


class _Sums:
    """The sums of the first pass over the values."""

    def __init__(self, q: QuantArray) -> None:
        self._columns = _columns(q)
        rows = prod(q.shape) // self._columns
        by_row = len(q.shape) > 1 and self._columns > 1 and rows <= MOST_ROWS
        by_column = len(q.shape) > 1 and rows > 1 and self._columns <= MOST_ROWS
        self._rows: Doubles | None = np.zeros(rows) if by_row else None
        self._by_column: Doubles | None = np.zeros(self._columns) if by_column else None
        self._sum = self._squares = 0.0

    def add(self, values: Values, start: int, x: NDArray[Any]) -> None:
        """Add the values of a slab."""
        row, column = divmod(start, self._columns)
        lines = x.reshape(-1, min(self._columns, x.size))
        broken = None
        with np.errstate(over="ignore", invalid="ignore"):
            if not isfinite(float(x.sum(dtype=np.float64))):  # NaN, infinite, or too large to be added
                good = np.isfinite(lines)
                broken = ~good.all(axis=1)
                values.nan += int(np.isnan(x).sum())
                values.infinite += int(np.isinf(x).sum())
                _extend(values, lines[good])
                lines = np.where(good, lines, 0)
                values.zeros -= int((~good).sum())
            else:
                _extend(values, x)
            values.zeros += x.size - int(np.count_nonzero(lines))
            self._sum += float(lines.sum(dtype=np.float64))
            squares = np.einsum("ij,ij->i", lines, lines, dtype=np.float64)
            self._squares += float(squares.sum())
            if self._rows is not None:
                self._rows[row : row + len(lines)] += (
                    np.where(broken, np.nan, squares) if broken is not None else squares
                )
            if self._by_column is not None:
                of = self._by_column[column : column + lines.shape[1]]
                of += np.einsum("ij,ij->j", lines, lines, dtype=np.float64)

    def finish(self, values: Values) -> None:
        """Write the facts that follow from the sums."""
        finite = values.elements - values.nan - values.infinite
        if finite:
            values.mean = self._sum / finite
            values.rms = sqrt(self._squares / finite)
        for kind, sums in (("rows", self._rows), ("columns", self._by_column)):
            if sums is None:
                continue
            dead = np.flatnonzero(sums == 0)
            size = np.sqrt(sums)
            live = size[size > 0]
            limit = OUTLYING * float(np.median(live)) if len(live) else np.inf
            outlying = np.flatnonzero(size > limit)
            for what, places in ((f"dead_{kind}", dead), (f"outlier_{kind}", outlying)):
                setattr(values, what, len(places))
                if len(places):
                    values.named[what] = places[:LISTED].tolist()


def _extend(values: Values, x: NDArray[Any]) -> None:
    if x.size:
        low, high = float(x.min()), float(x.max())
        values.min = low if values.min is None else min(values.min, low)
        values.max = high if values.max is None else max(values.max, high)


def _count(values: Values, x: NDArray[Any], unit: float) -> None:
    """Values into bins; NaN into none, infinity beyond the reach."""
    factor = BINS / (2 * REACH) / unit
    with np.errstate(invalid="ignore", over="ignore"):
        if not np.isfinite(x.dtype.type(factor)):  # values so small that their unit has no inverse in float32
            x = x.astype(np.float64)
        scaled = x * x.dtype.type(factor)
        scaled += BINS / 2 + 1
        np.clip(scaled, 0, BINS + 1, out=scaled)
    if values.nan:
        scaled = scaled[~np.isnan(scaled)]
    values.histogram += np.bincount(scaled.astype(np.intp), minlength=BINS + 2)
