"""Code that comes with the package for CPUs: all that products take, of these sources, with Numba's bits."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from made_of import PACKAGE, functions_of
from scripts import ROOT, load
from stale import demand, skip_if_stale

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.cpu.machine import loading, served
from ggmlq.cpu.machine.features import compiled_for
from ggmlq.cpu.machine.levels import LEVELS, best
from ggmlq.cpu.machine.target import best as best_target
from ggmlq.formats import FORMATS, BlockFormat
from ggmlq.store import reach, store
from ggmlq.store.origin import Origin
from ggmlq.store.store import Store

_packs, _cpu = load("tools", "_packs"), load("tools", "_kernels_cpu")
BLOCKS = [fmt.name for fmt in FORMATS.values() if isinstance(fmt, BlockFormat)]
LEVEL = {level.folder: level for level in LEVELS}
REBUILD = "run python tools/prebuild.py"
here = pytest.mark.skipif(
    sys.platform != "linux" or best(platform.machine(), compiled_for()) is None,
    reason="no code comes with the package for this system's CPU",
)

# --- what is in ---------------------------------------------------------------------------------


def test_all_that_products_take_is_there():
    """Stale kernels are what tools/prebuild.py --check is for."""
    listed, held = {*map(str, _cpu.wanted())}, {*map(str, _packs.held(served.STORE.prebuilt))}
    demand(listed == held, served.STORE, f"{REBUILD}: {[*(listed ^ held)][:20]}")


@pytest.mark.parametrize(
    ("has", "folder"),
    [
        ({"avx2", "fma", "f16c"}, None),
        (LEVEL["avx2"].needed, "avx2"),
        (LEVEL["avx2"].needed | {"avxvnni"}, "avx-vnni"),
        (LEVEL["avx512-vnni"].needed - {"avx512dq"}, "avx2"),
        (LEVEL["avx512-vnni"].needed, "avx512-vnni"),
        (LEVEL["avx512-vnni"].needed | {"avx512vbmi", "amx-int8"}, "avx512-vbmi"),
    ],
)
def test_a_cpu_gets_only_what_it_has_all_instructions_for(has, folder):
    found = best("x86_64", frozenset(has))
    assert (found and found.folder) == folder
    assert best("aarch64", frozenset(has)) is None


# --- is it of these sources? --------------------------------------------------------------------


def test_the_digest_reaches_all_that_a_kernel_is_made_of(fresh):
    origins = [each.origin for each in _cpu.wanted()]
    for name in sorted({origin.family for origin in origins}):
        listed = [origin for origin in origins if origin.family == name]
        origin = listed[fresh.integers(len(listed))]
        places = reach.reached(origin.family, origin.formats).places
        file, _, maker = name.rpartition(".")
        for function in functions_of(getattr(import_module(file), maker)(*origin.case), {}):
            path = Path(function.__code__.co_filename).relative_to(PACKAGE).as_posix()
            line = function.__code__.co_firstlineno
            covered = any(path == each and first <= line <= last for each, first, last in places)
            assert covered, f"{origin} is made of {path}:{line}, which its digest leaves out"


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of the sources."""
    place = tmp_path_factory.mktemp("sources")
    for name in ("cpu", "formats", "codes"):
        shutil.copytree(PACKAGE / name, place / name, ignore=shutil.ignore_patterns("*.pack", "__pycache__"))
    shutil.copy(PACKAGE / "formats/packing.py", place / "formats/packing.py")
    return place


@pytest.mark.parametrize(
    ("path", "old", "new", "stale"),
    [
        ("cpu/panels/product.py", "from __future__", "# a comment\nfrom __future__", False),
        ("cpu/panels/tile.py", "def _whole(self", "def _whole(more, self", True),
        ("cpu/machine/jit.py", 'error_model="numpy"', 'error_model="python"', True),
    ],
)
def test_a_changed_source(copied, path, old, new, stale):
    """What a kernel is made of makes its code old, in the check and in a process; nothing else does."""
    family = "ggmlq.cpu.panels.product.direct"
    forget()
    before = reach.reached(family, (), copied).digest
    text = (copied / path).read_text()
    assert text.count(old) == 1
    (copied / path).write_text(text.replace(old, new))
    try:
        forget()
        assert (reach.reached(family, (), copied).digest != before) is stale
    finally:
        (copied / path).write_text(text)
        forget()


def forget():
    for remembered in (
        reach.reached, reach._file, reach._text, reach._needs, reach._counts, reach.digest_of
    ):  # fmt: skip
        remembered.cache_clear()


def test_vectors_and_a_formats_files_count_whole():
    files = reach.reached("ggmlq.cpu.panels.make.placer", ("q4_K",)).files
    assert {"cpu/unpack/walks.py", "formats/q4_k.py", "cpu/lanes.py"} <= {*files}


# --- how it is taken ----------------------------------------------------------------------------

FIRST = """
import sys
import numpy as np, ggmlq as gq
x = np.load(sys.argv[1])
for path in sys.argv[2:]:
    q = gq.open(path)["w"]
    for m in (1, 3, 40):
        print(gq.linear(x[:m], q).tobytes().hex())
        experts, ids = q.reshape(1, *q.shape), np.zeros((m, 2), int)
        print(gq.expert_linear(x[:m], experts, ids).tobytes().hex())
print("numba" in sys.modules)
"""


def process(code, *arguments, python=(sys.executable,), **more):
    """What Python says, with an empty cache."""
    kept = {k: v for k, v in os.environ.items() if k not in ("GGMLQ_PREBUILT", "NUMBA_CPU_NAME")}
    environment = {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]), **more}
    done = subprocess.run(
        [*python, "-c", textwrap.dedent(code), *map(str, arguments)], env=environment,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
@here
def test_first_products_need_no_numba_and_have_its_bits(fresh, tmp_path):
    """Every format from its file; one that each run draws, against what is compiled here."""
    skip_if_stale(served.STORE)
    paths = []
    for name in [*BLOCKS, "f16", "bf16"]:
        fmt, n = FORMATS[name], int(fresh.integers(1, 60))
        raw = (
            random_blocks(fmt, n, 512 // fmt.block_size, seed=int(fresh.integers(1 << 30)))
            if fmt.block_size > 1
            else fresh.standard_normal((n, 512)).astype(np.float16)
        )
        paths.append(tmp_path / f"{name}.gguf")
        gq.save(paths[-1], {"w": gq.QuantArray.from_bytes(raw.tobytes(), fmt, (n, 512))})
    np.save(tmp_path / "x.npy", fresh.standard_normal((40, 512)).astype(np.float32))
    cold = {"GGMLQ_CACHE_DIR": str(tmp_path / "cache")}
    *found, numba = process(FIRST, tmp_path / "x.npy", *paths, **cold)
    assert numba == "False"
    assert not [*(tmp_path / "cache").rglob("*_*")], "something was compiled and kept"
    drawn = int(fresh.integers(len(paths)))
    kept = {k: v for k, v in os.environ.items() if k == "GGMLQ_CACHE_DIR"}
    *want, numba = process(FIRST, tmp_path / "x.npy", paths[drawn], GGMLQ_PREBUILT="off", **kept)
    assert (found[6 * drawn : 6 * drawn + 6], numba) == (want, "True")


SCALED = """
import sys
import numpy as np, ggmlq as gq
codes = ("e4m3", 0), ("e5m2", 0), ("int8", 0), ("int8_full", 0), ("int8_full", 1), ("uint8", 1)
tilings = ((128, 128), (1, 128)), ((1, None), (1, None))
for at in map(int, sys.argv[2:]):
    print(f"case{at}")
    fresh = np.random.default_rng([int(sys.argv[1]), at])
    (code, zeros), (tile, how) = codes[at // 2], tilings[at % 2]
    n, k = fresh.integers(1, 60), fresh.integers(65, 400)
    w = fresh.standard_normal((n, k)).astype(np.float32)
    kept = gq.quantize_scaled(w, code, tile, ragged="pad", zeros=bool(zeros))
    written = kept.copy()  # which may be written to
    for m in (1, 3, 13):
        x = fresh.standard_normal((m, k)).astype(np.float32)
        for each in (kept, written):
            print(gq.scaled_linear(x, each, activations=(code, how)).tobytes().hex())
    print(kept.codes.tobytes().hex(), kept.dequantize().tobytes().hex())
    if at % 4 == 0:
        kind = np.float64 if at % 8 else np.float16
        print(gq.quantize_scaled(w.astype(kind), "e4m3", (1, 32), ragged="pad").codes.tobytes().hex())
    if at % 4 == 1:
        print(gq.quantize_scaled(np.repeat(w, 400, 0), "int8", (None, None)).codes.tobytes().hex())
    if at % 4 == 2:
        print(gq.quantize_scaled(w, "e4m3", (1, None), scales=np.full((n, 1), 0.1)).codes.tobytes().hex())
print("numba" in sys.modules)
"""


@pytest.mark.slow
@here
def test_first_products_of_codes_with_scales_need_no_numba_either(fresh, tmp_path):
    """Every code and tiling; two that each run draws, against what is compiled here."""
    skip_if_stale(served.STORE)
    seed = int(fresh.integers(1 << 30))
    *found, numba = process(SCALED, seed, *range(12), GGMLQ_CACHE_DIR=str(tmp_path / "cache"))
    assert numba == "False"
    kept = {k: v for k, v in os.environ.items() if k == "GGMLQ_CACHE_DIR"}
    drawn = sorted(fresh.choice(12, 2, replace=False))
    *want, numba = process(SCALED, seed, *drawn, GGMLQ_PREBUILT="off", **kept)
    assert numba == "True"
    begins = [i for i, word in enumerate(found) if word.startswith("case")] + [len(found)]
    assert [word for case in drawn for word in found[begins[case] : begins[case + 1]]] == want


OTHERS = """
import sys
import numpy as np
from ggmlq.cpu.amx import permission
from ggmlq.cpu.machine import target
from ggmlq.cpu.machine import levels, served
level = next(level for level in levels.LEVELS if level.folder == sys.argv[1])
target.compiled_for = served.compiled_for = permission.compiled_for = lambda: level.needed  # and no more
import ggmlq as gq
from block_cases import weights
from right import assert_right
from ggmlq.arrays.rows import rows
from ggmlq.arrays.blocks import random_blocks
assert served.level() is level
gq.set_num_threads(3)  # the board is code as well
for name in sys.argv[2:]:
    fmt = gq.formats[name]
    q = gq.QuantArray.from_bytes(random_blocks(fmt, 19, 512 // fmt.block_size).tobytes(), fmt, (19, 512))
    for m in (1, 11, 40):
        x = rows("normal", m, 512, seed=m)
        assert_right(gq.linear(x, q), x, q)
        y = gq.expert_linear(x, q.reshape(1, *q.shape), np.zeros((m, 2), int))
        assert_right(y[:, 1], x, q)
for code in ("int8", "int8_full", "uint8", "e4m3", "e5m2"):
    for m in (1, 3, 13):
        w = gq.quantize_scaled(rows("normal", 21, 200, seed=m), code, (1, 64), ragged="pad")
        x = gq.quantize_scaled(rows("normal", m, 200, seed=m + 1), code, (1, 64), ragged="pad")
        y, want = gq.scaled_linear(x, w), np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
        assert np.abs(y - want).max() <= 1e-5 * np.abs(want).max(), (code, m)
print(target.target().dot, "numba" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.folder)
def test_products_of_each_level_that_can_be_run(level, fresh):
    """By this CPU; on others also by an emulator, which a setting names as a command for its Python."""
    skip_if_stale(served.STORE)  # minutes of compiling
    python = [sys.executable]
    if level.machine != platform.machine():
        setting = f"GGMLQ_PYTHON_{level.machine.upper()}"
        python = os.environ.get(setting, "").split()
        if not python:
            pytest.skip(
                f"{level.folder} is for {level.machine}, and {setting} names no Python that runs there"
            )
    elif not level.needed <= compiled_for():
        pytest.skip(f"this CPU lacks {', '.join(sorted(level.needed - compiled_for()))}")
    names = fresh.choice(BLOCKS, 8, replace=False)
    said = process(OTHERS, level.folder, *names, python=python)
    assert said == [best_target(level.features).dot, "False"]


@pytest.mark.parametrize(
    "setting", [{"NUMBA_CPU_NAME": "x86-64"}, {"NUMBA_ENABLE_AVX": "0"}, {"GGMLQ_PREBUILT": "off"}],
    ids=lambda setting: next(iter(setting)),
)  # fmt: skip
def test_where_somebody_says_how_to_compile_it_is_compiled(setting):
    told = """
        import ggmlq as gq
        print(len(gq.kernels(device="cpu").notes))
        print("came" in gq.kernels(device="cpu").notes[0].split(";")[0])
        from ggmlq.cpu.machine import served
        print(served.level())
    """
    assert process(told, **setting) == ["1", "False", "None"]


@here
def test_gq_kernels_tells_where_code_comes_from():
    (note,) = gq.kernels(device="cpu").notes
    assert note == (
        f"CPU: kernels that products of blocks take by themselves came with the package, for "
        f"{served.level().folder}; others are compiled when first used."
    )


# --- what is damaged ----------------------------------------------------------------------------


@here
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "no header", "another's", "gone"])
def test_a_damaged_or_foreign_pack_is_refused_in_words(tmp_path, monkeypatch, damage):
    folder = tmp_path / served.level().folder
    folder.mkdir()
    origin = Origin("ggmlq.cpu.machine.board.doer", ())
    name = f"machine{store.SUFFIX}"
    content = (served.STORE.prebuilt / folder.name / name).read_bytes()
    middle = len(content) // 2
    other = next(level.folder for level in LEVELS if level.folder != folder.name)
    wrong = {
        "cut": content[:-9],
        "flipped": content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :],
        "empty": b"",
        "no header": b"[]\n" + content,
        "another's": (served.STORE.prebuilt / other / name).read_bytes(),
    }
    demand(served.loaded(origin) is not None, served.STORE, origin)
    monkeypatch.setattr(served, "STORE", Store(tmp_path, lambda: "-"))
    if damage in wrong:
        (folder / name).write_bytes(wrong[damage])
        with pytest.warns(RuntimeWarning, match="is not used"):
            assert served.loaded(origin) is None
    else:
        assert served.loaded(origin) is None


@here
def test_what_compiled_code_raises_is_raised(fresh):
    """An exception as Numba lays it down, found by its address; and one that nobody knows."""
    import pickle
    from ctypes import addressof, c_char_p, c_void_p, cast

    pickled = pickle.dumps((MemoryError, ("no room",), None))
    held = c_char_p(pickled)
    told = loading.Raised(cast(held, c_void_p), len(pickled), None, None)
    with pytest.raises(MemoryError, match="no room"):
        loading.fail(addressof(told))
    with pytest.raises(SystemError):
        loading.fail(loading.FAILED)
