"""Renders a page as one HTML text, with styles and script inside, and writes it.

Jinja2 (extra ``report``) fills the template. It escapes every text but our own styles and script, and SVG
that svg.py made. If a text of a file passed all the same, the page's policy forbids all loading and every
script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
from functools import cache
from pathlib import Path
from typing import Any

from ..base import missing
from ..base.text import printable
from ..base.writing import write_whole
from ..errors import MissingDependencyError, PageError
from .blocks import Cell, Page, Table, Value
from .svg import spark, svg


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
