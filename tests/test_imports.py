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
    # the ground
    "pages": {"errors", "missing", "text", "pages"},
    "errors.py": set(),
    "interrupted.py": set(),
    "text.py": set(),
    "folding.py": set(),
    "terminal.py": {"text"},
    "progress.py": set(),
    "notices.py": set(),
    "unwinding.py": set(),
    "announced.py": set(),
    "addressed.py": set(),  # remote by name, which registers itself there
    "cache": {"cache"},
    "cores.py": set(),
    "mixes.py": set(),
    "threads.py": {"cores", "errors"},
    "devices.py": {"errors"},  # the CUDA side by name, when an array lies there
    "tensors.py": {"devices", "errors"},
    "dumps.py": {"errors", "text"},
    "formats": {"errors", "formats", "mixes", "text"},
    "packing.py": {"formats"},
    "tiling.py": {"errors"},
    "codes": {"devices", "errors", "tiling", "codes"},
    "fixed": {"fixed"},
    # arrays
    "buffers.py": {"devices", "errors", "formats"},
    "members.py": set(),
    "kept.py": {"buffers", "devices", "errors", "members"},
    "storage.py": {"buffers", "devices", "errors", "formats", "kept"},
    "protocols.py": {"errors"},  # operations by name, which register themselves here
    "operators.py": {"errors", "members", "text"},
    "indexing.py": {"devices", "errors", "text"},
    "matrix.py": {
        "devices", "errors", "indexing", "members", "operators", "protocols", "tensors", "text",
    },
    "array.py": {
        "text", "buffers", "devices", "errors", "formats", "indexing", "matrix", "members", "storage",
    },
    "scaled_parts.py": {"buffers", "codes", "devices", "errors", "tensors", "tiling"},
    "scaled.py": {
        "text", "codes", "devices", "errors", "indexing", "kept", "matrix", "members", "operators",
        "protocols", "scaled_parts", "tiling",
    },
    "checks.py": {"array", "buffers", "devices", "errors", "formats"},
    "metrics.py": {"buffers", "devices", "errors"},
    # kernels
    "card.py": set(),
    "ending.py": {"codes"},
    "ladder.py": {"announced", "card", "errors"},  # what operations are about, it does not know
    "listing.py": {"ladder", "text", "errors"},  # problems by name, which register themselves
    "problems.py": {"card", "codes", "devices", "errors", "formats", "ladder"},
    # a room of its own, from weights to the call: kernels only by name
    "gru": {
        "checks", "codes", "devices", "dumps", "errors", "fixed", "gguf", "ladder", "problems", "progress",
        "tensors", "text", "gru",
    },
    "measured.py": {"formats", "ladder", "problems"},
    "prebuilt": {"codes", "formats", "prebuilt"},
    "experts.py": {"devices", "errors", "ladder", "problems", "scaled"},
    "cpu": {
        "array", "buffers", "cache", "codes", "cores", "errors", "experts", "fixed", "formats", "gru",
        "ladder", "measured", "packing", "prebuilt", "problems", "progress", "scaled", "threads", "tiling",
        "unwinding", "cpu",
    },
    "cuda": {
        "array", "cache", "card", "codes", "ending", "errors", "experts", "fixed", "formats", "gru", "ladder",
        "measured", "missing", "packing", "prebuilt", "problems", "progress", "scaled", "tiling",
        "cuda",
    },
    # operations: of cpu and cuda nothing but by name, when asked
    "ops": {
        "array", "buffers", "checks", "codes", "devices", "ending", "errors", "formats", "ladder", "matrix",
        "problems",
        "progress", "scaled", "scaled_parts", "tensors", "text", "threads", "tiling", "unwinding", "ops",
    },
    "functions": {
        "buffers", "cache", "checks", "codes", "devices", "errors", "notices", "ops", "problems", "progress",
        "scaled", "tensors", "tiling", "functions",
    },
    "accuracy": {"codes", "devices", "errors", "formats", "missing", "ops", "tensors", "text", "accuracy"},
    "reference": {
        "array", "checks", "devices", "errors", "fixed", "formats", "gru", "ladder", "ops", "scaled",
        "tiling", "reference",
    },
    # whole files
    "gguf": {
        "addressed", "array", "devices", "errors", "folding", "formats", "gguf", "matrix", "members",
        "progress", "tensors", "text", "threads", "unwinding",
    },
    "safetensors": {
        "addressed", "array", "codes", "devices", "errors", "formats", "gguf", "matrix", "progress",
        "safetensors", "scaled", "tensors", "text", "tiling",
    },
    "remote": {
        "addressed", "array", "cache", "errors", "gguf", "missing", "notices", "progress", "safetensors",
        "text", "remote",
    },
    "files.py": {"addressed", "errors", "gguf", "safetensors"},
    "checkpoint": {
        "array", "checkpoint", "convert", "errors", "formats", "gguf", "ops", "safetensors", "scaled", "text",
    },
    # workers of any executor: who they are it does not ask
    "spread": {
        "array", "cores", "errors", "formats", "gguf", "missing", "progress", "scaled", "text", "threads",
        "spread",
    },
    "convert": {
        "array", "convert", "errors", "folding", "formats", "gguf", "mixes", "ops", "progress", "spread",
        "text", "threads",
    },
    "diff": {"array", "errors", "formats", "gguf", "ops", "pages", "progress", "spread", "text", "diff"},
    "surveys": {
        "array", "convert", "errors", "files", "folding", "formats", "gguf", "ops", "progress", "report",
        "scaled", "spread", "text", "surveys",
    },
    # several GPUs: weights in parts; of cuda nothing but by name
    "parallel": {
        "array", "checks", "codes", "devices", "errors", "gguf", "matrix", "ops", "progress", "protocols",
        "scaled", "tensors", "text", "parallel",
    },
    "report": {
        "array", "diff", "errors", "formats", "gguf", "ops", "pages", "progress", "text", "report",
    },
    # judges
    "llama": {"array", "checks", "devices", "errors", "formats", "llama", "ops", "text"},
    # faults recomputes products in every arithmetic, and reference knows these
    "faults": {
        "array", "checks", "codes", "devices", "errors", "fixed", "formats", "gru", "metrics", "ops",
        "progress", "reference", "scaled", "tiling", "faults",
    },
    "check": {
        "array", "check", "dumps", "errors", "faults", "formats", "llama", "ops", "pages", "reference",
        "testing", "text",
    },
    # a real run: the library in llama's manner, the judge of check, projections of cpu by name
    "trace": {
        "array", "check", "errors", "faults", "formats", "gguf", "llama", "pages", "progress", "reference",
        "text", "trace",
    },
    # the top
    "commands": {
        "accuracy", "array", "cache", "check", "checkpoint", "commands", "completion", "convert", "demo",
        "diff", "doctor", "dumps", "errors", "faults", "files", "folding", "formats", "gguf", "gru", "llama",
        "mixes", "pages", "progress", "report", "safetensors", "scaled", "spread", "surveys", "terminal",
        "text", "threads", "trace",
    },
    "demo": {
        "array", "demo", "devices", "errors", "files", "gguf", "ladder", "listing", "llama", "metrics", "ops",
        "problems", "testing", "text", "threads",
    },
    "testing": None,  # may import anything
    "doctor.py": None,
    "missing.py": set(),  # what to install, said by whoever lacks it
    "completion.py": {"errors", "missing", "mixes"},
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
        elif ALLOWED[place] is not None and name.islower() and name != "__version__":
            assert name in ALLOWED[place] or f"{name}.py" == path, f"{path} imports ggmlq.{name}"


def test_kernels_for_gpus_have_the_words_of_numba_from_one_file():
    """Which leaves them out where nothing is compiled: any other import would bring Numba back."""
    for path in MODULES:
        if path.startswith("cuda/") and path != "cuda/words/language.py":
            outer = {name for kind, name in imports(path) if kind == "outer"}
            assert not outer & {"numba", "llvmlite"}, f"{path}: import it from words/language.py"


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
        "from ggmlq.array import QuantArray\n"
        "q = QuantArray.from_bytes(np.zeros(36, np.uint8), 'q4_0', (2, 32))\n"
        "print((np.ones(32, np.float32) @ q.T).tolist(), q.dequantize().sum())"
    ) == "[0.0, 0.0] 0.0"  # fmt: skip
    assert fresh("from ggmlq.listing import kernels; print(kernels('gru')[0].op)") == "gru"


def test_every_name_of_the_package_comes_when_it_is_first_used():
    assert fresh(
        "import ggmlq as gq, ggmlq.formats, ggmlq.codes\n"
        "assert gq.ladder.choose and gq.formats.q4_K and gq.codes.e4m3 and not hasattr(gq, 'nobody')\n"
        "print([name for name in gq.__all__ if name not in dir(gq) or getattr(gq, name) is None])"
    ) == "[]"  # fmt: skip


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


ROOMS = (
    "cpu", "cpu/amx", "cpu/encode", "cpu/grouped", "cpu/gru", "cpu/lanes", "cpu/machine", "cpu/panels",
    "cpu/quantize_scaled", "cpu/slabs", "checkpoint", "demo", "convert", "cuda/gru", "cuda/machine",
    "cuda/parallel", "cuda/prebuilt", "diff", "faults", "faults/experts", "faults/gru", "faults/scaled",
    "fixed", "gru", "pages", "parallel", "prebuilt", "remote", "report", "safetensors", "spread", "surveys",
    "trace",
)  # fmt: skip


@pytest.mark.parametrize("room", ROOMS)
def test_a_map_names_every_file_of_its_room(room):
    drawn = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text()))
    for path in sorted((ROOT / room).iterdir()):
        a_type = room == "cpu/encode" and not path.name.startswith("_")
        name = f"{path.name}/" if path.is_dir() else path.name
        if not path.name.startswith("__") and not a_type:
            assert name in drawn, f"say in ggmlq/{room}/__init__.py what {name} is for"


def modules_imported(path):
    """The files of the package that a file imports, at whatever depth in its code."""
    place = ("ggmlq", *Path(path).with_suffix("").parts)
    package = place[:-1]
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            of = (*base, *(node.module or "").split(".")) if node.module else base
            for alias in node.names:
                yield from filter(None, [file_of((*of, alias.name)) or file_of(of)])


def file_of(parts):
    """The file of a module, relative to the package; None where there is none."""
    place = Path(*parts[1:]) if parts[:1] == ("ggmlq",) else None
    if place is None:
        return None
    for file in (place.with_suffix(".py") if parts[1:] else None, place / "__init__.py"):
        if file is not None and (ROOT / file).exists():
            return file.as_posix()
    return None


def test_no_circle_of_files():
    """Whoever reads a file can read what it stands on first, down to the ground."""
    needs = {path: {*modules_imported(path)} - {path, "__init__.py"} for path in MODULES}

    def stands_on(path):
        found, waiting = set(), [path]
        while waiting:
            new = needs[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    circle = [path for path in MODULES if path in stands_on(path)]
    assert not circle
