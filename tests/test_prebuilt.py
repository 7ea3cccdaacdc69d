"""Code that comes with the package: of what products take, of today's sources, loaded without Numba."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra test-cuda)")

from fake_cupy import put_gpu
from made_of import PACKAGE, functions_of, in_packs
from scripts import ROOT, load
from stale import demand, skip_if_stale

import ggmlq as gq
from ggmlq.cuda.driver import compile_process, compile_worker, served
from ggmlq.cuda.driver.launch import Kernel
from ggmlq.store import reach
from ggmlq.store.origin import Origin

_packs, assemble = load("tools", "_packs"), load("tools", "assemble")
_kernels = load("tools", "_kernels_cuda")
CUDA = reach.SIDES["cuda"]
REBUILD = "run python tools/prebuild.py"


# --- what is in ---------------------------------------------------------------------------------


def fresh_origins():
    """The kernels in packs of today's sources, by the cases that their families list.

    A stale kernel is what tools/prebuild.py --check is for.
    """
    names = {held.name for held in _packs.held(served.STORE.prebuilt) if not held.is_stale}
    for family in sorted({name.partition("(")[0] for name in names}):
        for case in getattr(_kernels.families().get(family), "cases", ()):  # none where its file has moved
            if str(origin := Origin(family, case)) in names:
                yield origin


@pytest.mark.slow
def test_what_scaled_products_take_is_there(fresh):
    """Of e4m3 and int8 on Hopper: whichever tile a shape gets, for results of each kind of floats."""
    card = _kernels._dry_runs.CARDS[0]
    for code, tiles in _kernels.SCALED:
        shapes = [
            (128 * int(2 ** fresh.uniform(0, 7)), 128 * int(2 ** fresh.uniform(0, 6))) for _ in range(3)
        ]
        rows = [int(2 ** fresh.uniform(0, 12)) for _ in range(3)]
        for kernel in _kernels._dry_runs.scaled_kernels(code, tiles, card, shapes, rows):
            message = f"{code} {shapes} {rows}: no {kernel.origin}; {REBUILD}"
            demand(in_packs(kernel, card), served.STORE, message)


def test_what_attention_takes_is_listed(fresh):
    """Caches of the usual types, in whichever floats and sizes a user has: their kernels belong in packs."""
    card = [card for card in _kernels._dry_runs.CARDS if card.capability >= (8, 0)][fresh.integers(9)]
    listed = {kernel.origin for kernel in _kernels._dry_runs.cache_kernels(card, _kernels.CACHES)}
    for _ in range(12):
        cache = {**_kernels.CACHES[fresh.integers(len(_kernels.CACHES))], "batch": int(fresh.integers(1, 4))}
        cache["heads"] = cache["heads"] if cache.get("shared") else int(fresh.integers(1, 9))
        sizes = [int(2 ** fresh.uniform(0, most)) for most in (10, 13)]
        kind = str(fresh.choice(_kernels.dry_run.RESULTS))
        for kernel in _kernels._dry_runs.cache_kernels(card, [cache], sizes[:1], sizes[1:], [kind]):
            known = kernel.origin in listed or in_packs(kernel, card)
            message = f"{cache}, {kind}, {sizes} on {card.name}: {kernel.origin} is not listed"
            demand(known, served.STORE, message)


# --- is it of these sources? --------------------------------------------------------------------


@pytest.mark.slow
def test_the_digest_reaches_all_that_a_kernel_is_made_of(fresh):
    all_origins = list(fresh_origins())
    if not all_origins:
        skip_if_stale(served.STORE)
    names = sorted({origin.family for origin in all_origins})
    names = sorted(fresh.choice(names, len(names) // 3 + 1, replace=False).tolist())
    drawn = [[origin for origin in all_origins if origin.family == name] for name in names]
    for listed in drawn:
        for origin in (listed[0], listed[fresh.integers(len(listed))]):
            places = reach.reached(origin.family, origin.formats).places
            kernel = _kernels.families()[origin.family].make(*origin.case)
            for function in functions_of(kernel.function, {}):
                path = Path(function.__code__.co_filename).relative_to(PACKAGE).as_posix()
                line = function.__code__.co_firstlineno
                covered = any(path == file and first <= line <= last for file, first, last in places)
                host = path.startswith(CUDA.host) and path not in CUDA.compiler
                assert covered or host, f"{origin} is made of {path}:{line}, which its digest leaves out"


# --- how it is taken ----------------------------------------------------------------------------


@pytest.fixture
def loader(monkeypatch):
    """A driver that remembers what it is given; it refuses what begins with a bang."""
    state, found = put_gpu(monkeypatch), []

    class Refused(Exception):
        pass

    class Module:
        def load(self, code):
            found.append(code)
            if code[:1] == b"!":
                raise Refused("not for this driver")

        def get_function(self, name):
            return SimpleNamespace(ptr=1, name=name)

    state.cupy.cuda.function = SimpleNamespace(Module=Module)
    state.cupy.cuda.driver = SimpleNamespace(CUDADriverError=Refused)
    monkeypatch.setattr("ggmlq.cuda.driver.device.driver_version", lambda: 13000)
    monkeypatch.setattr("ggmlq.cuda.driver.device.most_shared", lambda: 1 << 10)
    monkeypatch.setattr(Kernel, "cubin", lambda kernel, capability: b"compiled")
    return found


def small():
    kernel = Kernel("small", lambda *_: None, threads=32)
    kernel.origin = Origin("ggmlq.cuda.nowhere.kernel", (1,))
    return kernel


@pytest.mark.parametrize(
    ("code", "given"), [(b"code", [b"code"]), (b"!old", [b"!old", b"compiled"]), (None, [b"compiled"])]
)
def test_prebuilt_code_is_loaded_and_compiled_where_that_fails(loader, monkeypatch, code, given):
    monkeypatch.setattr(served, "code_of", lambda *asked: code)
    small().load()
    assert loader == given


def process(code, tmp_path, **more):
    """Python with something that is called cupy, and without what the tests ask for."""
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text("")
    environment = {k: v for k, v in os.environ.items() if k != "GGMLQ_COMPILE_HERE"} | more
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "tests")])
    environment["GGMLQ_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_what_is_not_prebuilt_is_compiled_by_another_process(tmp_path):
    code = """
        import sys
        from ggmlq.cuda.layouts import floats
        first, second = floats.kernel(True).cubin((8, 6)), floats.kernel(False).cubin((8, 6))
        print(first[:4] == second[:4] == b"\\x7fELF", first != second, "numba" in sys.modules)
    """
    assert process(code, tmp_path) == ["True", "True", "False"]


def test_what_goes_wrong_there_is_said_here():
    kind, said = compile_worker.compiled("ggmlq.cuda.layouts.floats.kernel", (True,), (1, 0))
    assert kind == "error"
    assert said
    with pytest.raises(gq.GGMLQError, match="GGMLQ_COMPILE_HERE=1"):
        compile_process.code(None, (9, 0))
