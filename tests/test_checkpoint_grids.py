"""Checkpoints of 4 bits become blocks of the same grids, weight by weight."""

from __future__ import annotations

import json
import shutil

import checkpoints
import numpy as np
import pytest

import ggmlq as gq
from ggmlq.cli import main

GROUP = 32
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


def words(nibbles):
    """Nibbles [..., n] as words of 32 bits [..., n / 8], the lowest first."""
    parts = nibbles.reshape(*nibbles.shape[:-1], -1, 8).astype(np.uint32)
    return (parts << np.arange(0, 32, 4, dtype=np.uint32)).sum(axis=-1, dtype=np.uint32)


def packed(kind, stem, w, rng, zero):
    """The tensors of one matrix, and the values that they mean; written as each tool's documents say."""
    n, k = w.shape
    codes = rng.integers(0, 16, (n, k))
    zeros = rng.integers(1, 16, (n, k // GROUP)) if zero is None else np.full((n, k // GROUP), zero)
    scales = (rng.random((n, k // GROUP)) * 0.01 + 1e-3).astype(np.float16)
    wide = np.repeat(scales, GROUP, axis=1).astype(np.float32)
    if kind == "mlx":
        biases = (-scales * np.float16(7)).astype(np.float16)
        parts = {"weight": words(codes), "scales": scales, "biases": biases}
        values = wide * codes.astype(np.float32) + np.repeat(biases, GROUP, axis=1).astype(np.float32)
    else:
        values = wide * (codes - np.repeat(zeros, GROUP, axis=1)).astype(np.float32)
        parts = {"scales": np.ascontiguousarray(scales.T)}
        if kind == "gptq":
            parts |= {"qweight": np.ascontiguousarray(words(codes).T), "qzeros": words(zeros.T - 1)}
            parts["g_idx"] = np.arange(k, dtype=np.int32) // GROUP
        else:
            places = np.arange(n).reshape(-1, 8)[:, AWQ].ravel()
            parts |= {"qweight": words(codes.T[:, places]), "qzeros": words(zeros.T[:, places])}
    signed = {p: x.view(np.int32) if x.dtype == np.uint32 and kind != "mlx" else x for p, x in parts.items()}
    return {f"{stem}.{part}": x for part, x in signed.items()}, values


def made(folder, kind, rng, zero=8, change=None):
    """A checkpoint with the layers' matrices in 4 bits, and one with their values as floats."""
    source = checkpoints.write(folder / "floats", "llama3")
    with gq.open(source) as f:
        tensors = {name: np.asarray(x) for name, x in f.items()}
    other, floats = {}, {}
    for name, x in tensors.items():
        if ".layers." in name and x.ndim == 2:
            parts, floats[name] = packed(kind, name.removesuffix(".weight"), x, rng, zero)
            other |= parts
        else:
            other[name] = floats[name] = x.astype(np.float32)
    if change is not None:
        change(other)
    four = folder / kind
    shutil.copytree(source, four)
    for place, content in ((source, floats), (four, other)):
        for old in place.glob("*.safetensors*"):
            old.unlink()
        gq.save(place / "model.safetensors", content)
    config = json.loads((four / "config.json").read_text())
    method = {"mlx": {"group_size": GROUP, "bits": 4}}.get(kind, {"quant_method": kind, "bits": 4})
    config["quantization" if kind == "mlx" else "quantization_config"] = method
    (four / "config.json").write_text(json.dumps(config))
    return source, four


@pytest.mark.parametrize(
    ("kind", "zero", "types"),
    [
        ("gptq", 8, {"q4_0"}),
        ("awq", 8, {"q4_0"}),
        ("gptq", 4, {"q4_1"}),
        ("awq", None, {"q5_0"}),
        ("mlx", 0, {"q4_1"}),
    ],
)
def test_no_weight_changes(kind, zero, types, fresh, tmp_path, capsys):
    source, four = made(tmp_path, kind, fresh, zero)
    whole, out = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    assert main(["convert", str(source), str(whole), "--type", "f32"]) == 0
    capsys.readouterr()
    assert main(["convert", str(four), str(out), "--json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    a, b = gq.open(whole), gq.open(out)
    matrices = [name for name in b if name.startswith("blk.") and b[name].ndim == 2]
    assert note.startswith(f"0 of {sum(a[name].size for name in matrices):,} weights changed")
    assert {b[name].format.name for name in matrices} == types
    assert set(a) == set(b)
    for name in matrices:
        assert np.array_equal(np.asarray(a[name]), np.asarray(b[name])), name
    assert b.metadata["general.file_type"] == {"q4_0": 2, "q4_1": 3, "q5_0": 8}[types.pop()]
    assert main(["convert", str(four), str(out), "--type", "f16", "--force"]) == 0
    assert gq.open(out)[matrices[0]].format.name == "f16"
    assert main(["convert", str(four), str(out), "--type", "q4_K_M", "--force"]) == 0


def longer(tensors):
    name = next(name for name in tensors if name.endswith("q_proj.scales"))
    tensors[name] = np.concatenate([tensors[name], tensors[name]])
    del tensors[name.replace("scales", "g_idx")]


def reordered(tensors):
    for name in tensors:
        if name.endswith("g_idx"):
            tensors[name] = tensors[name][::-1].copy()


def finer(tensors):
    for name in tensors:
        if name.endswith("scales"):
            tensors[name] = tensors[name].astype(np.float32) * np.float32(1.0001)


def flat(tensors):
    name = next(name for name in tensors if name.endswith("scales"))
    tensors[name] = tensors[name].reshape(-1)


def lacking(tensors):
    del tensors[next(name for name in tensors if name.endswith("qzeros"))]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (longer, "do not fit each other"),
        (reordered, "desc_act"),
        (finer, "weights would change as q4_0"),
        (lacking, "qzeros"),
        (flat, "both are matrices"),
    ],
)
def test_what_does_not_fit(change, says, fresh, tmp_path, capsys):
    _, four = made(tmp_path, "gptq", fresh, 8, change)
    assert main(["convert", str(four), str(tmp_path / "o.gguf")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "o.gguf").exists()


def test_bits_that_no_block_has(fresh, tmp_path, capsys):
    _, four = made(tmp_path, "gptq", fresh)
    path = four / "config.json"
    path.write_text(path.read_text().replace('"bits": 4', '"bits": 3'))
    assert main(["convert", str(four), str(tmp_path / "o.gguf")]) == 2
    assert "gptq with 3 bits" in capsys.readouterr().err
