"""Maps in docstrings list what lies in their folder, every file that is named exists, and counts are true."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from sources import NUMBERS, ROOT, Place, check, docstrings, tree

# Rooms without a map: their files are alike, or each is known by its name. Only ever fewer.
UNMAPPED = {
    "arrays", "base", "codes", "cpu/expert_linear", "cpu/linear", "cpu/scaled_linear",
    "cpu/unpack", "cuda/quantize", "formats", "llama", "reference", "testing",
}  # fmt: skip
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
PAGES += [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "bench").rglob("*.md"))]
FOLDERS = ("ggmlq", "tools", "bench", "tests", "docs")
ELSEWHERE = {"convert_hf_to_gguf.py"}  # files of other projects
NAMED = re.compile(r"(?<![\w./<>*…{}-])((?:[\w-]+/|\.\./)*[\w-]+\.py)(?![\w/*<])")


# --- maps -------------------------------------------------------------------------------------


def blocks(text):
    """Blocks of a docstring that are indented or have columns, each a list of lines."""
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("    ") or "  " in line:
            parts[-1].append(line)
        else:
            parts.append([])
    return [block for block in parts if block]


def cells(line):
    """Columns of a line of a map."""
    return re.split(r" {2,}", line.strip())


def children(folder):
    """Names of a folder's files, and of its folders of Python: ``x.py``, ``x.json`` and ``x/``."""
    files = {path.name for path in folder.iterdir() if path.is_file()} - {"__init__.py"}
    return files | {f"{path.name}/" for path in folder.iterdir() if any(path.glob("*.py"))}


def listed(line, names):
    """Names of a folder in a line of its map: x.py, x/, x alone in a column, q*.py; rungs as r0 to r3."""
    tokens = set(re.findall(r"(?<![\w./])[\w-]+(?:\.\w+\b|/(?!\w))", line))
    plain = {word for cell in cells(line)[:-1] for word in re.split(r", | and | ", cell)}
    tokens |= {name for name in names if name.removesuffix(".py").rstrip("/") in plain}
    head = "  ".join(cells(line)[:-1])
    for first, last in re.findall(r"\br(\d+)(?: (?:to|…) r(\d+))?\b", head):
        levels = range(int(first), int(last or first) + 1)
        tokens |= {name for name in names for level in levels if name.startswith(f"r{level}_")}
    tokens |= {name for glob in re.findall(r"\S*\*\S*\.py", head) for name in fnmatch.filter(names, glob)}
    return tokens & names


def maps(text, folder):
    """Blocks that list at least two files or folders of a folder in their first columns."""
    names = children(folder)
    for block in blocks(text):
        first = {name for line in block for cell in cells(line)[:-1] for name in listed(f"{cell}  …", names)}
        if len(first) > 1:
            yield block, names


def test_maps_list_their_folder():
    places = []
    for d in docstrings():
        folder = ROOT / Path(d.file).parent
        drawn = list(maps(d.text, folder)) if d.file.endswith("__init__.py") and d.line <= 2 else []
        names = children(folder) if drawn else set()
        known = {name for block, _ in drawn for line in block for name in listed(line, names)}
        places += [Place(d.file, d.line, f"leaves out {name}") for name in sorted(names - known)]
        for block, _ in drawn:
            columns = [cell for line in block for cell in cells(line)[:-1]]
            wrong = [
                cell for cell in columns if re.fullmatch(r"[\w./-]+(\.py|/)", cell) and cell not in names
            ]
            places += [Place(d.file, d.line, f"{cell} does not lie here") for cell in wrong]
    check(places, "the map of a folder lists its files and folders, and nothing else")


def test_rooms_have_a_map():
    places = []
    for d in docstrings():
        path = Path(d.file)
        if path.name == "__init__.py" and d.line <= 2 and path.parts[0] == "ggmlq" and len(path.parts) > 2:
            room = path.parent.relative_to("ggmlq").as_posix()
            has_map = room in UNMAPPED or len(children(ROOT / path.parent)) < 2
            if not has_map and not list(maps(d.text, ROOT / path.parent)):
                places.append(Place(d.file, d.line, "has no map"))
    check(places, "a room of several files has a map of them in its __init__.py")


# --- names of files ---------------------------------------------------------------------------


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


def wrong(name, file):
    """The fault of a file's name in a text of another file; None if exactly one file can be meant."""
    if name in ELSEWHERE:
        return None
    if any((ROOT / base / name).exists() for base in (*Path(file).parents, "ggmlq", "docs")):
        return None
    same = [path for path in by_name()[name.rpartition("/")[2]] if f"/{path}".endswith(f"/{name}")]
    if len(same) == 1:
        return None
    return f"{name}: there are {', '.join(same)}" if same else f"{name}: no such file"


def test_files_named_in_docstrings_exist():
    places = []
    for d in docstrings():
        for i, line in enumerate(d.text.splitlines()):
            problems = filter(None, (wrong(name, d.file) for name in NAMED.findall(line)))
            places += [Place(d.file, d.line + i, problem) for problem in problems]
    check(places, "a file that a docstring names exists, and only one can be meant")


def test_files_named_on_pages_exist():
    places = []
    for page in PAGES:
        file = page.relative_to(ROOT).as_posix()
        for i, line in enumerate(page.read_text(encoding="utf-8").splitlines()):
            problems = filter(None, (wrong(name, file) for name in NAMED.findall(line)))
            places += [Place(file, i + 1, problem) for problem in problems]
    check(places, "a file that a page names exists, and only one can be meant")


# --- counts -----------------------------------------------------------------------------------


def constant(file, name):
    """The value of a constant of a script."""
    for node in tree().syntax[file].body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"{file} has no constant {name}")


def prebuilt(device):
    """Kernels whose code comes with the package for a device."""
    from ggmlq.store.store import SUFFIX, opened

    folder = ROOT / "ggmlq" / device / "prebuilt"
    return sum(len(opened(path).kernels) for path in folder.rglob(f"*{SUFFIX}"))


def rungs(op, device):
    """Rungs of a ladder, by the listing of its folder."""
    folders = [ROOT / "ggmlq" / device / op, ROOT / "ggmlq" / op / device]
    return sum(len([*folder.glob("r[0-9]*_*.py")]) for folder in folders)


def files(folder, pattern):
    """Files of a folder that a pattern matches."""
    return len([*(ROOT / folder).glob(pattern)])


def mistakes():
    """Mistakes that the doctor of products with blocks knows."""
    from ggmlq.faults import CATALOGUE

    return len(CATALOGUE.keys() - {"correct", "unknown"})


def block_types():
    """Types of blocks that are supported."""
    from ggmlq.formats import FORMATS, BlockFormat

    return sum(isinstance(fmt, BlockFormat) for fmt in FORMATS.values())


COUNTS = [  # page, expression whose group is a number or the word for one, its source
    ("docs/house.md", r"all (\d+) of them", lambda: prebuilt("cpu")),
    ("docs/house.md", r"within (\d+) minutes of CPU", lambda: constant("tools/test", "MOST")),
    ("docs/house.md", r"cases of (\w+) block formats", lambda: constant("tools/test", "FORMATS")),
    ("CONTRIBUTING.md", r"(\d+) minutes of CPU at most", lambda: constant("tools/test", "MOST")),
    ("README.md", r"All (\d+) block types", block_types),
    ("README.md", r"which of (\d+) mistakes", mistakes),
    ("README.md", r"(\w+) scripts wait in", lambda: files("docs/gallery", "*.py")),
    ("docs/gallery.md", r"^(\w+) scripts, each a page", lambda: files("docs/gallery", "*.py")),
    ("docs/README.md", r"rather read scripts: (\w+),", lambda: files("docs/gallery", "*.py")),
    ("docs/gru.md", r"lists (\w+) kernels", lambda: rungs("gru", "cuda")),
]


@pytest.mark.parametrize(("page", "pattern", "source"), COUNTS, ids=[f"{c[0]}: {c[1]}" for c in COUNTS])
def test_counts_are_true(page, pattern, source):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    count = re.search(pattern.lstrip("^"), text)
    assert count, f"{page} has no longer what this test looks for: change its line in COUNTS"
    number, expected = count[1].lower(), source()
    assert number in (str(expected), NUMBERS[expected] if expected < len(NUMBERS) else ""), page
