"""Files of ggmlq, tools and benchmarks as syntax trees, read once for tests of words, maps and rooms."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from scripts import load

ROOT = Path(__file__).parents[1]
NUMBERS = [  # as pages write them
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen",
]  # fmt: skip
SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Place(NamedTuple):
    """A line of a file, and what stands there."""

    file: str
    line: int
    text: str


@cache
def tree():
    """All files and their imports, as tools/rooms.py reads them."""
    return load("tools", "rooms").Tree()


@cache
def scopes():
    """Modules, classes and functions with their files."""
    statements = load("tools", "rooms").statements
    nodes = list(tree().syntax.items())
    for file, syntax in tree().syntax.items():
        nodes += [(file, node) for node in statements(syntax) if isinstance(node, SCOPES)]
    return nodes


@cache
def docstrings():
    """Every docstring of the package, tools and benchmarks."""
    places = []
    for file, node in scopes():
        if text := ast.get_docstring(node):
            places.append(Place(file, node.body[0].lineno, text))
    return places


def first_sentence(text):
    """The first sentence of a docstring: it ends at a stop before a space, or with its paragraph."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)\s", paragraph, maxsplit=1)[0]


def report(places: Iterable[Place], rule: str) -> str:
    """Places that break a rule, by folder, the folder with most of them first."""
    folders = defaultdict(list)
    for place in places:
        folders[str(Path(place.file).parent)].append(place)
    counts = Counter({folder: len(part) for folder, part in folders.items()})
    lines = [f"{counts.total()} places: {rule}"]
    for folder, count in counts.most_common():
        lines.append(f"{folder}: {count}")
        lines += [f"    {Path(place.file).name}:{place.line}  {place.text}" for place in folders[folder]]
    return "\n".join(lines)


def check(places: Iterable[Place], rule: str) -> None:
    """Fail with all places that break a rule."""
    places = list(places)
    assert not places, report(places, rule)
