"""``gq.error_table``: numbers written in few bits, what is read back, the error of each, and a chart."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Sequence
from os import PathLike, fspath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.tensors import array_of, is_tensor
from ..base import missing
from ..base.devices import to_host
from ..base.text import table
from ..codes import CODES, Code
from ..errors import CodeError, DTypeError, GGMLQError, MissingDependencyError, ShapeError, UnsupportedError
from ..formats import FORMATS, BlockFormat, Format
from ..ops import quantize

# --- ways to write numbers in few bits: what is stored, and what is read back ----------------
# A code of ``gq.codes`` is the code next to x / s, read back as s times its value. ``_nosat`` behind the
# name of a float: what does not fit becomes NaN or an infinity. ``_asym`` behind the name of an integer:
# with a zero point, the code of 0.0. ``fp8_naive``: x / s rounded to a whole number and clipped at ±448,
# which is how e4m3 is sometimes simulated and is not what e4m3 does. Types of ggml have scales of their own
# within their blocks, or none: they take the numbers as they are, padded with zeros to whole blocks.

Wide = NDArray[np.float64]

NAIVE, LARGEST = "fp8_naive", 448.0
NO_SATURATION, ASYMMETRIC = "_nosat", "_asym"
EPS = 1e-10  # the least magnitude that a scale is made for, as in quantize_scaled


class Written(NamedTuple):
    """Numbers as a way writes them."""

    codes: list[int | None]  # the bits or the integer; None where there is none
    quantized: Wide  # the value of the code, before the scale
    dequantized: Wide
    saturated: NDArray[np.bool_]  # whether it did not fit
    hexadecimal: bool = False  # how codes are usually written


class Way(NamedTuple):
    """One way to write numbers, by the name of a format: its code or block format, and options."""

    name: str
    code: Code | None = None
    format: Format | None = None
    saturate: bool = True
    zeros: bool = False


def way(request: str, name: str) -> Way:
    """The Way that a name of a format stands for."""
    if name == NAIVE:
        return Way(name)
    stem = str(name).lower()
    try:
        if stem.endswith(NO_SATURATION) and CODES[stem.removesuffix(NO_SATURATION)].kind == "float":
            return Way(name, CODES[stem.removesuffix(NO_SATURATION)], saturate=False)
        if stem.endswith(ASYMMETRIC):
            code = CODES["int8_full" if stem == "int8_asym" else stem.removesuffix(ASYMMETRIC)]
            if code.kind == "integer" and code.min != -code.max:
                return Way(name, code, zeros=True)
        if stem in CODES:
            return Way(name, CODES[stem])
        return Way(name, format=FORMATS[stem])
    except GGMLQError:
        raise CodeError(
            f"{request}: there is no format {name!r}; formats are {', '.join(CODES)}, e4m3_nosat, "
            f"e5m2_nosat, int8_asym, uint8_asym, {NAIVE}, and the types of ggml such as f16, bf16 and q4_0; "
            "pass some of these"
        ) from None


def scale_of(how: Way, x: Wide, scale: float, calibrate: str | None) -> float | None:
    """The scale that a way writes numbers under; None where it has none beside them."""
    if how.format is not None:
        return None
    if calibrate is None:
        return scale
    finite = x[np.isfinite(x)]
    if how.zeros and how.code is not None:
        high, low = max(finite.max(initial=0), 0), min(finite.min(initial=0), 0)
        return float(max(high - low, EPS) / (how.code.max - how.code.min))
    largest = LARGEST if how.code is None else how.code.max
    return float(max(np.abs(finite).max(initial=0), EPS) / largest)


def written(how: Way, x: Wide, scale: float | None) -> Written:
    """Numbers as a way writes them under its scale."""
    with np.errstate(all="ignore"):
        if scale is None:
            return _as_blocks(how, x)
        if how.code is None:
            return _naive(x, scale)
        if how.code.kind == "integer":
            return _as_integers(how.code, x, scale, how.zeros)
        return _as_floats(how.code, x, scale, how.saturate)


def _naive(x: Wide, scale: float) -> Written:
    whole = np.clip(np.rint(x / scale), -LARGEST, LARGEST)
    return Written([None] * len(x), whole, whole * scale, np.abs(x / scale) > LARGEST)


def _as_integers(code: Code, x: Wide, scale: float, zeros: bool) -> Written:
    zero = 0.0
    if zeros:
        zero = float(np.clip(np.rint(code.min - min(np.nanmin(x, initial=0), 0) / scale), code.min, code.max))
    whole = np.rint(x / scale) + zero
    whole = np.where(np.isnan(whole), zero, whole)
    clipped = np.clip(whole, code.min, code.max) + 0.0  # no negative zero
    return Written([int(c) for c in clipped], clipped, (clipped - zero) * scale, clipped != whole)


def _as_floats(code: Code, x: Wide, scale: float, saturate: bool) -> Written:
    quotient = (x / scale).astype(np.float32)
    fits = np.isfinite(code.decode(code.encode(quotient, saturate=False))) | ~np.isfinite(x)
    codes = code.encode(quotient, saturate=saturate)
    values = code.decode(codes).astype(np.float64)
    lost = ~fits | (np.isinf(x) & (values != x))
    return Written([int(c) for c in codes], values, values * scale, lost, True)


def _as_blocks(how: Way, x: Wide) -> Written:
    """The values as one row of a type of ggml."""
    fmt = how.format
    assert fmt is not None
    padded = np.zeros(-(-len(x) // fmt.block_size) * fmt.block_size, np.float32)
    padded[: len(x)] = x
    weights = np.ones(len(padded), np.float32) if fmt.needs_imatrix else None
    q = quantize(padded, fmt, weights)
    values = q.dequantize().astype(np.float64)[: len(x)]
    lost = np.isinf(values) & np.isfinite(x)
    if isinstance(fmt, BlockFormat):
        codes = fmt.unpack(q.blocks).codes.reshape(-1)[: len(x)]
        return Written([int(c) for c in codes], codes.astype(np.float64), values, lost)
    bits = q.blocks.view(f"u{fmt.dtype.itemsize}").reshape(-1)[: len(x)]
    return Written([int(b) for b in bits], values, values, lost, True)


# --- the chart -------------------------------------------------------------------------------
# Error against value, drawn with matplotlib (extra ``plot``).

SIZE = (8, 5)  # inches


def draw(lines: Sequence[tuple[str, Sequence[Any]]], path: str | PathLike[str]) -> None:
    """Draw one line for each format, on logarithmic axes; points without an error lie at the lower edge."""
    request = f"plot({fspath(path)!r})"
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingDependencyError(
            f"{request}: matplotlib cannot be imported ({error}); pictures are drawn with it; "
            f"{missing.install('plot')}"
        ) from None
    figure = figures.Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    floor = _floor([row for _, rows in lines for row in rows])
    for name, rows in lines:
        points = sorted((abs(row.value), max(row.error, floor)) for row in rows if _shows(row))
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3, label=name)
    scale = "log" if any(_shows(row) for _, rows in lines for row in rows) else "linear"
    axes.set(xscale=scale, yscale=scale, xlabel="|value|", ylabel="|error|")
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise DTypeError(
            f"{request}: the picture cannot be written ({error}); the name's ending says its kind; "
            "pass errors.svg or errors.png in a folder that is there"
        ) from error


def _shows(row: Any) -> bool:
    """True for a row that logarithmic axes can show."""
    return bool(row.value) and math.isfinite(row.value) and math.isfinite(row.error)


def _floor(rows: Sequence[Any]) -> float:
    """The value drawn for an error of zero: below all others."""
    return min((row.error for row in rows if 0 < row.error < float("inf")), default=1.0) / 10


USUAL = ("int8_full", NAIVE)
# --- the table -------------------------------------------------------------------------------

SCALE = 0.1
DOCUMENT = (0.001, 0.123, 1.234, 127.9, 255.5, -300.0, 448.0, -448.0)  # str() prints these as that document
TITLES = {"int8_full": "INT8", NAIVE: "FP8 (E4M3)"}
HEADER = ["format", "value", "code", "quantized", "dequantized", "error", "relative", "saturated"]


class ErrorRow(NamedTuple):
    """One number written in one format, and its error."""

    format: str
    value: float
    code: int | None  # an integer, or the bits of a float; None where a simulation has no code
    quantized: float  # the value of the code, before the scale
    dequantized: float
    error: float  # absolute
    relative: float  # to the value
    saturated: bool  # whether it did not fit
    hexadecimal: bool = False  # whether the code is printed in hexadecimal


class ErrorTable(list[ErrorRow]):
    """Rows, format after format; ``print`` shows them as a table."""

    def __init__(self, rows: Iterable[ErrorRow], scales: dict[str, float | None], document: bool) -> None:
        super().__init__(rows)
        self.scales = scales  # of each format; None where it has none beside its numbers
        self._document = document

    def of(self, format: str) -> list[ErrorRow]:
        """The rows of one format."""
        return [row for row in self if row.format == format]

    def __str__(self) -> str:
        return self.as_document() if self._document else self.as_text()

    def __repr__(self) -> str:
        return f"<ErrorTable of {len(self)} rows: {', '.join(self.scales)}>"

    def as_text(self) -> str:
        """The table as text: all columns, one line a row."""
        return table(HEADER, [_cells(row) for row in self])

    def as_document(self) -> str:
        """The tables as a Chinese document on 8 bits prints them: one a format, tabs, five decimals."""
        parts = []
        for name in self.scales:
            title = TITLES.get(name, name)
            lines = [f"原始值\t{title}量化值\t{title}反量化值\t{title}误差"]
            for row in self.of(name):
                stored = row.code if row.code is not None and not row.hexadecimal else row.quantized
                lines.append(f"{row.value:.5f}\t{stored}\t{row.dequantized:.5f}\t{row.error:.5f}")
            parts.append("\n".join(lines))
        return "\n\n".join(parts)

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw error against value, a line a format; the name's ending says as what kind of picture."""
        draw([(name, self.of(name)) for name in self.scales], path)


def error_table(
    values: Any, scale: float = SCALE, formats: Iterable[str] | str = USUAL, calibrate: str | None = None
) -> ErrorTable:
    """Numbers in few bits, beside the numbers that they stand for.

    Parameters
    ----------
    values : array of numbers
        Taken one after the other, in float64.
    scale : float
        Codes are those next to value / scale. Types of ggml, f16 and bf16 have no scale beside them.
    formats : names
        Every code of ``gq.codes``, ``"e4m3_nosat"``, ``"e5m2_nosat"`` (without saturation),
        ``"int8_asym"``, ``"uint8_asym"`` (with a zero point), every type of ggml, and ``"fp8_naive"``, which
        rounds to whole numbers and clips at ±448 and is no 8-bit float.
    calibrate : ``"amax"``, optional
        Give each format the scale at which its largest number is the largest magnitude of the values.

    >>> import ggmlq as gq
    >>> print(gq.error_table([17, 33, -300], 1.0, ("fp8_naive", "e4m3")))
    format     value  code  quantized  dequantized  error  relative  saturated
    fp8_naive     17               17           17      0         0
    fp8_naive     33               33           33      0         0
    fp8_naive   -300             -300         -300      0         0
    e4m3          17  0x58         16           16      1    0.0588
    e4m3          33  0x60         32           32      1    0.0303
    e4m3        -300  0xf9       -288         -288     12      0.04
    """
    request = "error_table(values)"
    x = _numbers(request, values)
    if not (isinstance(scale, int | float | np.number) and 0 < float(scale.real) < np.inf):
        raise ShapeError(
            f"{request}: scale={scale!r}; numbers are divided by it: positive and finite; pass 1.0"
        )
    if calibrate not in (None, "amax"):
        raise UnsupportedError(
            f"{request}: calibrate={calibrate!r}; scales are given, or made of the largest magnitude; "
            'pass "amax", or leave it out'
        )
    names = [formats] if isinstance(formats, str) else list(formats)
    ways = {name: way(request, name) for name in dict.fromkeys(names)}
    scales = {name: scale_of(how, x, float(scale), calibrate) for name, how in ways.items()}
    rows = [row for name, how in ways.items() for row in _rows(how, x, written(how, x, scales[name]))]
    plain = (tuple(ways), float(scale), calibrate) == (USUAL, SCALE, None)
    return ErrorTable(
        rows, scales, plain and np.array_equal(x.astype(np.float32), np.array(DOCUMENT, np.float32))
    )


def _numbers(request: str, values: Any) -> Wide:
    if is_tensor(values):
        values = array_of(request, values)
    try:
        floats = np.asarray(to_host(values))
        if floats.dtype.kind not in "fiub" and floats.dtype.name != "bfloat16":
            raise TypeError(f"they are {floats.dtype}")
        return np.asarray(floats, np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise DTypeError(f"{request}: values are no numbers ({error}); pass an array of floats") from None


def _rows(how: Way, x: Wide, column: Written) -> list[ErrorRow]:
    with np.errstate(all="ignore"):
        errors = np.abs(x - column.dequantized)
        errors = np.where(x == column.dequantized, 0.0, errors)  # infinities that are kept
        relative = np.where(errors == 0, 0.0, errors / np.abs(x))
    rows = []
    for i, value in enumerate(x.tolist()):
        numbers = (float(column[i]) for column in (column.quantized, column.dequantized, errors, relative))
        stored, read, error, part = numbers
        fits = not column.saturated[i]
        rows.append(
            ErrorRow(
                how.name, value, column.codes[i], stored, read, error, part, not fits, column.hexadecimal
            )
        )
    return rows


def _cells(row: ErrorRow) -> list[str]:
    code = "" if row.code is None else f"{row.code:#04x}" if row.hexadecimal else str(row.code)
    numbers = [f"{n:.6g}" for n in (row.quantized, row.dequantized, row.error)]
    return [row.format, f"{row.value:g}", code, *numbers, f"{row.relative:.3g}", "yes" * row.saturated]
