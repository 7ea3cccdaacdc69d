"""Entries on the disk: kept whole, told apart, removed only where they are ours, done without in words."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from ggmlq.store import disk, sources
from ggmlq.store.disk import GENERATIONS, HOME, MARK, Generation

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners and modes of files")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("GGMLQ_CACHE_DIR", str(tmp_path / "place"))
    return tmp_path / "place"


def made(number=0, kind="cpu"):
    return Generation(kind, lambda: f"{number:020x}")


def path(number=0, kind="cpu"):
    return f"{kind}-{number:020x}"


def test_an_entry_comes_back_in_its_generation_alone(place):
    made().save("a", b"content")
    assert made().load("a") == b"content"
    assert made().load("b") is None
    assert made(1).load("a") is None
    assert made(kind="cuda").load("a") is None
    assert made().examine() == (str(place / HOME / path()), None, 1, 7 + disk.SEAL)
    assert not [name for name in os.listdir(place / HOME / path()) if "partial" in name]


@pytest.mark.parametrize("content", [b"", b"content", b"x" * 16, b"junk" * 100])
def test_a_damaged_entry_is_none(place, content):
    made().save("a", b"content")
    (file,) = (place / HOME / path()).glob("a*")
    for damaged in (content, file.read_bytes()[:-1], b"!" + file.read_bytes()[1:]):
        file.write_bytes(damaged)
        assert made().load("a") is None
    made().save("a", b"again")
    assert made().load("a") == b"again"


def test_no_entry_passes_for_another(place):
    made().save("a", b"content")
    (file,) = (place / HOME / path()).glob("a*")
    file.rename(file.with_name(file.name.replace("a", "b", 1)))
    assert made().load("b") is None


def test_old_generations_go_and_nothing_else(place):
    place.mkdir(mode=0o700)
    (place / HOME).mkdir(mode=0o700)
    theirs = ["thesis-final-version", "experiment-results-7", "0" * 20, path(100), path(101, "cuda")]
    for name in theirs:
        for home in (place, place / HOME):
            (home / name).mkdir(parents=True)
            (home / name / "work.txt").write_text("all of it")
    for i in range(8):
        made(i).save("a", b"content")
        os.utime(place / HOME / path(i), (i, i))
    mixed = place / HOME / path(6)
    (mixed / "notes.txt").write_text("mine")
    os.utime(mixed, (0, 0))
    made(8)
    made(9)
    for name in theirs:
        for home in (place, place / HOME):
            assert (home / name / "work.txt").read_text() == "all of it"
    assert sorted(os.listdir(mixed)) == [MARK, "notes.txt"]
    ours = {path(i) for i in range(10)} & set(os.listdir(place / HOME)) - {path(6)}
    assert path(9) in ours
    assert len(ours) <= GENERATIONS


def test_a_link_is_not_followed_to_be_removed(place, tmp_path):
    made(0).save("a", b"content")
    (place / HOME / path(0)).rename(tmp_path / "elsewhere")
    (place / HOME / path(0)).symlink_to(tmp_path / "elsewhere")
    for i in range(1, 8):
        made(i)
    assert len(os.listdir(tmp_path / "elsewhere")) == 2
    assert made(0).load("a") is None


@posix
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_private_whatever_the_umask(place, mask):
    before = os.umask(mask)
    try:
        made().save("a", b"content")
    finally:
        os.umask(before)
    for folder in (place / HOME / path(), place / HOME, place):
        assert stat.S_IMODE(folder.stat().st_mode) & ~0o700 == 0 or mask == 0o777
    assert mask == 0o777 or made().load("a") == b"content"


def test_a_place_that_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("GGMLQ_CACHE_DIR", "off")
    assert disk.root() is None
    assert Generation("cpu", lambda: 1 / 0).problem == "switched off by GGMLQ_CACHE_DIR"
    monkeypatch.setenv("GGMLQ_CACHE_DIR", "~nosuchuser/x")
    assert "~nosuchuser/x is not known" in made().problem
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
    assert "is relative" in made().problem


@posix
def test_doctor_where_nobody_is_at_home():
    if os.geteuid():
        pytest.skip("only root can become a user without an entry in passwd")
    code = "import os; from ggmlq.cpu.report import examine; os.setuid(54321); print(examine()['compiled'])"
    env = {name: value for name, value in os.environ.items() if name not in ("HOME", "GGMLQ_CACHE_DIR")}
    child = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert "the home folder is not known" in child.stdout, child.stderr


# --- the digest of sources --------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, place):
    (tmp_path / "package" / "cpu").mkdir(parents=True)
    file = tmp_path / "package" / "cpu" / "kernel.py"

    def digest(text):
        file.write_text(text)
        os.utime(file, ns=(digest.time, digest.time))
        digest.time += 1
        return sources.digest(["cpu"], ["fact"], tmp_path / "package")

    digest.time = 10**18
    return digest


PLAIN = "class C:\n    def f(self, x):\n        return x + 1\n"


def test_comments_and_docstrings_change_no_digest(package):
    said = (
        '"""A module."""\n# said\nclass C:\n    """A class."""\n\n'
        '    def f(self, x):\n        """Add."""\n        return x + 1  # one\n'
    )
    assert package(said) == package(PLAIN)


@pytest.mark.parametrize(("old", "new"), [("1", "2"), ("x + 1", "'x + 1'"), ("def f", "def g")])
def test_code_changes_the_digest(package, old, new):
    assert package(PLAIN.replace(old, new)) != package(PLAIN)


def test_a_digest_is_taken_once(package, monkeypatch, tmp_path):
    before = package(PLAIN)
    monkeypatch.setattr(sources, "bare", None)
    assert sources.digest(["cpu"], ["fact"], tmp_path / "package") == before
    assert sources.digest(["cpu"], ["another"], tmp_path / "package") != before


def test_without_sources_there_is_no_digest(tmp_path, place):
    with pytest.raises(OSError, match="has no sources"):
        sources.digest(["cpu"], [], tmp_path)
    assert "has no sources" in Generation("cpu", lambda: sources.digest(["cpu"], [], tmp_path)).problem
