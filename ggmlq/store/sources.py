"""A short digest of source files, without comments, docstrings and line numbers, which change no code.

Compiled code is stored under this digest, so a first product needs it. Parsing all files takes a good
tenth of a second; so digests of single files are stored too, by size and time of change.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from .disk import Generation

PACKAGE = Path(__file__).parents[1]
ENTRY = "digests"
FileDigests = dict[str, tuple[int, int, str]]  # by file: size, time, digest


def digest(folders: Iterable[str], facts: Iterable[str], package: Path = PACKAGE) -> str:
    """The digest of the code and the tables in folders (or files) of a package, and of further facts.

    Raises OSError where there are no sources, as in an archive.
    """
    place = Generation("sources", lambda: short(f"{sys.version}\0{package}".encode()))
    before = _recorded(place)
    now: FileDigests = {}
    for folder in folders:
        count = len(now)
        now.update(_digests(package, folder, before))
        if len(now) == count:
            raise OSError(f"{package / folder} has no sources")
    if any(before.get(name) != facts_of_file for name, facts_of_file in now.items()):
        place.save(ENTRY, json.dumps(before | now).encode())
    return short(
        "\0".join((*(f"{name} {facts_of_file[-1]}" for name, facts_of_file in now.items()), *facts)).encode()
    )


def short(content: bytes) -> str:
    """Twenty characters that stand for some bytes."""
    return hashlib.blake2b(content, digest_size=10).hexdigest()


def bare(source: bytes) -> bytes:
    """The bytes of a module's syntax, without comments, docstrings and line numbers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(ast.Constant(str())), *_]:
                    del node.body[0]
    return ast.dump(tree).encode()


def _digests(package: Path, folder: str, before: FileDigests) -> Iterator[tuple[str, tuple[int, int, str]]]:
    place = package / folder
    for file in [place] if place.is_file() else sorted(place.rglob("*")):
        if file.suffix in (".py", ".npz"):
            name, facts = file.relative_to(package).as_posix(), file.stat()
            size, changed, old = before.get(name, (-1, -1, ""))
            if (size, changed) != (facts.st_size, facts.st_mtime_ns):
                content = file.read_bytes()
                old = short(bare(content) if file.suffix == ".py" else content)
            yield name, (facts.st_size, facts.st_mtime_ns, old)


def _recorded(place: Generation) -> FileDigests:
    content = place.load(ENTRY)
    return (
        {name: tuple(facts_of_file) for name, facts_of_file in json.loads(content).items()} if content else {}
    )
