"""The blocks of an HTML page as data: sections of paragraphs, tables, grids and charts.

render.py makes HTML of them. Until then all is plain text, so a name from a file cannot become markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isnan, log10
from typing import ClassVar, Literal

from .charts import LEAST, MOST, Bars, Lines

STEPS = 9  # shades of a grid: classes g0 to g8 of page.css
Mark = Literal["", "good", "bad", "note"]


@dataclass(frozen=True)
class Text:
    """A paragraph of text."""

    text: str
    mark: Mark = ""
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Code:
    """Lines to be read or copied as they are."""

    text: str
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
class Figures:
    """Key figures: a name, a value, and a word on it."""

    items: Sequence[tuple[str, str, str]]
    kind: ClassVar[str] = "figures"


@dataclass(frozen=True)
class Value:
    """A cell that sorts by something other than its text, is marked, or holds a small histogram."""

    text: str
    key: float | str | None = None  # None: sorts last, whatever the direction
    mark: Mark = ""
    spark: Sequence[int] | None = None


Cell = Value | str | int | float | None


@dataclass(frozen=True)
class Column:
    """A column: its head, whether it holds numbers, and what it means."""

    name: str
    number: bool = False
    about: str = ""
    code: bool = False  # names and the like: in type of one width


@dataclass(frozen=True)
class Table:
    """Rows under a caption. ``left_out`` says how many others there are, and where."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    sortable: bool = True
    search: bool = False
    left_out: str = ""
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Shade:
    """A cell of a grid: what it says, and how dark it is; level None is not coloured."""

    text: str
    level: int | None
    about: str = ""


@dataclass(frozen=True)
class Grid:
    """A table coloured by magnitude, such as layers × tensors by their error."""

    caption: str
    corner: str  # what the rows are
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Shade | None]]]
    legend: Sequence[str] = ()  # the least and the largest of each shade
    hue: Literal["blue", "amber"] = "blue"
    left_out: str = ""
    kind: ClassVar[str] = "grid"


@dataclass(frozen=True)
class Figure:
    """A chart with what it shows."""

    chart: Bars | Lines
    kind: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Gallery:
    """Small charts side by side."""

    charts: Sequence[Bars]
    kind: ClassVar[str] = "gallery"


@dataclass(frozen=True)
class Fold:
    """Blocks behind a heading that a reader opens; on paper they are open."""

    summary: str
    blocks: Sequence[Block]
    kind: ClassVar[str] = "fold"


Block = Text | Code | Figures | Table | Grid | Figure | Gallery | Fold


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: Sequence[Block]
    wide: bool = False  # on paper on pages that lie across


@dataclass(frozen=True)
class Page:
    """A page: title, one line below it, sections."""

    title: str
    lead: str
    sections: Sequence[Section]
    foot: str = ""
    summary: Sequence[Block] = field(default=())  # before the first heading


def shades(
    values: Iterable[float | None], log: bool = False, span: tuple[float, float] | None = None
) -> tuple[list[int | None], list[str]]:
    """Levels 0 to 8 for numbers, evenly over their range (``log``: over its decades), and a legend.

    ``span``: the range, where colours have a fixed meaning. NaN and infinity are the strongest; None has no
    level.
    """
    numbers = list(values)
    good = (
        [*span]
        if span is not None
        else [v for v in numbers if v is not None and abs(v) < MOST and (v > LEAST or not log)]
    )
    scale = log10 if log else float
    if not good:
        return [None if v is None else 0 if abs(v) < MOST else STEPS - 1 for v in numbers], []
    low, high = scale(min(good)), scale(max(good))
    width = (high - low) / STEPS

    def level(v: float | None) -> int | None:
        if v is None:
            return None
        if isnan(v) or v >= MOST:
            return STEPS - 1
        if v <= -MOST or (log and v <= LEAST) or not width > 0:
            return 0
        return max(0, min(STEPS - 1, int((scale(v) - low) / width)))

    ends = [low + i * width for i in range(STEPS + 1)] if width > 0 else [low]
    return [level(v) for v in numbers], [f"{10**end:.1e}" if log else f"{end:.4g}" for end in ends]
