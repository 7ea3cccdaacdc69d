"""The blocks of an HTML page as data: sections of paragraphs, tables, grids and charts.

render.py makes HTML of them. Until then all is plain text, so a name from a file cannot become markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan, log10
from typing import ClassVar, Literal, NamedTuple

from .charts import LEAST, MOST, Bars, Lines, Series

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


# --- figures by layer, and the place of a tensor: layer and role, read from its name ---------
# ``blk.3.ffn_up.weight`` is ``ffn_up`` of layer 3 of the stack ``blk``; ``v.blk.3.ln1.bias`` is ``ln1.bias``
# of layer 3 of the stack ``v.blk``. Names without a number belong to no layer.

LAYER = re.compile(r"(?P<stack>(?:^|.*?\.)[^.\d][^.]*)\.(?P<layer>\d{1,9})\.(?P<role>.+)", re.ASCII)
PLAIN = ".weight"  # not said of a role


class Place(NamedTuple):
    """The place of a tensor in a model."""

    stack: str  # "" outside of all layers
    layer: int | None
    role: str


def place_of(name: str) -> Place:
    """The place (stack, layer, role) of a tensor, from its name."""
    match = LAYER.fullmatch(name)
    if match is None:
        return Place("", None, name.removesuffix(PLAIN))
    return Place(match["stack"], int(match["layer"]), match["role"].removesuffix(PLAIN))


MOST_LAYERS, MOST_ROLES, MOST_STACKS = 256, 48, 8  # of a grid; no model has as many, some files pretend to
MOST_LINES = 8


class Item(NamedTuple):
    """One cell of a grid: its layer and role, its number, and its text."""

    stack: str  # "blk"
    layer: int
    role: str  # "ffn_up"
    value: float | None
    text: str
    about: str = ""
    weight: float = 1.0  # which lines are drawn, where there are too many: the heaviest


def layer_grids(
    items: Sequence[Item], caption: str, log: bool = False, hue: Literal["blue", "amber"] = "blue",
    span: tuple[float, float] | None = None,
) -> list[Grid]:  # fmt: skip
    """A grid for each stack of layers, all on one scale of colours; ``span``: fixed ends of the scale."""
    levels, legend = shades([item.value for item in items], log, span)
    cells = {
        (item.stack, item.layer, item.role): Shade(item.text, level, item.about)
        for item, level in zip(items, levels, strict=True)
    }
    stacks = list(dict.fromkeys(item.stack for item in items))
    grids = []
    for stack in stacks[:MOST_STACKS]:
        items_of_stack = [item for item in items if item.stack == stack]
        roles = list(dict.fromkeys(item.role for item in items_of_stack))
        layers = sorted({item.layer for item in items_of_stack})
        rows = [
            (f"{stack}.{layer}", [cells.get((stack, layer, role)) for role in roles[:MOST_ROLES]])
            for layer in layers[:MOST_LAYERS]
        ]
        name = f"{caption} ({stack})" if len(stacks) > 1 else caption
        left_out = _left_out(len(layers), len(roles), len(stacks))
        grids.append(Grid(name, "layer", roles[:MOST_ROLES], rows, legend, hue, left_out))
    return grids


def _left_out(layers: int, roles: int, stacks: int) -> str:
    counts = ((layers, MOST_LAYERS, "layers"), (roles, MOST_ROLES, "roles"), (stacks, MOST_STACKS, "stacks"))
    more = [f"{n - most} more {what}" for n, most, what in counts if n > most]
    return f"Not shown: {' and '.join(more)}; --json has all." if more else ""


def depth_lines(items: Sequence[Item], title: str, y: str, limit: float | None = None) -> Lines | None:
    """A line for each of the heaviest roles of the largest stack; None if no line has two points."""
    good = [item for item in items if item.value is not None and isfinite(item.value)]
    if not good:
        return None
    stacks = [item.stack for item in good]
    stack = max(dict.fromkeys(stacks), key=stacks.count)
    by_role: dict[str, list[Item]] = {}
    for item in good:
        if item.stack == stack:
            by_role.setdefault(item.role, []).append(item)
    if max(map(len, by_role.values())) < 2:
        return None
    weights = {role: sum(item.weight for item in group) for role, group in by_role.items()}
    drawn = sorted(by_role, key=lambda role: -weights[role])[:MOST_LINES]
    series = [
        Series(role, sorted((float(item.layer), item.value or 0.0) for item in group))
        for role, group in by_role.items()
        if role in drawn
    ]
    worst = max(good, key=lambda item: item.value or 0.0)
    note = f"The largest of all is {worst.value:.1e}: {worst.role} of {worst.stack}.{worst.layer}."
    if len(by_role) > len(drawn):
        note += f" Of {len(by_role)} roles the {len(drawn)} largest are drawn."
    return Lines(title, f"layer of {stack}", y, series, True, limit, note)
