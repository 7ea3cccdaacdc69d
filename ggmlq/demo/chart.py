"""Bars of block characters, for tables on a terminal."""

from __future__ import annotations

import math
import shutil
import sys

from ..base.terminal import is_terminal

EIGHTHS = " ▏▎▍▌▋▊▉█"
MARK = "│"  # where something else stands on the same scale
LEAST, MOST = 8, 48  # columns: fewer tell nothing, more are no easier to read


def room(beside: int) -> int:
    """The columns left for bars beside a table of ``beside`` columns; 0 in a pipe, or if bars cannot show."""
    if not is_terminal(sys.stdout) or not _can_print(EIGHTHS + MARK):
        return 0
    left = shutil.get_terminal_size().columns - beside - 1  # the last column would wrap in some terminals
    return min(left, MOST) if left >= LEAST else 0


def bar(value: float, most: float, columns: int, mark: float | None = None) -> str:
    """A bar of value on a scale from 0 to most, with a mark on the same scale."""
    eighths = round(8 * columns * value / most)
    cells = list(EIGHTHS[-1] * (eighths // 8) + EIGHTHS[eighths % 8] * (eighths % 8 > 0))
    if mark is not None:
        at = min(columns - 1, math.floor(columns * mark / most))
        cells += [" "] * (at + 1 - len(cells))
        cells[at] = MARK
    return "".join(cells)


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
