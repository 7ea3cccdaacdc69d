"""A page for each rung and chapter: its words, what it changed, its inner loop counted, what limits it.

The words are those of the rung's file, the difference is that of two files. Counts and figures come from
book.json, which tools/make_book.py writes: they need neither a compiler nor a card.
"""

from __future__ import annotations

import ast
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ..base.text import count, near, three_digits
from ..dispatch.card import card_named
from ..dispatch.ladder import DEVICES, PACKAGE, Rung, package_of, rungs
from ..errors import UnsupportedError
from ..formats import FORMATS
from .climb import rate

LINES = 40  # of a difference
SCHEDULERS, LANES = 4, 32  # of a multiprocessor: instructions that it begins in a clock; threads of each
Figures = Mapping[str, Sequence[Mapping[str, Any]]]


@cache
def facts() -> Any:
    """The counts and figures that come with the package."""
    return json.loads(resources.files(__package__).joinpath("book.json").read_text("utf-8"))


def all_rungs() -> list[Rung]:
    """The rungs of both ladders, each from the lowest."""
    return [rung for device in DEVICES for rung in rungs("linear", device)]


def rung_named(name: str) -> Rung:
    """The rung of a name such as ``cuda:dp4a``; without a device the one that has the name alone."""
    known = {rung.name: rung for rung in all_rungs()}
    fitting = [key for key in known if name in (key, key.partition(":")[2])]
    if len(fitting) != 1:
        names = " or ".join(fitting or near(name, [*known, *chapters()]) or known)
        fault = "two rungs have" if fitting else "no rung has"
        raise UnsupportedError(f"page {name}: {fault} this name; write {names}")
    return known[fitting[0]]


def page(rung: Rung, measured: Figures | None = None) -> str:
    """The page of a rung in Markdown; ``measured``: further figures, by the name of their machine."""
    title, _, words = docstring(rung).partition("\n")
    chapters = [
        f"# {rung.name}\n\n**{title}**\n\n{words.strip()}\n\nThe file: `{place(rung)}`. It multiplies in the "
        f"arithmetic `{rung.arithmetic}`.",
        *_section("What it changed", _difference(rung)),
        *_section("Its inner loop", _loop(rung)),
        *_section("What limits it, by arithmetic", _limits(rung)),
        *_section("Figures", _table(rung, measured or {})),
    ]
    return "\n\n".join(chapters) + "\n"


def chapters() -> dict[str, Path]:
    """The files of the chapters, each a technique of the summit alone, by name."""
    return {path.stem: path for path in sorted((PACKAGE / "cuda/ladder/chapters").glob("c[0-9]*.py"))}


def chapter_titles() -> dict[str, str]:
    """The first line of each chapter, by name."""
    texts = {name: path.read_text("utf-8") for name, path in chapters().items()}
    return {name: text.partition('"""')[2].partition("\n")[0] for name, text in texts.items()}


def chapter_page(name: str) -> str:
    """The page of a chapter in Markdown: its words, then its whole kernel, which is short."""
    text = chapters()[name].read_text("utf-8")
    title, _, words = (ast.get_docstring(ast.parse(text)) or "").partition("\n")
    code = "\n".join(_behind_imports(text))
    where = chapters()[name].relative_to(PACKAGE.parent).as_posix()
    return f"# {name}\n\n**{title}**\n\n{words.strip()}\n\nThe file: `{where}`.\n\n```python\n{code}\n```\n"


def _section(title: str, lines: Iterator[str]) -> list[str]:
    text = "\n".join(lines)
    return [f"## {title}\n\n{text}"] if text else []


# --- files ------------------------------------------------------------------------------------


def path(rung: Rung) -> Path:
    """The file of a rung."""
    name = rung.name.partition(":")[2]
    folder = package_of(rung.op, rung.device).split(".")[1:]
    return PACKAGE.joinpath(*folder, f"r{rung.level}_{name}.py")


def place(rung: Rung) -> str:
    """The file of a rung as a path within the tree."""
    return path(rung).relative_to(PACKAGE.parent).as_posix()


def docstring(rung: Rung) -> str:
    """The words at the head of a rung's file."""
    return ast.get_docstring(ast.parse(path(rung).read_text("utf-8"))) or rung.teaches


def below(rung: Rung) -> Rung | None:
    """The next lower rung of the same ladder."""
    lower = [other for other in rungs(rung.op, rung.device) if other.level < rung.level]
    return lower[-1] if lower else None


def _code(rung: Rung) -> list[str]:
    return _behind_imports(path(rung).read_text("utf-8"))


def _behind_imports(text: str) -> list[str]:
    """The lines of a file behind its docstring and its imports."""
    statements = ast.parse(text).body[1:]
    body = [node for node in statements if not isinstance(node, ast.Import | ast.ImportFrom)]
    return text.splitlines()[min(map(_start, body)) - 1 :]


def _start(node: ast.stmt) -> int:
    """The first line of a statement, that of its first decorator."""
    lines: list[int] = [each.lineno for each in getattr(node, "decorator_list", [])]
    return min([node.lineno, *lines])


def _difference(rung: Rung) -> Iterator[str]:
    lower = below(rung)
    if lower is None:
        yield f"It is the first. Its code, from the top:\n\n```python\n{_cut(_code(rung))}\n```"
        return
    lines = list(difflib.unified_diff(_code(lower), _code(rung), lower.name, rung.name, "", "", 2, ""))
    yield f"The difference to `{lower.name}` (`{place(lower)}`):\n\n```diff\n{_cut(lines)}\n```"


def _cut(lines: list[str]) -> str:
    """The first lines, and the number of those that are left out."""
    more = len(lines) - LINES
    return "\n".join([*lines[:LINES], *([f"# and {more} lines more"] if more > 0 else [])])


# --- numbers ----------------------------------------------------------------------------------


def _loop_of(rung: Rung) -> Any:
    return facts()["rungs"].get(rung.name, {}).get("loop")


def _facts_of(rung: Rung) -> Any:
    """The book's facts, with the type of weights and the card that the loop of a rung is for."""
    return facts() | (_loop_of(rung) or {})


def _loop(rung: Rung) -> Iterator[str]:
    loop, book = _loop_of(rung), _facts_of(rung)
    if loop is None:
        return
    counts, products = loop["instructions"], loop["products"]
    total = sum(counts.values())
    where = "PTX, before the assembler joins some" if rung.device == "cuda" else f"{book['cpu']}"
    yield (
        f"Weights of {book['format']}, the kernel *{loop['kernel']}*: {total} instructions of a thread "
        f"({where}) for {count(round(products), 'product')}, {three_digits(total / products)} for each."
    )
    yield "\n| instructions | |\n|---|---|"
    yield from (f"| {name} | {number} |" for name, number in counts.items())


def _limits(rung: Rung) -> Iterator[str]:
    """Bounds that follow from sizes and counts alone."""
    book = _facts_of(rung)
    fmt = FORMATS[book["format"]]
    per_byte = 2 * 8 / fmt.bits_per_weight
    yield (
        f"* Memory: a weight of {fmt.name} has {fmt.bits_per_weight:g} bits, so with M rows of activations "
        f"there are {three_digits(per_byte)} · M operations for a byte of weights."
    )
    if rung.device != "cuda":
        return
    card = card_named("page", book["card"])
    speed = card.bandwidth * per_byte / 1e3
    yield (
        f"  {card.name} could read {card.bandwidth:g} GB/s: {three_digits(speed)} · M TFLOP/s at most, while "
        "M is small."
    )
    loop = _loop_of(rung)
    if loop is None:
        yield "* Instructions: the products are the library's."
        return
    begun = card.multiprocessors * SCHEDULERS * LANES * card.clock / 1e3  # 10**12 instructions a second
    each = sum(loop["instructions"].values()) / loop["products"]
    yield (
        f"* Instructions: {card.name} begins {three_digits(begun)} · 10¹² a second for single threads, so "
        f"this loop allows {three_digits(2 * begun / each)} TFLOP/s at most, whatever else it waits for."
    )


def _table(rung: Rung, measured: Figures) -> Iterator[str]:
    """Times by machine and shape, with the rate of each."""
    packaged: Figures = facts()["rungs"].get(rung.name, {}).get("figures", {})
    rows = [
        (machine, row) for figures in (packaged, measured) for machine in figures for row in figures[machine]
    ]
    if not rows:
        yield (
            "None is kept yet. `ggmlq ladder --json > here.json` measures them, and "
            f"`ggmlq ladder page {rung.name} --against here.json` shows them here."
        )
        return
    yield "| machine | M | N × K | µs | rate |\n|---|---|---|---|---|"
    for machine, row in rows:
        m, n, k, us = row["M"], row["N"], row["K"], row["us"]
        yield f"| {machine} | {m} | {n} × {k} | {three_digits(us)} | {rate(2e6 * m * n * k / us)} |"


def measured_in(run: Mapping[str, Any], rung: Rung, machine: str) -> Figures:
    """The figures of a rung in the JSON of ``ggmlq ladder``."""
    n, k = run["shape"]
    steps = [step for step in run["steps"] if step["kernel"] == rung.name and step["seconds"]]
    rows = [{"M": step["rows"], "N": n, "K": k, "us": 1e6 * step["seconds"]} for step in steps]
    return {machine: rows} if rows else {}
