"""`gq.llama.activations`: nodes of a real run as arrays, and errors that name what there is."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.errors import GGMLQError, NodeNameError

pytestmark = pytest.mark.llama


def test_hidden_states_are_those_of_the_file(libllama, models, fresh):
    """Embeddings are rows of the file, and the next node is their norm."""
    tokens = [int(t) for t in fresh.integers(3, 250, 7)]
    seen = gq.llama.activations(models["dense"], tokens, nodes=["embd", "attn_norm-0", "l_out-*"], threads=1)
    assert list(seen) == ["embd", "attn_norm-0", "l_out-0", "l_out-1"]
    assert seen.tokens == tokens
    assert {a.dtype for a in seen.values()} == {np.dtype(np.float32)}
    assert {a.shape for a in seen.values()} == {(7, 256)}
    with gq.open(models["dense"]) as file:
        x = file["token_embd.weight"][np.array(tokens)].dequantize()
        eps = file.metadata["llama.attention.layer_norm_rms_epsilon"]
        weights = np.asarray(file["blk.0.attn_norm.weight"])
    assert np.array_equal(seen["embd"], x)
    np.testing.assert_allclose(
        seen["attn_norm-0"], x / np.sqrt((x**2).mean(1, keepdims=True) + eps) * weights, rtol=1e-5
    )
    assert "7 tokens" in repr(seen)
    assert "l_out-1" in repr(seen)


def test_what_belongs_to_the_caller(libllama, models):
    """Arrays are copies, and the same run gives the same ones."""
    one, two = (gq.llama.activations(models["dense"], "Hello", threads=1) for _ in range(2))
    assert list(one) == ["l_out-0", "l_out-1"]
    assert all(np.array_equal(one[name], two[name]) for name in one)
    one["l_out-0"][:] = 0
    assert two["l_out-0"].any()


def test_steps_and_types(libllama, models):
    """Generated tokens have nodes of their own; a cache is f16, or a QuantArray of its blocks."""
    names = "result_output,cache_k_l0*,Kcur-0"
    seen = gq.llama.activations(
        models["dense"], 5, nodes=names, generate=2, cache="q8_0,f16", flash=True, threads=1
    )
    assert len(seen.steps) == 3 == len(seen.logits)
    assert len(seen.generated) == 2
    for step, nodes in enumerate(seen.steps):
        assert np.array_equal(nodes["result_output"][-1], seen.logits[step])
        assert len(nodes["result_output"]) == (1 if step else 5)
    assert [int(row.argmax()) for row in seen.logits[:2]] == seen.generated
    (cache,) = (a for name, a in seen.items() if name.startswith("cache"))
    assert isinstance(cache, gq.QuantArray)
    assert cache.format.name == "q8_0"
    ropes = [one for one in seen.nodes if one.name == "Kcur-0" and one.step == 0]
    assert (ropes[0].op, ropes[-1].op) == ("MUL_MAT", "ROPE")
    assert np.array_equal(ropes[-1].array, seen["Kcur-0"])  # the one that goes on
    # Before blocks of a cache are made the library may rotate each head: lengths stay.
    written, fresh_k = (np.asarray(a).reshape(-1, 2, 64)[:5] for a in (cache, seen["Kcur-0"]))
    np.testing.assert_allclose(np.linalg.norm(written, axis=-1), np.linalg.norm(fresh_k, axis=-1), rtol=2e-2)


def test_the_last_token_alone_where_that_is_wanted(libllama, models):
    whole = gq.llama.activations(models["dense"], [3, 4, 5], nodes="l_out-1", threads=1)
    last = gq.llama.activations(models["dense"], [3, 4, 5], nodes="l_out-1", every_token=False, threads=1)
    assert last["l_out-1"].shape == (1, 256)
    np.testing.assert_allclose(last["l_out-1"][0], whole["l_out-1"][-1], rtol=1e-3, atol=1e-4)


def test_names_that_there_are_not(libllama, models):
    with pytest.raises(NodeNameError, match=r"no node of this run has the name 'lout-\*'; .*'l_out-1'"):
        gq.llama.activations(models["dense"], 2, nodes="l_out-0,lout-*")
    with pytest.raises(KeyError, match=r"'zz'; there are 'embd', .* and [0-9]+ more"):
        gq.llama.activations(models["dense"], 2, nodes="zz")
    with pytest.raises(NodeNameError, match=r"'\*\(permuted\)' are views; .* whole name"):
        gq.llama.activations(models["dense"], 2, nodes="*(permuted)")
    seen = gq.llama.activations(models["dense"], 2, nodes=("l_out-0", "Kcur-0 (view)"), threads=1)
    assert seen["Kcur-0 (view)"].shape == (2, 128)
    assert "l_out-1" not in seen
    with pytest.raises(NodeNameError, match="'l_out-1' was not read; did you mean 'l_out-0'"):
        seen["l_out-1"]


def test_what_makes_no_sense(libllama, models, tmp_path):
    with pytest.raises(GGMLQError, match="no name of a node"):
        gq.llama.activations(models["dense"], "a", nodes=" , ")
    with pytest.raises(GGMLQError, match="the prompt is empty"):
        gq.llama.activations(models["dense"], "")
    with pytest.raises(FileNotFoundError, match="no such file"):
        gq.llama.activations(tmp_path / "none.gguf", "a")
