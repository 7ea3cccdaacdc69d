"""Charts as data, for pages, pictures and terminals: a histogram (``Bars``), or lines (``Lines``).

svg.py draws the same data for pages and files, and ``text`` a histogram for a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, isfinite, log10

from ..base.text import printable

Tick = tuple[float, str]

LEAST, MOST = 1e-300, 1e300  # beyond these, numbers have no place on an axis: its arithmetic would overflow
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Bars:
    """A histogram: ``counts[i]`` lie between ``edges[i]`` and ``edges[i + 1]``."""

    title: str
    x: str  # what lies along the axis, with its unit
    edges: Sequence[float]
    counts: Sequence[int]
    ticks: Sequence[Tick] = ()  # marks of the x axis; round numbers where none are given
    note: str = ""  # one sentence on what is to be seen, for those who do not see it
    whole: bool = False  # edges lie between whole numbers, which are what is counted
    exponents: bool = False  # edges are exponents of two

    def span(self, i: int) -> str:
        """The range of values that bar i counts."""
        low, high = self.edges[i], self.edges[i + 1]
        if self.exponents:
            return f"2^{low:g} to 2^{high:g}"
        if self.whole:
            return f"{ceil(low)} to {floor(high)}" if high - low > 1 else f"{ceil(low)}"
        return f"{low:.4g} to {high:.4g}"

    def marks(self) -> Sequence[Tick]:
        """The marks of the x axis."""
        return self.ticks or linear_ticks(self.edges[0], self.edges[-1])


@dataclass(frozen=True)
class Series:
    """A line of a chart: its name, and its points in order; points that are not finite are left out."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Lines:
    """A chart of lines: values by a position, such as the depth in a model."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    log: bool = False  # values over decades; those of 0 lie on the lower edge
    limit: float | None = None  # a value beyond which something is wrong
    note: str = ""
    decades: bool = False  # positions over decades too; those of 0 or less are left out

    def shown(self) -> list[Series]:
        """The series without points that cannot be drawn, and without empty series."""
        visible = [Series(s.name, [p for p in s.points if self._has_place(p)]) for s in self.series]
        return [series for series in visible if series.points]

    def _has_place(self, point: tuple[float, float]) -> bool:
        x, y = point
        visible = (y >= 0 or not self.log) and (x > LEAST or not self.decades)
        return visible and abs(x) < MOST and abs(y) < MOST

    def range(self) -> tuple[float, float]:
        """Ends of the y axis."""
        values = [y for series in self.shown() for _, y in series.points]
        values += [self.limit] if self.limit is not None and isfinite(self.limit) else []
        if self.log:
            positive = [y for y in values if y > LEAST]
            low, high = min(positive, default=0.1), max(positive, default=1.0)
            return 10.0 ** floor(log10(low)), 10.0 ** ceil(log10(high) + 1e-9)
        low, high = min([0.0, *values]), max(values, default=1.0)
        ticks = linear_ticks(low, high if high > low else low + 1)
        step = ticks[1][0] - ticks[0][0] if ticks[1:] else 1.0
        return low, max(high, low + step)


def linear_ticks(low: float, high: float, about: int = 5) -> list[Tick]:
    """Ticks at round numbers from low to high, about ``about`` of them."""
    width = high - low
    if not LEAST < width < MOST:
        return [(low, f"{low:.3g}")]
    step = 10.0 ** floor(log10(width / about))
    step *= next(factor for factor in (1, 2, 5, 10) if width / (step * factor) <= about + 0.5)
    first = ceil(low / step - 1e-9)
    marks = [n * step for n in range(first, floor(high / step + 1e-9) + 1)]
    return [(mark, f"{mark:.10g}") for mark in marks]


def log_ticks(low: float, high: float, most: int = 6) -> list[Tick]:
    """Ticks at powers of ten from low to high, ``most`` at most."""
    first, last = ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9)
    step = max(1, ceil((last - first + 1) / most))
    return [(10.0**e, power(10, e)) for e in range(first, last + 1, step)]


def power(base: int, exponent: int) -> str:
    """A power as text, such as 2⁻⁵ or 10³."""
    return f"{base}{str(exponent).translate(SUPERSCRIPT)}"


def amount(n: float) -> str:
    """A large count in three digits: 12.1 k, 3.4 M, 7.2 G."""
    for unit, name in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if n >= 0.9995 * unit:
            return f"{n / unit:.3g}{name}" if n < 999.5 * unit else f"{n / unit:.0f}{name}"
    return f"{n:g}"


# --- a histogram as text, in block characters, or in # if the terminal's encoding lacks those


EIGHTHS = " ▏▎▍▌▋▊▉█"
WIDEST = 40  # columns of the longest bar: longer are no easier to read
ROWS = 36  # bars; finer ones are put together


def text(chart: Bars, columns: int = 80, encoding: str | None = "utf-8") -> str:
    """The chart as lines, no wider than ``columns``."""
    bars = _coarser(chart)
    spans = [bars.span(i) for i in range(len(bars.counts))]
    counts = [str(count) for count in bars.counts]
    head, tail = max(map(len, spans), default=0), max(map(len, counts), default=0)
    room = max(1, min(WIDEST, columns - head - tail - 7))
    most = max([1, *bars.counts])
    plain = not _can_write(encoding)
    lines = [
        f"  {span:>{head}}  {count:>{tail}}  {_bar(n, most, room, plain)}".rstrip()
        for span, count, n in zip(spans, counts, bars.counts, strict=True)
    ]
    return "\n".join([printable(f"{chart.title} ({chart.x})"), *lines])


def _bar(n: int, most: int, room: int, plain: bool) -> str:
    if plain:
        return "#" * -(-room * n // most)
    eighths = -(-8 * room * n // most)  # rounded up: one of a million is to be seen
    return EIGHTHS[-1] * (eighths // 8) + EIGHTHS[eighths % 8] * (eighths % 8 > 0)


def _coarser(chart: Bars) -> Bars:
    step = -(-len(chart.counts) // ROWS)
    if step < 2:
        return chart
    starts = range(0, len(chart.counts), step)
    counts = [sum(chart.counts[i : i + step]) for i in starts]
    edges = [*(chart.edges[i] for i in starts), chart.edges[-1]]
    return replace(chart, edges=edges, counts=counts)


def _can_write(encoding: str | None) -> bool:
    try:
        EIGHTHS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
