"""Charts as files: SVG as on a page, PNG through matplotlib (extra ``plot``)."""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..base import missing
from ..errors import MissingDependencyError, PageError
from .charts import Bars, Lines
from .render import put
from .svg import document

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
