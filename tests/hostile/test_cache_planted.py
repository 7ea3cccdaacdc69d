"""What others put where compiled code is kept is never run: by owner, by mode, by link, by content."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

from ggmlq.store.disk import ENTRY, HOME, KERNELS, MARK, MARK_TEXT, SEAL, Disk, _seal, root

if not hasattr(os, "geteuid"):
    pytest.skip("this system has no owners and modes of files", allow_module_level=True)

NAME = KERNELS
STRANGER = 54321


class Trap:
    """Runs code when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


def stored():
    return Disk(root())


def plant(folder, content=b"evil"):
    """A folder with an entry that has the right seal, as anyone can make it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_bytes(MARK_TEXT)
    (folder / ("a" + ENTRY)).write_bytes(_seal("a", content) + content)
    folder.parent.chmod(0o700)
    folder.chmod(0o700)
    for name in (MARK, "a" + ENTRY):
        (folder / name).chmod(0o600)
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GGMLQ_CACHE_DIR", str(tmp_path))
    return plant(tmp_path / HOME / NAME)


def test_the_trap_is_one(folder):
    assert stored().load("a") == b"evil"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777])
def test_a_folder_that_others_can_write_to(folder, mode):
    folder.chmod(mode)
    assert "can be written to by others" in stored().problem
    assert stored().load("a") is None


@pytest.mark.parametrize("above", ["cache", HOME])
@pytest.mark.parametrize("mode", [0o1777, 0o770])
def test_a_folder_above_that_others_can_write_to(folder, above, mode):
    """They could rename what lies in it, and put a folder of theirs in its place."""
    {"cache": folder.parents[1], HOME: folder.parent}[above].chmod(mode)
    assert "can be written to by others" in stored().problem
    assert "GGMLQ_CACHE_DIR" in stored().problem
    assert stored().load("a") is None


def test_links_count_to_the_cache_alone(folder, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv("GGMLQ_CACHE_DIR", str(tmp_path / "link"))
    assert stored().load("a") == b"evil"
    folder.parent.rename(tmp_path / "away")
    folder.parent.symlink_to(tmp_path / "away")
    assert "or a link" in stored().problem
    assert stored().load("a") is None


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_an_entry_that_others_can_write_to(folder, mode):
    (folder / ("a" + ENTRY)).chmod(mode)
    assert stored().load("a") is None


@pytest.mark.parametrize("what", ["cache", HOME, "folder", "entry", "mark"])
def test_another_owner(folder, what):
    if os.geteuid():
        pytest.skip("only root can give files away")
    files = {"folder": folder, "entry": folder / ("a" + ENTRY), "mark": folder / MARK}
    target = {"cache": folder.parents[1], HOME: folder.parent, **files}[what]
    os.chown(target, STRANGER, -1)
    found = stored()
    assert found.load("a") is None
    assert what == "entry" or "belongs to another user" in found.problem


def test_a_folder_that_is_exchanged_after_the_first_look(folder, tmp_path):
    found = stored()
    folder.rename(tmp_path / "away")
    plant(tmp_path / "other").chmod(0o777)
    (tmp_path / "other").rename(folder)
    assert found.load("a") is None
    folder.rename(tmp_path / "other")
    (tmp_path / "away").chmod(0o700)
    folder.symlink_to(tmp_path / "away")
    assert found.load("a") is None
    found.save("b", b"content")
    assert sorted(os.listdir(tmp_path / "away")) == ["a" + ENTRY, MARK]


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "socket", "device"])
def test_an_entry_that_is_no_file(folder, tmp_path, kind):
    entry = folder / ("a" + ENTRY)
    entry.rename(tmp_path / "real")
    if kind == "link":
        entry.symlink_to(tmp_path / "real")
    elif kind == "fifo":
        os.mkfifo(entry)
    elif kind == "folder":
        entry.mkdir()
    elif kind == "device":
        entry.symlink_to("/dev/zero")
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(entry)) if len(str(entry)) < 100 else entry.mkdir()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(3):
        assert stored().load("a") is None
    assert not before or len(os.listdir("/proc/self/fd")) <= before


def test_a_folder_without_our_mark_is_not_used(folder):
    (folder / MARK).unlink()
    assert "was not made by ggmlq" in stored().problem
    assert stored().load("a") is None


def test_random_content_is_never_taken(folder, fresh, rounds):
    entry = folder / ("a" + ENTRY)
    right = entry.read_bytes()
    for _ in rounds(1):
        content = bytearray(right * int(fresh.integers(1, 3)))[: int(fresh.integers(0, 2 * len(right)))]
        for _ in range(int(fresh.integers(0, 4))):
            if content:
                content[int(fresh.integers(len(content)))] ^= int(fresh.integers(1, 256))
        entry.write_bytes(content)
        found = stored().load("a")
        assert found is None or bytes(content) == right


COMPILED = """
from numba import types
from ggmlq.cpu.machine.digest import adder
from ggmlq.store import disk
function = adder()
function.compile((types.int64,) * 3)
facts = disk.here().examine()
print(len(function.overloads) == 1, facts.kernels, facts.problem)
"""


def compiled(place):
    """A process that compiles or loads one function: how many are kept, and what is wrong with the place."""
    env = {**os.environ, "GGMLQ_CACHE_DIR": str(place)}
    command = [sys.executable, "-c", COMPILED]
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    right, functions, problem = found.stdout.strip().split(" ", 2)
    assert right == "True"
    return int(functions), problem


@pytest.mark.slow
def test_planted_pickles_do_not_run_in_a_compiled(tmp_path):
    """Every entry of a warm cache becomes a trap: under the right seal, but of a file others can write."""
    functions, _ = compiled(tmp_path)
    assert functions
    (folder,) = (tmp_path / HOME).glob(KERNELS)
    for entry in folder.glob("*" + ENTRY):
        trap = pickle.dumps(Trap(tmp_path / "caught"))
        entry.write_bytes(_seal(entry.name.removesuffix(ENTRY), trap) + trap)
        entry.chmod(0o606)
    assert compiled(tmp_path)[0] == functions
    assert not (tmp_path / "caught").exists()
    assert all(entry.stat().st_size > SEAL + 200 for entry in folder.glob("*" + ENTRY))  # made again


@pytest.mark.slow
def test_a_warm_cache_that_is_read_only_is_used(tmp_path):
    functions, _ = compiled(tmp_path)
    (folder,) = (tmp_path / HOME).glob(KERNELS)
    before = {entry.name: entry.stat().st_mtime_ns for entry in folder.iterdir()}
    folder.chmod(0o500)
    try:
        found, problem = compiled(tmp_path)
    finally:
        folder.chmod(0o700)
    assert found == functions
    assert problem == "read only" or not os.geteuid()  # modes do not bind root
    assert {entry.name: entry.stat().st_mtime_ns for entry in folder.iterdir()} == before
