"""Rooms of the house, the imports between them, and those that run up or in a circle.

A **room** is a file or a folder of the place, drawn as one. The rooms of the whole house are tools, bench,
and the files and folders of ggmlq. An ``__init__.py`` is no room where it only hands names on, in at most
40 lines beside its docstring. An **arrow** leads from room A to room B where some file of A imports one of
B, in functions and under ``TYPE_CHECKING`` too. A **circle** is a set of files that import each other in a
loop. An arrow runs **up** where it has to go for the rooms to have no loop. **Floors** are the longest
chain of rooms.

An import **by name** is a call, ``import_module("ggmlq.trace")`` or ``cuda_module("driver")``, or a place
in the front's table of hooks, ``served_by({"traces": "trace.runs:trace"})``. It is no arrow, for nothing is
imported before it is needed. It runs up where the rooms with it and the arrows have a loop.
"""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("ggmlq", "tools", "bench")
HOUSE = ""  # the place that is the whole house
PLACES = (HOUSE, "ggmlq/cuda", "ggmlq/cpu")
# Functions, and the package of their names.
BY_NAME = {"import_module": "", "cuda_module": "ggmlq.cuda.", "served_by": "ggmlq."}
# An import for type checkers, as good as by name: that room is written with the front's own names.
SHOWN = {("ggmlq/__init__.py", "ggmlq/torch/__init__.py")}
SHORT = 40  # lines of an __init__.py that hands names on

Graph = Mapping[str, Iterable[str]]


class Import(NamedTuple):
    """One import statement's name: the file that imports, its line, and the file that is imported."""

    source: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line} -> {self.target}"


Arrows = dict[tuple[str, str], list[Import]]


class Tree:
    """All Python files of the repository but tests, and their imports of each other."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        paths = [path for top in TOPS for path in sorted((root / top).rglob("*")) if _is_python(path)]
        gc.disable()
        self.text = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
        self.syntax = {file: ast.parse(text) for file, text in self.text.items()}
        gc.freeze()  # otherwise each collection walks through all nodes
        gc.enable()
        steps = {step for file in self.syntax for step in self._imports_of(file)}
        shown = {step for step in steps if (step.source, step.target) in SHOWN}
        self.imports = sorted(steps - shown)
        self.by_name = sorted({step for file in self.syntax for step in self._imports_by_name(file)} | shown)

    @cached_property
    def modules(self) -> dict[str, str]:
        """Files by the name of their module."""
        files = (file for file in self.syntax if file.endswith(".py"))
        return {file[:-3].removesuffix("/__init__").replace("/", "."): file for file in files}

    def _imports_of(self, file: str) -> Iterator[Import]:
        for node in statements(self.syntax[file]):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = _base(file, node)
                names = [f"{base}.{alias.name}" for alias in node.names]
            else:
                continue
            targets = {target for name in names if (target := self._file_of(name, file))} - {file}
            yield from (Import(file, node.lineno, target) for target in targets)

    def _imports_by_name(self, file: str) -> Iterator[Import]:
        """Imports by name of the package's files; names that are put together at run time are left out."""
        if _top(file) != "ggmlq" or not any(f"{function}(" in self.text[file] for function in BY_NAME):
            return
        for node in ast.walk(self.syntax[file]):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if function not in BY_NAME:
                continue
            places = node.args[0].values if isinstance(node.args[0], ast.Dict) else node.args[:1]
            for place in places:
                name = (_literal(place, file) or "").partition(":")[0]
                target = self.modules.get(f"{BY_NAME[function]}{name}") if name else None
                if target and target != file:
                    yield Import(file, place.lineno, target)

    def _file_of(self, name: str, importer: str) -> str | None:
        """The file of a module, or of the module that a name is in; scripts see the files beside them."""
        top = _top(importer)
        beside = name if top == "ggmlq" else f"{top}.{name}"
        module = name.rpartition(".")[0]
        candidates = (name, beside, module, beside.rpartition(".")[0] if module else "")
        return next((self.modules[known] for known in candidates if known in self.modules), None)

    @cached_property
    def circles(self) -> list[list[str]]:
        """Files that import each other in a loop, each circle sorted."""
        return [sorted(part) for part in components(graph_of(self.imports)) if len(part) > 1]

    def only_hands_on(self, file: str) -> bool:
        """True for a short ``__init__.py`` of imports and plain names."""
        body, lines = self.syntax[file].body, len(self.text[file].splitlines())
        if ast.get_docstring(self.syntax[file], clean=False) is not None:
            lines -= body[0].end_lineno or 0
        plain = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)
        return (
            file.endswith("__init__.py") and lines <= SHORT and all(isinstance(node, plain) for node in body)
        )

    def room(self, file: str, place: str) -> str | None:
        """The room of a place that a file lies in; None for files outside, and for those that hand on."""
        if not place:
            top = _top(file)
            return top if top != "ggmlq" else self.room(file, "ggmlq")
        if not file.startswith(f"{place}/"):
            return None
        if file == f"{place}/__init__.py" and self.only_hands_on(file):
            return None
        return _top(file.removeprefix(f"{place}/"))

    def plan(self, place: str) -> Plan:
        """The rooms of a place and their arrows."""
        rooms = {room for file in self.syntax if (room := self.room(file, place))}
        inside = [circle for circle in self.circles if all(self.room(file, place) for file in circle)]
        arrows, by_name = self._arrows(self.imports, place), self._arrows(self.by_name, place)
        return Plan(place, sorted(rooms), arrows, by_name, inside)

    def _arrows(self, steps: Iterable[Import], place: str) -> Arrows:
        """Pairs of rooms with the imports behind each."""
        arrows = defaultdict(list)
        for step in steps:
            a, b = self.room(step.source, place), self.room(step.target, place)
            if a and b and a != b:
                arrows[a, b].append(step)
        return dict(arrows)


class Plan:
    """Rooms of one place, arrows between them with the imports behind each, and circles of files."""

    def __init__(
        self,
        place: str,
        rooms: list[str],
        arrows: Arrows,
        by_name: Arrows,
        circles: list[list[str]],
    ) -> None:
        self.place, self.rooms, self.arrows, self.by_name, self.circles = (
            place,
            rooms,
            arrows,
            by_name,
            circles,
        )

    @cached_property
    def up(self) -> list[tuple[str, str]]:
        """Arrows that have to go for the rooms to have no loop: a small set, found greedily."""
        up: list[tuple[str, str]] = []
        for part in components(self._graph(())):
            up += self._up_in(set(part))
        for arrow in sorted(up, key=self._weight, reverse=True):  # some may stay after all
            without = [other for other in up if other != arrow]
            if all(len(part) == 1 for part in components(self._graph(without))):
                up = without
        return sorted(up)

    def _up_in(self, part: set[str]) -> Iterator[tuple[str, str]]:
        """Arrows up among rooms that reach each other: from the room that has the fewest, again and again."""
        rest = set(part)
        while rest:
            out = {room: self._leaving(room, rest) for room in rest}
            lowest = min(sorted(rest), key=lambda room: (len(out[room]), sum(map(self._weight, out[room]))))
            yield from out[lowest]
            rest.remove(lowest)

    def _leaving(self, room: str, rest: set[str]) -> list[tuple[str, str]]:
        return [(a, b) for a, b in self.arrows if a == room and b in rest]

    @cached_property
    def up_by_name(self) -> dict[tuple[str, str], list[Import]]:
        """Imports by name that run up: added by their number of lines, each would close a loop of rooms."""
        graph, up = self._graph(self.up), {}
        for (a, b), steps in sorted(self.by_name.items(), key=lambda arrow: (-len(arrow[1]), arrow[0])):
            if _reaches(graph, b, a):
                up[a, b] = steps
            else:
                graph[a].append(b)
        return up

    def _weight(self, arrow: tuple[str, str]) -> int:
        return len(self.arrows[arrow])

    def _graph(self, without: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
        graph: dict[str, list[str]] = {room: [] for room in self.rooms}
        for a, b in self.arrows.keys() - set(without):
            graph[a].append(b)
        return graph

    @cached_property
    def floors(self) -> int:
        """Rooms of the longest chain of arrows that do not run up."""
        graph, height = self._graph(self.up), {}
        for part in components(graph):  # which come with those that they reach first
            height[part[0]] = 1 + max((height[room] for room in graph[part[0]]), default=0)
        return max(height.values(), default=0)

    def facts(self) -> dict[str, object]:
        """Everything that --json prints."""
        listed = lambda arrows: [
            {"from": a, "to": b, "imports": [str(step) for step in steps]} for (a, b), steps in arrows
        ]
        return {
            "place": self.place or "house", "rooms": self.rooms, "arrows": len(self.arrows),
            "up": listed((arrow, self.arrows[arrow]) for arrow in self.up),
            "up by name": listed(self.up_by_name.items()), "circles": self.circles, "floors": self.floors,
        }  # fmt: skip


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Every statement of a file, in any depth."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            part = getattr(node, field, ())
            waiting += part if isinstance(part, list) else ()
        if isinstance(node, ast.stmt):
            yield node


def graph_of(imports: Iterable[Import]) -> dict[str, set[str]]:
    """The files that each file imports."""
    graph: dict[str, set[str]] = defaultdict(set)
    for step in imports:
        graph[step.source].add(step.target)
    return graph


def components(graph: Graph) -> list[list[str]]:
    """Strongly connected parts, each after all that it reaches (Tarjan's walk, without recursion)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    parts: list[list[str]] = []
    for start in sorted(graph):
        walk = [(start, iter(sorted(graph[start])))] if start not in number else []
        while walk:
            node, targets = walk[-1]
            if node not in number:
                number[node] = lowest[node] = len(number)
                stack.append(node)
            for target in targets:
                if target not in number:
                    walk.append((target, iter(sorted(graph.get(target, ())))))
                    break
                if target in stack:
                    lowest[node] = min(lowest[node], lowest[target])
            else:
                walk.pop()
                if walk:
                    lowest[walk[-1][0]] = min(lowest[walk[-1][0]], lowest[node])
                if lowest[node] == number[node]:
                    at = stack.index(node)
                    parts.append(stack[at:])
                    del stack[at:]
    return parts


def _reaches(graph: Graph, start: str, end: str) -> bool:
    """True where arrows lead from one room to another."""
    seen, waiting = {start}, [start]
    while waiting and end not in seen:
        new = {*graph.get(waiting.pop(), ())} - seen
        seen |= new
        waiting += new
    return end in seen


def _literal(node: ast.expr, file: str) -> str | None:
    """The name of a module as it stands in a call, with the parts that a file knows of its own name."""
    package = ".".join(file.split("/")[:-1])
    known = {"__package__.partition('.')[0]": "ggmlq", "__package__": package}
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    words = [
        part.value if isinstance(part, ast.Constant) else known.get(ast.unparse(getattr(part, "value", part)))
        for part in parts
    ]
    if not all(isinstance(word, str) for word in words):
        return None
    name = "".join(words)
    return f"{package}{name}" if name.startswith(".") else name


def _top(path: str) -> str:
    return path.split("/", maxsplit=1)[0]


def _is_python(path: Path) -> bool:
    """True for a module or a script of Python."""
    if path.suffix == ".py":
        return True
    return not path.suffix and path.is_file() and path.read_bytes()[:2] == b"#!"


def _base(file: str, node: ast.ImportFrom) -> str:
    """The package that an import starts from, with dots between."""
    folder = file.split("/")[:-1]
    above = folder[: len(folder) - node.level + 1] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])
