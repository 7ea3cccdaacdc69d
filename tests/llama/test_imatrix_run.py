"""An importance matrix of a run: what llama-imatrix would sum up, here from a trace's own records."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.cli import main
from ggmlq.errors import GGMLQError
from ggmlq.testing.models import Shape, tiny_model
from ggmlq.trace.libllama import locate_llama

pytestmark = pytest.mark.llama
KINDS = {"q": "f16", "k": "q8_0", "v": "q8_0", "out": "q4_0", "gate": "f16", "up": "q8_0", "down": "q4_0"}
TEXT = "the quick brown fox jumps over the lazy dog " * 6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """One with experts."""
    try:
        locate_llama()
    except GGMLQError as error:
        pytest.skip(str(error))
    shape = Shape(layers=2, experts=4, hidden=128)
    return tiny_model(tmp_path_factory.mktemp("model") / "m.gguf", KINDS, shape, seed=5)


def test_sums_are_those_of_the_activations(model):
    size = 24
    found = gq.llama.imatrix(model, TEXT, chunk_size=size, chunks=2, threads=1)
    whole = gq.llama.imatrix(model, TEXT, chunk_size=size, threads=1)
    assert found.chunks == 2 < whole.chunks
    with gq.open(model) as file:
        names = {name for name in file if name.startswith("blk.") and file[name].ndim > 1}
    assert set(found.entries) == names
    for name, entry in found.entries.items():
        assert np.isfinite(entry.sums).all()
        assert (entry.sums >= 0).all()
        used = entry.counts.sum()
        assert used % (2 * size) == 0 if "_exps" in name else used == 2 * size
    for one, other in (("attn_q", "attn_k"), ("attn_q", "attn_v"), ("ffn_gate_exps", "ffn_up_exps")):
        a, b = (found.entries[f"blk.1.{name}.weight"] for name in (one, other))  # of the same activations
        assert np.array_equal(a.sums, b.sums)
        assert np.array_equal(a.counts, b.counts)


def test_what_the_first_layer_reads(model):
    """Embeddings, normalized: computed here from the file."""
    tokens = np.random.default_rng(3).integers(3, 60, 32)
    found = gq.llama.imatrix(model, tokens=tokens, chunk_size=32, output=True, threads=1)
    assert len(found.entries) > len(gq.llama.imatrix(model, tokens=tokens, chunk_size=32, threads=1).entries)
    with gq.open(model) as file:
        x = np.asarray(file["token_embd.weight"], np.float64)[tokens]
        x /= np.sqrt((x**2).mean(1, keepdims=True) + file.metadata["llama.attention.layer_norm_rms_epsilon"])
        x *= np.asarray(file["blk.0.attn_norm.weight"], np.float64)
    np.testing.assert_allclose(found.entries["blk.0.attn_q.weight"].sums[0], (x**2).sum(0), rtol=1e-4)


def test_without_a_library_it_is_the_same(model, tmp_path):
    """Files of both ways, of a model with experts: names, counts, keys, and sums within rounding."""
    (tmp_path / "t.txt").write_text(TEXT)
    lib = str(locate_llama()[1])
    words = ["imatrix", "--model", str(model), "--text", str(tmp_path / "t.txt"), "--chunk-size", "24"]
    assert main([*words, "--threads", "1", "-o", str(tmp_path / "a.gguf"), "--lib", lib]) == 0
    assert main([*words, "--threads", "1", "-o", str(tmp_path / "b.gguf")]) == 0
    with gq.open(tmp_path / "a.gguf") as lib, gq.open(tmp_path / "b.gguf") as ours:
        assert [*lib] == [*ours]
        assert dict(lib.metadata) == dict(ours.metadata)
        for name in lib:
            a, b = np.asarray(lib[name]), np.asarray(ours[name])
            assert a.shape == b.shape
            if "blk.0.attn" in name:
                np.testing.assert_allclose(b, a, rtol=2e-2)
            else:  # a rounding makes tokens choose other experts
                assert np.linalg.norm(a - b) <= 0.2 * np.linalg.norm(a)


def test_the_command(model, tmp_path, capsys):
    (tmp_path / "t.txt").write_text(TEXT)
    out = tmp_path / "i.gguf"
    asked = ["imatrix", "--model", str(model), "--text", str(tmp_path / "t.txt"), "--chunk-size", "32"]
    assert main([*asked, "--chunks", "2", "--threads", "1", "--output", str(out)]) == 0
    assert "2 chunks of 32 tokens" in capsys.readouterr().out
    matrix = gq.gguf.read_imatrix(out)
    assert main([*asked, "--output", str(out)]) == 2  # it is there already
    assert "--force" in capsys.readouterr().err
    name = "blk.0.attn_v.weight"
    with gq.open(model) as file:
        q = gq.quantize(np.asarray(file[name]), "q4_0", imatrix=matrix[name][0])
        assert q.shape == file[name].shape
    assert main(["imatrix", "--model", str(model)]) == 2
    assert "--text" in capsys.readouterr().err


def test_a_text_that_is_too_short(model):
    with pytest.raises(GGMLQError, match="a chunk 512"):
        gq.llama.imatrix(model, "Hello", threads=1)
    with pytest.raises(GGMLQError, match="one of them"):
        gq.llama.imatrix(model)
