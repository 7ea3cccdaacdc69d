"""The definitions that a kernel is compiled from, searched for in the text of the sources.

Their digest is part of a kernel's key (store.py). The search begins at the function that makes a kernel and
follows the names in its text, from definition to definition and from file to file, within the folders of
kernels, formats and codes. The digest covers all these definitions, without comments, docstrings and line
numbers; code that launches a kernel, beside it in the same file, is not among them. Some dependencies have
no name in any text. A kernel's format comes with its case, so the whole file of that format counts, and
its walk, the function named after it. Statements that register something with Numba, by ``extending``, count
as soon as anything of their file does. The CPU's vectors count whole, since no text names their operators.

A search parses some fifty files, a fifth of a second. So reach.json, which ``tools/prebuild`` writes, has
the digests of that day, and the digests of all files: where no file of a family has changed since, its
digest is read there in a millisecond.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parents[1]
UNKNOWN = "-"  # the digest of what has no sources here
KNOWN = Path(__file__).with_name("reach.json")  # digests of the day when packs were written
TABLE = "formats/_table.py"  # how formats are looked up
TABLES = "formats/_grids.npz"
SKIPPED = ("ctx", "kind", "type_comment", "type_params")  # fields that say nothing, or not in every Python
TELLING = {"extending", "register_model", "lower_builtin", "lower_cast", "lower_constant", "infer_global"}


class Side(NamedTuple):
    """The files that kernels of a device are compiled from."""

    followed: tuple[str, ...]
    host: tuple[str, ...]  # of these, what makes no code
    compiler: tuple[str, ...]  # but for this, which is part of every kernel
    whole: tuple[str, ...] = ()  # files that count whole as soon as anything of them does
    walks: str = ""  # a file with a function for a format, taken by its name


SIDES = {
    "cuda": Side(
        ("cuda/", "formats/", "codes/", "fixed/", "gru/", "dispatch/epilogue.py"),
        (
            "cuda/driver/",
            "cuda/prebuilt/",
            "cuda/kernels/cost/",
            *(f"cuda/intrinsics/{name}.py" for name in ("language", "numba_cuda")),
            TABLE,
        ),
        ("cuda/driver/compiling.py", "cuda/driver/dialect.py"),
    ),
    "cpu": Side(
        ("cpu/", "formats/", "codes/", "fixed/", "gru/"),
        (
            *(
                f"cpu/machine/{name}.py"
                for name in ("features", "kernels", "levels", "loading", "served", "workers")
            ),
            TABLE,
        ),
        ("cpu/machine/jit.py",),
        whole=("cpu/lanes.py",),
        walks="cpu/unpack/walks.py",
    ),
}


def digest(family: str, formats: tuple[str, ...] = ()) -> str:
    """The digest of the definitions behind a family of kernels, ``ggmlq.cuda….name``, for these formats."""
    known, files = _known()
    if entry := known.get(name_of(family, formats)):
        recorded, numbers = entry
        if all(_is_as_recorded(*files[i]) for i in numbers):
            return str(recorded)
    try:
        return reached(family, formats).digest
    except (
        OSError,
        SyntaxError,
        ValueError,
        LookupError,
    ):  # sources in the middle of a change, or none at all
        return UNKNOWN


def name_of(family: str, formats: tuple[str, ...]) -> str:
    """The name of a family and its formats in reach.json."""
    return " ".join((family, *formats))


@cache
def digest_of(path: Path) -> str:
    """The digest of a file's bytes."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=10).hexdigest()
    except OSError:
        return UNKNOWN


@cache
def _is_as_recorded(path: str, recorded: str) -> bool:
    return digest_of(PACKAGE / path) == recorded


@cache
def _known() -> tuple[dict[str, Any], list[Any]]:
    try:
        content = json.loads(KNOWN.read_bytes())
        return content["families"], content["files"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}, []


class Reached(NamedTuple):
    """The definitions that a kernel is compiled from, with their digest."""

    digest: str
    files: tuple[str, ...]  # relative to the package
    places: frozenset[tuple[str, int, int]]  # file, first and last line of each definition


@cache
def reached(family: str, formats: tuple[str, ...] = (), package: Path = PACKAGE) -> Reached:
    """The definitions behind a family of kernels, for these formats."""
    start, name = _place(package, family)
    side = SIDES["cuda" if "cuda" in start.split("/") else "cpu"]
    format_files = [f"formats/{stem.lower()}.py" for stem in formats]
    format_files = [path for path in format_files if (package / path).is_file()]
    waiting = [(start, name)]
    waiting += [
        (path, bound) for path in (*side.compiler, *format_files) for bound in _file(package, path).names
    ]
    waiting += [(side.walks, f"walk_{stem.lower()}") for stem in formats if side.walks]
    tables = {TABLES} if formats else set()
    reached_names = set(waiting)
    numbers_by_file: dict[str, set[int]] = {}
    while waiting:
        path, name = waiting.pop()
        file = _file(package, path)
        numbers = {*file.names.get(name, ()), *file.always} - numbers_by_file.setdefault(path, set())
        numbers_by_file[path] |= numbers
        new = {need for number in numbers for need in _needs(package, path, number)}
        if name in file.imports:
            new.add(file.imports[name])
        if path.startswith(side.whole):
            new |= {(path, bound) for bound in _file(package, path).names}
        new = {need for need in new if _counts(package, side, need[0])} - reached_names
        reached_names |= new
        waiting += new
    content = hashlib.blake2b(digest_size=10)
    places = sorted((path, number) for path, numbers in numbers_by_file.items() for number in numbers)
    for path, number in places:
        content.update(f"{path}\0{_text(package, path, number)}\0".encode())
    for path in sorted(tables):
        content.update((package / path).read_bytes())
    files = tuple(sorted({path for path, _ in places} | tables))
    lines = frozenset((path, *_file(package, path).lines[number]) for path, number in places)
    return Reached(content.hexdigest(), files, lines)


def _place(package: Path, family: str) -> tuple[str, str]:
    """The file in which a family's function stands, and its name there."""
    module, _, name = family.rpartition(".")
    stem = module.partition(".")[2].replace(".", "/")
    path = f"{stem}.py" if (package / f"{stem}.py").is_file() else f"{stem}/__init__.py"
    if not module.startswith("ggmlq.") or name not in _file(package, path).names:
        raise LookupError(f"{family} is no function of this package")
    return path, name


@cache
def _counts(package: Path, side: Side, path: str) -> bool:
    followed = path.startswith(side.followed) and not path.startswith(side.host)
    return (followed or path in side.compiler) and (package / path).is_file()


class File(NamedTuple):
    """A source file: its statements, and what its names stand for."""

    lines: tuple[tuple[int, int], ...]
    names: dict[str, tuple[int, ...]]  # the statements that bind them
    imports: dict[str, tuple[str, str]]  # file and name; of a module the name ""
    always: tuple[int, ...]  # statements that do something by being run
    trees: tuple[ast.stmt, ...]


@cache
def _file(package: Path, path: str) -> File:
    tree = ast.parse((package / path).read_bytes())
    lines, always = [], []
    trees: list[ast.stmt] = []
    names: dict[str, list[int]] = {}
    imports: dict[str, tuple[str, str]] = {}
    for statement in tree.body:
        nodes = list(ast.walk(statement))
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                imports |= dict(_imported(package, path, node))
        if isinstance(statement, ast.Import | ast.ImportFrom) or _is_text(statement):
            continue
        for name in _bound(statement, nodes):
            names.setdefault(name, []).append(len(trees))
        if isinstance(statement, ast.Expr) or TELLING & _read(nodes):
            always.append(len(trees))
        first = min(
            [statement.lineno, *(decorator.lineno for decorator in getattr(statement, "decorator_list", ()))]
        )
        lines.append((first, statement.end_lineno or first))
        trees.append(statement)
    bound = {name: tuple(numbers) for name, numbers in names.items()}
    return File(tuple(lines), bound, imports, tuple(always), tuple(trees))


@cache
def _text(package: Path, path: str, number: int) -> str:
    return text_of(_without_cases(_file(package, path).trees[number]))


@cache
def _needs(package: Path, path: str, number: int) -> frozenset[tuple[str, str]]:
    """The names that a statement refers to: of its own file, and in modules."""
    file, statement = _file(package, path), _without_cases(_file(package, path).trees[number])
    nodes = list(ast.walk(statement))
    names = {(path, name) for name in _read(nodes)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, name = file.imports.get(node.value.id, ("", "-"))
            if not name:
                names.add((module, node.attr))
    return frozenset(names)


def _imported(package: Path, path: str, node: ast.ImportFrom) -> Iterator[tuple[str, tuple[str, str]]]:
    """The names that an import of this package binds: names in files, or files."""
    if not node.level:
        return
    base = "/".join(path.split("/")[: -node.level])
    place = "/".join(filter(None, [base, *(node.module or "").split(".")]))
    for alias in node.names:
        name, within = alias.asname or alias.name, f"{place}/{alias.name}".lstrip("/")
        if (package / f"{within}.py").is_file():
            yield name, (f"{within}.py", "")
        elif (package / within / "__init__.py").is_file():
            yield name, (f"{within}/__init__.py", "")
        elif (package / f"{place}.py").is_file():
            yield name, (f"{place}.py", alias.name)
        else:
            yield name, (f"{place}/__init__.py", alias.name)


def _bound(statement: ast.stmt, nodes: list[ast.AST]) -> set[str]:
    """The names that a statement of a module binds, those in its branches too; not what counts in a ``for``
    of an expression.
    """
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    within = {
        id(target)
        for node in nodes
        if isinstance(node, ast.comprehension)
        for target in ast.walk(node.target)
    }
    names = (node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    stored = {node.id for node in names if id(node) not in within}
    return stored | {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def _read(nodes: list[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _without_cases(statement: ast.stmt) -> ast.stmt:
    """A maker of kernels without ``@family(…)``: which cases it is meant for is not what one is made of."""
    if not isinstance(statement, ast.FunctionDef) or "family" not in map(_called, statement.decorator_list):
        return statement
    bare = copy(statement)
    bare.decorator_list = [
        decorator for decorator in statement.decorator_list if _called(decorator) != "family"
    ]
    return bare


def _called(node: ast.expr) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def text_of(node: object) -> str:
    """A piece of syntax as text, the same in every version of Python; without docstrings and places."""
    if isinstance(node, list):
        return f"[{','.join(map(text_of, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, ast.FunctionDef | ast.ClassDef):
            shown = value[1:] if value and _is_text(value[0]) else value
        else:
            shown = value
        if shown not in (None, []) and name not in SKIPPED:
            fields.append(f"{name}={text_of(shown)}")
    return f"{type(node).__name__}({','.join(fields)})"
