"""Who may import what, and that the catalogue is complete."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import ggmlq
from ggmlq.formats import FORMATS

ROOT = Path(ggmlq.__file__).parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))

# Rooms of the package by floor, from the ground up: a room imports rooms of lower floors. Kernels
# are imported by name alone, so the operations stand beside them. Nothing but tests, benchmarks and tools
# imports testing, so it stands at the top.
FLOORS = (
    {"errors.py", "fixed"},
    {"base"},
    {"codes", "formats", "pages"},
    {"arrays", "store"},
    {"dispatch", "gguf"},
    {"cpu", "cuda", "ops", "safetensors", "tasks"},
    {"accuracy", "convert", "diff", "functions", "gru", "llama", "parallel", "remote", "roofs"},
    {"checkpoint", "doctor.py", "reference", "report"},
    {"faults", "model"},
    {"check", "demo", "port"},
    {"trace"},
    {"commands"},
    {"cli.py"},
    {"__init__.py", "__main__.py"},
    {"testing", "torch"},
)
HEIGHT = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
# Floors allow these, and nobody wants them: files are read without operations, and oracles without kernels.
NEVER = {
    ("gguf", "pages"),
    ("gguf", "store"),
    ("convert", "cpu"),
    ("reference", "cpu"),
    ("reference", "cuda"),
    ("gguf", "codes"),
}
SHOWN = {("__init__.py", "torch")}  # to type checkers; that room is written with the front's own names
OUTER = {
    "numba": {"cpu", "cuda"},
    "llvmlite": {"cpu", "cuda"},
    "cupy": {"cuda"},
    "gguf": set(),
}


@cache
def imports(path):
    """Top-level names imported anywhere in a file: parts of ggmlq, and outer packages."""
    return [*imports_of(path, ast.parse((ROOT / path).read_text()))]


def imports_of(path, tree):
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


def is_wrong(path, place, kind, name):
    """True for a name that a file of a place may not import."""
    room = name if name in HEIGHT else f"{name}.py"
    if kind == "outer":
        return not OUTER.get(name, {place}) & {*Path(path).parts[:2], place if name not in OUTER else ""}
    if room not in HEIGHT or room == place or (place, room) in SHOWN:
        return False
    return HEIGHT[room] >= HEIGHT[place] or (place, room) in NEVER


def test_the_direction_of_imports():
    places = {path: Path(path).parts[0] for path in MODULES}
    assert {*places.values()} <= HEIGHT.keys(), "say in FLOORS on which floor a room stands"
    wrong = [(path, n) for path in MODULES for k, n in imports(path) if is_wrong(path, places[path], k, n)]
    assert not wrong, "they import what stands no lower, or what nobody wants there"


def test_nothing_of_the_package_imports_what_tests_share():
    users = {path for path in MODULES if ("inner", "testing") in imports(path)}
    assert not [path for path in users if not path.startswith("testing/")]


# The files that import a compiler of kernels for GPUs, one side of the seam each, and the files that may
# import these: language.py picks a side by its name, which is no import.
SIDES = {
    "numba": {"numba_cuda"},
    "llvmlite": {"numba_cuda"},
}


def test_kernels_for_gpus_have_the_words_of_numba_from_one_file():
    """Which leaves them out where nothing is compiled: any other import would bring Numba back."""
    sides = {f"cuda/intrinsics/{name}.py" for names in SIDES.values() for name in names}
    for path in MODULES:
        if path.startswith(("cuda/", "gru/cuda/")):
            for name in {name for kind, name in imports(path) if kind == "outer"} & SIDES.keys():
                assert path in {f"cuda/intrinsics/{each}.py" for each in SIDES[name]}, (
                    f"{path}: import it from ggmlq/cuda/intrinsics/language.py"
                )
            texts = ast.walk(ast.parse((ROOT / path).read_text())) if path not in sides else ()
            modules = {node.module or "" for node in texts if isinstance(node, ast.ImportFrom)}
            assert not {name.rpartition(".")[2] for name in modules} & set().union(*SIDES.values()), path


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
    assert not {"numba", "llvmlite", "cupy", "tqdm", "gguf", "scipy", "torch", "matplotlib"} & set(loaded)
    assert "numpy" not in loaded, (
        "names are imported when they are first used: a Tab of the shell imports this"
    )


def test_arrays_know_their_operations_whatever_was_imported_first():
    assert fresh(
        "import numpy as np\n"
        "from ggmlq.arrays.array import QuantArray\n"
        "q = QuantArray.from_bytes(np.zeros(36, np.uint8), 'q4_0', (2, 32))\n"
        "print((np.ones(32, np.float32) @ q.T).tolist(), q.dequantize().sum())"
    ) == "[0.0, 0.0] 0.0"  # fmt: skip
    assert fresh("from ggmlq.dispatch.listing import kernels; print(kernels('gru')[0].op)") == "gru"


def test_every_name_of_the_package_comes_when_it_is_first_used():
    assert fresh(
        "import ggmlq as gq, ggmlq.formats, ggmlq.codes\n"
        "assert gq.dispatch.__name__ and gq.formats.q4_K and gq.codes.e4m3 and not hasattr(gq, 'nobody')\n"
        "print([name for name in gq.__all__ if name not in dir(gq) or getattr(gq, name) is None])"
    ) == "[]"  # fmt: skip


def test_a_part_whose_package_is_missing_is_no_attribute():
    """So Tab, ``help(ggmlq)`` and ``hasattr`` work without torch, which nothing but its own name imports."""
    assert fresh(
        "import inspect, sys, ggmlq as gq\n"
        "assert {'model', 'torch'} < {*dir(gq)} and 'torch' not in gq.__all__\n"
        "from ggmlq import *\n"
        "assert model.load and 'torch' not in sys.modules\n"
        "sys.modules['torch'] = None\n"
        "from importlib import util\n"
        "find, util.find_spec = util.find_spec, lambda name: None if name == 'torch' else find(name)\n"
        "inspect.getmembers(gq)\n"
        "try:\n    gq.torch\nexcept gq.GGMLQError as error:\n    print(error, hasattr(gq, 'torch'))\n"
        "try:\n    from ggmlq import torch\nexcept ImportError as error:\n    print(error)"
    ).splitlines() == [
        f'import ggmlq.torch: torch is not installed; pip install "torch>=2.11" (the extra torch){end}'
        for end in (" False", "")
    ]  # fmt: skip


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
    helpers = {"format", "scalars", "atoms", "packing"}
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
