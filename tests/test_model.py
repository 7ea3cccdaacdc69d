"""Whole models without a libllama: steps, caches, families, nodes, errors."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from families import NAMES, Sizes, family_model

import ggmlq as gq
from ggmlq.errors import DTypeError, GGMLQError, GGUFError, ShapeError, UnsupportedError
from ggmlq.model.arithmetic.kernels import apply_rope, rope_angles
from ggmlq.model.config import Rope
from ggmlq.model.sampling import Sampling
from ggmlq.reference.nodes import node

SPOKEN = ("A room imports only rooms that stand on", " lower floors; the list goes from the ground up.")
SHORT = ("llama3", "mixtral", "qwen2", "gemma2", "gemma3", "gpt-oss", "phi3", "deepseek2")


@pytest.fixture
def model_file(fresh, tmp_path):
    """``model_file(family)``: the path of a made-up model."""

    def write(family, **options):
        return family_model(tmp_path / f"{family}.gguf", family, int(fresh.integers(1 << 30)), **options)

    return write


def tokens_of(rng, count):
    return rng.integers(3, 259, count).tolist()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("family", SHORT)
def test_tokens_one_by_one_and_at_once(model_file, fresh, family):
    """The logits of a token do not depend on how many went through the layers with it."""
    m = gq.model.load(model_file(family), arithmetic="exact", cache="f32")
    tokens = tokens_of(fresh, 12)
    whole = m.logits(tokens)
    cache = m.cache(12)
    parts = [m.run(np.array(part), cache) for part in (tokens[:5], tokens[5:6], tokens[6:])]
    assert whole.dtype == np.float64
    assert whole.shape == (12, 288)
    assert gq.nmse(np.concatenate(parts), whole) < 1e-20
    assert len(cache) == 12


@pytest.mark.drawn(2)
@pytest.mark.parametrize("family", SHORT)
def test_sequences_together_are_those_alone(model_file, fresh, family, monkeypatch):
    """Sequences of different length, in portions that cut them, give what each gives alone."""
    for where in ("model", "serving"):
        monkeypatch.setattr(f"ggmlq.model.{where}.BATCH", 11)
    m = gq.model.load(model_file(family), arithmetic="exact")
    sequences = [tokens_of(fresh, count) for count in fresh.permutation([1, 4, 9, 30])]
    together = m.logits(sequences)
    for one, logits in zip(sequences, together, strict=True):
        assert gq.nmse(logits, m.logits(one)) < 1e-20
    steps = np.stack(list(m.generate(sequences, 4)))
    assert steps.shape == (4, 4)
    for one, column in zip(sequences, steps.T, strict=True):
        assert list(m.generate(one, 4)) == column.tolist()
    same = m.logits(np.array([sequences[0]] * 2))
    assert same.shape == (2, len(sequences[0]), m.vocabulary)
    assert gq.nmse(same[1], together[0]) < 1e-20


def test_sequences_end_one_by_one(model_file, fresh):
    m = gq.model.load(model_file("llama"), arithmetic="exact")
    sequences = [tokens_of(fresh, count) for count in (3, 5, 2)]
    alone = [list(m.generate(one, 6)) for one in sequences]
    stop = {alone[0][0], alone[1][2]}
    steps = list(m.generate(sequences, 6, stop=stop))
    for column, tokens in zip(np.stack(steps).T.tolist(), alone, strict=True):
        end = next((i for i, token in enumerate(tokens) if token in stop), 5)
        assert column == (tokens[: end + 1] + [-1] * 6)[: len(steps)]
    drawn = [np.stack(list(m.generate(sequences[:1] * 3, 5, 5.0, seed=seed))) for seed in (1, 1, 2)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert len(set(map(tuple, drawn[0].T.tolist()))) == 3, "each draws by itself: one in 288**5 by chance"
    with pytest.raises(ShapeError, match="tokens go from 300 to 300"):
        m.logits([[5], [300]])
    with pytest.raises(ShapeError, match=r"5 tokens and 1020 more"):
        m.generate(sequences, 1020)
    with pytest.raises(ShapeError, match="one number or more, or several"):
        m.logits([[5], []])


@pytest.mark.drawn(2)
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3moe"])
def test_nodes_behind_other_tokens_and_in_one_kernel(model_file, fresh, family):
    """Nodes of tokens one by one are those of all at once; attention in one node gives the same rows."""
    m = gq.model.load(model_file(family)).like("exact", ("f32", "f32"))
    tokens = tokens_of(fresh, 6)
    whole, cache = dict(m.nodes(tokens)), m.cache(6)
    parts = [dict(m.nodes(some, cache=cache)) for some in (tokens[:4], tokens[4:])]
    flash = dict(m.nodes(tokens, flash=True))
    assert {name.partition("-")[0] for name in whole.keys() - flash.keys()} >= {"kq", "kq_soft_max", "kqv"}
    for name, x in flash.items():
        assert gq.nmse(np.concatenate([part[name] for part in parts]), whole[name]) < 1e-20, name
        assert gq.nmse(x, whole[name]) < 1e-20, name
    with pytest.raises(GGMLQError, match="more than the 6 positions"):
        m.nodes(tokens[:1], cache=cache)


def test_nodes_with_other_experts(model_file, fresh):
    """The choice that is passed is taken, also where it comes after the call; the node is the model's own."""
    m = gq.model.load(model_file("qwen3moe"), arithmetic="exact")
    tokens = tokens_of(fresh, 5)
    right = dict(m.nodes(tokens))
    choices = {}
    walk = m.nodes(tokens, choices=choices)
    choices["ffn_moe_topk-1"] = right["ffn_moe_argsort-1"][:, -2:]
    other = dict(walk)
    for name in ("l_out-0", "ffn_moe_topk-1", "ffn_moe_probs-1"):
        assert np.array_equal(other[name], right[name])
    shares = np.take_along_axis(right["ffn_moe_probs-1"], choices["ffn_moe_topk-1"], -1)
    assert np.array_equal(other["ffn_moe_weights-1"][..., 0], shares)
    assert not np.allclose(other["ffn_moe_out-1"], right["ffn_moe_out-1"])


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("family", NAMES)
def test_kernels_are_as_far_from_exact_as_eight_bits(model_file, fresh, family):
    path = model_file(family, types=("f32", "f16"))
    tokens = tokens_of(fresh, 20)
    exact = gq.model.load(path, arithmetic="exact").logits(tokens)
    fast = gq.model.load(path).logits(tokens)
    assert fast.dtype == np.float32
    off = np.sort(gq.nmse(fast, exact, axis=1))
    assert off[len(off) // 2] < 1e-2  # mxfp4 and the embedding are multiplied in codes; experts may change


def test_the_plain_layer_by_hand(model_file, fresh):
    """Llama's layer written out in float64, with nothing of the library but the decoded weights."""
    path = model_file("mistral", sizes=Sizes(layers=1))
    tokens = tokens_of(fresh, 6)
    with gq.open(path) as file:
        w = {name: file[name].dequantize().astype(np.float64) for name in file}

    def norm(x, weights):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weights

    x = w["token_embd.weight"][tokens]
    h = norm(x, w["blk.0.attn_norm.weight"])
    q, k, v = (
        (h @ w[f"blk.0.attn_{r}.weight"].T).reshape(6, n, 64) for r, n in (("q", 4), ("k", 2), ("v", 2))
    )
    angle = np.arange(6)[:, None, None] / 2.0 * 10000.0 ** (-np.arange(32) / 32)
    z = [(part[..., ::2] + 1j * part[..., 1::2]) * np.exp(1j * angle) for part in (q, k)]
    scores = np.einsum("thd,shd->hts", z[0], z[1].repeat(2, 1).conj()).real / 8
    scores = np.where(np.tri(6, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    y = np.einsum("hts,shd->thd", shares, v.repeat(2, 1)).reshape(6, -1)
    x = x + y @ w["blk.0.attn_output.weight"].T
    h = norm(x, w["blk.0.ffn_norm.weight"])
    gate, up = (h @ w[f"blk.0.ffn_{role}.weight"].T for role in ("gate", "up"))
    x = x + (gate / (1 + np.exp(-gate)) * up) @ w["blk.0.ffn_down.weight"].T
    logits = norm(x, w["output_norm.weight"]) @ w["output.weight"].T
    m = gq.model.load(path, arithmetic="exact", cache="f32")
    assert gq.nmse(m.logits(tokens), logits) < 1e-12


def test_the_file_may_be_closed(model_file):
    path = model_file("llama")
    with gq.open(path) as file:
        m = gq.model.load(file)
    tokens = m.tokenizer.encode("a")
    assert np.array_equal(m.logits(tokens), gq.model.load(str(path)).logits(tokens))


def test_several_products_in_one_matrix(model_file, fresh, tmp_path):
    """Queries, keys and values in one tensor, as some files have them."""
    path = model_file("qwen2", types=("q8_0",))
    with gq.open(path) as file:
        tensors = dict(file.items())
        for i in range(2):
            for kind in ("weight", "bias"):
                parts = [tensors.pop(f"blk.{i}.attn_{role}.{kind}") for role in "qkv"]
                tensors[f"blk.{i}.attn_qkv.{kind}"] = gq.concatenate(parts, axis=0)
        metadata = dict(file.metadata)
    gq.save(tmp_path / "one.gguf", tensors, metadata)
    tokens = tokens_of(fresh, 5)
    one, three = (
        gq.model.load(file, arithmetic="exact").logits(tokens) for file in (tmp_path / "one.gguf", path)
    )
    assert gq.nmse(one, three) < 1e-20
    tensors["blk.0.attn_qkv.weight"] = tensors["blk.0.attn_qkv.weight"][:-1]
    tensors["blk.0.attn_qkv.bias"] = tensors["blk.0.attn_qkv.bias"][:-1]
    gq.save(tmp_path / "short.gguf", tensors, metadata)
    with pytest.raises(GGUFError, match=r"attn_qkv.weight has shape \(255, 128\)"):
        gq.model.load(tmp_path / "short.gguf")


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("mode", ["neighbours", "halves", "yarn", "factors"])
def test_rope_is_that_of_the_oracle(fresh, mode, steps):
    dims, heads, count = 32, 3, 7
    yarn = mode == "yarn"
    how = Rope(dims, mode != "neighbours", 10000.0, 0.25 if yarn else 1.0, float(yarn), 1.1, context=256)
    positions = np.sort(fresh.choice(600, count, replace=False))
    factors = fresh.uniform(1, 8, dims // 2).astype(np.float32) if mode == "factors" else None
    x = fresh.standard_normal((count, heads, 48)).astype(np.float32)
    params = {
        "dims": dims, "mode": 2 if how.neox else 0, "context": 256, "base": how.base, "scale": how.scale,
        "mix": how.mix, "factor": how.length, "fast": how.fast, "slow": how.slow,
    }  # fmt: skip
    inputs = [x, positions.astype(np.int32)] + ([] if factors is None else [factors])
    expected = np.asarray(node("ROPE", inputs, params).value)
    y = apply_rope(x.astype(np.float64), how, *rope_angles(how, positions, factors, steps))
    assert np.allclose(y, expected.reshape(y.shape), atol=3e-4 if steps else 1e-6)


def test_long_and_short_factors(model_file, fresh, tmp_path):
    """The context says which factors of pairs are taken."""
    with gq.open(model_file("llama")) as file:
        factors = {
            f"rope_factors_{kind}.weight": np.full(32, n, np.float32)
            for kind, n in (("long", 4), ("short", 1))
        }
        facts = {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.original_context_length": 64}
        gq.save(tmp_path / "long.gguf", dict(file.items()) | factors, dict(file.metadata.items()) | facts)
    tokens = tokens_of(fresh, 9)
    plain = gq.model.load(tmp_path / "llama.gguf", arithmetic="exact").logits(tokens)
    short, long = (
        gq.model.load(tmp_path / "long.gguf", arithmetic="exact", context=n).logits(tokens) for n in (64, 65)
    )
    assert np.array_equal(short, plain)
    assert gq.nmse(long, plain) > 1e-6


# --- caches, nodes ----------------------------------------------------------------------------


def test_types_of_keys_and_values(model_file, fresh):
    path, tokens = model_file("qwen3"), tokens_of(fresh, 40)
    off = {}
    exact = gq.model.load(path, arithmetic="exact", cache="f32").logits(tokens)
    for cache in ("f32", "f16", ("q8_0", "f16"), "q8_0", "q4_0"):
        off[cache] = gq.nmse(gq.model.load(path, arithmetic="exact", cache=cache).logits(tokens), exact)
    assert off["f32"] == 0
    assert off["f16"] < 1e-5 < off["q4_0"] < 0.2
    assert off["f16"] < off["q8_0"] < off["q4_0"]
    assert gq.model.load(path, cache=("q8_0", "q4_0")).cache(5).nbytes > 0


@pytest.mark.parametrize("arithmetic", [None, "exact", "ggml-cpu"])
def test_a_step_from_a_cache_in_blocks(model_file, fresh, arithmetic):
    """One token behind others says what all say at once, but for codes at the border of two."""
    m = gq.model.load(model_file("qwen3"), arithmetic=arithmetic, cache="q8_0")
    tokens, cache = fresh.integers(3, 259, 12), m.cache(12)
    for part in (tokens[:-1], tokens[-1:]):
        logits = m.run(part, cache)
    assert gq.nmse(logits[-1], m.logits(tokens)[-1]) < (1e-5 if arithmetic == "exact" else 1e-2)


@pytest.mark.parametrize("arithmetic", [None, "exact", "ggml-cpu"])
def test_nodes_end_in_the_logits(model_file, fresh, arithmetic):
    m = gq.model.load(model_file("gemma2"), arithmetic=arithmetic)
    tokens = tokens_of(fresh, 9)
    nodes = list(m.nodes(tokens))
    name, last = nodes[-1]
    assert name == "result_output"
    off = gq.nmse(last, m.logits(tokens))
    assert off < (1e-20 if arithmetic == "exact" else 1e-3)
    counts = Counter(name for name, _ in nodes)
    assert counts["Qcur-1"] == 2
    assert counts["kq_soft_max-0"] == 1
    weights = dict(nodes)["kq_soft_max-1"]
    assert weights.shape == (4, 9, 9)
    assert np.allclose(weights.sum(-1), 1, atol=1e-5)


def test_attention_in_steps_is_attention(model_file, fresh):
    """Sinks, windows and caps: the arrays of a run with nodes give the logits of one without."""
    for family in ("gpt-oss", "gemma3"):
        m = gq.model.load(model_file(family), arithmetic="exact", cache="q8_0")
        tokens = tokens_of(fresh, 60)  # more than the window has
        assert gq.nmse(dict(m.nodes(tokens))["result_output"], m.logits(tokens)) < 1e-20


# --- generation -------------------------------------------------------------------------------


def test_generation_ends_at_a_text(model_file, fresh):
    m = gq.model.load(model_file("llama"), arithmetic="exact")
    pieces = [m.tokenizer.piece(token, True) for token in range(m.vocabulary)]
    drawn = list(m.generate([1, 5], 12, temperature=9.0, seed=3))
    text = b"".join(pieces[token] for token in drawn)
    for i in range(20):
        begin = int(fresh.integers(len(text)))
        part = text[begin : begin + int(fresh.integers(1, 8))].decode("utf-8", "ignore")
        lengths = [k for k in range(1, 13) if part.encode() in b"".join(pieces[t] for t in drawn[:k])]
        stop = (part, [part], {part, "never said"}, [part, 10**6])[i % 4]
        if part:
            found = list(m.generate([1, 5], 12, temperature=9.0, seed=3, stop=stop))
            assert found == drawn[: min(lengths, default=12)]
    tokens = [list(m.generate(one, 8)) for one in ([1, 5], [1, 7, 9])]
    stop = pieces[tokens[0][2]].decode("utf-8", "replace") or "x"
    steps = np.stack(list(m.generate([[1, 5], [1, 7, 9]], 8, stop=stop))).T.tolist()
    for column, one in zip(steps, ([1, 5], [1, 7, 9]), strict=True):
        alone = list(m.generate(one, 8, stop=stop))
        assert column == (alone + [-1] * 8)[: len(column)]
    for wrong in ("", ["a", ""], 5, [2.5], [None]):
        with pytest.raises(DTypeError, match="it is a text, or a collection"):
            m.generate([1, 5], 2, stop=wrong)


def test_generation(model_file, fresh):
    m = gq.model.load(model_file("llama"), cache="f32")
    tokens = tokens_of(fresh, 5)
    greedy = list(m.generate(tokens, 6))
    assert greedy[0] == m.logits(tokens)[-1].argmax()
    assert list(m.generate(tokens, 0)) == []
    assert next(m.generate(tokens, 1)) == greedy[0]
    assert list(m.generate(tokens, 6, stop=greedy[:1])) == greedy[:1]
    assert list(m.generate(tokens, 6, stop=np.array(greedy[:1]))) == greedy[:1]
    drawn = [list(m.generate(tokens, 6, temperature=5.0, seed=s)) for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert list(m.generate(tokens, 6, temperature=1.0, top_k=1)) == greedy
    assert list(islice(m.generate(tokens, 400), 2)) == greedy[:2]


def test_draws_follow_their_shares(fresh):
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    counts = Counter(Sampling(1.0).draw(logits, fresh) for _ in range(4000))
    assert abs(counts[0] / 4000 - 0.5) < 0.05
    assert abs(counts[3] / 4000 - 0.05) < 0.02
    assert {Sampling(1.0, top_k=2).draw(logits, fresh) for _ in range(200)} == {0, 1}
    assert {Sampling(1.0, top_p=0.79).draw(logits, fresh) for _ in range(200)} == {0, 1}
    assert {Sampling(1.0, top_p=0.01).draw(logits, fresh) for _ in range(50)} == {0}
    assert Sampling().draw(logits, fresh) == 0


@pytest.mark.parametrize("size", [1, 7, 300, 5000])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (40, 1.0), (0, 0.9), (40, 0.9)])
def test_few_of_many_tokens_are_sorted(size, top_k, top_p, fresh):
    for spread in (0.1, 1, 8):
        logits = (fresh.standard_normal(size) * spread).astype(np.float32)
        order = np.argsort(-logits, kind="stable")[: top_k or size]
        sums = np.cumsum(np.exp((logits[order].astype(float) - logits.max()) / 0.7))
        last = min(np.searchsorted(sums, top_p * sums[-1]), len(order) - 1)
        for seed in fresh.integers(0, 1 << 30, 20):
            chance = np.random.default_rng(seed).random()
            want = min(np.searchsorted(sums, chance * sums[last], side="right"), last)
            got = Sampling(0.7, top_k, top_p).draw(logits, np.random.default_rng(seed))
            assert abs(int(np.flatnonzero(order == got)[0]) - want) <= 1  # sums round in another order
    for wrong in ({"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}):
        with pytest.raises(ShapeError, match="choose others"):
            Sampling(**wrong)


# --- errors -----------------------------------------------------------------------------------


def test_what_is_wrong_with_a_call(model_file):
    m = gq.model.load(model_file("llama"), context=16)
    for tokens, words in (([], "one number or more"), ([1.5], "one number"), ([[[1]]], "one number"),
                          ([-1], "rows 0 to 287"), ([288], "rows 0 to 287"),
                          ([5] * 17, "16 positions")):  # fmt: skip
        with pytest.raises(ShapeError, match=words):
            m.logits(tokens)
    with pytest.raises(ShapeError, match="larger context="):
        m.generate([1] * 10, 7)
    assert len(list(m.generate([1] * 10, 6))) == 6
    cache = m.cache(4)
    m.run(np.array([1, 2, 3]), cache)
    with pytest.raises(GGMLQError, match="it is full"):
        m.run(np.array([1, 2]), cache)


def test_what_is_wrong_with_a_file(model_file, tmp_path):
    path = model_file("llama")
    for how, words in (({"device": "cuda", "arithmetic": "exact"}, "on the CPU"),
                       ({"arithmetic": "half"}, "'ggml-cpu'"),
                       ({"cache": "q9_9"}, "q9_9")):  # fmt: skip
        with pytest.raises(GGMLQError, match=words):
            gq.model.load(path, **how)
    with gq.open(path) as file:
        tensors, facts = dict(file.items()), dict(file.metadata.items())

    def broken(tensors=tensors, **changed):
        gq.save(
            tmp_path / "broken.gguf", tensors, {k: v for k, v in (facts | changed).items() if v is not None}
        )
        return tmp_path / "broken.gguf"

    with pytest.raises(UnsupportedError, match=r"'mamba'; there are llama, .*gpt-oss"):
        gq.model.load(broken(**{"general.architecture": "mamba"}))
    for key in ("block_count", "embedding_length", "attention.head_count"):
        with pytest.raises(GGUFError, match=key):
            gq.model.load(broken(**{f"llama.{key}": None}))
    with pytest.raises(GGUFError, match=r"blk\.1\.ffn_up\.weight"):
        gq.model.load(broken({name: q for name, q in tensors.items() if name != "blk.1.ffn_up.weight"}))
    wrong = tensors | {"blk.0.ffn_down.weight": tensors["blk.0.ffn_up.weight"]}
    with pytest.raises(GGUFError, match=r"blk\.0\.ffn_down"):
        gq.model.load(broken(wrong))


# --- a model that was trained -------------------------------------------------------------------


@pytest.fixture(scope="module")
def speaks():
    """The path of a tiny model that was trained on our pages."""
    return Path(__file__).parent / "golden" / "speaks.gguf"


def test_it_speaks(speaks):
    """The trained model goes on as our page does, with every arithmetic."""
    assert speaks.stat().st_size < 1 << 20
    for how in ({}, {"arithmetic": "exact"}, {"arithmetic": "ggml-cpu"}):
        m = gq.model.load(speaks, **how)
        text = m.tokenizer.decode(m.generate(m.tokenizer.encode(SPOKEN[0]), 12))
        assert SPOKEN[1].startswith(text[:30]), (how, text)


def test_its_text_has_a_low_perplexity(speaks):
    m = gq.model.load(speaks)
    tokens = m.tokenizer.encode("".join(SPOKEN))
    logits = m.logits(tokens).astype(np.float64)
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    loss = -np.log([shares[i, token] for i, token in enumerate(tokens[1:])]).mean()
    assert loss < 3.0  # 6.2 for a model that knows nothing
