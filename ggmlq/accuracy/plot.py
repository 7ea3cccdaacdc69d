"""The chart of ``gq.error_table``: error against value, drawn with matplotlib (extra ``plot``)."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from os import PathLike, fspath
from typing import Any

from ..base import missing
from ..errors import DTypeError, MissingDependencyError

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
