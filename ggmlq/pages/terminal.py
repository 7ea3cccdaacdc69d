"""Draws a histogram as text for a terminal, in block characters, or in # if its encoding lacks those."""

from __future__ import annotations

from dataclasses import replace

from ..base.text import printable
from .charts import Bars

EIGHTHS = " ▏▎▍▌▋▊▉█"
MOST = 40  # columns of the longest bar: longer are no easier to read
ROWS = 36  # bars; finer ones are put together


def text(chart: Bars, columns: int = 80, encoding: str | None = "utf-8") -> str:
    """The chart as lines, no wider than ``columns``."""
    bars = _coarser(chart)
    spans = [bars.span(i) for i in range(len(bars.counts))]
    counts = [str(count) for count in bars.counts]
    head, tail = max(map(len, spans), default=0), max(map(len, counts), default=0)
    room = max(1, min(MOST, columns - head - tail - 7))
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
