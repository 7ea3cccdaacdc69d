"""A FixedGRU in an npz file: integer codes, exponents, zero points, ranges of the calibration; no pickle.

    version, directions, tables, rounding, dynamic_x        facts of the whole
    0/W 0/R 0/bx 0/br 0/table_z 0/table_r 0/table_g         codes of a direction, in their own dtype
    0/formats       int64 [18, 4]: exponent (0 where there is one a row), zero, bits, signed; in the order of
                    the names in widths.py
    0/exponents     int64 [4, 3H]: of the rows of W, R, bx, br
    0/ranges        float64 [18, 2]: least and largest value in the calibration
    0/costs         float64 [18]: error in the next state by the rounding of a tensor; older files lack it

A file comes from anywhere: nothing of it is used before shapes, dtypes and every number are checked.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays.dumps import Dump
from ..base.text import short
from ..codes.code import ROUNDINGS
from ..errors import DumpError, GRUFileError
from ..fixed.qformat import MOST_BITS, QFormat
from ..fixed.tables import TABLES
from ..gguf.atomic import Staging
from .cell import TABLE_OF, Cell
from .widths import NAMES, WEIGHTS

PATH = 4096  # characters of a path that an error shows
VERSION = 1
CODES = (*WEIGHTS, *TABLE_OF)
MOST_EXPONENT = 126  # of float32
AGAIN = "save the GRU again with f.save(path)"


def save(path: str | os.PathLike[str], cells: Sequence[Cell], facts: Mapping[str, Any]) -> None:
    """Write the cells and facts of a FixedGRU to a file; an existing file is replaced whole or stays."""
    try:
        final = os.fspath(path)
    except TypeError:
        raise GRUFileError(
            f"FixedGRU.save({short(path)}): that is no path; pass a str or an os.PathLike"
        ) from None
    arrays: dict[str, Any] = {"version": VERSION, "directions": len(cells), **facts}
    for d, cell in enumerate(cells):
        arrays |= {f"{d}/{name}": cell.codes[name] for name in CODES}
        table = [
            (0 if name in WEIGHTS else f.exponent, f.zero, f.bits, f.signed) for name, f in _formats(cell)
        ]
        arrays[f"{d}/formats"] = np.array(table, np.int64)
        arrays[f"{d}/exponents"] = np.array([cell.formats[name].exponent for name in WEIGHTS], np.int64)
        arrays[f"{d}/ranges"] = np.array([cell.ranges.get(name, (0.0, 0.0)) for name in NAMES], np.float64)
        arrays[f"{d}/costs"] = np.array([cell.costs[name] for name in NAMES], np.float64)
    try:
        write_arrays(os.fsdecode(final), arrays)
    except OSError as error:
        raise GRUFileError(f"FixedGRU.save({short(path, PATH)}): {write_error(error)}") from error


def write_arrays(path: str, arrays: Mapping[str, Any]) -> None:
    """Write arrays to an npz file, in full or not at all."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    with Staging([path]) as staging:
        staging.write([buffer.getbuffer()])
        staging.commit()


def write_error(error: OSError) -> str:
    """The reason in words why a file was not written."""
    return (
        f"the system refused: {error.strerror or error}; nothing has changed under that name; check the "
        "folder, its permissions and the space on the disk"
    )


def _formats(cell: Cell) -> list[tuple[str, QFormat]]:
    return [(name, cell.formats[name]) for name in NAMES]


def load(path: str | os.PathLike[str]) -> tuple[tuple[Cell, ...], dict[str, Any]]:
    """The cells of a file, checked, and its facts: tables, rounding, dynamic_x."""
    request = f"FixedGRU.load({short(path, PATH)})"
    try:
        dump = Dump(path)
        missing = {"version", "directions"} - set(dump.names)
        if missing:
            raise GRUFileError(f"it has no {', '.join(sorted(missing))}; it is no GRU; {AGAIN}")
        if dump.number("version") != VERSION:
            raise GRUFileError(
                f"its version is {dump.number('version')}, {VERSION} is read; update ggmlq, or {AGAIN}"
            )
        directions = dump.number("directions")
        if directions not in (1, 2):
            raise GRUFileError(f"it has {directions} directions; a GRU has 1 or 2; {AGAIN}")
        facts = {
            "tables": _one_of(dump, "tables", TABLES), "rounding": _one_of(dump, "rounding", ROUNDINGS),
            "dynamic_x": _flag(dump, "dynamic_x"),
        }  # fmt: skip
        cells = tuple(_Reader(dump, f"{d}/").cell() for d in range(directions))
    except (DumpError, TypeError) as error:
        raise GRUFileError(f"{request}: {error}") from error
    except GRUFileError as error:
        raise GRUFileError(f"{request}: {error}") from None
    if len({(cell.inputs, cell.units) for cell in cells}) > 1:
        raise GRUFileError(f"{request}: its directions have different sizes; {AGAIN}")
    return cells, facts


def _one_of(dump: Dump, name: str, choices: Sequence[str]) -> str:
    value = dump.text(name)
    if value not in choices:
        raise GRUFileError(f"{name} is {short(value)}; known are {', '.join(choices)}; {AGAIN}")
    return value


def _flag(dump: Dump, name: str) -> bool:
    value = dump.array(name, 64)
    if value.dtype != np.bool_ or value.size != 1:
        raise GRUFileError(f"{name} is {value.dtype} {value.shape}, not True or False; {AGAIN}")
    return bool(value.item())


class _Reader:
    """One direction of a file, checked."""

    def __init__(self, dump: Dump, prefix: str) -> None:
        self._dump, self._prefix = dump, prefix

    def cell(self) -> Cell:
        """The cell, if all parts of it agree."""
        formats = self._formats()
        R = self._codes("R", formats["R"], None)
        units = R.shape[1] if R.ndim == 2 else 0
        self._check(units > 0 and R.shape == (3 * units, units), f"R has shape {R.shape}, not [3H, H]")
        W = self._codes("W", formats["W"], None)
        self._check(W.ndim == 2 and len(W) == 3 * units and W.size > 0, f"W has shape {W.shape}, not [3H, C]")
        exponents = self._array("exponents", np.int64, (len(WEIGHTS), 3 * units))
        self._check(bool((np.abs(exponents) <= MOST_EXPONENT).all()), "exponents lie beyond float32")
        codes = {"W": W, "R": R}
        for name in ("bx", "br"):
            codes[name] = self._codes(name, formats[name], (3 * units,))
        for i, name in enumerate(WEIGHTS):
            formats[name] = formats[name]._replace(exponent=exponents[i].copy())
        for name, (source, target) in TABLE_OF.items():
            codes[name] = self._codes(name, formats[target], (1 << formats[source].bits,))
        ranges = self._array("ranges", np.float64, (len(NAMES), 2))
        self._check(bool(np.isfinite(ranges).all()), "ranges are not finite")
        pairs = {name: (float(low), float(high)) for name, (low, high) in zip(NAMES, ranges, strict=True)}
        costs = np.full(len(NAMES), np.nan)
        if f"{self._prefix}costs" in self._dump:
            costs = self._array("costs", np.float64, (len(NAMES),))
            self._check(not (np.isinf(costs) | (costs < 0)).any(), "costs are negative or infinite")
        return Cell(
            formats, codes, {name: pair for name, pair in pairs.items() if name not in WEIGHTS},
            dict(zip(NAMES, costs.tolist(), strict=True)),
        )  # fmt: skip

    def _formats(self) -> dict[str, QFormat]:
        rows = self._array("formats", np.int64, (len(NAMES), 4))
        value = {}
        for name, (exponent, zero, bits, signed) in zip(NAMES, rows.tolist(), strict=True):
            self._check(
                2 <= bits <= MOST_BITS and signed in (0, 1), f"{name} has {bits} bits, signed {signed}"
            )
            fmt = QFormat(exponent, zero, bits, bool(signed))
            self._check(abs(exponent) <= MOST_EXPONENT, f"{name} has the exponent {exponent}, beyond float32")
            self._check(fmt.low <= zero <= fmt.high, f"{name} has the zero point {zero}, beyond its codes")
            self._check(
                name not in WEIGHTS or (zero == 0 and fmt.signed), f"{name} has a zero point or no sign"
            )
            self._check(
                name != "z_out" or 0 <= exponent <= 40, f"z_out has the exponent {exponent}: 1 has no code"
            )
            value[name] = fmt
        return value

    def _codes(self, name: str, f: QFormat, shape: tuple[int, ...] | None) -> Any:
        value = self._array(name, f.dtype, shape)
        if value.size:
            low, high = int(value.min()), int(value.max())
            self._check(
                f.low <= low and high <= f.high,
                f"{name} has codes {low} … {high}, its format {f.low} … {f.high}",
            )
        return value

    def _array(self, name: str, dtype: Any, shape: tuple[int, ...] | None) -> Any:
        key = self._prefix + name
        self._check(key in self._dump, f"{key} is missing")
        value = np.ascontiguousarray(self._dump.array(key))
        self._check(value.dtype == dtype, f"{key} is {value.dtype}, not {np.dtype(dtype)}")
        self._check(shape is None or value.shape == shape, f"{key} has shape {value.shape}, not {shape}")
        return value

    def _check(self, fine: bool, wrong: str) -> None:
        if not fine:
            raise GRUFileError(f"it does not hold together: {wrong}; {AGAIN}")
