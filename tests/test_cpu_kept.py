"""Compiled code on the disk: used again, told apart, safe from damage, and possible to do without."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import pytest

from ggmlq.store import reach
from ggmlq.store.origin import described, origin_of

PRODUCT = """
import time
import numpy as np
start = time.perf_counter()
import ggmlq as gq
q = gq.quantize(np.eye(32, 64, dtype=np.float32), "q4_0")
y = gq.linear(np.ones((1, 64), np.float32), q, kernel="cpu:naive")  # which is soon compiled
print(time.perf_counter() - start, abs(float(y[0, 0]) - 1) < 0.01)
from ggmlq.store import disk
facts = disk.here().examine()
print(facts.kernels, facts.path, facts.problem)
"""


def product(place):
    env = {**os.environ, "GGMLQ_CACHE_DIR": str(place), "GGMLQ_PREBUILT": "off"}
    child = subprocess.run(
        [sys.executable, "-c", PRODUCT], env=env, capture_output=True, text=True, check=True
    )
    first, second = child.stdout.splitlines()
    seconds, right = first.split()
    functions, path, problem = second.split(" ", 2)
    assert right == "True"
    return float(seconds), int(functions), path, problem


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    _, functions, path, _ = product(tmp_path)
    assert functions > 0
    assert path.startswith(str(tmp_path))
    before = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(path)}
    assert product(tmp_path)[1] == functions
    assert {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(path)} == before
    damaged = max(os.scandir(path), key=lambda entry: entry.stat().st_size)
    with open(damaged.path, "r+b") as file:
        file.seek(damaged.stat().st_size // 2)
        file.write(b"damage")
    assert product(tmp_path)[1] == functions


@pytest.mark.slow
def test_without_a_place_it_still_works(tmp_path):
    assert product("off")[1:] == (0, "None", "switched off by GGMLQ_CACHE_DIR")
    file = tmp_path / "file"
    file.write_text("no folder")
    _, functions, path, problem = product(file)
    assert (functions, path) == (0, "None")
    assert "cannot be used: Not a directory" in problem


def test_what_a_function_holds_tells_it_apart():
    def make(n):
        def inner(x):
            return x + n

        return inner

    assert described(make(1)) == described(make(1))
    assert described(make(1)) != described(make(2))
    assert described(make(make(1))) != described(make(make(2)))
    assert described((1, 2)) != described((12,))
    assert described(make(numba.float32)) != described(make(numba.float64))


def test_an_address_describes_nothing():
    thing = object()
    with pytest.raises(AssertionError, match="has an address"):
        described(lambda: thing)


def test_the_definitions_of_a_compiled_function_are_in_its_origin():
    """Those of an encoder: its maker, and the format's file, though no text of its maker names that."""
    from ggmlq.cpu.unpack import unpacker
    from ggmlq.formats import FORMATS

    origin = origin_of(unpacker(FORMATS["q4_K"]).py_func, "(int64)")
    assert origin.family == "ggmlq.cpu.unpack.unpacker"
    assert reach.digest(origin.family, origin.formats) != reach.UNKNOWN
    assert origin != origin_of(unpacker(FORMATS["q6_K"]).py_func, "(int64)")
    assert origin_of(lambda x: x).family != origin.family
    assert reach.digest("tests.nowhere.function") == reach.UNKNOWN


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", None, True])
def test_a_number_of_threads_is_checked(wrong):
    import ggmlq as gq

    with pytest.raises(gq.GGMLQError, match="at least 1"):
        gq.set_num_threads(wrong)


def test_a_kernel_that_hands_on_another_one_is_kept(monkeypatch):
    """As those of code books do; Numba would write down addresses, which no other process can use."""
    from ggmlq.cpu.machine import disk_cache
    from ggmlq.cpu.machine.jit import inner, jit

    kept = []
    monkeypatch.setattr(disk_cache, "load", lambda entry, context: None)
    monkeypatch.setattr(disk_cache, "save", lambda entry, result: kept.append(result))

    @inner
    def twice(x):
        return 2 * x

    @inner
    def through(function, x):
        return function(x) + 1

    @jit
    def both(x):
        return through(twice, x)

    assert both(3) == 7
    (result,) = kept
    assert not result.library.has_dynamic_globals
