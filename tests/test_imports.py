"""Who may import what, and that the catalogue is complete."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ggmlq
from ggmlq.formats import FORMATS

ROOT = Path(ggmlq.__file__).parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))

# What a folder (or module) may import of the rest of the package; the outer world below.
# fmt: off
ALLOWED = {
    "errors.py": set(),
    "interrupted.py": set(),
    "text.py": set(),
    "devices.py": {"errors"},
    "formats": {"errors", "formats"},
    "buffers.py": {"devices", "errors", "formats"},
    "held.py": {"buffers", "devices", "errors", "formats"},
    # of ops where a method is one
    "array.py": {"text", "buffers", "devices", "errors", "formats", "held", "ops"},
    "checks.py": {"array", "buffers", "devices", "errors", "formats"},
    "ordinary.py": {"array", "checks", "devices", "ladder"},
    "tensors.py": {"checks", "devices", "errors"},
    "announced.py": set(),
    "ladder.py": {"announced", "errors", "formats"},
    "listing.py": {"ladder", "text", "errors", "formats"},
    "progress.py": set(),
    "cache": {"cache"},
    "decoding.py": {"array", "formats"},  # its compiled side by name, when asked
    "encoding.py": {"checks", "cpu", "errors", "formats", "progress"},  # of cpu the threads; the rest by name
    "ops.py": {
        "array",
        "buffers",
        "checks",
        "decoding",
        "devices",
        "encoding",
        "errors",
        "formats",
        "ladder",
        "ordinary",
        "tensors",
    },
    "metrics.py": {"buffers", "devices", "errors"},
    "reference": {"array", "checks", "devices", "errors", "formats", "ladder", "ops", "reference"},
    "cpu": {"array", "cache", "errors", "formats", "ladder", "cpu"},
    "cuda": {"array", "cache", "errors", "formats", "ladder", "cuda"},
    "dumps.py": {"errors", "text"},
    "gguf": {"array", "cpu", "devices", "errors", "formats", "gguf", "progress", "tensors", "text"},
    # of cpu the threads, here and above
    "commands": {
        "array", "check", "convert", "cpu", "diff", "dumps", "errors", "faults", "formats", "gguf", "llama",
        "text", "commands",
    },
    "convert": {"array", "cpu", "encoding", "errors", "formats", "gguf", "ops", "text", "convert"},
    "diff": {"array", "errors", "formats", "gguf", "ops", "progress", "text", "diff"},
    "llama": {"array", "checks", "devices", "errors", "formats", "llama", "text"},
    # faults recomputes products in every arithmetic, and reference knows these
    "faults": {"array", "checks", "devices", "errors", "formats", "metrics", "reference", "faults"},
    "check": {"array", "check", "dumps", "errors", "formats", "llama", "ops", "reference", "testing", "text"},
    "testing": None,  # may import anything
    "doctor.py": None,
    "cli.py": None,
    "__init__.py": None,
    "__main__.py": None,
}
# fmt: on
OUTER = {"numba": {"cpu", "cuda"}, "llvmlite": {"cpu", "cuda"}, "cupy": {"cuda"}, "gguf": set()}


def imports(path):
    """Top-level names imported anywhere in a file: parts of ggmlq, and outer packages."""
    tree = ast.parse((ROOT / path).read_text())
    depth = len(Path(path).parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield "outer", alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            parts = (node.module or "").split(".")
            yield ("inner", parts[1]) if parts[0] == "ggmlq" and parts[1:] else ("outer", parts[0])
        elif isinstance(node, ast.ImportFrom):
            base = Path(path).parts[: depth - node.level]
            full = [*base, *(node.module or "").split(".")]
            named = [name for name in full if name] or [alias.name for alias in node.names]
            yield "inner", named[0]


@pytest.mark.parametrize("path", MODULES)
def test_the_direction_of_imports(path):
    place = Path(path).parts[0]
    assert place in ALLOWED, f"say in ALLOWED what {place} may import"
    for kind, name in imports(path):
        if kind == "outer":
            assert place in OUTER.get(name, {place}), f"{path} imports {name}"
        elif ALLOWED[place] is not None and name.islower():
            assert name in ALLOWED[place] or f"{name}.py" == path, f"{path} imports ggmlq.{name}"


def test_formats_import_numpy_alone():
    outer = {
        name
        for path in MODULES
        if path.startswith("formats/")
        for kind, name in imports(path)
        if kind == "outer"
    }
    standard = set(sys.stdlib_module_names)
    assert outer - standard == {"numpy"}


def fresh(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_importing_ggmlq_loads_nothing_heavy():
    loaded = fresh("import sys, ggmlq; print(*sorted({m.split('.')[0] for m in sys.modules}))").split()
    assert not {"numba", "llvmlite", "cupy", "tqdm", "gguf", "scipy", "torch"} & set(loaded)


def test_a_product_on_the_cpu_loads_no_cupy():
    assert fresh(
        "import sys, numpy as np, ggmlq as gq\n"
        "q = gq.quantize(np.ones((2, 32), np.float32), 'q4_0')\n"
        "np.ones(32, np.float32) @ q.T; gq.formats['q4_K']\n"
        "print([m for m in ('cupy', 'gguf') if m in sys.modules])"
    ) == "[]"  # fmt: skip


def test_the_table_stays_a_table_when_its_package_is_imported():
    assert fresh(
        "import ggmlq, ggmlq.formats.q4_0, importlib\n"
        "importlib.import_module('ggmlq.formats.q8_0')\n"
        "print(ggmlq.formats['q4_0'].name)"
    ) == "q4_0"  # fmt: skip


def test_one_file_a_block_format():
    stems = {p.stem for p in (ROOT / "formats").glob("*.py") if not p.stem.startswith("_")}
    helpers = {"format", "scalars", "atoms"}
    blocks = {fmt.name.lower() for fmt in FORMATS.values() if fmt.block_size > 1}
    assert stems - helpers == blocks


@pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.block_size > 1], ids=lambda f: f.name)
def test_a_format_file_opens_with_its_size_and_its_bits(fmt):
    text = ast.get_docstring(ast.parse((ROOT / "formats" / f"{fmt.name.lower()}.py").read_text()))
    assert text.startswith(f"{fmt.name}: {fmt.bits_per_weight:g} bits a weight, ``value = ")
    assert f"struct block_{fmt.name} {{" in text
    assert "\nbyte " in text or "\n    byte " in text
    for field in fmt.dtype.names:
        assert field in text


@pytest.mark.parametrize("path", MODULES)
def test_files_are_short_and_say_what_they_are(path):
    source = (ROOT / path).read_text()
    assert ast.get_docstring(ast.parse(source)), f"{path} has no docstring"
    assert source.count("\n") <= 320, f"{path} is long: two ideas?"
