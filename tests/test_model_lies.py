"""Models whose metadata or tensors lie: an error in words when they are loaded, or finite logits.

Of every family some made-up models with one drawn change each (``--seed`` repeats them, ``--long`` draws
more), and those that a run without checks would take: broadcast, leave out, write beyond a cache.
"""

from __future__ import annotations

import pickle
import resource
import time

import numpy as np
import pytest
from families import NAMES, Sizes, family_model

import ggmlq as gq
from ggmlq.errors import GGMLQError, GGUFError, NonFiniteError
from ggmlq.model.config import PATTERN, RULES

SMALL = Sizes(width=64, head=64, hidden=64, heads=2, kv_heads=1, queries=32, latent=32, rope=32)
CHANGES, LONG = 8, 30
SECONDS, MEGABYTES = 5, 400  # of CPU, and beyond what the process had: hundreds of times what a case takes
NAN, INF = float("nan"), float("inf")
LIES = [
    None, 0, 1, -1, 2, 3, 31, 33, 63, 10**6, 10**9, 2**31, 2**32, 2**62, -(2**62), 0.0, 0.5, 1.5, -2.0, 1e-30,
    1e30, NAN, INF, -INF, "x", "", "none", "yarn", "longrope", True, False, [], [1], [2, 1], [0, 0],
    [1.0, NAN], ["x", "y"], [[1], [2]], [True, False], "0" * 2000,
]  # fmt: skip
UNREAD = ("vocab_size", "strange")
OPTIONAL = ("output.weight", "rope_", ".bias", ".layer_output_scale.", "_exps.scale")  # a model may lack them


def content(path):
    """Tensors and metadata of a file, of its first two layers where nothing lists all."""
    with gq.open(path) as file:
        facts, tensors = dict(file.metadata.items()), dict(file.items())
    architecture = facts["general.architecture"]
    count = facts[f"{architecture}.block_count"]
    if any(not isinstance(value, str) and np.ndim(value) and len(value) == count for value in facts.values()):
        return tensors, facts, architecture
    tensors = {name: q for name, q in tensors.items() if name.split(".")[1] in "01" or name[:3] != "blk"}
    return tensors, facts | {f"{architecture}.block_count": 2}, architecture


def of_shape(q, rng):
    """The tensor with another shape: rows or columns less or more, one of them, an axis more or less."""
    x = q.dequantize()
    return [
        x[:1], x[:-1], x[..., :1], x[..., :-1], np.concatenate([x, x]), np.concatenate([x, x], -1), x[None],
        x.reshape(-1) if x.ndim > 1 else np.stack([x, x]), x.T if x.T.shape != x.shape else x[..., :2],
        x.reshape(-1)[:1], x[:0],
    ][rng.integers(11)]  # fmt: skip


def changed(tensors, facts, architecture, rng):
    """One change: its name, the content with it, and what comes of it: an error, the same, or either."""
    kind = rng.integers(4)
    if kind < 2:
        there = [key.removeprefix(f"{architecture}.") for key in facts if key.startswith(architecture)]
        key = str(rng.choice(there * 2 + [*RULES, PATTERN, *UNREAD]))
        value, name = LIES[rng.integers(len(LIES))], f"{architecture}.{key}"
        old = facts.get(name)
        if isinstance(old, int | float) and rng.integers(3) == 0:
            value = [old + 1, old - 1, old * 2, old / 2, -old, [old] * 2, [old] * 3][rng.integers(7)]
        facts = {k: v for k, v in facts.items() if k != name} | ({} if value is None else {name: value})
        return f"{name} = {value!r:.60}", tensors, facts, "same" if key in UNREAD else "either"
    name = str(rng.choice(sorted(tensors)))
    others, q = {k: v for k, v in tensors.items() if k != name}, tensors[name]
    if kind == 2:
        other = of_shape(q, rng)
        same = other.shape == q.shape
        return f"{name} {other.shape}", tensors | {name: other}, facts, "either" if same else "error"
    how = rng.integers(5)
    if how == 0:
        return f"no {name}", others, facts, "either" if any(one in name for one in OPTIONAL) else "error"
    if how == 1:
        return f"{name} of i32", tensors | {name: np.ones(q.shape, np.int32)}, facts, "error"
    if how == 2:
        x = q.dequantize()
        x.reshape(-1)[rng.integers(x.size)] = rng.choice([NAN, INF, -INF, 1e38, -1e38])
        return f"a number of {name}", tensors | {name: x}, facts, "either"
    layers = facts[f"{architecture}.block_count"]
    new = [f"blk.0.{name}", f"blk.{layers}.{name.split('.', 2)[-1]}", "strange", f"{name}.scale"][
        rng.integers(4)
    ]
    extra = tensors | {new: q} if how == 3 or new in tensors else others | {new: q}
    return f"{name} as {new}", extra, facts, "error"


def outcome(path, how):
    """The error of a load, or the logits of a run."""
    begin = time.process_time()
    try:
        result = logits_of(path, how)
    except GGMLQError as error:
        result = error
    assert time.process_time() - begin < SECONDS
    return result


def logits_of(path, how):
    """The logits of a run, which also generates."""
    m = gq.model.load(path, **how)
    result = m.logits([1, 5, 6])
    assert result.shape == (3, m.vocabulary)
    assert np.isfinite(result).all()
    tokens = list(m.generate([1, 5], 2))
    assert all(0 <= token < m.vocabulary for token in tokens)
    return result


@pytest.mark.slow
@pytest.mark.drawn(8)
@pytest.mark.parametrize("family", NAMES)
@pytest.mark.filterwarnings("ignore:put into a cache:RuntimeWarning")  # numbers that a cache cannot hold
def test_one_change_is_an_error_or_a_model(family, fresh, tmp_path, request):
    tensors, facts, architecture = content(family_model(tmp_path / "m.gguf", family, sizes=SMALL))
    path, base = tmp_path / "changed.gguf", {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(CHANGES * (LONG if request.config.option.long else 1)):
        how = {"arithmetic": fresh.choice([None, None, "exact", "ggml-cpu"]),
               "cache": str(fresh.choice(["f16", "q8_0", "f32"]))}  # fmt: skip
        what, some, keys, expected = changed(tensors, facts, architecture, fresh)
        key = tuple(how.values())
        if key not in base:  # whose kernels may be compiled first, which is no case's time
            gq.save(path, tensors, facts)
            base[key] = logits_of(path, how)
        try:
            gq.save(path, some, keys)
        except GGMLQError:  # no file says that
            continue
        result = outcome(path, how)
        if expected == "error":
            assert isinstance(result, GGUFError), (what, how, result)
        elif expected == "same":
            assert np.array_equal(result, base[key]), (what, how)
        if isinstance(result, GGMLQError):
            assert str(result).count(";") >= 2, (what, str(result))
            assert len(str(result)) < 1200, what
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < MEGABYTES


@pytest.fixture
def lying(tmp_path):
    """``lying(family, tensors, facts)``: the path of a made-up model with these instead of its own."""

    def write(family, tensors=None, facts=None):
        own, keys, architecture = content(family_model(tmp_path / "m.gguf", family, sizes=SMALL))
        keys |= {f"{architecture}.{key}": value for key, value in (facts or {}).items()}
        for name, change in (tensors or {}).items():
            own[name] = change(own[name].dequantize()) if name in own else change
        gq.save(tmp_path / "lies.gguf", own, keys)
        return tmp_path / "lies.gguf"

    return write


@pytest.mark.parametrize(
    ("family", "tensors", "facts", "words"),
    [
        # What wrote beyond a cache: as many rows of queries, by fewer heads that are wider.
        ("deepseek-lite", {}, {"attention.head_count": [2, 1], "attention.head_count_kv": [2, 1]}, "attn_q"),
        ("deepseek-lite", {}, {"attention.key_length": 68}, "attn_q"),
        ("deepseek2", {}, {"attention.key_length": 96}, "it is 32 \\+ 32"),
        ("deepseek2", {}, {"expert_group_count": 3}, "a multiple"),
        ("deepseek2", {}, {"expert_group_used_count": 0}, "from 1 to 4"),
        ("mixtral", {}, {"expert_used_count": 7}, "from 1 to 6"),
        ("mixtral", {"blk.1.ffn_gate_inp.weight": lambda x: x[:-1]}, {}, "ffn_gate_inp"),
        ("mixtral", {}, {"feed_forward_length": 32}, "ffn_gate_exps"),
        ("llama", {}, {"block_count": 1}, "tensors of, 2"),
        ("llama", {}, {"block_count": 10**9}, "tensors of, 2"),
        ("llama", {"blk.0.strange.weight": np.ones(5, np.float32)}, {}, "no part of llama"),
        ("llama", {"blk.0.attn_norm.weight": lambda x: x[:1]}, {}, "attn_norm"),
        ("llama", {"blk.1.attn_output.weight": lambda x: x[:1]}, {}, "attn_output"),
        ("llama", {"output.weight": lambda x: x[:-1]}, {}, "output"),
        ("llama3", {"rope_freqs.weight": lambda x: x[:1]}, {}, "rope_freqs"),
        ("gemma2", {}, {"attn_logit_softcapping": NAN}, "from 0.001 to"),
        ("gemma3", {}, {"attention.sliding_window_pattern": [True]}, "a list of 2"),
        ("qwen3", {}, {"attention.head_count": [2, 2, 2]}, "a list of 2"),
        ("phi3", {}, {"rope.scaling.type": "twice"}, "one of none, linear"),
        ("phi3", {}, {"rope.dimension_count": 33}, "it is even"),
    ],
)  # fmt: skip
def test_what_is_refused(lying, family, tensors, facts, words):
    with pytest.raises(GGUFError, match=words) as caught:
        gq.model.load(lying(family, tensors, facts))
    for name in [*tensors, *facts]:
        assert name in str(caught.value)


def test_lists_that_fit_are_taken(lying):
    """Numbers of each layer, also where they are all the same."""
    facts = {"attention.head_count": [2, 2], "attention.head_count_kv": [1, 1]}
    m = gq.model.load(lying("llama", facts=facts))
    assert m.config.heads == (2, 2)
    plain = gq.model.load(lying("llama"))
    assert np.array_equal(m.logits([1, 5]), plain.logits([1, 5]))


def test_tokens_of_other_files(lying, tmp_path):
    """The embedding has a row for each token of the vocabulary."""
    with gq.open(lying("llama")) as file:
        facts = dict(file.metadata.items())
        for texts in (["a"] * 287, "text", 5):
            gq.save(tmp_path / "t.gguf", dict(file.items()), facts | {"tokenizer.ggml.tokens": texts})
            with pytest.raises(GGUFError, match=r"tokenizer\.ggml\.tokens is a list of"):
                gq.model.load(tmp_path / "t.gguf")
    for architecture in (["llama"], 5, "x" * 10**5):
        gq.save(tmp_path / "t.gguf", {}, {"general.architecture": architecture})
        with pytest.raises(GGMLQError, match="there are llama") as caught:
            gq.model.load(tmp_path / "t.gguf")
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("arithmetic", [None, "exact", "ggml-cpu"])
def test_numbers_that_are_not_finite(lying, arithmetic):
    """They are told in words that name the part and a way out, wherever they begin."""

    def spoilt(x):
        x[..., 3] = NAN
        return x

    for name, words in {"output_norm.weight": "logits", "blk.1.attn_norm.weight": "layer 1|logits"}.items():
        m = gq.model.load(lying("llama", {name: spoilt}), arithmetic=arithmetic)
        calls = (
            lambda m=m: m.logits([1, 5]), lambda m=m: list(m.generate([1], 3)),
            lambda m=m: m.logits([[1], [5, 6]]), lambda m=m: m.prompt([1, 5], m.cache(9)),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(NonFiniteError, match=rf"{words}.*NaN.*ggmlq validate FILE") as caught:
                call()
            assert "nan_to_num" not in str(caught.value)
    m = gq.model.load(lying("llama", {"output_norm.weight": spoilt}))
    nodes = dict(m.nodes([1, 5]))
    assert np.isfinite(nodes["l_out-1"]).all(), "nodes show where it begins"
    assert not np.isfinite(nodes["result_norm"]).all()


def test_a_model_is_pickled_by_its_file(lying):
    """A copy opens the file again, with the same options, also where the file was closed."""
    path = lying("gemma2")
    with gq.open(path) as file:
        models = [
            gq.model.load(path, arithmetic="exact", cache=("q8_0", "f16"), context=99), gq.model.load(file),
        ]  # fmt: skip
    for m in models:
        written = pickle.dumps(m)
        assert len(written) < 1000
        copy = pickle.loads(written)
        assert (repr(copy), copy.types, copy.config) == (repr(m), m.types, m.config)
        assert np.array_equal(copy.logits([1, 5, 6]), m.logits([1, 5, 6]))
