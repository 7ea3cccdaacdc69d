"""Split models: found whole from any part, or refused with the reason."""

from __future__ import annotations

import os
import shutil

import gguf_bytes as gb
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.gguf import Typed

TENSORS = {f"t{i}": np.full(n, i, np.float32) for i, n in enumerate([10, 10, 100, 5, 5, 5, 40])}
METADATA = {"general.name": "whole", "vocabulary": ["a", "b"], "u8": Typed(3, "uint8")}


@pytest.fixture
def parts(tmp_path):
    """The paths of a saved set: 80, 400, 60 and 160 tensor bytes."""
    paths = gq.save(tmp_path / "m.gguf", TENSORS, METADATA, split_max_bytes=100)
    assert [os.path.basename(p) for p in paths] == [f"m-0000{i}-of-00004.gguf" for i in (1, 2, 3, 4)]
    assert sorted(os.listdir(tmp_path)) == [os.path.basename(p) for p in paths]
    return paths


def rename(path, new):
    os.rename(path, os.path.join(os.path.dirname(path), new))


def check(f):
    assert list(f) == list(TENSORS)
    assert all(np.array_equal(f[name].blocks, x) for name, x in TENSORS.items())
    assert dict(f.metadata) == {"general.name": "whole", "vocabulary": ["a", "b"], "u8": 3}


def test_any_part_opens_the_whole(parts):
    for path in parts:
        f = gq.open(path)
        check(f)
        assert list(f.paths) == parts
        assert [len(part.header.tensors) for part in f.parts] == [2, 1, 3, 1]
        assert "4 parts" in repr(f)


def test_any_part_opens_from_another_folder(parts, monkeypatch):
    monkeypatch.chdir(os.path.dirname(parts[0]))
    check(gq.open(os.path.basename(parts[2])))
    check(gq.open(os.path.join(".", os.path.basename(parts[1]))))


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, [1] * 7),
        (40, [1, 1, 1, 2, 1, 1]),
        (79, [1, 1, 1, 3, 1]),
        (80, [2, 1, 3, 1]),
        (699, [6, 1]),
        (700, [7]),
        (10**12, [7]),
    ],
)
def test_how_tensors_are_dealt_out(tmp_path, most, sizes):
    paths = gq.save(tmp_path / "m.gguf", TENSORS, METADATA, split_max_bytes=most)
    f = gq.open(paths[0])
    assert [len(part.header.tensors) for part in f.parts] == sizes
    check(f)
    assert (paths == [str(tmp_path / "m.gguf")]) == (len(sizes) == 1)
    for number, part in enumerate(f.parts):
        keys = {k: v.decode() for k, v in part.header.metadata.items() if k.startswith("split.")}
        right = {"split.no": number, "split.count": len(sizes), "split.tensors.count": 7}
        assert keys == (right if len(sizes) > 1 else {})


@pytest.mark.parametrize("order", ["little", "big"])
def test_alignment_and_byte_order_of_parts(tmp_path, order):
    paths = gq.save(tmp_path / "m.gguf", TENSORS, {}, alignment=256, byteorder=order, split_max_bytes=100)
    f = gq.open(paths[1])
    assert {(p.header.alignment, p.header.byteorder) for p in f.parts} == {(256, order)}
    assert all(np.array_equal(f[name].blocks, x) for name, x in TENSORS.items())


def test_names_of_parts(tmp_path):
    x = {"a": np.ones(2, np.int8), "b": np.ones(2, np.int8)}
    for name, stem in [("x", "x"), ("x.bin", "x.bin"), ("a.b.gguf", "a.b"), ("m-00002-of-00009.gguf", "m")]:
        paths = gq.save(tmp_path / name, x, split_max_bytes=2)
        assert [os.path.basename(p) for p in paths] == [f"{stem}-0000{i}-of-00002.gguf" for i in (1, 2)]
        assert len(gq.open(paths[1])) == 2


def test_merging_and_splitting_anew(parts, tmp_path):
    (merged,) = gq.save(tmp_path / "merged.gguf", gq.open(parts[3]))
    f = gq.open(merged)
    check(f)
    assert len(f.parts) == 1
    assert "split.count" not in f.parts[0].header.metadata
    again = gq.save(tmp_path / "again.gguf", f, split_max_bytes=100)
    for old, new in zip(parts, again, strict=True):
        with open(old, "rb") as a, open(new, "rb") as b:
            assert a.read() == b.read()


def test_a_set_is_edited_over_itself(parts, tmp_path):
    f = gq.open(parts[0])
    assert gq.save(tmp_path / "m.gguf", f, f.metadata | {"new": 1}, split_max_bytes=100) == parts
    assert gq.open(parts[1]).metadata["new"] == 1
    check(f)


def test_missing_parts_are_named(parts):
    os.unlink(parts[1])
    os.unlink(parts[3])
    with pytest.raises(
        gq.GGUFError, match=r"missing beside it: m-00002-of-00004.gguf, m-00004-of-00004.gguf"
    ):
        gq.open(parts[2])


def test_many_missing_parts_are_counted(tmp_path):
    b = gb.Builder()
    (tmp_path / "m-00001-of-00100.gguf").write_bytes(b.file([b.kv("split.count", gb.UINT16, 100)]))
    with pytest.raises(gq.GGUFError, match=r"m-00002-of-00100.gguf, .*m-00009-of-00100.gguf and more"):
        gq.open(tmp_path / "m-00001-of-00100.gguf")


def foreign(tmp_path, parts, **options):
    """The second part of another model of four parts, in the place of the right one."""
    paths = gq.save(tmp_path / "other.gguf", **options)
    shutil.copy(paths[1], parts[1])


def test_a_part_of_another_model(parts, tmp_path):
    others = {f"o{i}": x for i, x in enumerate(TENSORS.values())} | {"one.more": np.ones(40, np.float32)}
    foreign(tmp_path, parts, tensors=others, metadata={}, split_max_bytes=161)
    with pytest.raises(gq.GGUFError, match="does not belong to the split model beside it: its split"):
        gq.open(parts[0])


def test_a_part_of_another_size(parts, tmp_path):
    shutil.copy(parts[0], tmp_path / "keep")
    gq.save(tmp_path / "m.gguf", TENSORS, split_max_bytes=700)
    shutil.copy(tmp_path / "m.gguf", parts[1])
    with pytest.raises(gq.GGUFError, match="does not belong"):
        gq.open(parts[0])


def test_a_part_in_another_byte_order(parts, tmp_path):
    foreign(tmp_path, parts, tensors=TENSORS, metadata={}, split_max_bytes=100, byteorder="big")
    with pytest.raises(gq.GGUFError, match="it is big-endian"):
        gq.open(parts[2])


def test_two_parts_that_changed_their_names(parts):
    rename(parts[1], "x")
    rename(parts[2], os.path.basename(parts[1]))
    rename(os.path.join(os.path.dirname(parts[0]), "x"), os.path.basename(parts[2]))
    with pytest.raises(gq.GGUFError, match=r"its split.no is 2, the set as it lies here makes it 1"):
        gq.open(parts[0])


def test_the_same_part_twice(parts):
    b = gb.Builder()
    for path in parts[:2]:
        with open(path, "wb") as file:
            file.write(b.file([], [b.info("w", [1], gb.F32, 0)], bytes(4)))
    for path in parts[:2]:
        rename(path, os.path.basename(path).replace("4.gguf", "2.gguf"))
    with pytest.raises(gq.GGUFError, match=r"tensor 'w' is in m-00001-of-00002.gguf too"):
        gq.open(parts[0].replace("4.gguf", "2.gguf"))


def test_a_part_under_a_plain_name(parts):
    rename(parts[1], "plain.gguf")
    with pytest.raises(gq.GGUFError, match=r"is part 2 of 4 .* rename it to name-00002-of-00004.gguf"):
        gq.open(os.path.join(os.path.dirname(parts[1]), "plain.gguf"))


@pytest.mark.parametrize("name", ["m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-00001-of-00000.gguf"])
def test_names_that_count_wrongly(tmp_path, name):
    (tmp_path / name).write_bytes(gb.small())
    with pytest.raises(gq.GGUFError, match="parts count from 1"):
        gq.open(tmp_path / name)


def test_one_part_of_one(tmp_path):
    b = gb.Builder()
    for name in ("m-00001-of-00001.gguf", "plain.gguf"):
        (tmp_path / name).write_bytes(b.file([b.kv("split.count", gb.UINT16, 1)]))
        assert gq.open(tmp_path / name).metadata["split.count"] == 1


@pytest.mark.parametrize("kind", [gb.STRING, gb.FLOAT32, gb.BOOL])
def test_split_keys_of_another_type(tmp_path, kind):
    b = gb.Builder()
    (tmp_path / "m.gguf").write_bytes(b.file([b.kv("split.count", kind, "2" if kind == gb.STRING else 1)]))
    with pytest.raises(gq.GGUFError, match="it must be an integer"):
        gq.open(tmp_path / "m.gguf")


def test_a_damaged_part(parts):
    with open(parts[2], "r+b") as file:
        file.truncate(150)
    with pytest.raises(gq.GGUFError, match=r"m-00003-of-00004.gguf: at byte"):
        gq.open(parts[0])
