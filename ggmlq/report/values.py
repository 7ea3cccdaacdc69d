"""The values of a tensor: counts and sums, their histogram, dead rows, outlying rows and columns.

``examine`` reads the tensor twice, a slab at a time, so that memory does not grow with the tensor. The first
pass adds up squares, by row and by column too. The second counts values in units of the tensor's root mean
square, which the first gave: in these units tensors are comparable and outliers show.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from math import isfinite, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..formats import FORMATS, BlockFormat, Format
from ..gguf.header import piece
from ..gguf.source import release
from ..ops import dequantize, quantize
from . import blocks
from .blocks import Blocks

SLAB = 1 << 20  # elements decoded at a time
REACH = 8  # root mean squares to both sides: an outlier is a value beyond
BINS = 127  # over that reach; an odd number, so that zeros lie in the middle of one
OUTLYING = 8.0  # times the median: a row or column whose root mean square is that large stands out
MOST_ROWS = 1 << 22  # and as many columns: of more of them no sums are kept
LISTED = 16  # rows, columns and places that are named
FLOATS = ("f16", "bf16", "f32")  # held exactly by float32
EXPONENTS = 256  # of float32; the first has zeros and what is smaller than 2**-126, the last NaN and infinity
BIAS = 127
EDGES = np.linspace(-REACH, REACH, BINS + 1)

Doubles = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass
class Values:
    """Facts about values, of a whole tensor or a part."""

    elements: int = 0
    nan: int = 0
    infinite: int = 0
    zeros: int = 0
    min: float | None = None  # of the finite ones, as all that follows
    max: float | None = None
    sum: float = 0.0
    squares: float = 0.0
    exponents: Counts = field(default_factory=lambda: np.zeros(EXPONENTS, np.int64))

    def add(self, x: NDArray[np.floating]) -> None:
        """Count some more values."""
        self.elements += x.size
        self.zeros += x.size - int(np.count_nonzero(x))
        with np.errstate(over="ignore", invalid="ignore"):
            self.exponents += _exponents(np.ascontiguousarray(x, np.float32).reshape(-1))
            if not isfinite(float(x.sum(dtype=np.float64))):
                self.nan += int(np.isnan(x).sum())
                self.infinite += int(np.isinf(x).sum())
                x = x[np.isfinite(x)]
            self.sum += float(x.sum(dtype=np.float64))
            self.squares += float(np.einsum("i,i->", x.reshape(-1), x.reshape(-1), dtype=np.float64))
        if x.size:
            low, high = float(x.min()), float(x.max())
            self.min = low if self.min is None else min(self.min, low)
            self.max = high if self.max is None else max(self.max, high)

    def take(self, other: Values) -> None:
        """Add the facts of the part that follows."""
        for name in ("elements", "nan", "infinite", "zeros", "sum", "squares"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.exponents = self.exponents + other.exponents
        ends = [(v.min, v.max) for v in (self, other) if v.min is not None and v.max is not None]
        self.min = min((low for low, _ in ends), default=None)
        self.max = max((high for _, high in ends), default=None)

    @property
    def finite(self) -> int:
        """The number of finite values."""
        return self.elements - self.nan - self.infinite

    @property
    def mean(self) -> float | None:
        """The mean of the finite values."""
        return self.sum / self.finite if self.finite else None

    @property
    def rms(self) -> float | None:
        """The root mean square of the finite values."""
        return sqrt(self.squares / self.finite) if self.finite else None

    @property
    def peak(self) -> float | None:
        """The largest magnitude in units of ``rms``: about 5 of a million normal values, more of outliers."""
        if not self.rms or self.min is None or self.max is None or not isfinite(self.rms):
            return None
        return max(-self.min, self.max) / self.rms

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        spread = [
            {"from": 2.0 ** (e - BIAS), "count": int(n)}
            for e, n in enumerate(self.exponents[1:-1].tolist(), 1)
            if n
        ]
        plain: dict[str, Any] = {
            "elements": self.elements,
            "nan": self.nan,
            "infinite": self.infinite,
            "zeros": self.zeros,
        }
        plain |= {"min": self.min, "max": self.max, "mean": self.mean, "rms": self.rms, "peak": self.peak}
        return {**plain, "magnitudes": spread}


def _exponents(x: NDArray[np.float32]) -> Counts:
    """The number of values with each exponent; counting upper halves costs half of cutting it out."""
    if x.size < 1 << 16:
        return np.bincount((x.view(np.uint32) >> 23) & (EXPONENTS - 1), minlength=EXPONENTS)
    upper = x.view(np.uint16)[int(sys.byteorder == "little") :: 2]  # sign, exponent, 7 bits of the mantissa
    counts: Counts = np.bincount(upper, minlength=1 << 16).reshape(2, EXPONENTS, -1)
    counts_by_exponent: Counts = counts.sum(axis=(0, 2))
    return counts_by_exponent


@dataclass
class Spread(Values):
    """Facts about all values of a tensor. Rows are counted through all leading axes."""

    outliers: int = 0  # beyond REACH times the root mean square
    histogram: Counts = field(default_factory=lambda: np.zeros(BINS + 2, np.int64))  # first and last: beyond
    dead_rows: int = 0  # all zero
    dead_columns: int = 0
    outlier_rows: int = 0  # OUTLYING times the median
    outlier_columns: int = 0
    named: dict[str, list[int]] = field(default_factory=dict)  # the first LISTED of each of these four

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        plain = super().facts()
        del plain["magnitudes"]
        names = ("outliers", "dead_rows", "dead_columns", "outlier_rows", "outlier_columns")
        unit = self.rms if self.rms is not None and isfinite(self.rms) else 0.0
        spread = {
            "from": -REACH * unit, "to": REACH * unit,
            "below": int(self.histogram[0]), "counts": self.histogram[1:-1].tolist(),
            "above": int(self.histogram[-1]),
        }  # fmt: skip
        counts = {name: getattr(self, name) for name in names}
        return {**plain, **counts, "first": self.named, "histogram": spread}


def examine(q: QuantArray, advance: Callable[[int], None]) -> Spread:
    """The facts about all values of a tensor; ``advance`` gets numbers of bytes, ``q.nbytes`` in all."""
    values = Spread()
    if not prod(q.shape):
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

    def add(self, values: Spread, start: int, x: NDArray[Any]) -> None:
        """Add the values of a slab."""
        row, column = divmod(start, self._columns)
        lines = x.reshape(-1, min(self._columns, x.size))
        broken = values.nan + values.infinite
        values.add(x)
        good = np.isfinite(lines) if values.nan + values.infinite > broken else None
        lines = lines if good is None else np.where(good, lines, 0)
        with np.errstate(over="ignore", invalid="ignore"):
            if self._rows is not None:
                squares = np.einsum("ij,ij->i", lines, lines, dtype=np.float64)
                whole = squares if good is None else np.where(good.all(axis=1), squares, np.nan)
                self._rows[row : row + len(lines)] += whole
            if self._by_column is not None:
                of = self._by_column[column : column + lines.shape[1]]
                of += np.einsum("ij,ij->j", lines, lines, dtype=np.float64)

    def finish(self, values: Spread) -> None:
        """Write the facts that follow from the sums."""
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


def _count(values: Spread, x: NDArray[Any], unit: float) -> None:
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


# --- the error: estimated without an original, and measured in other types -------------------
# With an original, ``ggmlq/diff`` compares the two, and rows of the original are quantized to other types.
# A tensor of floats is its own original. Else the error is estimated: a value that was rounded to the next
# code is off by a part of the step between codes, and the steps, which are the scales, are in the file. A
# trial of the type on normal values tells how large that part is; it includes the effects of the type's
# search and code book.

CANDIDATES = ("q8_0", "q6_K", "q5_K", "q4_K", "q3_K", "q2_K")  # from good to small
OTHERS = ("q8_0", "q5_1", "q5_0", "q4_0")  # for rows that are no multiple of 256, as llama.cpp does
WHOLE = 256
TRIED = 8  # rows of a tensor that are quantized
LONGEST = 1 << 12  # elements of such a row that are
TRIAL = (32, 1024)  # normal values that a type is tried on


def candidates(columns: int) -> list[Format]:
    """Types that rows of this length could have, from good to small."""
    names = CANDIDATES if columns % WHOLE == 0 else OTHERS
    return [FORMATS[name] for name in names if columns % FORMATS[name].block_size == 0]


def measured(original: QuantArray) -> dict[str, float]:
    """The NMSE of some rows of an original in each candidate type; empty if it cannot be quantized."""
    rows = _rows(original)
    if rows is None:
        return {}
    energy = float(np.square(rows, dtype=np.float64).sum())
    errors = {}
    for fmt in candidates(rows.shape[-1]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of values that a type cannot hold: they show
            decoded = np.asarray(dequantize(quantize(rows, fmt), np.float64))
        with np.errstate(invalid="ignore", over="ignore"):
            error = float(np.square(decoded - rows).sum())
        errors[fmt.name] = error / energy if energy else 0.0
    return errors


def _rows(original: QuantArray) -> NDArray[np.float32] | None:
    """Some rows, evenly spaced, of a matrix of finite floats; None where there are none."""
    if original.ndim < 2 or not prod(original.shape) or original.format.name not in FLOATS:
        return None
    columns = original.shape[-1]
    count = prod(original.shape[:-1])
    if columns % 32:
        return None
    length = min(columns, LONGEST) if columns % WHOLE == 0 else columns
    if length > LONGEST:
        return None
    picked = np.unique(np.linspace(0, count - 1, TRIED).astype(np.int64)).tolist()
    parts = [dequantize(piece(original, row * columns, (length,)), np.float64) for row in picked]
    with np.errstate(over="ignore"):
        rows = np.asarray(parts).astype(np.float32)
    return rows if np.isfinite(rows).all() else None


def estimated(fmt: Format, values: Spread, blocks: Blocks) -> float | None:
    """The estimated NMSE of rounding to the codes of the file, from its scales; None where there is none."""
    if not isinstance(fmt, BlockFormat) or not values.rms or not np.isfinite(values.rms):
        return None
    part = trial(fmt)[1]
    return None if part is None else part * blocks.steps / values.rms**2


def next_better(fmt: Format, columns: int) -> Format | None:
    """The candidate with the fewest bits among those with more bits than a type; None if there is none."""
    better = [f for f in candidates(columns) if f.bits_per_weight > fmt.bits_per_weight]
    return better[-1] if better else None


@cache
def trial(fmt: Format) -> tuple[float, float | None]:
    """The error of normal values in a type: NMSE, and the mean squared error in squared steps."""
    x = np.random.default_rng(7).standard_normal(TRIAL, np.float32)
    importance = np.ones(TRIAL[1], np.float32) if fmt.needs_imatrix else None
    q = quantize(x, fmt, importance)
    error = float(np.square(np.asarray(dequantize(q, np.float64)) - x).mean())
    steps = blocks.examine(q).steps
    return error / float(np.square(x, dtype=np.float64).mean()), error / steps if steps else None
