"""``gq.error_table``: a table of numbers written in few bits, what is read back, and the error of each."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from ..arrays.tensors import array_of, is_tensor
from ..base.devices import to_host
from ..base.text import table
from ..errors import DTypeError, ShapeError, UnsupportedError
from .plot import draw
from .ways import NAIVE, Way, Wide, Written, scale_of, way, written

FORMATS = ("int8_full", NAIVE)
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
    values: Any, scale: float = SCALE, formats: Iterable[str] | str = FORMATS, calibrate: str | None = None
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
    plain = (tuple(ways), float(scale), calibrate) == (FORMATS, SCALE, None)
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
