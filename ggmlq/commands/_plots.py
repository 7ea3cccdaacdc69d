"""Charts of a tensor, for `show --plot`: on the terminal, or as a picture."""

from __future__ import annotations

import shutil
import sys

from ..arrays.array import QuantArray
from ..base.progress import Progress
from ..pages import Bars, draw, text
from ..pages.charts import LEAST, MOST
from ..report import blocks, figures, values


def charts(q: QuantArray, name: str) -> list[Bars]:
    """Charts of the values, and for blocks of scales and codes."""
    progress = Progress(q.nbytes, "counting")
    try:
        spread = values.examine(q, progress.advance)
    finally:
        progress.close()
    parts = blocks.examine(q)
    unit = spread.rms if spread.rms and LEAST < spread.rms < MOST else None
    bars = [figures.values_of(f"{name}: values", spread.histogram, unit)] if spread.histogram.any() else []
    bars += figures.scales_of(f"{name}: scales", parts.scales, parts.zero_scales, parts.negative_scales)
    if parts.codes is not None and parts.seen:
        bars.append(figures.codes_of(f"{name}: codes", q.format.name, parts.codes))
    return bars


def show(bars: list[Bars], path: str) -> str:
    """Draw charts into a file, or for the terminal; the text to print."""
    if not bars:
        return "there is nothing to draw: no value is finite"
    if path:
        return f"wrote {draw(bars, path)}"
    columns = shutil.get_terminal_size().columns
    encoding = sys.stdout.encoding if sys.stdout is not None else None
    return "\n\n".join(f"{text(chart, columns, encoding)}\n  {chart.note}" for chart in bars)
