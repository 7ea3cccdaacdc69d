"""What source files say, as a short digest, without what changes no code: comments, docstrings, places.

Compiled code is kept under it, so it is asked for on the way to a first product. Parsing all files
takes a good tenth of a second; so digests of single files are kept too, by size and time of change.
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
Known = dict[str, tuple[int, int, str]]  # by file: size, time, digest


def digest(folders: Iterable[str], facts: Iterable[str], package: Path = PACKAGE) -> str:
    """Of the code and the tables in folders (or files) of a package, and of facts beside them.

    OSError where there are no sources, as in an archive: then nothing says what the code is.
    """
    place = Generation("sources", lambda: short(f"{sys.version}\0{package}".encode()))
    before = _known(place)
    now: Known = {}
    for folder in folders:
        found = len(now)
        now.update(_digests(package, folder, before))
        if len(now) == found:
            raise OSError(f"{package / folder} has no sources")
    if any(before.get(name) != each for name, each in now.items()):
        place.save(ENTRY, json.dumps(before | now).encode())
    return short("\0".join((*(f"{name} {each[-1]}" for name, each in now.items()), *facts)).encode())


def short(content: bytes) -> str:
    """Twenty characters that stand for some bytes."""
    return hashlib.blake2b(content, digest_size=10).hexdigest()


def bare(source: bytes) -> bytes:
    """A module as its syntax alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(ast.Constant(str())), *_]:
                    del node.body[0]
    return ast.dump(tree).encode()


def _digests(package: Path, folder: str, before: Known) -> Iterator[tuple[str, tuple[int, int, str]]]:
    place = package / folder
    for file in [place] if place.is_file() else sorted(place.rglob("*")):
        if file.suffix in (".py", ".npz"):
            name, facts = file.relative_to(package).as_posix(), file.stat()
            size, changed, old = before.get(name, (-1, -1, ""))
            if (size, changed) != (facts.st_size, facts.st_mtime_ns):
                content = file.read_bytes()
                old = short(bare(content) if file.suffix == ".py" else content)
            yield name, (facts.st_size, facts.st_mtime_ns, old)


def _known(place: Generation) -> Known:
    content = place.load(ENTRY)
    return {name: tuple(each) for name, each in json.loads(content).items()} if content else {}
