"""Counts of values that saturated while a FixedGRU ran, and the part of each format that calibration used."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.named import Named
from ..base.text import table
from ..fixed.qformat import QFormat
from .cell import Cell
from .step import COUNTED
from .widths import GATES, WEIGHTS

FAR = "x far"  # values of x that saturate and lie beyond all that calibration saw
MARGIN = 8  # far is an eighth of the format's width beyond the range
TALLIED = (*COUNTED, "x", FAR, "h0")  # the order in which kernels and runs count


def far_ends(cell: Cell, x: QFormat) -> tuple[int, int]:
    """The codes of x below and above which a value is far."""
    low, high = (x.unclipped(np.array(end)) for end in cell.ranges["x"])
    margin = (x.high - x.low) // MARGIN
    ends = min(x.low, float(low)) - margin, max(x.high, float(high)) + margin
    return int(max(ends[0], -(2.0**40))), int(min(ends[1], 2.0**40))


class Tally:
    """The counts of a direction, over all calls."""

    def __init__(self) -> None:
        self.saturated = np.zeros(len(TALLIED), np.int64)
        self.of = np.zeros(len(TALLIED), np.int64)

    def add(self, saturated: NDArray[np.int64], of: NDArray[np.int64]) -> None:
        """Add the counts of a call."""
        self.saturated += saturated
        self.of += of


class Use(NamedTuple):
    """The use of one tensor's format."""

    saturated: int  # values that did not fit and became the end of the format
    of: int  # values so far
    used: float  # share of the format's range that calibration has seen values in
    low: float  # the least value that calibration has seen
    high: float
    cost: float  # root mean square of the error in the next state that rounding to this format makes

    @property
    def share(self) -> float:
        """The part of the values that saturated."""
        return self.saturated / self.of if self.of else 0.0


class Diagnostics(Named[Use]):
    """The use of each tensor's format; prints as a table."""

    def __init__(self, tally: Tally, cell: Cell) -> None:
        saturated = dict(zip(TALLIED, tally.saturated.tolist(), strict=True))
        of = dict(zip(TALLIED, tally.of.tolist(), strict=True))
        self._uses: dict[str, Use] = {}
        for name in ("x", *COUNTED, *GATES):
            f, (low, high) = cell.formats[name], cell.ranges[name]
            width = float(np.ldexp(float(f.high - f.low), -f.exponent))
            used = min(1.0, (max(high, 0.0) - min(low, 0.0)) / width) if high >= low else 0.0
            self._uses[name] = Use(saturated.get(name, 0), of.get(name, 0), used, low, high, cell.costs[name])
        for name in WEIGHTS:
            f, codes = cell.formats[name], cell.codes[name]
            values = f.decode(codes, np.float64)
            rows = np.abs(codes.reshape(len(codes), -1).astype(np.int64)).max(1)
            used = min(1.0, float(rows.mean()) / f.high)
            self._uses[name] = Use(0, 0, used, float(values.min()), float(values.max()), cell.costs[name])
        self._uses["h0"] = self._uses["h"]._replace(saturated=saturated["h0"], of=of["h0"])

    def __getitem__(self, name: str) -> Use:
        return self._uses[name]

    def _named(self) -> dict[str, Use]:
        return self._uses

    def __repr__(self) -> str:
        rows = [
            [
                name,
                use.saturated,
                use.of,
                f"{use.share:.2%}",
                f"{use.used:.0%}",
                f"{use.low:.4g}",
                f"{use.high:.4g}",
                f"{use.cost:.1e}",
            ]
            for name, use in self._uses.items()
        ]
        return table(["tensor", "saturated", "of", "share", "range used", "low", "high", "cost"], rows)
