"""gguf-py's face: the same attributes and values as gguf-py, for the uses that programs make of it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import ggmlq as gq
import ggmlq.compat.gguf as face
from ggmlq import errors
from ggmlq.gguf import Typed

TYPES = [fmt for fmt in gq.formats.values() if fmt.block_size > 1]


@pytest.fixture
def path(tmp_path, fresh):
    """A file with values of every kind and tensors of many types."""
    n = int(fresh.integers(2, 40))
    words = ["", "ü ☃", *("x" * int(k) for k in fresh.integers(0, 600, n))]
    metadata = {
        "general.architecture": "llama", "general.name": "näme", "flag": True, "half": 0.5, "none": [],
        "tokens": words, "scores": fresh.standard_normal(n).astype(np.float32), "flags": [True, False],
        "int8": Typed([-1, 2], "int8"), "large": Typed(2**63, "uint64"),
    }  # fmt: skip
    w = fresh.standard_normal((6, 512), np.float32)
    tensors = {
        "a.weight": gq.quantize(w, "q4_K"),
        "b": w.astype(np.float16),
        "c": gq.quantize(w, "bf16"),
        "d": w,
    }
    tensors |= {
        "e": gq.quantize(w.reshape(2, 3, 512), "q8_0"),
        "i": np.arange(5, dtype=np.int32),
        "f64": w[0] * 1.0,
    }
    gq.save(tmp_path / "m.gguf", tensors, metadata)
    gq.save(tmp_path / "big.gguf", tensors, metadata, byteorder="big", alignment=64)
    return tmp_path / "m.gguf"


@pytest.mark.parametrize("name", ["m.gguf", "big.gguf"])
def test_the_same_as_gguf_py(name, path):
    gguf = pytest.importorskip("gguf", reason="gguf-py is not installed; pip install gguf")
    theirs, ours = gguf.GGUFReader(path.with_name(name)), face.GGUFReader(path.with_name(name))
    assert list(ours.fields) == list(theirs.fields)
    assert (ours.alignment, ours.data_offset) == (theirs.alignment, theirs.data_offset)
    assert (ours.byte_order, int(ours.endianess)) == (theirs.byte_order, int(theirs.endianess))
    for key, field in theirs.fields.items():
        same = ours.get_field(key)
        assert (same.offset, same.name, list(same.data)) == (field.offset, field.name, list(field.data)), key
        assert [int(kind) for kind in same.types] == [int(kind) for kind in field.types]
        assert [part.tolist() for part in same.parts] == [part.tolist() for part in field.parts]
        assert [part.dtype for part in same.parts] == [part.dtype for part in field.parts]
        assert same.contents() == field.contents()
        if len(field.data) > 1:
            assert same.contents(1) == field.contents(1)
            assert same.contents(slice(1, None)) == field.contents(slice(1, None))
    for ours_one, one in zip(ours.tensors, theirs.tensors, strict=True):
        for fact in ("name", "n_elements", "n_bytes", "data_offset"):
            assert getattr(ours_one, fact) == getattr(one, fact), fact
        assert ours_one.tensor_type.name == one.tensor_type.name
        assert ours_one.shape.tolist() == one.shape.tolist()
        assert ours_one.data.dtype == one.data.dtype
        assert np.array_equal(ours_one.data, one.data)
        assert [part.tolist() for part in ours_one.field.parts] == [part.tolist() for part in one.field.parts]
    assert ours.get_tensor(1).name == theirs.get_tensor(1).name


def test_numbers_of_types_are_gguf_pys():
    gguf = pytest.importorskip("gguf", reason="gguf-py is not installed; pip install gguf")
    for kind in gguf.GGMLQuantizationType:
        assert face.GGMLQuantizationType[kind.name] == kind
        if kind.name != "Q8_1":  # gguf-py counts two floats, ggml two halves
            assert face.GGML_QUANT_SIZES[kind] == gguf.GGML_QUANT_SIZES[kind]
    for kind in gguf.GGUFValueType:
        assert face.GGUFValueType[kind.name] == kind
    assert (face.GGUF_MAGIC, face.GGUF_VERSION) == (gguf.GGUF_MAGIC, gguf.GGUF_VERSION)
    assert face.get_tensor_name_map is gguf.get_tensor_name_map


@pytest.mark.drawn(5)
@pytest.mark.parametrize("fmt", TYPES, ids=lambda fmt: fmt.name)
def test_blocks(fmt, fresh):
    """Every type back to floats; bytes are ggml's where a type can be encoded without importance."""
    from ggmlq.testing.blocks import random_blocks

    blocks = random_blocks(fmt, 3, 2, int(fresh.integers(1 << 30)))
    raw = np.ascontiguousarray(blocks).view(np.uint8).reshape(3, -1)
    shape = face.quant_shape_from_byte_shape(raw.shape, fmt.id)
    assert shape == (3, 2 * fmt.block_size)
    assert face.quant_shape_to_byte_shape(shape, fmt.id) == raw.shape
    values = face.dequantize(raw, face.GGMLQuantizationType(fmt.id))
    assert np.array_equal(values, gq.QuantArray.from_bytes(raw, fmt, shape).dequantize(), equal_nan=True)
    if fmt.can_quantize and not fmt.needs_imatrix:
        x = fresh.standard_normal(shape, np.float32)
        assert np.array_equal(face.quantize(x, fmt.id), gq.quantize(x, fmt).raw)


def test_plain_floats(fresh):
    x = fresh.standard_normal((2, 8), np.float32)
    kinds = face.GGMLQuantizationType
    assert face.quantize(x, kinds.F16).dtype == np.float16
    assert np.array_equal(face.dequantize(face.quantize(x, kinds.F16), kinds.F16), x.astype(np.float16))
    assert np.array_equal(face.dequantize(x.view(np.uint8), kinds.F32), x)
    assert face.quantize(x, kinds.BF16).shape == (2, 16)


def test_the_uses_of_hosts(path):
    """Attributes that diffusers, transformers and ComfyUI-GGUF read, in their order."""
    gguf = face
    reader = gguf.GGUFReader(str(path))
    parameters = {}
    for tensor in reader.tensors:
        plain = tensor.tensor_type in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
        shape = tuple(int(n) for n in reversed(tensor.shape))
        if not plain and tensor.tensor_type in gguf.GGML_QUANT_SIZES and tensor.data.dtype == np.uint8:
            size, nbytes = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
            assert tensor.data.shape == (*shape[:-1], shape[-1] // size * nbytes)
            parameters[tensor.name] = gguf.quants.dequantize(tensor.data.copy(), tensor.tensor_type)
        assert not tensor.data.flags.writeable
    f = gq.open(path)
    assert all(np.array_equal(x, np.asarray(f[name])) for name, x in parameters.items())
    field = reader.get_field("general.architecture")
    assert field.types[0] == gguf.GGUFValueType.STRING
    assert len(field.types) == 1
    assert str(field.parts[field.data[-1]], encoding="utf-8") == "llama"
    tokens = reader.fields["tokens"]
    assert [bytes(tokens.parts[i]).decode() for i in tokens.data] == list(f.metadata["tokens"])
    assert reader.get_field("missing") is None
    assert "missing" not in reader.fields
    assert len(reader.fields) == len(list(reader.fields.items()))


def test_errors(path, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="mode is 'r'"):
        face.GGUFReader(path, "r+")
    (tmp_path / "bad.gguf").write_bytes(b"no" * 40)
    with pytest.raises(errors.GGUFError, match="starts with"):
        face.GGUFReader(tmp_path / "bad.gguf")
    with pytest.raises(face.QuantError, match="blocks hold 256"):
        face.quant_shape_to_byte_shape((2, 100), 12)
    with pytest.raises(ValueError, match="blocks 144"):
        face.dequantize(np.zeros(143, np.uint8), 12)
    tokens = face.GGUFReader(path).fields["tokens"].parts
    with pytest.raises(IndexError):
        tokens[len(tokens)]
    gq.save(tmp_path / "n.gguf", {}, {"nested": [[1], [2]]})
    with pytest.raises(errors.GGUFError, match="array of arrays"):
        face.GGUFReader(tmp_path / "n.gguf").fields["nested"]
    monkeypatch.setattr(face, "find_spec", lambda name: None)
    with pytest.raises(AttributeError, match="pip install gguf"):
        _ = face.GGUFWriter


def test_gguf_py_is_not_imported():
    code = "import sys, ggmlq.compat.gguf as face; face.QK_K; print({'gguf', 'numba'} & {*sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
