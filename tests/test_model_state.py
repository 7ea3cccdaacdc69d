"""Models whose layers remember by a state: cuts of a sequence, steps that fail, ways back."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from families import family_model
from recurrent_families import RECURRENT

import ggmlq as gq
from ggmlq.commands import _talk
from ggmlq.errors import BlockIndexError, GGUFError, ShapeError, UnsupportedError


@pytest.fixture
def loaded(fresh, tmp_path):
    """``loaded(family)``: a made-up model, and some tokens."""

    def load(family, **options):
        path = family_model(tmp_path / f"{family}.gguf", family, int(fresh.integers(1 << 30)))
        return gq.model.load(path, **options), fresh.integers(3, 259, 13)

    return load


@pytest.mark.parametrize("family", RECURRENT)
def test_a_sequence_may_be_cut_anywhere(loaded, fresh, family):
    m, tokens = loaded(family, arithmetic="exact", cache="f32")
    whole, cache = m.logits(tokens), m.cache(13)
    ends = np.sort(fresh.choice(np.arange(1, 13), 3, replace=False))
    cut = [m.run(some, cache) for some in np.split(tokens, ends)]
    assert gq.nmse(np.concatenate(cut), whole) < 1e-20
    together = m.logits([tokens, tokens[:5], tokens[3:]])
    assert gq.nmse(together[1], whole[:5]) < 1e-20
    assert gq.nmse(together[2], m.logits(tokens[3:])) < 1e-20


@pytest.mark.parametrize("family", RECURRENT)
def test_a_state_has_no_way_back(loaded, family):
    m, tokens = loaded(family)
    cache = m.cache(20)
    first = m.run(tokens, cache, last=True)
    with pytest.raises(UnsupportedError, match=r"truncate\(5\) of a sequence of 13 .* no way back"):
        cache.truncate(5)
    for wrong in (-1, 1.5, None, "3"):  # less than none would put rows before the memory
        with pytest.raises(BlockIndexError, match=r"from 0 on"):
            cache.truncate(wrong)
    cache.truncate(13)
    assert len(cache) == 13
    following = [m.run(tokens[:1], cache)]
    assert [cache.reachable(n) for n in (20, 14, 13, 12, 0)] == [14, 14, 13, 0, 0]
    cache.truncate(13)
    assert cache.reachable(12) == 0
    following += [m.run(tokens[:1], cache), m.run(tokens[1:2], cache)]
    assert np.array_equal(*following[:2])
    cache.truncate(0)
    assert np.array_equal(m.run(tokens, cache, last=True), first)


def test_all_sequences_go_back_or_none(loaded):
    m, tokens = loaded("lfm2")
    cache = m.cache(40, 2)
    m.prompt([tokens[:2], tokens[:5]], cache)
    m.prompt([tokens[:2], tokens[:2]], cache)
    with pytest.raises(UnsupportedError, match="no way back"):  # of the second one
        cache.truncate(2)
    assert [len(part) for part in cache.parts] == [4, 7]


def test_a_cache_of_another_model_is_refused(loaded):
    """Its rows would be written beyond memory."""
    (m, tokens), (other, _) = loaded("qwen35"), loaded("lfm2")
    cache = other.cache(20)
    for call in (m.run, m.prompt, lambda t, c: m.nodes(t, cache=c), lambda _, c: m.batch(cache=c)):
        with pytest.raises(UnsupportedError, match=r"that of another model; .* m\.cache\(positions"):
            call(tokens, cache)
    with pytest.raises(ShapeError, match="2 sequences, and a cache of 1"):
        m.prompt([tokens, tokens], m.cache(20))
    for wrong in ([], [0.5, 1.0], [-1], [m.vocabulary], tokens[None]):
        with pytest.raises(ShapeError, match="run: "):
            m.run(wrong, m.cache(20))
    assert np.array_equal(m.run([*tokens], m.cache(20)), m.run(tokens, m.cache(20)))
    for layer, rows in ((3, tokens), (-1, np.zeros((13, m.config.width))), (1.5, 3), (1, None)):
        with pytest.raises(ShapeError, match="behind="):
            list(m.layers(tokens, behind=(layer, rows)))


def test_a_talk_begins_anew_where_there_is_no_way_back(loaded, fresh):
    """What was heard and said is not read again if it goes on; another beginning is."""
    m, tokens = loaded("lfm2", arithmetic="exact")
    talk = _talk.Talk(m, _talk.Sampling(), fresh, frozenset(), 64)
    heard = tokens.tolist()
    for more in ([5], [7, 9]):
        talk.hear(heard)
        said = list(talk.answer(4))
        assert said == list(m.generate(heard, 4))
        heard = [*heard, *said, *more]
    assert talk.read.tokens == 13 + 2
    talk.hear([*tokens[:6].tolist(), 3])
    assert talk.read.tokens == 13 + 2 + 7
    assert list(talk.answer(4)) == list(m.generate([*tokens[:6].tolist(), 3], 4))


def test_a_step_that_is_not_walked_to_its_end_changes_nothing(loaded):
    m, tokens = loaded("qwen35")
    cache = m.cache(20)
    m.run(tokens[:6], cache)
    list(islice(m.nodes(tokens[6:], cache=cache), 40))
    family = m._family

    def fails(step, x, i):
        if i:
            raise MemoryError
        return family.layer(step, x, i)

    m._family = replace(family, layer=fails)
    with pytest.raises(MemoryError):
        m.run(tokens[6:], cache)
    m._family, untouched = family, m.cache(20)
    m.run(tokens[:6], untouched)
    assert np.array_equal(m.run(tokens[6:], cache), m.run(tokens[6:], untouched))


def test_layers_that_guess_further_tokens_are_left_out(loaded, fresh, tmp_path):
    m, tokens = loaded("qwen35moe", arithmetic="exact")
    with gq.open(m.file.path) as file:
        tensors, facts = dict(file.items()), dict(file.metadata.items())
    ahead = {name.replace("blk.1.", "blk.2."): q for name, q in tensors.items() if name.startswith("blk.1.")}
    ahead["blk.2.nextn.eh_proj.weight"] = gq.quantize(fresh.standard_normal((128, 256), np.float32), "q8_0")
    facts |= {"qwen35moe.block_count": 3, "qwen35moe.nextn_predict_layers": 1}
    gq.save(tmp_path / "ahead.gguf", tensors | ahead, facts)
    other = gq.model.load(tmp_path / "ahead.gguf", arithmetic="exact")
    assert np.array_equal(other.logits(tokens), m.logits(tokens))
    gq.save(tmp_path / "all.gguf", tensors | ahead, facts | {"qwen35moe.nextn_predict_layers": 3})
    with pytest.raises(GGUFError, match="nextn_predict_layers is 3; it is less than the 3 layers"):
        gq.model.load(tmp_path / "all.gguf")


@pytest.mark.parametrize(
    ("family", "facts", "words"),
    [
        ("nemotron_h", {"attention.head_count_kv": [0, 2, 2, 0]}, "with a feed_forward_length has no keys"),
        ("nemotron_h", {"attention.head_count_kv": 0}, "some layer has keys"),
        ("nemotron_h", {"feed_forward_length": [0, 192, 0, 0]}, "no tensor blk.3.ssm_in.weight"),
        ("nemotron_h", {"feed_forward_length": [0, 96, 0, 192]}, r"1.ffn_up.weight has shape \(192, 128\)"),
        ("nemotron_h", {"expert_count": 6, "expert_used_count": 2}, "nemotron_h has no experts"),
        ("nemotron_h_moe", {"expert_count": 0}, "nemotron_h_moe has some"),
        ("nemotron_h_moe", {"moe_latent_size": 32}, r"blk.1.ffn_latent_down.weight has shape \(64, 128\)"),
        ("nemotron_h_moe", {"expert_group_count": 2}, "no groups here"),
        ("nemotron_h_moe", {"expert_shared_feed_forward_length": None}, "ffn_up_shexp.weight has shape"),
    ],
)  # fmt: skip
def test_layers_that_are_of_no_kind(loaded, tmp_path, family, facts, words):
    m, _ = loaded(family)
    with pytest.raises(GGUFError, match=words):
        gq.model.load(with_facts(m, facts, tmp_path))


def with_facts(m, facts, folder):
    """The path of a model with other metadata."""
    with gq.open(m.file.path) as file:
        tensors, kept = dict(file.items()), dict(file.metadata.items())
    kept |= {f"{m.config.architecture}.{key}": value for key, value in facts.items()}
    kept = {key: value for key, value in kept.items() if value is not None}
    gq.save(folder / "x.gguf", tensors, kept)
    return folder / "x.gguf"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"ssm.group_count": 3}, "ssm.group_count is 3; heads are a multiple"),
        ({"ssm.inner_size": 96}, "it is 4 heads of 32 columns"),
        ({"rope.dimension_sections": [6, 5, 4, 1]}, "of 16 pairs each has time, height or width"),
        ({"rope.dimension_sections": "x"}, "numbers of pairs"),
        ({"ssm.state_size": None}, "ssm.state_size is None; a model needs"),
        ({"attention.recurrent_layers": [True]}, "one for each layer"),
        ({"full_attention_interval": 1}, "no tensor blk.0.attn_q.weight"),
        ({"full_attention_interval": 3}, "head_count_kv is 2; some layer has keys"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_go_together(loaded, tmp_path, facts, words):
    m, _ = loaded("qwen35")
    with pytest.raises(GGUFError, match=words):
        gq.model.load(with_facts(m, facts, tmp_path))
