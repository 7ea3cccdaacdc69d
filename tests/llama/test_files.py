"""Finding the files of a build, in the layouts of several years and systems."""

from __future__ import annotations

import importlib.metadata
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
from compiled import library

from ggmlq.base import system
from ggmlq.errors import MissingDependencyError, UnsupportedError
from ggmlq.llama import Bridge
from ggmlq.llama import library as loaded
from ggmlq.llama.files import VARIABLE, locate

FAKE = Path(__file__).with_name("fake_ggml.c")


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


LAYOUTS = {
    "bin": ["build/bin/libggml-base.so", "build/bin/libggml.so", "build/bin/libggml-cpu.so"],
    "versions": ["lib/libggml-base.so.0.9.4", "lib/libggml-base.so.0", "lib/libggml.so.0",
                 "lib/libggml-cpu.so.0"],
    "src": ["build/ggml/src/libggml-base.so", "build/ggml/src/libggml.so",
            "build/ggml/src/ggml-cpu/libggml-cpu.so"],
    "own src": ["build/src/libggml-base.so", "build/src/libggml.so", "build/src/ggml-cpu/libggml-cpu.so"],
    "backends that load": ["build/src/libggml-base.so", "build/src/libggml.so", "build/bin/libggml-cpu.so"],
    "mac": ["bin/libggml-base.0.dylib", "bin/libggml-base.dylib", "bin/libggml.dylib",
            "bin/libggml-cpu.dylib"],
    "windows": ["build/bin/Release/ggml-base.dll", "build/bin/Release/ggml.dll",
                "build/bin/Release/ggml-cpu.dll"],
}  # fmt: skip


@pytest.mark.parametrize("names", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts(tmp_path, names):
    touch(tmp_path, *names, "build/bin/libllama.so", "lib/libggml-notes.txt")
    build = locate(tmp_path)
    assert set(build.parts) == {"", "base", "cpu"}
    assert build.base.name.startswith(("libggml-base.", "ggml-base."))
    assert set(build.backends) == {"cpu"}
    shortest = min((n for n in names if "base" in n), key=len)
    assert build.base == tmp_path / shortest


def test_one_library_of_the_old_days(tmp_path):
    touch(tmp_path, "ggml/src/libggml.so")
    assert locate(tmp_path).base == tmp_path / "ggml/src/libggml.so"


def test_variants_of_one_backend(tmp_path):
    touch(tmp_path, "libggml-base.so", "libggml.so", "libggml-cpu-haswell.so", "libggml-cpu-zen4.so")
    assert set(locate(tmp_path).backends) == {"cpu-haswell", "cpu-zen4"}


def test_a_file_brings_its_neighbours(tmp_path):
    touch(tmp_path, "libggml-base.so", "libggml.so", "libggml-cuda.so")
    build = locate(tmp_path / "libggml-cuda.so")
    assert build.base == tmp_path / "libggml-base.so"
    assert set(build.parts) == {"", "base", "cuda"}


def test_a_file_of_any_name_is_all_of_ggml(tmp_path):
    touch(tmp_path, "mine.so")
    assert locate(tmp_path / "mine.so").parts == {"": tmp_path / "mine.so"}


def test_the_variable(tmp_path, monkeypatch):
    touch(tmp_path, "libggml-base.so")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert locate().base == tmp_path / "libggml-base.so"


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    with pytest.raises(MissingDependencyError, match="neither a file nor a folder"):
        locate(tmp_path / "none")
    with pytest.raises(MissingDependencyError, match=r"holds no libggml-base.*BUILD_SHARED_LIBS"):
        locate(tmp_path)
    touch(tmp_path, "libggml-cuda.so")
    with pytest.raises(MissingDependencyError, match="is one backend"):
        locate(tmp_path / "libggml-cuda.so")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("importlib.metadata.distributions", list)
    with pytest.raises(MissingDependencyError, match="none found; set GGMLQ_LIBGGML"):
        locate()


def test_a_folder_of_a_folder(tmp_path):
    """An archive that was unpacked by hand has a folder of its own."""
    touch(tmp_path, "llama-b9999/libggml-base.so", "llama-b9999/libllama.so", "notes/readme.txt")
    assert locate(tmp_path).base == tmp_path / "llama-b9999/libggml-base.so"


def test_a_library_of_any_package(tmp_path, monkeypatch):
    """A package that is not llama-cpp-python, found by the files that it lists."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    touch(tmp_path, "other/lib/libggml-base.so", "other/lib/libggml-cpu.so")
    info = tmp_path / "other-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (info / "RECORD").write_text("other/__init__.py,,\nother/lib/libggml-base.so,,\n")
    packages = list(importlib.metadata.distributions(path=[str(tmp_path)]))
    monkeypatch.setattr("importlib.metadata.distributions", lambda: packages)
    assert locate().base == tmp_path / "other/lib/libggml-base.so"


def packed(folder, path):
    """An archive of a folder, as releases have them: libraries in build/bin, other files beside."""
    inner = folder / "build" / "bin"
    inner.mkdir(parents=True)
    (inner / "libggml-base.so.0.9").write_bytes(b"base")
    (inner / "libggml-base.so").symlink_to("libggml-base.so.0.9")
    (inner / "libggml-cpu-haswell.so").write_bytes(b"cpu")
    (inner / "llama-cli").write_bytes(b"program")
    if path.suffix != ".zip":
        with tarfile.open(path, "w:gz") as archive:
            archive.add(folder / "build", "build")
        return
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(inner.iterdir()):
            info = zipfile.ZipInfo(f"build/bin/{file.name}")
            info.external_attr = (0o120777 if file.is_symlink() else 0o100644) << 16
            archive.writestr(info, os.readlink(file) if file.is_symlink() else file.read_bytes())


@pytest.mark.parametrize("name", ["llama-b9999-bin-ubuntu-x64.zip", "llama-b9999-bin-ubuntu-x64.tar.gz"])
def test_an_archive_of_a_release(tmp_path, name):
    packed(tmp_path / "tree", tmp_path / name)
    build = locate(tmp_path / name)
    assert build.base.read_bytes() == b"base"
    assert set(build.parts) == {"base", "cpu-haswell"}
    assert locate(tmp_path / name).folder == build.folder  # it is unpacked once
    assert build.folder.stat().st_mode & 0o077 == 0  # nobody else writes what we load
    assert not (build.folder / "llama-cli").exists()


def test_archives_that_are_none(tmp_path):
    with tarfile.open(tmp_path / "empty.tar.gz", "w:gz"):
        pass
    (tmp_path / "broken.zip").write_bytes(b"no archive")
    with pytest.raises(MissingDependencyError, match="holds no libraries"):
        locate(tmp_path / "empty.tar.gz")
    with pytest.raises(MissingDependencyError, match="cannot be read"):
        locate(tmp_path / "broken.zip")


def test_an_archive_writes_nowhere_else(tmp_path):
    """Names and links with folders in them stay in the folder."""
    with tarfile.open(tmp_path / "hostile.tar", "w") as archive:
        info = tarfile.TarInfo("../../libggml-base.so")
        info.size = 4
        archive.addfile(info, io.BytesIO(b"base"))
        link = tarfile.TarInfo("x/libggml-cpu.so")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/libggml-base.so"
        archive.addfile(link)
    build = locate(tmp_path / "hostile.tar")
    assert build.base.parent == build.folder
    assert (build.folder / "libggml-cpu.so").resolve().parent == build.folder.resolve()


# --- what was really loaded -------------------------------------------------------------------


@pytest.fixture
def copied(compile_fake, tmp_path):
    """A libggml in a folder of its own, whose libggml-cpu the loader takes from where it was built."""
    if not system.FILES.exists():
        pytest.skip("what a process has loaded is read on Linux only")
    built = compile_fake(tmp_path / "built/here/libggml-cpu.so", "NO_REGISTRY").parent
    words = ["-Wl,--no-as-needed", f"-L{built}", "-l:libggml-cpu.so", f"-Wl,-rpath,{built}"]
    flags = [*words, "-Wl,--enable-new-dtags"]
    return library(FAKE, tmp_path / "copied/libggml.so", *flags), built


def test_a_library_that_loads_its_neighbour_from_elsewhere(copied, monkeypatch):
    path, built = copied
    for named in (path, path.parent):
        with pytest.raises(UnsupportedError, match=rf"{named} has loaded {built}/libggml-cpu.so.*RUNPATH"):
            Bridge(named)
    monkeypatch.setenv(loaded.ALSO, str(built))
    with Bridge(path) as bridge:
        assert bridge.libraries == [built / "libggml-cpu.so", path]


HOMES = {
    "a prefix": ("usr/lib/libggml.so", "usr/lib64/ggml/libggml-cpu.so", "usr/local/lib/libggml-cpu.so"),
    "a build": ("build/bin/Release/libggml.so", "build/ggml/src/libggml-cpu.so", "other/libggml-cpu.so"),
    "a folder": ("mine/libggml.so", "mine/below/libggml-cpu.so", "libggml-cpu.so"),
}


@pytest.mark.parametrize(("named", "inside", "outside"), HOMES.values(), ids=HOMES)
def test_folders_of_a_build(tmp_path, named, inside, outside):
    touch(tmp_path, named)
    for what in (tmp_path / named, (tmp_path / named).parent):
        homes = loaded.homes(locate(what))
        assert any((tmp_path / inside).is_relative_to(home) for home in homes)
        assert not any((tmp_path / outside).is_relative_to(home) for home in homes)


def test_a_folder_of_links(tmp_path):
    touch(tmp_path, "store/1/libggml.so.0", "store/1/libggml-cpu.so.0")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/libggml.so").symlink_to(tmp_path / "store/1/libggml.so.0")
    assert tmp_path / "store/1" in loaded.homes(locate(tmp_path / "mine"))
