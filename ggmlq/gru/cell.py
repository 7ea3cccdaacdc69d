"""One direction of a GRU in integers: the format of every tensor, the codes of weights, and three tables.

Nothing else decides the results: a program that shares ``formats`` and ``codes`` computes the same codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import NonFiniteError
from ..fixed.observers import Observed
from ..fixed.qformat import QFormat, format_of
from ..fixed.tables import flat_beyond, table_of
from .costs import costs_of
from .weights import Weights
from .widths import GATES, NAMES, WEIGHTS, WIDEST, Width

Codes = NDArray[Any]
TABLE_OF = {"table_z": ("z_pre", "z_out"), "table_r": ("r_pre", "r_out"), "table_g": ("g_pre", "g_out")}
FUNCTION_OF = {"table_z": "sigmoid", "table_r": "sigmoid", "table_g": "tanh"}


class Cell:
    """One direction: formats by the names in ``widths.NAMES``; codes of W R bx br table_z table_r table_g.

    ``ranges``: the least and the largest value of a tensor in the calibration. ``costs``: the error in the
    next state by the rounding of each tensor; NaN in files that lack it.
    """

    def __init__(
        self,
        formats: Mapping[str, QFormat],
        codes: Mapping[str, Codes],
        ranges: Mapping[str, tuple[float, float]],
        costs: Mapping[str, float],
    ) -> None:
        for array in (*codes.values(), *(formats[name].exponent for name in ("W", "R", "bx", "br"))):
            array.flags.writeable = False
        self.formats: Mapping[str, QFormat] = MappingProxyType(dict(formats))
        self.codes: Mapping[str, Codes] = MappingProxyType(dict(codes))
        self.ranges: Mapping[str, tuple[float, float]] = MappingProxyType(dict(ranges))
        self.costs: Mapping[str, float] = MappingProxyType(dict(costs))
        self.cache: dict[Any, Any] = {}  # what kernels have prepared, by their keys

    @property
    def inputs(self) -> int:
        """The number of inputs, C."""
        return int(self.codes["W"].shape[1])

    @property
    def units(self) -> int:
        """The number of units, H."""
        return int(self.codes["R"].shape[1])

    @cached_property
    def row_sums(self) -> dict[str, NDArray[np.int64]]:
        """Sums of the rows of W and R; times the activations' zero point they correct a product."""
        return {name: self.codes[name].sum(1, dtype=np.int64) for name in ("W", "R")}

    @cached_property
    def clipped(self) -> frozenset[str]:
        """The tensors whose formats end before the values of the calibration: they saturate on purpose."""
        beyond = set()
        for name, ends in self.ranges.items():
            f = self.formats[name]
            low, high = f.unclipped(np.array(ends))
            if low < f.low - 1 or high > f.high + 1:
                beyond.add(name)
        return frozenset(beyond)

    def prepared(self, key: Any, make: Any) -> Any:
        """The result of ``make(self)``, made once for a key: the codes cannot change."""
        if key not in self.cache:
            self.cache[key] = make(self)
        return self.cache[key]


# --- A cell from float weights and a calibration: its formats, codes and tables -------------------

FINER = 256  # times the range of a table's input is cut at most: shifts to its scale stay small
LEAST_EXPONENT = -126  # of float32: a scale beyond has no number


def cell_of(
    request: str, weights: Weights, observed: Mapping[str, Observed], widths: Mapping[str, Width],
    tables: str, observer: str, rounding: str,
) -> Cell:  # fmt: skip
    """The cell of one direction: a format for each tensor, codes of the weights, and the three tables."""
    formats: dict[str, QFormat] = {}
    table_by_source = {source: (name, target) for name, (source, target) in TABLE_OF.items()}
    for name in sorted(NAMES, key=table_by_source.__contains__):  # tables' inputs depend on their outputs
        width = widths[name]
        if name in WEIGHTS:
            formats[name] = _row_format(getattr(weights, name), width)
        else:
            least = WIDEST if name in GATES else 0.0
            seen = observed[name]
            if name in table_by_source:  # codes where the table is flat would be lost to its slope
                table, target = table_by_source[name]
                most = max(-seen.low, seen.high) / FINER
                flat = max(flat_beyond(FUNCTION_OF[table], formats[target]), most if seen.count else 0.0)
                seen = seen.within(-flat, flat)
            formats[name] = seen.format(observer, *width, least=least)
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
    formats = {name: formats[name] for name in NAMES}
    codes = {name: formats[name].encode(getattr(weights, name), rounding) for name in WEIGHTS}
    for name, (source, target) in TABLE_OF.items():
        codes[name] = table_of(FUNCTION_OF[name], tables, formats[source], formats[target])
    ranges = {name: (observation.low, observation.high) for name, observation in observed.items()}
    return Cell(formats, codes, ranges, costs_of(weights, observed, formats))


def _row_format(rows: Any, width: Width) -> QFormat:
    """The format of rows, with an exponent for each from its extremes."""
    flat = rows.reshape(len(rows), -1)
    return format_of(flat.min(1), flat.max(1), *width)


def _ends(x: Any) -> tuple[float, float]:
    return float(x.min()), float(x.max())
