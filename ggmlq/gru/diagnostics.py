"""What went beyond its format while a FixedGRU ran, and how much of each format calibration made use of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.text import table
from ..fixed.qformat import QFormat
from .cell import Cell
from .step import COUNTED
from .widths import GATES

FAR = "x far"  # of x, what saturates and lies beyond all that calibration saw
MARGIN = 8  # by this part of the format's width: values of the same kind may go a little further
TALLIED = (*COUNTED, "x", FAR, "h0")  # the order in which kernels and runs count


def far_ends(cell: Cell, x: QFormat) -> tuple[int, int]:
    """The codes of x below and above which a value is far."""
    low, high = (x.unclipped(np.array(end)) for end in cell.ranges["x"])
    margin = (x.high - x.low) // MARGIN
    ends = min(x.low, float(low)) - margin, max(x.high, float(high)) + margin
    return int(max(ends[0], -(2.0**40))), int(min(ends[1], 2.0**40))


class Tally:
    """Counts of a direction, over all calls."""

    def __init__(self) -> None:
        self.moved = np.zeros(len(TALLIED), np.int64)
        self.of = np.zeros(len(TALLIED), np.int64)

    def add(self, moved: NDArray[np.int64], of: NDArray[np.int64]) -> None:
        """Those of a call."""
        self.moved += moved
        self.of += of


class Use(NamedTuple):
    """Of one tensor."""

    saturated: int  # values that did not fit and became the end of the format
    of: int  # values so far
    used: float  # share of the format's range that calibration has seen values in
    low: float  # the least value that calibration has seen
    high: float

    @property
    def share(self) -> float:
        """Of the values, those that saturated."""
        return self.saturated / self.of if self.of else 0.0


class Diagnostics(Mapping[str, Use]):
    """A record a tensor; prints as a table."""

    def __init__(self, tally: Tally, cell: Cell) -> None:
        moved = dict(zip(TALLIED, tally.moved.tolist(), strict=True))
        of = dict(zip(TALLIED, tally.of.tolist(), strict=True))
        self._uses: dict[str, Use] = {}
        for name in ("x", *COUNTED, *GATES):
            f, (low, high) = cell.formats[name], cell.ranges[name]
            width = float(np.ldexp(float(f.high - f.low), -f.exponent))
            used = min(1.0, (max(high, 0.0) - min(low, 0.0)) / width) if high >= low else 0.0
            self._uses[name] = Use(moved.get(name, 0), of.get(name, 0), used, low, high)
        self._uses["h0"] = self._uses["h"]._replace(saturated=moved["h0"], of=of["h0"])

    def __getitem__(self, name: str) -> Use:
        return self._uses[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._uses)

    def __len__(self) -> int:
        return len(self._uses)

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
            ]
            for name, use in self._uses.items()
        ]
        return table(["tensor", "saturated", "of", "share", "range used", "low", "high"], rows)
