"""Renders a page as one HTML text, with styles and script inside, and writes it.

Jinja2 (extra ``report``) fills the template. It escapes every text but our own styles and script, and SVG
that svg.py made. If a text of a file passed all the same, the page's policy forbids all loading and every
script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import io
import os
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..base import missing
from ..base.text import printable
from ..base.writing import write_whole
from ..errors import MissingDependencyError, PageError
from .blocks import Cell, Page, Table, Value
from .charts import Bars, Lines
from .svg import document, spark, svg


def html(page: Page) -> str:
    """The page as text."""
    text: str = _template().render(page=page, **_parts())
    return text


def write(page: Page, path: str | os.PathLike[str]) -> str:
    """Write a page as an HTML file, which is there in full or not at all; returns the path."""
    return put(html(page).encode("utf-8"), path)


def check_target(path: str | os.PathLike[str], option: str = "-o") -> None:
    """Raise an error, before the work starts, for a path that cannot be written or if Jinja2 is missing."""
    _jinja()
    target = os.fspath(path)
    folder = os.path.dirname(target) or "."
    if os.path.isdir(target):
        raise PageError(f"{option} {target}: is a folder; a file is written; name one in it")
    if not os.path.isdir(folder):
        raise PageError(f"{option} {target}: there is no folder {folder}; make it, or name another file")
    if os.path.lexists(target) and not _may_go(target):
        raise PageError(
            f"{option} {target}: is there and is no HTML page; a page would take its place and it would be "
            "lost; name another file, or remove it first"
        )


def _may_go(target: str) -> bool:
    """True for a file that is a page or empty, which may be replaced; a model named by mistake is neither."""
    try:
        with open(target, "rb") as file:
            return file.read(15).lower() in (b"", b"<!doctype html>")
    except OSError:
        return False


def put(data: bytes, path: str | os.PathLike[str]) -> str:
    """Write bytes to a file beside the path and rename it, so that the path has all of them or none."""
    target = os.fspath(path)
    try:
        write_whole(target, data)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PageError(
            f"{target}: {len(data)} bytes cannot be written: {reason}; name a file in a folder that is yours"
        ) from error
    return target


def _jinja() -> Any:
    try:
        return importlib.import_module("jinja2")
    except ImportError as error:
        raise MissingDependencyError(
            f"an HTML page: jinja2 cannot be imported ({error}); pages are filled in by it; "
            f"{missing.install('report')}"
        ) from None


@cache
def _template() -> Any:
    jinja2 = _jinja()
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_read),
        finalize=_shown,
    )
    environment.filters |= {"value": _value, "drawn": _drawn, "small": _small, "aligned": _aligned}
    return environment.get_template("page.html")


def _parts() -> dict[str, Any]:
    """Styles and script, and the digest by which the page's policy knows its own script."""
    script = _read("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    trusted = importlib.import_module("markupsafe").Markup
    styles = _read("chart.css") + _read("page.css")
    return {"styles": trusted(styles), "script": trusted(script), "digest": digest}


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def _shown(value: Any) -> Any:
    """A value as the template prints it: text without control characters that move or hide other text."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return printable(value)
    return value


def _drawn(chart: Any) -> Any:
    return importlib.import_module("markupsafe").Markup(svg(chart))


def _small(value: Value, table: Table) -> Any:
    words = f"{table.caption}: {value.text or 'histogram'}"
    return importlib.import_module("markupsafe").Markup(spark(value.spark or (), words))


def _value(cell: Cell) -> Value:
    """A cell of a table as a Value: floats are printed in 4 digits, and sort by their full value."""
    if isinstance(cell, Value):
        return cell
    if cell is None:
        return Value("–")
    if isinstance(cell, float):
        return Value(f"{cell:.4g}", cell)
    return Value(str(cell), cell)


def _aligned(table: Table, i: int) -> str:
    names = ["number"] * table.columns[i].number + ["code"] * table.columns[i].code
    return " ".join(names)


# --- charts as files: SVG as on a page, PNG through matplotlib (extra plot) ------------------

SIZE = (6.4, 3.6)  # inches of one chart
BLUE = "#0b62a8"  # as in chart.css
KINDS = (".svg", ".png")


def check_picture(path: str | os.PathLike[str], option: str = "--plot") -> None:
    """Refuse another kind of file, a missing folder or a missing library before the work."""
    target = os.fspath(path)
    if os.path.splitext(target)[1].lower() not in KINDS:
        raise PageError(
            f"{option} {target}: the name's ending says the kind of picture, {' or '.join(KINDS)}; "
            "write picture.svg, or leave the name out to draw on the terminal"
        )
    if not os.path.isdir(os.path.dirname(target) or "."):
        raise PageError(f"{option} {target}: there is no such folder; make it, or name another file")
    if target.lower().endswith(".png"):
        _matplotlib()


def draw(charts: Sequence[Bars | Lines], path: str | os.PathLike[str]) -> str:
    """Write charts, one below the other, as SVG or PNG by the ending of the path; returns the path."""
    check_picture(path)
    target = os.fspath(path)
    png = target.lower().endswith(".png")
    return put(_png(charts) if png else document(charts).encode("utf-8"), target)


def _matplotlib() -> Any:
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise MissingDependencyError(
            f"a PNG: matplotlib cannot be imported ({error}); pictures of points are drawn with it; "
            f"{missing.install('plot')}, or ask for an .svg, which needs nothing"
        ) from None


def _png(charts: Sequence[Bars | Lines]) -> bytes:
    width, height = SIZE
    figure = _matplotlib().Figure(figsize=(width, height * len(charts)), layout="constrained")
    for axes, chart in zip(figure.subplots(len(charts), squeeze=False)[:, 0], charts, strict=True):
        if isinstance(chart, Bars):
            _bars(axes, chart)
        else:
            _lines(axes, chart)
        axes.set_title(_literal(chart.title), loc="left", fontsize=11)
        axes.set_xlabel(_literal(chart.x))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=144)
    return buffer.getvalue()


def _bars(axes: Any, chart: Bars) -> None:
    edges = list(chart.edges)
    axes.bar(edges[:-1], chart.counts, [b - a for a, b in pairwise(edges)],
             align="edge", color=BLUE)  # fmt: skip
    marks = chart.marks()
    axes.set_xticks([at for at, _ in marks], [_literal(name) for _, name in marks])


def _lines(axes: Any, chart: Lines) -> None:
    for series in chart.shown():
        axes.plot(*zip(*series.points, strict=True), "o-", markersize=3, label=_literal(series.name))
    axes.set(
        ylabel=_literal(chart.y),
        xscale="log" if chart.decades else "linear",
        yscale="log" if chart.log else "linear",
    )
    if chart.limit is not None:
        axes.axhline(chart.limit, color="grey", linestyle="--")
    axes.legend(fontsize=7)


def _literal(text: str) -> str:
    """A name as it is: matplotlib takes what stands between dollar signs for a formula."""
    return text.replace("$", r"\$")
