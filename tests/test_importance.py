"""Importance by gq.model: what each product read, of every family; interrupted, mended, as files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from families import family_model

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.model import importance
from ggmlq.testing.models import Shape, tiny_model

FAMILIES = ("llama", "qwen2", "qwen3moe", "gemma3", "gpt-oss", "phi3", "deepseek2")
TEXT = "the quick brown fox jumps over the lazy dog " * 4


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("m") / "experts.gguf", shape=Shape(experts=6, hidden=256))


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_tells_all_its_matrices(family, tmp_path, fresh):
    """By the fastest kernels as in float64; experts, shared ones, and matrices of heads too."""
    path = family_model(tmp_path / "m.gguf", family)
    tokens = [fresh.integers(3, 250, 24).tolist() for _ in range(2)]
    m = gq.model.load(path)
    fast, exact = (one.importance(tokens, chunk_size=12) for one in (m, m.like("exact", ("f32", "f32"))))
    matrices = {name for name in m.file if name.startswith("blk.") and name.endswith("weight")}
    matrices = {name for name in matrices if m.file[name].ndim > 1}
    assert set(fast) == set(exact) == matrices
    moe = any("_exps" in name for name in matrices)
    for name in fast:
        q = m.file[name]
        assert fast[name].shape == (q.shape[-1:] if q.ndim == 2 else (q.shape[0], q.shape[-1]))
        assert fast[name].dtype == np.float32
        if q.ndim == 2:
            assert fast.counts[name].tolist() == [48]
            far = np.linalg.norm(fast[name] - exact[name]) / np.linalg.norm(exact[name])
            assert far < (0.5 if moe else 0.1)  # a rounding makes tokens choose other experts
        elif "_exps" in name:
            assert fast.counts[name].sum() == 96
        else:
            assert (fast.counts[name] == 48).all()


@pytest.mark.slow
def test_means_are_those_of_the_nodes(experts):
    m, tokens = gq.model.load(experts), [1, *range(60, 90)]
    nodes = dict(m.nodes(tokens, flash=True))
    made = m.importance(tokens)
    want = np.square(nodes["kqv_out-1"].astype(np.float64)).mean(axis=0)
    np.testing.assert_allclose(made["blk.1.attn_output.weight"], want, rtol=1e-3)
    ids, inner = nodes["ffn_moe_topk-1"], np.square(nodes["ffn_moe_swiglu-1"].astype(np.float64))
    down = "blk.1.ffn_down_exps.weight"
    for expert in range(6):
        chosen = ids == expert
        assert made.counts[down][expert] == chosen.sum()
        want = inner[chosen].mean(axis=0) if chosen.any() else 1.0
        np.testing.assert_allclose(made[down][expert], np.broadcast_to(want, 256), rtol=2e-2, atol=1e-7)
    up, gate = (made[f"blk.1.ffn_{role}_exps.weight"] for role in ("up", "gate"))
    assert np.array_equal(up, gate)


def test_the_head_counts_where_asked_for(tmp_path, experts):
    tied = family_model(tmp_path / "g.gguf", "gemma3")
    for path, head in ((tied, "token_embd.weight"), (experts, "output.weight")):
        m = gq.model.load(path)
        plain, more = (m.importance([1, 5, 9, 7], output=output) for output in (False, True))
        assert set(more) - set(plain) == {head}
        assert more.counts[head].tolist() == [4]


def test_texts_and_tokens(experts):
    m = gq.model.load(experts)
    size, tokens = 32, m.tokenizer.encode(TEXT)
    whole = m.importance(TEXT, chunk_size=size)
    assert whole.chunks == len(tokens) // size > 2
    begun = [[1, *tokens[at + 1 : at + size]] for at in range(0, size * whole.chunks, size)]
    assert all(
        np.array_equal(whole.entries[name].sums, entry.sums)
        for name, entry in m.importance(begun, chunk_size=size).entries.items()
    )
    short = m.importance(["ab", "cde"], chunk_size=size, bar=False)
    assert short.counts["blk.0.attn_q.weight"].tolist() == [
        sum(len(m.tokenizer.encode(one)) for one in ("ab", "cde"))
    ]
    assert m.importance(TEXT, chunk_size=size, chunks=1).chunks == 1
    for wrong in ([], [[]], "", ["", ""]):
        with pytest.raises(gq.GGMLQError, match="no tokens"):
            m.importance(wrong)
    with pytest.raises(gq.GGMLQError, match="chunk_size=1"):
        m.importance(TEXT, chunk_size=1)


@pytest.mark.slow
def test_a_quantizer_takes_it_as_it_is(experts, tmp_path):
    made = gq.model.load(experts).importance(TEXT, chunk_size=64)
    path = made.save(tmp_path / "i.gguf")
    settings = {"allow_requantize": True}
    plans = [
        gq.convert.plan_quantize(experts, "q4_0", imatrix=one, **settings)
        for one in (made, gq.gguf.read_imatrix(path))
    ]
    weights = [[step.weights for step in plan.steps if step.weights is not None] for plan in plans]
    assert weights[0]
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)


def test_experts_that_no_token_reached(experts, tmp_path, capsys):
    made = gq.model.load(experts).importance([1, 2])
    name = "blk.0.ffn_up_exps.weight"
    unseen = made.unseen[name]
    assert unseen
    before, seen = made.entries[name].sums.copy(), [e for e in range(6) if e not in unseen]
    made.mend()
    assert not made.unseen
    mean = before.sum(axis=0) / 4
    np.testing.assert_allclose(made[name][list(unseen)], np.tile(mean, (len(unseen), 1)), rtol=1e-6)
    assert np.array_equal(made.entries[name].sums[seen], before[seen])
    (tmp_path / "t.txt").write_text("a")
    words = ["imatrix", "--model", str(experts), "--text", str(tmp_path / "t.txt")]
    assert main([*words, "-o", str(tmp_path / "o.gguf")]) == 0
    assert "no token reached" in capsys.readouterr().out
    assert not gq.gguf.read_imatrix(tmp_path / "o.gguf").unseen


def test_ctrl_c_keeps_whole_chunks(experts, tmp_path, monkeypatch, capsys):
    (tmp_path / "t.txt").write_text(TEXT)
    hear, calls, stops = importance.Squares.hear, [], []

    def interrupted(self, name, *operands):
        calls.append(name)
        if calls.count(name) == stops[-1]:
            raise KeyboardInterrupt
        hear(self, name, *operands)

    monkeypatch.setattr(importance.Squares, "hear", interrupted)
    words = ["imatrix", "--model", str(experts), "--text", str(tmp_path / "t.txt"), "--chunk-size", "32"]
    words += ["-o", str(tmp_path / "o.gguf"), "--json"]
    for stop, chunks in ((1, None), (3, 2)):
        calls.clear()
        stops.append(stop)
        assert main(words) == 130
        out = capsys.readouterr().out
        if chunks is not None:
            facts = json.loads(out)
            assert (facts["interrupted"], facts["chunks"]) == (True, chunks)
            assert gq.gguf.read_imatrix(tmp_path / "o.gguf").chunks == chunks
        else:
            assert not (tmp_path / "o.gguf").exists()


def test_a_model_that_gives_nan(tmp_path):
    path = tiny_model(tmp_path / "m.gguf", {"down": "f32"})
    with gq.open(path) as file:
        tensors, metadata = {name: np.array(file[name]) for name in file}, dict(file.metadata)
    tensors["blk.0.ffn_down.weight"][:] = np.nan
    gq.save(tmp_path / "n.gguf", tensors, metadata)
    with pytest.raises(gq.GGMLQError, match="NaN"):
        gq.model.load(tmp_path / "n.gguf").importance([1, 2, 3])
