"""safetensors opened and saved: every type, scales with their weights, indexes and folders."""

from __future__ import annotations

import json
import pickle

import checkpoints
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.gguf import source

FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1"}
OTHERS = {"U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?", "C64": "<c8"}


def file_of(tensors, **extra):
    """Bytes of a file: name -> (type, shape, raw)."""
    header, data = dict(extra), b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(("dtype", "kind"), (FLOATS | OTHERS).items())
def test_types(tmp_path, fresh, dtype, kind):
    shape = tuple(fresh.integers(1, 5, fresh.integers(0, 4)).tolist())
    x = fresh.integers(0, 2, shape).astype(kind)
    path = tmp_path / "m.safetensors"
    path.write_bytes(file_of({"pad": ("U8", (3,), b"abc"), "x": (dtype, shape, x.tobytes())}))  # unaligned
    f = gq.open(path)
    assert f.info("x").shape == shape
    assert isinstance(f["x"], gq.QuantArray) == (dtype in FLOATS)
    np.testing.assert_array_equal(f.stored("x"), x)
    if dtype in FLOATS:
        assert (f["x"].format.name, f["x"].shape) == (dtype.lower(), shape)
    gq.save(tmp_path / "copy.safetensors", f)
    assert gq.open(tmp_path / "copy.safetensors").raw("x").tobytes() == x.tobytes()
    g = gq.open(tmp_path / "copy.safetensors")
    assert list(g) == list(f)
    np.testing.assert_array_equal(g.stored("x"), x)


def test_bfloat16_and_8_bit_floats(tmp_path, fresh):
    values = fresh.standard_normal((4, 8)).astype(np.float32)
    codes = gq.codes["e5m2"].encode(values)
    tensors = {
        "b": ("BF16", (4, 8), checkpoints.encoded(values, "BF16")),
        "c": ("F8_E5M2", (4, 8), codes.tobytes()),
    }
    tensors["s"] = ("F8_E8M0", (2,), b"\x7f\x80")
    path = tmp_path / "m.safetensors"
    path.write_bytes(file_of(tensors, __metadata__={"format": "pt"}))
    f = gq.open(path)
    np.testing.assert_array_equal(np.asarray(f["b"]), np.asarray(gq.quantize(values, "bf16")))
    np.testing.assert_array_equal(np.asarray(f["c"]), gq.codes["e5m2"].decode(codes))
    assert f["s"].tolist() == [127, 128]
    assert f.metadata == {"format": "pt"}
    assert f.quantization.method is None


NAMES = ["_scale_inv", "_scale"]


@pytest.mark.parametrize("code", ["e4m3", "int8"])
@pytest.mark.parametrize("tile", [(None, None), (1, None), (1, 32), (128, 128), (16, 16)])
def test_scales_come_with_their_weights(tmp_path, fresh, code, tile):
    w = fresh.standard_normal((160, 256)).astype(np.float32)
    s = gq.quantize_scaled(w, code, tile)
    path = tmp_path / "m.safetensors"
    gq.save(path, {"a.weight": s, "other": w})
    config = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    if None not in tile:
        config["quantization_config"]["weight_block_size"] = list(tile)
    (tmp_path / "config.json").write_text(json.dumps(config))
    f = gq.open(path)
    assert list(f) == ["a.weight", "a.weight_scale" + ("_inv" if code == "e4m3" else ""), "other"]
    assert f["a.weight"].tile == tile
    np.testing.assert_array_equal(np.asarray(f["a.weight"]), np.asarray(s))
    assert f.quantization.activation_scheme == "dynamic"
    x = fresh.standard_normal((3, 256)).astype(np.float32)
    np.testing.assert_allclose(x @ f["a.weight"].T, x @ s.T, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F8_E8M0"])
@pytest.mark.parametrize("name", ["a.weight_scale", "a.scale", "a.qscale_weight", "a.weight_scale_inv"])
def test_other_names_and_types_of_scales(tmp_path, dtype, name):
    raw = {"BF16": b"\x00\x40", "F16": b"\x00\x40", "F8_E8M0": b"\x80"}[dtype]  # 2
    tensors = {"a.weight": ("F8_E4M3", (2, 2), b"\x38\xb8\x30\x00"), name: (dtype, (), raw)}
    (tmp_path / "m.safetensors").write_bytes(file_of(tensors))
    found = gq.open(tmp_path / "m.safetensors")["a.weight"]
    assert np.asarray(found).tolist() == [[2, -2], [1, 0]]


def test_compressed_tensors_and_stacked_experts(tmp_path):
    codes = np.full((2, 4, 6), 0x38, np.uint8)
    scales = np.arange(1, 5, dtype="<f4").reshape(2, 2, 1)
    tensors = {
        "e": ("F8_E4M3", codes.shape, codes.tobytes()),
        "e_scale": ("F32", scales.shape, scales.tobytes()),
    }
    groups = {
        "group_0": {"weights": {"strategy": "block", "block_structure": [2, 6]}, "input_activations": {}}
    }
    said = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups}
    (tmp_path / "m.safetensors").write_bytes(file_of(tensors))
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": said}))
    f = gq.open(tmp_path / "m.safetensors")
    assert f["e"].tile == (2, 6)
    np.testing.assert_array_equal(np.asarray(f["e"])[:, ::2, 0], scales[..., 0])


def test_scales_that_fit_nothing(tmp_path):
    tensors = {"w": ("F8_E4M3", (6, 6), bytes(36)), "w_scale_inv": ("F32", (5, 5), bytes(100))}
    (tmp_path / "m.safetensors").write_bytes(file_of(tensors))
    f = gq.open(tmp_path / "m.safetensors")
    with pytest.raises(gq.GGMLQError, match=r"shape is \(6, 6\).*weight_block_size"):
        f["w"]
    assert f["w_scale_inv"].shape == (5, 5)


def test_keys_beyond_all_models(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    path.write_bytes(file_of({}, __metadata__={str(i): "" for i in range(5)}))
    assert len(gq.open(path).metadata) == 5
    monkeypatch.setitem(source.LIMITS, source.KEYS, 4)
    with pytest.raises(gq.GGMLQError, match=r"5 keys or more, 4 are read.*GGMLQ_HEADER_LIMITS=2"):
        gq.open(path)
    monkeypatch.setitem(source.LIMITS, source.TENSORS, 0)
    with pytest.raises(gq.GGMLQError, match="brackets"):  # counted before they are parsed
        gq.open(path)


def test_an_index_and_its_folder(tmp_path, fresh):
    parts = {f"model-{i}-of-2.safetensors": {f"t{i}": ("F32", (2,), bytes(8))} for i in (1, 2)}
    for name, tensors in parts.items():
        (tmp_path / name).write_bytes(file_of(tensors))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {t: name for name, ts in parts.items() for t in ts}}))
    for asked in (tmp_path, index):
        f = gq.open(asked)
        assert (sorted(f), len(f.paths), f.missing) == (["t1", "t2"], 2, ())
        assert list(pickle.loads(pickle.dumps(f))) == list(f)
    assert list(gq.open(tmp_path / "model-1-of-2.safetensors")) == ["t1"]
    (tmp_path / "model-2-of-2.safetensors").unlink()
    f = gq.open(tmp_path)
    assert f.missing == ("t2",)
    assert f["t1"].shape == (2,)
    with pytest.raises(gq.GGMLQError, match="not there, model-2-of-2"):
        f["t2"]


def test_a_folder_without_an_index(tmp_path):
    for i in (1, 2):
        (tmp_path / f"x-{i}-of-2.safetensors").write_bytes(file_of({f"t{i}": ("F32", (), bytes(4))}))
    assert sorted(gq.open(tmp_path)) == ["t1", "t2"]
    (tmp_path / "x-3-of-2.safetensors").write_bytes(file_of({"t1": ("F32", (), bytes(4))}))
    with pytest.raises(gq.GGMLQError, match="in another file"):
        gq.open(tmp_path)


def test_the_mapping(tmp_path):
    path = tmp_path / "m.safetensors"
    gq.save(
        path, {"layer.up": np.eye(2, dtype="f4"), "layer.down": np.ones(3, "f2"), "mask": np.ones(2, bool)}
    )
    with gq.open(path) as f:
        held = f["layer.up"]
        assert f["layer.up"] is held
        assert "none" not in f
        assert f.get("none") is None
        assert list(f.to("cpu", filter="layer.*")) == ["layer.up", "layer.down"]
        assert "<td>layer.up</td><td>F32</td>" in f._repr_html_()
        with pytest.raises(KeyError, match=r"did you mean 'layer\.up'"):
            f["layer.uq"]
    with pytest.raises(gq.GGMLQError, match="is closed"):
        f["layer.up"]
    assert np.asarray(held).tolist() == [[1, 0], [0, 1]]
    gq.save(tmp_path / "m.gguf", {name: x for name, x in gq.open(path).items() if name != "mask"})
    assert list(gq.open(tmp_path / "m.gguf")) == ["layer.up", "layer.down"]


def test_content_counts_and_not_the_name(tmp_path):
    gq.save(tmp_path / "a.safetensors", {"w": np.ones(2, "f4")})
    (tmp_path / "a.safetensors").rename(tmp_path / "a.bin")
    assert list(gq.open(tmp_path / "a.bin")) == ["w"]
    gq.save(tmp_path / "b.gguf", {"w": np.ones(2, "f4")})
    (tmp_path / "b.gguf").rename(tmp_path / "b.safetensors")
    assert gq.open(tmp_path / "b.safetensors").version == 3


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"w": np.zeros(2, "M8[s]")}, "its dtype is"),
        ({"__metadata__": np.ones(2)}, "none for a tensor"),
        ({"": np.ones(2)}, "none for a tensor"),
        ({"\ud800": np.ones(2)}, "none for a tensor"),
        ({"w": [1.0]}, "is a list"),
        ([("w", np.ones(2)), ("w", np.ones(2))], "given twice"),
        ([3], "no pair"),
    ],
)
def test_what_is_not_saved(tmp_path, tensors, says):
    with pytest.raises(gq.GGMLQError, match=says):
        gq.save(tmp_path / "m.safetensors", tensors)
    q = gq.quantize(np.ones((2, 32), np.float32), "q4_0")
    with pytest.raises(gq.GGMLQError, match="ggmlq convert"):
        gq.save(tmp_path / "m.safetensors", {"w": q})
    with pytest.raises(gq.GGMLQError, match="texts to texts"):
        gq.save(tmp_path / "m.safetensors", {"w": np.ones(2)}, {"k": 3})
    with pytest.raises(gq.GGMLQError, match="options of GGUF"):
        gq.save(tmp_path / "m.safetensors", {"w": np.ones(2)}, alignment=32)
    assert not list(tmp_path.iterdir())


def test_the_package_reads_what_is_written(tmp_path, fresh):
    numpy = pytest.importorskip("safetensors.numpy", reason="the package safetensors is not installed")
    arrays = {"a": fresh.standard_normal((3, 5)).astype("f2"), "b": np.ones(3, bool), "c": np.arange(4)}
    gq.save(tmp_path / "m.safetensors", arrays, {"k": "v"})
    found = numpy.load_file(tmp_path / "m.safetensors")
    assert set(found) == set(arrays)
    for name, x in arrays.items():
        np.testing.assert_array_equal(found[name], x)
    numpy.save_file(arrays, tmp_path / "n.safetensors")
    f = gq.open(tmp_path / "n.safetensors")
    for name, x in arrays.items():
        np.testing.assert_array_equal(f.stored(name), x)
