"""Gemma 4: layers of two widths, keys of earlier layers, columns beside rows; and files that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from families import Sizes, family_model
from wide_families import WIDE

import ggmlq as gq
from ggmlq.errors import GGUFError, UnsupportedError


@pytest.fixture
def changed(fresh, tmp_path):
    """``changed(family, facts, drop)``: a model whose metadata are changed, without some tensors."""

    def write(family, facts=None, drop=(), **options):
        path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), **options)
        with gq.open(path) as file:
            tensors = {name: q for name, q in file.items() if name not in drop}
            kept = dict(file.metadata.items()) | {f"gemma4.{key}": v for key, v in (facts or {}).items()}
            kept = {key: value for key, value in kept.items() if value is not None}
            gq.save(tmp_path / "changed.gguf", tensors, kept)
        return tmp_path / "changed.gguf"

    return write


@pytest.mark.parametrize("family", WIDE)
def test_a_sequence_may_be_cut_anywhere(changed, fresh, family):
    m = gq.model.load(changed(family), arithmetic="exact", cache="f32")
    tokens = fresh.integers(3, 259, 60)  # more than the window has
    whole, cache = m.logits(tokens), m.cache(60)
    ends = np.sort(fresh.choice(np.arange(1, 60), 3, replace=False))
    cut = [m.run(some, cache) for some in np.split(tokens, ends)]
    assert gq.nmse(np.concatenate(cut), whole) < 1e-20
    cache.truncate(30)
    assert gq.nmse(m.run(tokens[30:], cache), whole[30:]) < 1e-20
    several = m.logits([tokens, tokens[:5], tokens[3:]])
    assert gq.nmse(several[1], whole[:5]) < 1e-20
    assert gq.nmse(several[2], m.logits(tokens[3:])) < 1e-20


def test_a_walk_from_a_layer_on(changed, fresh):
    """It begins where no later layer reads keys of an earlier one."""
    m, tokens = gq.model.load(changed("gemma4", sizes=Sizes(layers=6)), arithmetic="exact"), range(5, 14)
    rows = list(m.layers(tokens))
    starts = [m.config.beginning(i) for i in range(7)]
    assert starts == [0, 1, 2, 2, 2, 2, 6]
    for start in {*starts}:
        assert gq.nmse(list(m.layers(tokens, behind=(start, rows[start])))[-1], rows[-1]) < 1e-20
    with pytest.raises(UnsupportedError, match="read keys of layer 2"):
        list(m.layers(tokens, behind=(3, rows[3])))


def test_layers_without_keys_have_no_memory(changed):
    m = gq.model.load(changed("gemma4"))
    assert [m.config.keyed(i) for i in range(4)] == [0, 1, 0, 1]
    assert [layer.k.shape[-1] for layer in m.cache(5).layers] == [64, 128]


def test_all_keys_may_be_their_own(changed, fresh):
    """Without shared layers each has its matrices; those of the last ones are then needed."""
    path = changed("gemma4", {"attention.shared_kv_layers": 0})
    with pytest.raises(GGUFError, match=r"no tensor blk\.2\.attn_k_norm\.weight"):
        gq.model.load(path)
    path = changed("gemma4-moe", {"attention.shared_kv_layers": None}, sizes=Sizes(layers=3))
    assert np.isfinite(gq.model.load(path).logits(fresh.integers(3, 259, 5))).all()


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"attention.shared_kv_layers": 3}, "a layer with a window and one without lie before"),
        ({"attention.shared_kv_layers": 4}, "shared_kv_layers is 4"),
        ({"attention.shared_kv_layers": 9}, "shared_kv_layers is 9"),
        ({"attention.sliding_window_pattern": 2}, "a list of true and false"),
        ({"attention.sliding_window_pattern": None}, "a list of true and false"),
        ({"attention.sliding_window": 0}, "beside attention.sliding_window"),
        ({"attention.key_length_swa": None}, "key_length_swa is None"),
        ({"attention.key_length_swa": 32}, "value_length_swa is 64; it is the 32"),
        ({"attention.value_length": 64}, "value_length is 64; it is the 128"),
        ({"rope.dimension_count_swa": 66}, "at most a key's 64 columns"),
        ({"rope.dimension_count": 64}, r"rope_freqs.weight has shape \(64,\)"),
        ({"embedding_length_per_layer_input": None}, "a model needs"),
        ({"embedding_length_per_layer_input": 0}, "belong to no part"),
        ({"embedding_length_per_layer_input": 16}, "inp_gate.weight has shape"),
        ({"embedding_length_per_layer_input": "x"}, "is a whole number"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_go_together(changed, facts, words):
    with pytest.raises(GGUFError, match=words):
        gq.model.load(changed("gemma4", facts))


@pytest.mark.parametrize(
    "name",
    ["rope_freqs.weight", "per_layer_token_embd.weight", "blk.3.post_norm.weight", "blk.1.attn_k.weight"],
)
def test_tensors_that_are_missing(changed, name):
    with pytest.raises(GGUFError, match=f"no tensor {name}"):
        gq.model.load(changed("gemma4", drop=[name]))
