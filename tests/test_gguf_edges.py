"""The edges of opening and saving: what is refused, what is kept, what is let go of."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import sys
import weakref
from collections.abc import Mapping

import gguf_bytes as gb
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.base import text
from ggmlq.gguf import Metadata, Typed, source
from ggmlq.gguf.check import check

B = gb.Builder()
X = np.ones(4, np.float32)


def nested(depth, value):
    for _ in range(depth):
        value = [value]
    return value


# --- saving ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [nested(16, np.arange(3)), nested(15, np.zeros((2, 2))), np.zeros((1,) * 17), nested(16, np.zeros(0))],
)
def test_numpy_arrays_too_deep(tmp_path, value):
    with pytest.raises(gq.GGUFError, match="16 deep"):
        gq.save(tmp_path / "m.gguf", {}, {"a": value})


@pytest.mark.parametrize(
    ("depth", "array"), [(15, np.arange(3)), (14, np.zeros((2, 2))), (0, np.zeros((1,) * 16))]
)
def test_numpy_arrays_as_deep_as_readers_go(tmp_path, depth, array):
    gq.save(tmp_path / "m.gguf", {}, {"a": nested(depth, array)})
    assert gq.open(tmp_path / "m.gguf").metadata["a"] == nested(depth, array.tolist())


@pytest.mark.parametrize("value", [np.ma.array([1, 2], mask=[0, 1]), np.ma.masked, np.ma.array([[1]])])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x, x], lambda x: Typed(x, "int32")])
def test_masked_arrays_are_no_metadata(tmp_path, value, wrap):
    with pytest.raises(gq.GGUFError, match="masked"):
        gq.save(tmp_path / "m.gguf", {}, {"a": wrap(value)})


def test_keys_and_names_that_c_would_cut(tmp_path):
    with pytest.raises(gq.GGUFError, match=r"'a\\x00b' has a NUL"):
        gq.save(tmp_path / "m.gguf", {}, {"a\0b": 1})
    with pytest.raises(gq.GGUFError, match="name is empty"):
        gq.save(tmp_path / "m.gguf", {"": X})
    (tmp_path / "m.gguf").write_bytes(B.file([B.kv("a\0b", gb.UINT8, 1)], [B.info("", [4], 0, 0)], bytes(16)))
    assert len(gq.open(tmp_path / "m.gguf")) == 1
    assert ("error", "key 'a\\x00b'") in [(f.severity, f.where) for f in check(tmp_path / "m.gguf")]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_what_is_no_regular_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    (tmp_path / "null").symlink_to(os.devnull)
    for name in ("fifo", "link", "null"):
        with pytest.raises(gq.GGUFError, match="not a regular file"):
            gq.save(tmp_path / name, {"x": X})


@pytest.mark.skipif(sys.platform == "win32", reason="links need a permission on this system")
def test_links_are_replaced_and_what_they_lead_to_stays(tmp_path):
    gq.save(tmp_path / "old.gguf", {"old": X})
    (tmp_path / "link.gguf").symlink_to("old.gguf")
    (tmp_path / "dangling.gguf").symlink_to("nothing")
    for name in ("link", "dangling"):
        gq.save(tmp_path / f"{name}.gguf", {"new": X})
        assert not (tmp_path / f"{name}.gguf").is_symlink()
        assert list(gq.open(tmp_path / f"{name}.gguf")) == ["new"]
    assert list(gq.open(tmp_path / "old.gguf")) == ["old"]


@pytest.mark.parametrize("path", ["", "no/", "a.gguf/", "."])
def test_paths_without_a_file(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gq.GGUFError, match=r"names no file|is a folder"):
        gq.save(path, {"x": X})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("alignment", [1, 2, 4])
def test_a_file_with_an_alignment_that_ggml_refuses(tmp_path, alignment):
    raw = B.file([B.kv("general.alignment", gb.UINT32, alignment)], [B.info("x", [4], 0, 0)], bytes(16))
    (tmp_path / "m.gguf").write_bytes(raw[: len(raw) - 16] + bytes(16))
    f = gq.open(tmp_path / "m.gguf")
    with pytest.raises(gq.GGUFError, match=r"general.alignment came with the file; pass alignment=32"):
        gq.save(tmp_path / "n.gguf", f)
    gq.save(tmp_path / "n.gguf", f, alignment=32)
    assert gq.open(tmp_path / "n.gguf").alignment == 32


class Counted(Mapping):
    """Makes arrays, and counts those that are alive whenever another one is asked for."""

    def __init__(self):
        self.made, self.most = [], 0

    def __getitem__(self, name):
        self.most = max(self.most, sum(ref() is not None for ref in self.made))
        x = np.full((64, 64), 1, np.float32)
        self.made.append(weakref.ref(x))
        return x

    def __iter__(self):
        return iter("abcdef")

    def __len__(self):
        return 6


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_one_tensor_at_a_time(tmp_path, byteorder):
    tensors = Counted()
    gq.save(tmp_path / "m.gguf", tensors, byteorder=byteorder)
    assert len(tensors.made) == 12
    assert tensors.most == 0


# --- opening --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [gb.UINT8, gb.STRING])
def test_validate_without_an_architecture_that_decodes(tmp_path, kind):
    value = b"\xff\xfe" if kind == gb.STRING else 1
    (tmp_path / "m.gguf").write_bytes(B.file([B.kv("general.architecture", kind, value)]))
    found = check(str(tmp_path / "m.gguf"))
    expected = ("error", "key ") if kind == gb.STRING else ("note", "general.architecture")
    assert [(f.severity, f.where[: len(expected[1])]) for f in found] == [expected]


def test_a_file_that_closes_between_two_steps(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(gb.small())
    f = gq.open(tmp_path / "m.gguf")
    real = type(f)._place
    monkeypatch.setattr(type(f), "_place", lambda self, *args: self.close() or real(self, *args))
    assert f["w"].shape == (2, 64)
    with pytest.raises(gq.GGUFError, match="is closed"):
        f["w"]


def test_names_that_are_not_there_are_compared_with_few(tmp_path, monkeypatch):
    gq.save(tmp_path / "m.gguf", {f"t{i}": X[:0] for i in range(2001)}, {"key": 1})
    f = gq.open(tmp_path / "m.gguf")
    asked = []
    monkeypatch.setattr(text.difflib, "get_close_matches", lambda *args, **more: asked.append(args) or [])
    assert (f.get("nope"), f.get("nope", 3), f.metadata.get("nope"), f.metadata.get("key", 2)) == (
        None,
        3,
        None,
        1,
    )
    for look in (lambda: f["nope"], lambda: f.metadata["k" * 201]):
        with pytest.raises(KeyError, match="gives the names"):
            look()
    assert not asked
    with pytest.raises(KeyError):
        f.metadata["kex"]
    assert asked


def test_get_of_a_value_that_does_not_decode_still_tells(tmp_path):
    (tmp_path / "m.gguf").write_bytes(B.file([B.kv("bad", gb.STRING, b"\xff")]))
    with pytest.raises(gq.GGUFError, match="UTF-8"):
        gq.open(tmp_path / "m.gguf").metadata.get("bad")


@pytest.mark.parametrize("kind", [gb.INT16, gb.BOOL])
def test_nobody_writes_into_a_value(tmp_path, kind):
    (tmp_path / "m.gguf").write_bytes(B.file([B.kv("n", gb.ARRAY, B.array(kind, [1, 0]))]))
    for found in (gq.open(tmp_path / "m.gguf").metadata, Metadata.of({"n": [1, 0]})):
        array = np.asarray(found["n"])
        while isinstance(array, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 9
            array = array.base


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("order", "<>")
def test_metadata_is_copied_with_its_types(tmp_path, again, order):
    (tmp_path / "m.gguf").write_bytes(gb.small(order))
    before = gq.open(tmp_path / "m.gguf").metadata
    found = again(before)
    assert list(found) == list(before)
    for key in before:
        assert (found[key], found.type(key), found.raw(key)) == (
            before[key],
            before.type(key),
            before.raw(key),
        )


def test_a_pickled_file_opens_in_another_folder(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(gb.small())
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    f = gq.open("m.gguf")
    assert f.path == "m.gguf"
    monkeypatch.chdir(tmp_path / "other")
    assert list(pickle.loads(pickle.dumps(f))) == list(f)


def test_too_many_open_files_are_named(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(gb.small())

    def refused(*args):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(source, "open", refused, raising=False)
    with pytest.raises(OSError, match=r"Too many open files; .*ulimit -n"):
        gq.open(tmp_path / "m.gguf")


# --- what errors say ------------------------------------------------------------------------
