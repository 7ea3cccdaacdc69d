"""Compiled code on the disk: used again, told apart, safe from damage, and possible to do without."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ggmlq.cpu.identity import identity
from ggmlq.cpu.kept import GENERATIONS, Folder, _forget, folder, root

PRODUCT = """
import numpy as np
from numba.core import event
import ggmlq as gq
with event.install_recorder("numba:compile") as compiled:
    q = gq.quantize(np.eye(32, 64, dtype=np.float32), "q4_0")
    y = np.ones((1, 64), np.float32) @ q.T
print(len(compiled.buffer), abs(float(y[0, 0]) - 1) < 0.01)
from ggmlq.cpu.kept import examine
facts = examine()
print(facts["functions"], facts["path"], facts["problem"])
"""


def product(place):
    env = {**os.environ, "GGMLQ_CACHE_DIR": str(place)}
    child = subprocess.run(
        [sys.executable, "-c", PRODUCT], env=env, capture_output=True, text=True, check=True
    )
    first, second = child.stdout.splitlines()
    compiled, right = first.split()
    functions, path, problem = second.split(" ", 2)
    assert right == "True"
    return int(compiled), int(functions), path, problem


def test_a_second_process_compiles_nothing(tmp_path):
    compiled, functions, path, _ = product(tmp_path)
    assert compiled > 0
    assert functions > 0
    assert path.startswith(str(tmp_path))
    assert product(tmp_path)[:2] == (0, functions)
    damaged = max(os.scandir(path), key=lambda entry: entry.stat().st_size)
    with open(damaged.path, "r+b") as file:
        file.seek(damaged.stat().st_size // 2)
        file.write(b"damage")
    assert product(tmp_path)[1] == functions


def test_without_a_place_it_still_works(tmp_path):
    assert product("off")[1:] == (0, "None", "switched off by GGMLQ_CACHE_DIR")
    file = tmp_path / "file"
    file.write_text("no folder")
    _, functions, path, problem = product(file)
    assert (functions, path) == (0, "None")
    assert "cannot be written to" in problem


def test_identity_tells_functions_apart():
    def make(n):
        def inner(x):
            return x + n

        return inner

    assert identity(make(1)) == identity(make(1))
    assert identity(make(1)) != identity(make(2))
    assert identity(make(make(1))) != identity(make(make(2)))
    assert identity((1, 2)) != identity((12,))


def test_old_folders_go(tmp_path):
    mine = tmp_path / ("m" * 20)
    for i in range(7):
        (tmp_path / f"{i:020}").mkdir()
        os.utime(tmp_path / f"{i:020}", (i, i))
    (tmp_path / "something else").mkdir()
    mine.mkdir()
    _forget(tmp_path, mine)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [f"{i:020}" for i in range(8 - GENERATIONS, 7)] + ["m" * 20, "something else"]


def test_the_place_follows_the_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("GGMLQ_CACHE_DIR", str(tmp_path))
    assert root() == tmp_path
    monkeypatch.setenv("GGMLQ_CACHE_DIR", "off")
    assert root() is None
    assert Folder(None).load("anything", None) is None
    assert folder() is folder()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", None, True])
def test_a_number_of_threads_is_checked(wrong):
    import ggmlq as gq

    with pytest.raises(gq.GGMLQError, match="at least 1"):
        gq.set_num_threads(wrong)
