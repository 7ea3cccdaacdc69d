"""nvfp4 as a target: a scale of all values beside each matrix, embeddings and head in q8_0."""

from __future__ import annotations

import json

import numpy as np
import pytest
from families import family_model

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.testing.models import Shape, tiny_model


@pytest.fixture
def path(tmp_path, fresh):
    """A model, one of whose matrices has small values, one zeros only."""
    kinds = dict.fromkeys(("q", "k", "v", "out", "gate", "up", "down", "embd", "head"), "f32")
    made = tiny_model(tmp_path / "all.gguf", kinds, Shape(layers=2), seed=int(fresh.integers(99)))
    with gq.open(made) as f:
        tensors = {name: np.asarray(q).copy() for name, q in f.items()}
        tensors["blk.0.ffn_up.weight"] *= 1e-4 / tensors["blk.0.ffn_up.weight"].std()
        tensors["blk.1.ffn_up.weight"] *= 0
        gq.save(tmp_path / "m.gguf", tensors, f.metadata)
    return tmp_path / "m.gguf"


def test_scales_lie_beside_the_blocks(path, tmp_path, capsys):
    out = tmp_path / "o.gguf"
    assert main(["quantize", str(path), str(out), "--type", "nvfp4", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["file_bytes"] == [out.stat().st_size]
    before, after = gq.open(path), gq.open(out)
    assert {after[name].format.name for name in ("token_embd.weight", "output.weight")} == {"q8_0"}
    for name in (name for name in after if after[name].format.name == "nvfp4"):
        x, q = np.asarray(before[name]), after[name]
        assert q.scale is not None
        assert np.asarray(after[name.replace("weight", "scale")]) == q.scale
        if x.any():
            assert q.scale == pytest.approx(np.abs(x).max() / 1440)
            assert gq.nmse(np.asarray(q), x) < 0.012, (
                name
            )  # of normal numbers; without a scale 1e-4 becomes 0
        else:
            assert not np.asarray(q).any()
    (small,) = [t for t in facts["tensors"] if t["name"] == "blk.0.ffn_up.weight"]
    assert small["nmse"] == pytest.approx(
        gq.nmse(np.asarray(after[small["name"]]), np.asarray(before[small["name"]])), rel=1e-3
    )
    tokens = [1, 5, 6, 9]
    a, b = gq.model.load(path).logits(tokens), gq.model.load(out).logits(tokens)
    assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.9


def test_workers_write_the_same_bytes(path, tmp_path):
    outs = [tmp_path / f"{i}.gguf" for i in range(2)]
    assert main(["quantize", str(path), str(outs[0]), "--type", "nvfp4", "--json"]) == 0
    assert main(["quantize", str(path), str(outs[1]), "--type", "nvfp4", "--json", "--workers", "2"]) == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_a_user_may_keep_the_embedding(path, tmp_path):
    out = tmp_path / "o.gguf"
    assert (
        main(["quantize", str(path), str(out), "--type", "nvfp4", "--keep", "token_embd=nvfp4", "--json"])
        == 0
    )
    assert gq.open(out)["token_embd.weight"].format.name == "nvfp4"


def test_parts_have_the_scales_too(path, tmp_path):
    parts = gq.save(tmp_path / "p.gguf", gq.open(path), gq.open(path).metadata, split_max_tensors=9)
    out = tmp_path / "o.gguf"
    assert main(["quantize", str(parts[0]), str(out), "--type", "nvfp4", "--json", "--keep-split"]) == 0
    first = next(tmp_path.glob("o-00001-of-*.gguf"))
    assert all(q.scale is not None for q in gq.open(first).values() if q.format.name == "nvfp4")


def test_experts_have_scales_of_their_own_and_inputs_too(tmp_path, capsys, fresh):
    """As llama.cpp reads them: a number for each expert; those of inputs by the largest value on a text."""
    path, out, text = tmp_path / "m.gguf", tmp_path / "o.gguf", tmp_path / "t.txt"
    made = family_model(tmp_path / "all.gguf", "mixtral", types=("f32",), seed=int(fresh.integers(99)))
    with gq.open(made) as f:
        tensors = {name: np.asarray(q).copy() for name, q in f.items()}
        tensors["blk.0.ffn_up_exps.weight"] *= fresh.uniform(1e-4, 1, (6, 1, 1)).astype(np.float32)
        gq.save(path, tensors, f.metadata)
    text.write_text("Waltz, bad nymph, for quick jigs vex. " * 6)
    words = ["quantize", str(path), str(out), "--type", "nvfp4", "--json", "--force"]
    assert main(words) == 0
    small = next(t for t in json.loads(capsys.readouterr().out)["tensors"] if "0.ffn_up_exps" in t["name"])
    before, after = gq.open(path), gq.open(out)
    for name in ("blk.0.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"):
        x, scales = np.asarray(before[name]), np.asarray(after[name.replace("weight", "scale")])
        assert scales == pytest.approx(np.abs(x).max((1, 2)) / 1440)
        assert max(gq.nmse(np.asarray(q), one) for q, one in zip(after[name], x, strict=True)) < 0.012
    assert small["nmse"] == pytest.approx(
        gq.nmse(np.asarray(after[small["name"]]), np.asarray(before[small["name"]])), rel=1e-3
    )
    assert not any(name.endswith("input_scale") for name in after)
    assert main([*words, "--feedback", str(text), "--stretch", "24"]) == 0
    capsys.readouterr()
    after = gq.open(out)
    for name in (name for name in after if after[name].format.name == "nvfp4"):
        scales = np.asarray(after[name.replace("weight", "input_scale")])
        assert scales.shape == np.asarray(after[name.replace("weight", "scale")]).shape
        assert (scales > 0).all()
    assert gq.model.load(out).logits([1, 5, 6]).shape[0] == 3
