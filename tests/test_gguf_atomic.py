"""A save that fails, or is killed, changes nothing that was there."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.gguf import atomic

OLD = {f"t{i}": np.full(64, i, np.float32) for i in range(4)}
NEW = {f"t{i}": np.full(64, 100 + i, np.float32) for i in range(4)}


def state(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def contents(path):
    """The first value of every tensor, or None where the model does not open."""
    try:
        f = gq.open(path)
    except gq.GGUFError:
        return None
    return [int(q.blocks[0]) for q in f.values()]


class Failing:
    """A function of os that fails at its nth call."""

    def __init__(self, real, nth, error):
        self.real, self.left, self.error = real, nth, error

    def __call__(self, *args):
        self.left -= 1
        if self.left == 0:
            raise self.error
        return self.real(*args)


def attempt(path, most):
    """The error of a save, or None."""
    try:
        gq.save(path, NEW, split_max_bytes=most)
    except (gq.GGUFError, KeyboardInterrupt) as error:
        return error
    return None


ERRORS = [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]


@pytest.mark.parametrize("error", ERRORS, ids=["full disk", "interrupt"])
@pytest.mark.parametrize("most", [None, 300], ids=["file", "set"])
@pytest.mark.parametrize("function", ["write", "fsync", "replace"])
def test_every_step_may_fail(tmp_path, monkeypatch, function, most, error):
    paths = gq.save(tmp_path / "m.gguf", OLD, split_max_bytes=most)
    before = state(tmp_path)
    for nth in range(1, 100):
        failing = Failing(getattr(os, function), nth, error)
        with monkeypatch.context() as patched:
            patched.setattr(atomic.os, function, failing)
            caught = attempt(tmp_path / "m.gguf", most)
        assert isinstance(caught, KeyboardInterrupt | None) or caught.errno == errno.ENOSPC
        if failing.left > 0:
            break
        if state(tmp_path) == before:
            assert caught is not None
        else:  # the last fsync, of the folder, comes after the names have changed
            assert function == "fsync"
            assert caught is None or caught is error
            assert all(contents(path) == [100, 101, 102, 103] for path in paths)
            gq.save(tmp_path / "m.gguf", OLD, split_max_bytes=most)
    assert nth > 1
    assert all(contents(path) == [100, 101, 102, 103] for path in paths)
    assert len(state(tmp_path)) == len(paths)


@pytest.mark.parametrize("most", [None, 300], ids=["file", "set"])
def test_nothing_is_left_of_a_first_save_that_fails(tmp_path, monkeypatch, most):
    for function in ("write", "replace"):
        monkeypatch.setattr(atomic.os, function, Failing(getattr(os, function), 2 if most else 1, ERRORS[0]))
        with pytest.raises(OSError, match="No space"):
            gq.save(tmp_path / "m.gguf", NEW, split_max_bytes=most)
        assert not state(tmp_path)


def test_an_old_set_never_mixes_with_a_new_one(tmp_path, monkeypatch):
    """Looked at after each change of a name: every part opens the old set, the new one, or nothing."""
    paths = gq.save(tmp_path / "m.gguf", OLD, split_max_bytes=300)
    seen = []

    def watched(*args):
        os_replace(*args)
        seen.append([contents(path) for path in paths])

    os_replace = os.replace
    monkeypatch.setattr(atomic.os, "replace", watched)
    gq.save(tmp_path / "m.gguf", NEW, split_max_bytes=300)
    assert len(seen) == 8
    assert all(found is None for step in seen[:-1] for found in step)
    assert seen[-1] == [[100, 101, 102, 103]] * 4


def test_a_set_of_another_size_is_left_alone(tmp_path):
    old = gq.save(tmp_path / "m.gguf", OLD, split_max_bytes=300)
    new = gq.save(tmp_path / "m.gguf", NEW, split_max_bytes=600)
    gq.save(tmp_path / "m.gguf", {"a": np.float32(7).reshape(1)})
    assert (len(old), len(new)) == (4, 2)
    assert contents(old[2]) == [0, 1, 2, 3]
    assert contents(new[1]) == [100, 101, 102, 103]
    assert contents(tmp_path / "m.gguf") == [7]


SAVE = """
    import sys, numpy as np, ggmlq as gq
    x = {f"t{i}": np.full(1 << 18, 100 + i, np.float32) for i in range(40)}
    print("ready", flush=True)
    while True:
        gq.save(sys.argv[1], x, split_max_bytes=(10 << 20) if sys.argv[2] == "set" else None)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
@pytest.mark.parametrize("kind", ["file", "set"])
def test_a_kill_leaves_a_whole_model(tmp_path, kind):
    tensors = {f"t{i}": np.full(1 << 18, i, np.float32) for i in range(40)}
    paths = gq.save(tmp_path / "m.gguf", tensors, split_max_bytes=10 << 20 if kind == "set" else None)
    for delay in (0.01, 0.05, 0.13):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SAVE), str(tmp_path / "m.gguf"), kind],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with child:
            try:
                assert child.stdout.readline() == "ready\n"
                time.sleep(delay)
            finally:
                child.kill()
        found = [contents(path) for path in paths]
        old, new = list(range(40)), list(range(100, 140))
        # A set may have been caught between its names: then nothing opens. It is never a mixture.
        assert all(values in (old, new) or (kind == "set" and values is None) for values in found)
        assert len({str(values) for values in found}) == 1
        gq.save(tmp_path / "m.gguf", tensors, split_max_bytes=10 << 20 if kind == "set" else None)


def test_a_limit_on_the_size_of_files(tmp_path):
    resource = pytest.importorskip("resource", reason="no resource limits on this system")
    gq.save(tmp_path / "m.gguf", OLD)
    before = state(tmp_path)
    code = """
        import sys, numpy as np, ggmlq as gq
        try:
            gq.save(sys.argv[1], {"big": np.zeros(1 << 20, np.float32)})
        except gq.GGUFError as error:
            print(isinstance(error, OSError), "refused" in str(error))
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "m.gguf")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout == "True True\n"
    assert state(tmp_path) == before


def test_a_folder_without_write_permission(tmp_path, monkeypatch):
    refusal = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(atomic.os, "open", Failing(os.open, 1, refusal))
    with pytest.raises(gq.GGUFError, match=r"Permission denied.*nothing has changed") as caught:
        gq.save(tmp_path / "m.gguf", OLD)
    assert caught.value.errno == errno.EACCES
    assert not state(tmp_path)
