"""Draws charts as SVG, for pages and as files; each mark has a title in words.

The picture is built as a tree of elements, so that a name from a file can never become markup. Colours are
classes of chart.css, so one text serves light, dark and paper. An SVG file contains these styles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import log10
from pathlib import Path
from xml.etree import ElementTree

from ..base.text import printable
from .charts import LEAST, Bars, Lines, Series, Tick, amount, linear_ticks, log_ticks

Place = Callable[[float], float]

COLOURS = 8  # lines that can be told apart; more are no picture any more
LEFT, RIGHT, TOP, BOTTOM = 48.0, 12.0, 10.0, 40.0  # pixels around the field
LABEL = 7.2  # pixels of a character of the chart's text
BARS_SIZE, LINES_SIZE = (340, 180), (680, 320)
NAMESPACE = "http://www.w3.org/2000/svg"


def svg(chart: Bars | Lines) -> str:
    """A chart as SVG text for a page, which has the styles and shows the title."""
    return ElementTree.tostring(_drawn(chart, alone=False), encoding="unicode")


def document(charts: Sequence[Bars | Lines]) -> str:
    """The text of an SVG file: charts one below the other, with their titles and the styles."""
    drawn = [_drawn(chart, alone=True) for chart in charts]
    sizes = [(int(one.attrib["width"]), int(one.attrib["height"])) for one in drawn]
    size = (max(w for w, _ in sizes), sum(h for _, h in sizes))
    root = _root("chart", size, "; ".join(chart.title for chart in charts), "")
    style = ElementTree.SubElement(root, "style")
    style.text = Path(__file__).with_name("chart.css").read_text("utf-8")
    at = 0
    for one, (_, height) in zip(drawn, sizes, strict=True):
        del one.attrib["xmlns"]
        one.set("y", str(at))
        root.append(one)
        at += height
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _drawn(chart: Bars | Lines, alone: bool) -> ElementTree.Element:
    return _bars(chart, alone) if isinstance(chart, Bars) else _lines(chart, alone)


def spark(counts: Sequence[int], words: str) -> str:
    """A histogram as small as a word, for the cell of a table."""
    width, height = 64.0, 18.0
    root = _root("spark", (64, 18), words, "")
    most, step = max([1, *counts]), width / max(len(counts), 1)
    line = "".join(f"V{height - 17 * count / most:.1f}h{step:.2f}" for count in counts)
    _add(root, "path", {"class": "bar", "d": f"M0 {height:g}{line}V{height:g}Z"})
    return ElementTree.tostring(root, encoding="unicode")


def _bars(chart: Bars, alone: bool) -> ElementTree.Element:
    width, height = BARS_SIZE
    top = TOP + (22 if alone else 0)
    root = _root("chart bars", (width, height + int(top - TOP)), chart.title, chart.note)
    most = max([1, *chart.counts])
    low, high = chart.edges[0], chart.edges[-1]
    x = _linear(low, high, LEFT, width - RIGHT)
    bottom = top + height - TOP - BOTTOM
    y = _linear(0, most, bottom, top)
    _title(root, chart.title, alone)
    _rules(root, [(0, "0"), (most, amount(most))], y, width - RIGHT)
    for i, count in enumerate(chart.counts):
        if count:
            left, right = x(chart.edges[i]), x(chart.edges[i + 1])
            gap = min(1.0, (right - left) / 4)
            top_of = min(y(count), bottom - 1)  # one of a million is to be seen
            place = {"x": left, "y": top_of, "width": right - left - gap, "height": bottom - top_of}
            bar = _add(root, "rect", {"class": "bar", **{k: f"{v:.1f}" for k, v in place.items()}})
            _add(bar, "title", text=f"{chart.span(i)}: {count}")
    _foot(root, chart.marks(), x, bottom, chart.x)
    return root


def _lines(chart: Lines, alone: bool) -> ElementTree.Element:
    width, height = LINES_SIZE
    shown = chart.shown()[:COLOURS]
    top = TOP + (22 if alone else 0)
    key = _key_rows(shown, width)
    bottom = top + height - TOP - BOTTOM
    root = _root("chart lines", (width, int(bottom + BOTTOM + 20 * len(key))), chart.title, chart.note)
    low, high = chart.range()
    y = _logarithmic(low, high, bottom, top + 14) if chart.log else _linear(low, high, bottom, top + 14)
    ends = [p[0] for series in shown for p in series.points] or [1.0, 2.0]
    first, last = min(ends), max(ends)
    place = _logarithmic if chart.decades else _linear
    x = place(first, last if last > first else first + 1, LEFT + 10, width - RIGHT - 10)
    _title(root, chart.title, alone)
    _add(root, "text", {"class": "label", "x": "0", "y": f"{top + 2:.1f}"}, chart.y)
    _rules(root, log_ticks(low, high) if chart.log else linear_ticks(low, high), y, width - RIGHT)
    if chart.limit is not None:
        _add(root, "line", {"class": "limit", "x1": f"{LEFT}", "x2": f"{width - RIGHT}",
                            "y1": f"{y(chart.limit):.1f}", "y2": f"{y(chart.limit):.1f}"})  # fmt: skip
    for i, series in enumerate(shown):
        _series(root, i, series, x, lambda value: y(max(value, low)))
    whole = [(n, text) for n, text in linear_ticks(first, last, 8) if n == int(n)]
    ticks = log_ticks(first, last) if chart.decades else whole
    _foot(root, ticks, x, bottom, chart.x)
    for row, entries in enumerate(key):
        for i, at in entries:
            _key(root, i, shown[i].name, at, bottom + BOTTOM + 12 + 20 * row)
    return root


def _series(root: ElementTree.Element, i: int, series: Series, x: Place, y: Place) -> None:
    points = [(x(a), y(b), a, b) for a, b in series.points]
    path = "L".join(f"{a:.1f} {b:.1f}" for a, b, _, _ in points)
    group = _add(root, "g", {"class": f"series s{i}"})
    _add(group, "path", {"d": f"M{path}"})
    for at, up, a, b in points:
        mark = _mark(group, i, at, up)
        _add(mark, "title", text=f"{series.name}, {a:g}: {b:.3g}")


def _mark(group: ElementTree.Element, i: int, x: float, y: float) -> ElementTree.Element:
    """Lines differ in the shape of their points too, not in colour alone."""
    r = 3.2
    shapes = (
        None,
        f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}Z",
        f"M{x:.1f} {y - 1.3 * r:.1f}L{x + 1.2 * r:.1f} {y + r:.1f}H{x - 1.2 * r:.1f}Z",
        f"M{x:.1f} {y - 1.4 * r:.1f}l{1.4 * r} {1.4 * r}l{-1.4 * r} {1.4 * r}l{-1.4 * r} {-1.4 * r}Z",
    )
    shape = shapes[i % len(shapes)]
    if shape is None:
        return _add(group, "circle", {"class": "mark", "cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": f"{r}"})
    return _add(group, "path", {"class": "mark", "d": shape})


def _key_rows(shown: Sequence[Series], width: float) -> list[list[tuple[int, float]]]:
    """The places of the names of lines: in rows below the field."""
    rows: list[list[tuple[int, float]]] = []
    at = LEFT
    for i, series in enumerate(shown):
        need = 34 + LABEL * len(printable(series.name))
        if not rows or at + need > width:
            rows.append([])
            at = LEFT
        rows[-1].append((i, at))
        at += need
    return rows


def _key(root: ElementTree.Element, i: int, name: str, x: float, y: float) -> None:
    group = _add(root, "g", {"class": f"series s{i}"})
    _add(group, "path", {"d": f"M{x:.1f} {y - 4:.1f}h18"})
    _mark(group, i, x + 9, y - 4)
    _add(root, "text", {"class": "label", "x": f"{x + 24:.1f}", "y": f"{y:.1f}"}, name)


def _rules(root: ElementTree.Element, ticks: Iterable[Tick], y: Place, right: float) -> None:
    for value, text in ticks:
        at = f"{y(value):.1f}"
        _add(root, "line", {"class": "rule", "x1": f"{LEFT}", "x2": f"{right:.1f}", "y1": at, "y2": at})
        _add(root, "text", {"class": "tick end", "x": f"{LEFT - 6}", "y": f"{y(value) + 4:.1f}"}, text)


def _foot(root: ElementTree.Element, ticks: Iterable[Tick], x: Place, bottom: float, name: str) -> None:
    free = -1e9
    for value, text in ticks:
        at, half = x(value), LABEL * len(text) / 2
        if at - half < free:  # labels that would touch
            continue
        free = at + half + 4
        place = {"x1": f"{at:.1f}", "x2": f"{at:.1f}", "y1": f"{bottom:.1f}", "y2": f"{bottom + 4:.1f}"}
        _add(root, "line", {"class": "axis", **place})
        _add(root, "text", {"class": "tick middle", "x": f"{at:.1f}", "y": f"{bottom + 16:.1f}"}, text)
    middle = (LEFT + float(root.attrib["width"]) - RIGHT) / 2
    _add(root, "text", {"class": "label middle", "x": f"{middle:.1f}", "y": f"{bottom + 33:.1f}"}, name)


def _root(kind: str, size: tuple[int, int], title: str, note: str) -> ElementTree.Element:
    root = ElementTree.Element("svg", {
        "xmlns": NAMESPACE, "class": kind, "viewBox": f"0 0 {size[0]} {size[1]}", "role": "img",
        "width": str(size[0]), "height": str(size[1]),
        "aria-label": printable(f"{title}. {note}".strip(". ")),
    })  # fmt: skip
    _add(root, "title", text=title)
    if note:
        _add(root, "desc", text=note)
    return root


def _title(root: ElementTree.Element, title: str, alone: bool) -> None:
    if alone:  # on a page the caption says it
        _add(root, "text", {"class": "title", "x": f"{LEFT}", "y": "16"}, title)


def _add(parent: ElementTree.Element, tag: str, attributes: dict[str, str] | None = None,
         text: str | None = None) -> ElementTree.Element:  # fmt: skip
    element = ElementTree.SubElement(parent, tag, attributes or {})
    if text is not None:
        element.text = printable(text).replace("\n", " ")
    return element


def _linear(low: float, high: float, start: float, end: float) -> Place:
    scale = (end - start) / (high - low) if high - low > LEAST else 0.0
    return lambda value: start + (value - low) * scale


def _logarithmic(low: float, high: float, start: float, end: float) -> Place:
    place = _linear(log10(low), log10(high), start, end)
    return lambda value: place(log10(value))
