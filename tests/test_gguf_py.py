"""gguf-py as the judge, in both directions: values of every type, splits, big-endian."""

from __future__ import annotations

import itertools
import pathlib

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.gguf import Typed

gguf = pytest.importorskip("gguf", reason="gguf-py is not installed; pip install gguf")

KINDS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
LIMITS = {
    kind: [np.iinfo(kind).min, 0, 1, np.iinfo(kind).max] for kind in KINDS
} | {
    "float32": [0.0, -0.5, 2.0**127, float("inf")], "float64": [0.1, -1e300, 5e-324], "bool": [True, False],
    "string": ["", "a", "ünïcödé ☃ 😀", "x" * 5000, "a\0b"],
}  # fmt: skip
ENDIAN = {"little": gguf.GGUFEndian.LITTLE, "big": gguf.GGUFEndian.BIG}


@pytest.fixture
def closed():
    """gguf-py keeps no handle on its memory map; readers are dropped at the end."""
    readers = []
    yield lambda path: readers.append(gguf.GGUFReader(path)) or readers[-1]
    readers.clear()


def write_values(writer):
    for kind, values in LIMITS.items():
        for i, value in enumerate(values):
            writer.add_key_value(f"{kind}.{i}", value, gguf.GGUFValueType[kind.upper()])
        array = gguf.GGUFValueType.ARRAY
        writer.add_key_value(f"{kind}.all", values, array, sub_type=gguf.GGUFValueType[kind.upper()])


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("order", ["little", "big"])
def test_we_read_every_value_that_it_writes(tmp_path, order):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", endianess=ENDIAN[order])
    write_values(writer)
    writer.add_key_value("nested", [[1, 2], [3]], gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.ARRAY)
    finish(writer)
    f = gq.open(tmp_path / "m.gguf")
    assert f.byteorder == order
    assert f.metadata["general.architecture"] == "llama"
    assert f.metadata["nested"] == [[1, 2], [3]]
    for kind, values in LIMITS.items():
        for i, value in enumerate(values):
            assert f.metadata.type(f"{kind}.{i}") == kind
            assert f.metadata[f"{kind}.{i}"] == value
        assert f.metadata.type(f"{kind}.all") == f"array of {kind}"
        assert f.metadata[f"{kind}.all"] == values


@pytest.mark.parametrize("order", ["little", "big"])
def test_it_reads_every_value_that_we_write(tmp_path, order, closed):
    values = {f"{kind}.{i}": Typed(v, kind) for kind, vs in LIMITS.items() for i, v in enumerate(vs)}
    values |= {f"{kind}.all": Typed(vs, kind) for kind, vs in LIMITS.items()}
    gq.save(tmp_path / "m.gguf", {}, {"general.architecture": "llama"} | values, byteorder=order)
    reader = closed(tmp_path / "m.gguf")
    assert reader.endianess == ENDIAN[order]
    for kind, vs in LIMITS.items():
        right = gguf.GGUFValueType[kind.upper()]
        for i, v in enumerate(vs):
            field = reader.fields[f"{kind}.{i}"]
            assert (field.types, field.contents()) == ([right], v)
        assert reader.fields[f"{kind}.all"].types == [gguf.GGUFValueType.ARRAY, right]
        assert reader.fields[f"{kind}.all"].contents() == vs


def known():
    """Formats that gguf-py 0.19 has; its size of q8_1 is wrong."""
    ids = {kind.value for kind in gguf.GGMLQuantizationType}
    return [fmt for fmt in gq.formats.values() if fmt.id in ids and fmt.name != "q8_1"]


def blocks_of(fmt, rows=3, blocks=2):
    raw = np.random.default_rng(fmt.id).integers(0, 256, (rows, blocks * fmt.dtype.itemsize), np.uint8)
    return gq.QuantArray.from_bytes(raw, fmt, (rows, blocks * fmt.block_size))


def test_we_read_every_tensor_that_it_writes(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for fmt in known():
        q = blocks_of(fmt)
        if fmt.block_size == 1 and fmt.name != "bf16":
            writer.add_tensor(fmt.name, q.blocks)
        else:
            writer.add_tensor(fmt.name, q.raw, raw_dtype=gguf.GGMLQuantizationType(fmt.id))
    finish(writer)
    f = gq.open(tmp_path / "m.gguf")
    assert list(f) == [fmt.name for fmt in known()]
    for name, q in f.items():
        right = blocks_of(gq.formats[name])
        assert (q.format, q.shape) == (right.format, right.shape)
        assert np.array_equal(q.raw, right.raw)


def test_it_reads_every_tensor_that_we_write(tmp_path, closed):
    gq.save(tmp_path / "m.gguf", {fmt.name: blocks_of(fmt) for fmt in known()}, alignment=64)
    reader = closed(tmp_path / "m.gguf")
    assert reader.alignment == 64
    assert [tensor.name for tensor in reader.tensors] == [fmt.name for fmt in known()]
    for tensor, fmt in zip(reader.tensors, known(), strict=True):
        right = blocks_of(fmt)
        assert tensor.tensor_type.value == fmt.id
        assert tuple(reversed(tensor.shape.tolist())) == right.shape
        assert tensor.data.tobytes() == right.raw.tobytes()


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i2", "i4", "i8"])
def test_big_endian_numbers(tmp_path, kind, closed):
    x = np.array([[1, 2, 3], [-1, 100, 0]], kind)
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("x", x)
    finish(writer)
    assert np.array_equal(gq.open(tmp_path / "theirs.gguf")["x"].blocks, x)
    gq.save(tmp_path / "ours.gguf", {"x": x}, {"general.architecture": "llama"}, byteorder="big")
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()
    assert closed(tmp_path / "ours.gguf").tensors[0].data.tolist() == x.tolist()


# The types that gguf-py's convert-endian swaps: an outside word on where their numbers lie.
SWAPPED = ["f32", "f16", "bf16", "q4_0", "q8_0", "q4_K", "q6_K", "mxfp4", "nvfp4"]


@pytest.mark.parametrize("name", SWAPPED)
def test_convert_endian_confirms_our_big_endian_blocks(tmp_path, monkeypatch, name):
    from gguf.scripts import gguf_convert_endian as script

    q = blocks_of(gq.formats[name])
    gq.save(tmp_path / "ours.gguf", {"x": q}, {"a": 1}, byteorder="big")
    gq.save(tmp_path / "theirs.gguf", {"x": q}, {"a": 1})
    monkeypatch.setattr("builtins.input", lambda _: "YES")
    monkeypatch.setattr("sys.argv", ["convert", str(tmp_path / "theirs.gguf"), "big"])
    script.main()
    ours, theirs = gq.open(tmp_path / "ours.gguf"), gq.open(tmp_path / "theirs.gguf")
    assert theirs.byteorder == "big"
    assert theirs["x"].blocks.tobytes() == ours["x"].blocks.tobytes()
    assert np.array_equal(theirs["x"].raw, q.raw)


def split_set(path, **limits):
    writer = gguf.GGUFWriter(path, "llama", **limits)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    for i in range(6):
        writer.add_tensor(f"t{i}", np.full(10, i, np.float32))
    finish(writer)


@pytest.mark.parametrize("limits", [{"split_max_tensors": 2}, {"split_max_size": 100}])
def test_we_read_its_split_models(tmp_path, limits):
    split_set(tmp_path / "m.gguf", **limits)
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 3
    for path in paths:
        f = gq.open(path)
        assert f.metadata["tokenizer.ggml.tokens"] == ["a", "b"]
        assert [q.blocks[0] for q in f.values()] == [0, 1, 2, 3, 4, 5]


def test_we_read_its_split_models_with_a_small_first_part(tmp_path):
    split_set(tmp_path / "m.gguf", split_max_tensors=3, small_first_shard=True)
    f = gq.open(tmp_path / "m-00002-of-00003.gguf")
    assert [len(part.header.tensors) for part in f.parts] == [0, 3, 3]
    assert len(f) == 6


def test_we_split_as_it_does(tmp_path, closed):
    split_set(tmp_path / "theirs.gguf", split_max_size=100)
    tensors = {f"t{i}": np.full(10, i, np.float32) for i in range(6)}
    ours = gq.save(
        tmp_path / "ours.gguf", tensors,
        {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a", "b"]}, split_max_bytes=100,
    )  # fmt: skip
    theirs = sorted(tmp_path.glob("theirs*"))
    for mine, other in itertools.zip_longest(ours, theirs):
        assert pathlib.Path(mine).read_bytes() == other.read_bytes()
    assert [len(closed(path).tensors) for path in ours] == [2, 2, 2]
