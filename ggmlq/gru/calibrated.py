"""A cell from float weights and a calibration: its formats, codes and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import NonFiniteError
from ..fixed.observers import Observed
from ..fixed.qformat import QFormat, format_of
from ..fixed.tables import table_of
from .cell import TABLE_OF, Cell
from .weights import Weights
from .widths import GATES, NAMES, WEIGHTS, WIDEST, Width

LEAST_EXPONENT = -126  # of float32: a scale beyond has no number


def cell_of(
    request: str, weights: Weights, observed: Mapping[str, Observed], widths: Mapping[str, Width],
    tables: str, observer: str, rounding: str,
) -> Cell:  # fmt: skip
    """The cell of one direction: a format for each tensor, codes of the weights, and the three tables."""
    formats: dict[str, QFormat] = {}
    for name in NAMES:
        width = widths[name]
        if name in WEIGHTS:
            formats[name] = _row_format(getattr(weights, name), width)
        else:
            least = WIDEST if name in GATES else 0.0
            formats[name] = observed[name].format(observer, *width, least=least)
        if np.min(formats[name].exponent) < LEAST_EXPONENT:
            low, high = (
                (observed[name].low, observed[name].high)
                if name in observed
                else _ends(getattr(weights, name))
            )
            raise NonFiniteError(
                f"{request}: {name} lies in {low:.3g} … {high:.3g}; its scale is beyond float32; "
                "calibrate with inputs in an ordinary unit"
            )
    codes = {name: formats[name].encode(getattr(weights, name), rounding) for name in WEIGHTS}
    for name, (source, target) in TABLE_OF.items():
        function = "tanh" if name == "table_g" else "sigmoid"
        codes[name] = table_of(function, tables, formats[source], formats[target])
    ranges = {name: (observation.low, observation.high) for name, observation in observed.items()}
    return Cell(formats, codes, ranges)


def _row_format(rows: Any, width: Width) -> QFormat:
    """The format of rows, with an exponent for each from its extremes."""
    flat = rows.reshape(len(rows), -1)
    return format_of(flat.min(1), flat.max(1), *width)


def _ends(x: Any) -> tuple[float, float]:
    return float(x.min()), float(x.max())
