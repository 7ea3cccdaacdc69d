"""Entries on the disk: kept whole, told apart, removed only where they are ours, done without in words."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from ggmlq.store import disk
from ggmlq.store.disk import HOME, KERNELS, MARK, Disk, root

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners and modes of files")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("GGMLQ_CACHE_DIR", str(tmp_path / "place"))
    return tmp_path / "place"


def made():
    return Disk(root())


def test_an_entry_comes_back_under_its_key_alone(place):
    made().save("a", b"content")
    assert made().load("a") == b"content"
    assert made().load("b") is None
    assert made().examine() == (str(place / HOME / KERNELS), None, 1, 7 + disk.SEAL)
    assert not [name for name in os.listdir(place / HOME / KERNELS) if "partial" in name]


def test_all_entries_go_and_nothing_else(place):
    made().save("a", b"content")
    made().save("b", b"content")
    (place / HOME / KERNELS / "notes.txt").write_text("mine")
    (place / HOME / KERNELS / "mine.partial").write_text("mine")
    (place / HOME / KERNELS / "c.code-0a1b2c3d.partial").write_bytes(bytes(99))  # its writer was killed
    facts = made().examine()
    assert (facts.kernels, facts.bytes) == (2, 99 + 2 * (7 + disk.SEAL))
    made().empty()
    assert sorted(os.listdir(place / HOME / KERNELS)) == [MARK, "mine.partial", "notes.txt"]


@pytest.mark.parametrize("content", [b"", b"content", b"x" * 16, b"junk" * 100])
def test_a_damaged_entry_is_none(place, content):
    made().save("a", b"content")
    (file,) = (place / HOME / KERNELS).glob("a*")
    for damaged in (content, file.read_bytes()[:-1], b"!" + file.read_bytes()[1:]):
        file.write_bytes(damaged)
        assert made().load("a") is None
    made().save("a", b"again")
    assert made().load("a") == b"again"


def test_no_entry_passes_for_another(place):
    made().save("a", b"content")
    (file,) = (place / HOME / KERNELS).glob("a*")
    file.rename(file.with_name(file.name.replace("a", "b", 1)))
    assert made().load("b") is None


def test_entries_that_were_not_used_for_longest_go_first(place, monkeypatch):
    for number, name in enumerate("abc"):
        made().save(name, bytes(100))
        os.utime(place / HOME / KERNELS / f"{name}{disk.ENTRY}", (number, number))
    assert made().load("a") == bytes(100)  # which counts as a use
    monkeypatch.setattr(disk, "MOST", 3 * (100 + disk.SEAL))
    made().save("d", bytes(100))
    assert [name for name in "abcd" if made().load(name)] == ["a", "c", "d"]
    partial = place / HOME / KERNELS / "e.code-0a1b2c3d.partial"
    partial.write_bytes(bytes(1000))
    os.utime(partial, (1, 1))
    made().save("e", bytes(100))
    assert not partial.exists()
    assert made().load("e")


def test_a_link_is_not_followed_to_be_emptied(place, tmp_path):
    made().save("a", b"content")
    (place / HOME / KERNELS).rename(tmp_path / "elsewhere")
    (place / HOME / KERNELS).symlink_to(tmp_path / "elsewhere")
    made().empty()
    assert len(os.listdir(tmp_path / "elsewhere")) == 2
    assert made().load("a") is None


@posix
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_private_whatever_the_umask(place, mask):
    before = os.umask(mask)
    try:
        made().save("a", b"content")
    finally:
        os.umask(before)
    for folder in (place / HOME / KERNELS, place / HOME, place):
        assert stat.S_IMODE(folder.stat().st_mode) & ~0o700 == 0 or mask == 0o777
    assert mask == 0o777 or made().load("a") == b"content"


def test_a_place_that_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("GGMLQ_CACHE_DIR", "off")
    assert disk.root() is None
    assert made().problem == "switched off by GGMLQ_CACHE_DIR"
    monkeypatch.setenv("GGMLQ_CACHE_DIR", "~nosuchuser/x")
    assert "~nosuchuser/x is not known" in disk.here().problem
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("GGMLQ_CACHE_DIR", str(tmp_path / "file"))
    assert "cannot be used" in made().problem
    made().save("a", b"content")
    assert made().load("a") is None


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="only Linux and its like have XDG_CACHE_HOME")
def test_a_relative_cache_home_is_ignored(tmp_path, monkeypatch):
    monkeypatch.delenv("GGMLQ_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert disk.root() == tmp_path / ".cache" / "ggmlq"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert disk.root() == tmp_path / "xdg" / "ggmlq"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "here")
    assert "is relative" in disk.here().problem


@posix
def test_doctor_where_nobody_is_at_home():
    if os.geteuid():
        pytest.skip("only root can become a user without an entry in passwd")
    code = "import os; from ggmlq.cpu.report import examine; os.setuid(54321); print(examine()['compiled'])"
    env = {name: value for name, value in os.environ.items() if name not in ("HOME", "GGMLQ_CACHE_DIR")}
    child = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "the home folder is not known" in child.stdout, child.stderr
