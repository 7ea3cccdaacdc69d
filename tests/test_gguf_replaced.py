"""Sets that are replaced while somebody opens them, and sets that two savers write at once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from contextlib import ExitStack

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.gguf import atomic, file, plan


def saved(folder, value):
    tensors = {f"t{i}": np.full(64, value, np.float32) for i in range(3)}
    return gq.save(folder / "m.gguf", tensors, {"value": value}, split_max_bytes=256)


def values(f):
    return {int(q.blocks[0]) for q in f.values()} | {f.metadata["value"]}


def replacing(monkeypatch, folder, *, times):
    """Replace the set each time its first part is parsed, as long as there are times left."""
    real, left = file.header.parse, [times]

    def parse(source, first=None):
        found = real(source, first)
        if "00001-of" in source.path and left[0]:
            left[0] -= 1
            saved(folder, 100 - left[0])
        return found

    monkeypatch.setattr(file.header, "parse", parse)


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("times", [1, 3])
def test_a_set_that_is_replaced_opens_as_the_new_one(tmp_path, monkeypatch, part, times):
    paths = saved(tmp_path, 1)
    replacing(monkeypatch, tmp_path, times=times)
    assert values(gq.open(paths[part])) == {100}


def test_a_set_that_is_replaced_again_and_again(tmp_path, monkeypatch):
    paths = saved(tmp_path, 1)
    replacing(monkeypatch, tmp_path, times=1000)
    with pytest.raises(gq.GGUFError, match="were replaced while they were opened, 5 times"):
        gq.open(paths[1])


def test_a_part_that_goes_while_the_others_are_opened(tmp_path, monkeypatch):
    paths = saved(tmp_path, 1)
    real = file.check_set
    monkeypatch.setattr(file, "check_set", lambda *args: (real(*args), os.unlink(paths[2])))
    with pytest.raises(gq.GGUFError, match="missing beside it: m-00003"):
        gq.open(paths[0])


@pytest.mark.skipif(sys.platform == "win32", reason="no locks on this system")
def test_names_of_a_set_change_under_a_lock(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    held = []
    real = atomic._replace_set
    monkeypatch.setattr(
        atomic, "_replace_set", lambda *args: held.append((tmp_path / atomic.LOCK).exists()) or real(*args)
    )
    saved(tmp_path, 2)
    assert held == [True]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="no locks on this system")
def test_the_lock_lets_one_in_at_a_time(tmp_path):
    inside, most = [], []

    def work():
        for _ in range(50):
            with atomic.locked(str(tmp_path)):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 200
    assert set(most) == {1}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("function", ["open", "flock"])
def test_a_folder_without_locks(tmp_path, monkeypatch, function):
    def refused(*args):
        raise PermissionError(1, "no")

    if function == "flock":
        monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", refused)
    else:
        monkeypatch.setattr(atomic.os, "open", refused)
    with atomic.locked(str(tmp_path)):
        pass


def test_a_part_that_another_save_puts_aside_is_not_read_only(tmp_path, monkeypatch):
    """It goes between two looks at it, and comes back soon."""
    saved(tmp_path, 1)
    real = os.stat

    def stat(path, *args, **options):
        facts = real(path, *args, **options)
        if str(path).endswith("00002-of-00003.gguf"):
            os.unlink(path)
        return facts

    monkeypatch.setattr(plan.os, "stat", stat)
    plan.check_target(str(tmp_path / "m-00002-of-00003.gguf"))
    monkeypatch.undo()
    assert values(gq.open(saved(tmp_path, 2)[1])) == {2}


SAVER = """
    import sys, numpy as np, ggmlq as gq
    for i in range(25):
        n = int(sys.argv[2]) + i
        tensors = {f"t{j}": np.full(64, n, np.float32) for j in range(3)}
        gq.save(sys.argv[1], tensors, {"value": n}, split_max_bytes=256)
"""


def test_two_savers_and_a_reader(tmp_path):
    paths = saved(tmp_path, 1)
    command, opened = [sys.executable, "-c", textwrap.dedent(SAVER), str(tmp_path / "m.gguf")], 0
    with ExitStack() as stack:
        children = [stack.enter_context(subprocess.Popen([*command, start])) for start in ("1000", "2000")]
        for child in children:
            stack.callback(child.kill)
        while any(child.poll() is None for child in children):
            try:
                f = gq.open(paths[opened % 3])
            except gq.GGUFError:
                continue
            opened += 1
            assert len(values(f)) == 1
    assert opened
    assert [child.returncode for child in children] == [0, 0]
    assert len(values(gq.open(paths[0]))) == 1
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("ending", ["gguf", "safetensors"])
def test_a_file_that_is_shortened_while_it_is_open(tmp_path, ending):
    """Touching what the map lost would end the process, so a tensor is not handed out."""
    path = tmp_path / f"m.{ending}"
    gq.save(path, {name: np.full(8192, 1, np.float32) for name in ("a", "b")})
    with gq.open(path) as f:
        os.truncate(path, path.stat().st_size - 10)
        assert np.asarray(f["a"]).all()
        with pytest.raises(
            gq.GGMLQError, match=r"tensor 'b' needs bytes .* when it was opened; .* open it again"
        ):
            f["b"]
        with open(path, "r+b") as file:
            file.truncate(1 << 17)
        assert f["b"].shape == (8192,)
