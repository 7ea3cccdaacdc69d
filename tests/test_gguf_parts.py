"""What parts of a split model may say on their own: metadata, alignment, names."""

from __future__ import annotations

from struct import pack

import gguf_bytes as gb
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.gguf import file
from ggmlq.gguf.check import check

B = gb.Builder()


@pytest.fixture
def model(tmp_path):
    """Write parts, each given as its extra keys, and return the path of the first."""

    def model(*extras):
        for i, extra in enumerate(extras):
            keys = [
                B.kv("split.no", gb.UINT16, i), B.kv("split.count", gb.UINT16, len(extras)),
                B.kv("split.tensors.count", gb.INT32, len(extras)), *extra,
            ]  # fmt: skip
            raw = B.file(keys, [B.info(f"t{i}", [4], gb.F32, 0)], bytes(16))
            (tmp_path / file.part_name("m", i + 1, len(extras))).write_bytes(raw)
        return tmp_path / file.part_name("m", 1, len(extras))

    return model


def test_metadata_of_later_parts_is_metadata_of_the_model(model, tmp_path):
    name, mine = B.kv("general.name", gb.STRING, "x"), B.kv("only.two", gb.UINT8, 7)
    f = gq.open(model([name], [mine, name], [mine, B.kv("bad", gb.STRING, b"\xff")]))
    assert list(f.metadata) == ["general.name", "only.two", "bad"]
    assert f.metadata["only.two"] == 7
    g = gq.open(gq.save(tmp_path / "merged.gguf", f)[0])
    assert list(g.metadata) == list(f.metadata)
    assert g.metadata.type("only.two") == "uint8"
    assert g.metadata.raw("bad") == b"\xff"


@pytest.mark.parametrize(
    ("one", "two"), [((gb.UINT8, 1), (gb.UINT8, 2)), ((gb.UINT8, 1), (gb.INT8, 1)), ((8, "a"), (8, "ab"))]
)
@pytest.mark.parametrize("first", [0, 1])
def test_parts_that_contradict_each_other(model, one, two, first):
    extras = [[], [], []]
    extras[first], extras[2] = [B.kv("k", *one)], [B.kv("k", *two)]
    path = model(*extras)
    with pytest.raises(gq.GGUFError, match=rf"m-00003.*'k' has another value than in m-0000{first + 1}-of"):
        gq.open(path)
    assert [finding.where for finding in check(path)] == ["structure"]


def test_validate_reads_the_metadata_of_every_part(model):
    found = check(model([], [B.kv("bad", gb.STRING, b"\xff"), B.kv("a\0b", gb.UINT8, 1)]))
    assert {f.where for f in found if f.severity == "error"} == {"key 'bad'", "key 'a\\x00b'"}


def part(index, sizes, *, key, alignment, trailing=b"", cut=None):
    """A part with tensors of some sizes; padded to the alignment, with the key or without."""
    keys = [
        B.kv("split.no", gb.UINT16, index),
        B.kv("split.count", gb.UINT16, 2),
        B.kv("split.tensors.count", gb.INT32, 2 * len(sizes)),
    ]
    keys += [B.kv("general.alignment", gb.UINT32, key)] if key else []
    infos, data = [], b""
    for i, n in enumerate(sizes):
        data += bytes(-len(data) % alignment)
        infos.append(B.info(f"t{index}.{i}", [n], gb.F32, len(data)))
        data += pack(f"<{n}f", *[10.0 * index + i + 1] * n)
    data += trailing if trailing else b""
    return B.file(keys, infos, data[:cut], alignment=alignment)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("first", [8, 16, 64, 128, 4096])
@pytest.mark.parametrize("later", ["first", "default"])
@pytest.mark.parametrize("sizes", [[1], [8], [15, 15], [64, 3], [2, 2, 2], [1024, 1], [16] * 5])
def test_a_part_that_leaves_out_the_alignment(tmp_path, padded, first, later, sizes):
    """gguf-py pads later parts as the first, llama.cpp's gguf-split to 32."""
    mine = first if later == "first" else 32
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(part(0, sizes, key=first, alignment=first))
    raw = part(1, sizes, key=None, alignment=mine, trailing=bytes(-4 * sizes[-1] % mine if padded else 0))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(raw)
    for path in tmp_path.iterdir():
        f = gq.open(path)
        for i in (0, 1):
            for j in range(len(sizes)):
                assert set(f[f"t{i}.{j}"].blocks.tolist()) == {10.0 * i + j + 1}


def test_a_part_whose_alignment_cannot_be_told(tmp_path):
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(part(0, [5], key=1024, alignment=1024))
    raw = part(1, [5], key=None, alignment=1024, trailing=bytes(4096))
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(raw)
    with pytest.raises(gq.GGUFError, match=r"m-00002.*at byte \d+: there is no general.alignment"):
        gq.open(tmp_path / "m-00001-of-00002.gguf")


def test_splits_of_gguf_py_with_an_alignment(tmp_path):
    gguf = pytest.importorskip("gguf", reason="gguf-py is not installed; pip install gguf")
    writer = gguf.GGUFWriter(tmp_path / "m", "llama", split_max_tensors=2)
    writer.add_custom_alignment(64)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full((3, 5), i + 1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    f = gq.open(tmp_path / "m-00002-of-00003.gguf")
    assert [set(q.blocks.ravel().tolist()) for q in f.values()] == [{i + 1.0} for i in range(5)]
    assert not [finding for finding in check(f.path) if finding.severity == "error"]


def test_digits_of_other_scripts_count_no_parts(tmp_path):
    path = tmp_path / "m-0000\u0661-of-0000\u0662.gguf"
    path.write_bytes(gb.small())
    assert len(gq.open(path).parts) == 1


def test_few_of_many_missing_parts_are_looked_for(tmp_path, monkeypatch):
    (tmp_path / "m-00001-of-99999.gguf").write_bytes(gb.small())
    named = []
    real = file.part_name
    monkeypatch.setattr(file, "part_name", lambda *args: named.append(args) or real(*args))
    with pytest.raises(gq.GGUFError, match="missing beside it: m-00002-of-99999"):
        gq.open(tmp_path / "m-00001-of-99999.gguf")
    assert len(named) < 20
