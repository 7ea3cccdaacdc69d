"""Every file of Python that a docstring or a page names exists, and only one can be meant."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from scripts import ROOT, load

house = load("tools", "house")

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
PAGES += [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "bench").rglob("*.md"))]
FOLDERS = ("ggmlq", "tools", "bench", "tests", "docs")
ELSEWHERE = {"convert_hf_to_gguf.py"}  # files of other projects
NAMED = re.compile(r"(?<![\w./<>*…{}-])((?:[\w-]+/|\.\./)*[\w-]+\.py)(?![\w/*<])")


@cache
def by_name():
    """All files of Python by their name."""
    files = defaultdict(list)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            files[path.name].append(path.relative_to(ROOT).as_posix())
    for path in ROOT.glob("*.py"):
        files[path.name].append(path.name)
    return files


def fault(name, file):
    """The fault of a file's name in a text of another file; None if exactly one file can be meant."""
    if name in ELSEWHERE:
        return None
    if any((ROOT / base / name).exists() for base in (*Path(file).parents, "ggmlq", "docs")):
        return None
    same = [path for path in by_name()[name.rpartition("/")[2]] if f"/{path}".endswith(f"/{name}")]
    if len(same) == 1:
        return None
    return f"{name}: there are {', '.join(same)}" if same else f"{name}: no such file"


def faults(file, first, text):
    """Places of a text, which begins at a line of a file, that name no file or several."""
    for i, line in enumerate(text.splitlines()):
        for problem in filter(None, (fault(name, file) for name in NAMED.findall(line))):
            yield f"{file}:{first + i}  {problem}"


def test_files_named_in_docstrings_exist():
    assert [line for place in house.docstrings(house.Tree()) for line in faults(*place)] == []


def test_files_named_on_pages_exist():
    pages = [(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")) for page in PAGES]
    assert [line for file, text in pages for line in faults(file, 1, text)] == []
