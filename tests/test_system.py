"""What systems do differently stands in one file, and the library does without what Windows lacks."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ggmlq as gq
from ggmlq.base import system

ROOT = Path(gq.__file__).parents[1]
# What only some systems have, as modules and as names: no file but base/system.py has them.
MODULES = {"fcntl", "grp", "pwd", "resource", "termios"}
NAMES = """fork geteuid getpgrp getuid killpg posix_fadvise posix_fallocate pread pthread_sigmask pwrite
    register_at_fork sched_getaffinity statvfs uname SIGKILL SIGCONT"""
OWNERS = ("os", "signal")
CORE = "test_cache test_gguf_read test_gguf_split"


def asks(path):
    """The names in a file that only some systems have, and its looks at which system this is."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield node.module
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            if (owner, name) in {("sys", "platform"), ("os", "name")}:
                yield f"{owner}.{name}"
            if owner in OWNERS and name in NAMES.split():
                yield f"{owner}.{name}"


def test_one_file_knows_systems():
    folder = ROOT / "ggmlq"
    asked = {path.relative_to(folder).as_posix(): set(asks(path)) for path in folder.rglob("*.py")}
    assert {name for name, names in asked.items() if names} == {"base/system.py"}


def elsewhere(*words):
    """A run of Python in a process that has what Windows has."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    words = [sys.executable, *words]
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_the_core_without_what_windows_lacks(request):
    files = [str(ROOT / "tests" / f"{name}.py") for name in CORE.split()]
    seed = str(request.config.getoption("seed") or 1)
    ran = elsewhere("-m", "pytest", "-p", "elsewhere", "-q", "-n0", "--draw=1", "--seed", seed, *files)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-2000:]


SAVES = """
import elsewhere, sys
elsewhere.play()
import numpy as np, ggmlq as gq
path = sys.argv[1]
gq.save(path, {"w": gq.quantize(np.ones((4, 64), np.float32), "q4_0")})
f = gq.open(path)
w = f["w"]
print((np.ones((1, 64), np.float32) @ w.T).round(3).tolist())
try:
    gq.save(path, f)
except gq.GGMLQError as error:
    print(type(error).__name__, error)
print(np.array_equal(w.dequantize(), gq.open(path)["w"].dequantize()))
print(sorted(p.name for p in __import__("pathlib").Path(path).parent.iterdir()))
from ggmlq.cli import main
commands = ["info", path], ["validate", path], ["metadata", path], ["show", path, "w"], ["doctor"]
print(*map(main, commands))
"""


@pytest.mark.slow
def test_a_save_over_an_open_file_is_an_error_there(tmp_path):
    ran = elsewhere("-c", SAVES, str(tmp_path / "m.gguf"))
    product, error, same, names, *_, codes = ran.stdout.splitlines()
    assert product == "[[64.0, 64.0, 64.0, 64.0]]", ran.stderr
    assert error.startswith("GGUFOSError")
    assert "close it and the arrays on it (del), or write under another name" in error
    assert (same, names) == ("True", "['m.gguf']")
    assert codes == "0 0 0 0 0", "all commands run there"


def test_reading_and_writing_in_places(tmp_path, monkeypatch):
    for name in ("pread", "pwrite"):
        monkeypatch.delattr(os, name, raising=False)
    fd = os.open(tmp_path / "f", system.flags("O_RDWR", "O_CREAT", "O_BINARY"))
    assert system.write_at(fd, b"there", 3) == 5
    assert system.read_at(fd, 9, 2) == b"\0there"
    os.close(fd)


def test_a_moments_hold_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / "old").write_text("new")
    left, real = [2], os.replace

    def held(old, new):
        left[0] -= 1
        if left[0] >= 0:
            raise PermissionError(13, "Access is denied")
        real(old, new)

    monkeypatch.setattr(os, "replace", held)
    with pytest.raises(PermissionError, match="Access"):
        system.replace(tmp_path / "old", tmp_path / "new")
    left[0] = 2
    monkeypatch.setattr(system, "WINDOWS", True)
    system.replace(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "new").read_text() == "new"


def test_folders_of_caches(tmp_path, monkeypatch):
    for name in ("WINDOWS", "MACOS"):
        monkeypatch.setattr(system, name, False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert system.caches(tmp_path) == tmp_path / ".cache" / "ggmlq"
    monkeypatch.setattr(system, "WINDOWS", True)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    assert system.caches(tmp_path) == tmp_path / "Local" / "ggmlq" / "Cache"
    monkeypatch.setattr(system, "WINDOWS", False)
    monkeypatch.setattr(system, "MACOS", True)
    assert system.caches(tmp_path) == tmp_path / "Library" / "Caches" / "ggmlq"
