"""Whole models on a GPU: on arrays that say they are CuPy's, with NumPy's products; and on a real card."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cupy import Device, DeviceArray, on_device, put_gpu

import ggmlq as gq
from ggmlq.base import devices
from ggmlq.cuda.machine import device
from ggmlq.model import caches, replay
from ggmlq.model.arithmetic import Exact, cuda
from ggmlq.model.arithmetic.kernels import Keys, Seen
from ggmlq.model.config import Rope
from ggmlq.model.rope import turned
from ggmlq.ops import lengths, rows
from ggmlq.ops.rotation import hadamard
from ggmlq.testing.families import NAMES, family_model

PRODUCTS = [import_module(f"ggmlq.ops.{name}") for name in ("linear", "expert_linear")]
SPEAKS = Path(__file__).parent / "golden" / "speaks.gguf"


class Arrays:
    """NumPy's functions, with results on the device; arguments on the host are counted."""

    def __init__(self, cuda):
        self.cuda = cuda

    def asarray(self, x, dtype=None):
        return on_device(np.asarray(x, dtype))

    def __getattr__(self, name):
        function = getattr(np, name)

        def call(*arguments, **options):
            for one in arguments:
                assert type(one) is not np.ndarray, f"{name} of an array on the host"
            result = function(*arguments, **options)
            return result.view(DeviceArray) if isinstance(result, np.ndarray) else result

        return call


def on_host(q):
    """An array's copy on the host."""
    return gq.QuantArray(q.format, q.shape, np.array(q.raw))


def double(x):
    return np.asarray(x, np.float64)


def single(x):
    return np.asarray(x, np.float32).view(DeviceArray)


def numbered(numbers, more, same, heads, queries, positions):
    """Rows for as many new positions of each sequence, by the host's way."""
    host = lengths.Lengths(len(numbers))
    host.known = np.array(numbers)
    ids = host.placed(np.full(len(numbers), same), heads, queries, positions)
    numbers += same
    return on_device(ids)


def put_graphs(monkeypatch, state):
    """Graphs that compute a step anew, into the array that it gave while it was recorded."""
    walk, state.recorded, state.launches = replay.Replay._once, [], 0

    def noted(*operands):
        state.recorded = [*operands, walk(*operands)]
        return state.recorded[-1]

    def graph():
        *operands, result = state.recorded

        def launch():
            state.launches += 1
            result[...] = walk(*operands)

        return SimpleNamespace(launch=launch)

    class Stream(nullcontext):
        def __init__(self, non_blocking):
            super().__init__()
            self.synchronize = self.begin_capture = lambda: None
            self.end_capture = graph

    monkeypatch.setattr(replay.Replay, "_once", noted)
    state.cupy.cuda.Stream = Stream
    state.cupy.cuda.MemoryPool = lambda: SimpleNamespace(malloc=len)


@pytest.fixture
def card(monkeypatch):
    """A card whose kernels are the host's."""
    state = put_gpu(monkeypatch)
    state.cupy, state.products = Arrays(state.cupy.cuda), 0
    put_graphs(monkeypatch, state)
    monkeypatch.setattr(device, "named", lambda name: Device(0))
    monkeypatch.setattr(device, "current", lambda: 0)
    driver = SimpleNamespace(
        device=lambda: 0, card=lambda index: None, share=np.may_share_memory,
        stream=lambda index: SimpleNamespace(ptr=0, is_capturing=lambda: False, synchronize=lambda: None),
    )  # fmt: skip
    monkeypatch.setattr(device, "driver", lambda: driver)
    for module in (devices, *PRODUCTS):
        if hasattr(module, "cuda_driver"):
            monkeypatch.setattr(module, "cuda_driver", lambda: driver)
    monkeypatch.setattr(PRODUCTS[0], "_warm", lambda x: None)

    def run(problem, operands, result, *rest):
        x, q, *ids = operands
        assert q.device == "cuda:0"
        state.products += 1
        if ids:
            per = ids[0].size // len(x)
            used = np.array(x).repeat(per, 0) if per > 1 else np.array(x)
            y = gq.reference.expert_linear(used.reshape(*ids[0].shape, -1), on_host(q), np.array(ids[0]))
        else:
            y = gq.reference.linear(np.array(x), on_host(q))
        if result.bias is not None:
            y = y + np.asarray(result.bias)
        return y.reshape(result.shape).astype(result.dtype).view(DeviceArray)

    for module in PRODUCTS:
        monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(lengths, "cuda_module", lambda name: SimpleNamespace(placed=numbered))

    state.attends = True  # attention has a kernel

    def attend(request, a, kind, invariant):
        if not state.attends:
            raise gq.errors.UnsupportedError(f"{request}: this card has no kernel")
        k, v = on_host(a.k), on_host(a.v)
        y = gq.reference.attention(
            np.array(a.q), k, v, scale=a.scale, causal=a.causal, lengths=np.array(a.lengths),
            window=a.window or None, softcap=a.softcap, sinks=None if a.sinks is None else np.array(a.sinks),
        )  # fmt: skip
        return y.astype(kind).view(DeviceArray)

    monkeypatch.setattr(import_module("ggmlq.ops.attention"), "_on_gpu", attend)

    def put(request, q, ids, x, check, unique=False):
        host = on_host(q).as_writable()
        gq.put(host, np.array(ids), np.array(x), check=False)
        q.raw[...] = host.raw

    kernels = SimpleNamespace(
        put=put, take=lambda q, ids, kind: gq.take(on_host(q), np.array(ids), kind).view(DeviceArray),
        dequantize=lambda q, kind: on_host(q).dequantize(kind).view(DeviceArray),
    )  # fmt: skip
    layers = SimpleNamespace(
        normed=lambda x, w, e: single(Exact().norm(double(x), e) * w),
        turned=lambda x, neox, c, s: single(turned(double(x), Rope(2 * c.shape[1], neox, 1.0), c, s)),
        spread=lambda rows: single(hadamard(np.array(rows))),
        gated=lambda name, gate, up: single(Exact().gated(name, double(gate), double(up))),
    )  # fmt: skip
    for module in (cuda, caches):
        monkeypatch.setattr(module, "cuda_module", lambda name: layers)
    for module in (rows, import_module("ggmlq.ops.dequantize")):
        monkeypatch.setattr(module, "cuda_module", lambda name: kernels)
    return state


# Sums of float32 in a layer are off by some units in the last place, 2^-24 of it; through two layers,
# norms and logits by less than a thousand of them.
ROUNDED = (1000 * 2.0**-24) ** 2


@pytest.mark.drawn(4)
@pytest.mark.parametrize("family", NAMES)
def test_logits(card, fresh, tmp_path, family):
    """All at once, and one by one through the recorded step: those of the oracle, but for float32."""
    card.attends = bool(fresh.integers(2))
    path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), types=("q8_0", "f16"))
    tokens = fresh.integers(3, 259, 20).tolist()
    expected = gq.model.load(path, arithmetic="exact", cache="f32").logits(tokens)
    m = gq.model.load(path, device="cuda", cache="f32")
    y = m.logits(tokens)
    assert type(y) is np.ndarray
    assert gq.nmse(y, expected) < ROUNDED
    cache = m.cache(20)
    m.run(np.array(tokens[:13]), cache)
    for token in tokens[13:]:
        last = m.run(np.array([token]), cache)
    assert type(last) is DeviceArray
    assert last.shape == (1, 288)
    assert len(cache) == 20
    assert gq.nmse(np.asarray(last[-1]), expected[-1]) < ROUNDED
    assert card.launches == (7 if m.config.records else 0)


@pytest.mark.parametrize("attends", [True, False])
def test_steps_over_more_positions(card, fresh, tmp_path, monkeypatch, attends):
    """A sequence that grows beyond the positions of a recorded step, and one that is cut back."""
    card.attends = attends
    monkeypatch.setattr(replay, "LEAST", 4)
    path = family_model(tmp_path / "m.gguf", "gemma3", int(fresh.integers(1 << 30)), types=("q8_0",))
    tokens = fresh.integers(3, 259, 19).tolist()
    expected = gq.model.load(path, arithmetic="exact", cache="f32").logits(tokens)
    m = gq.model.load(path, device="cuda", cache="f32")
    cache = m.cache(30)
    rows = [np.asarray(m.run(np.array([token]), cache)) for token in tokens]
    assert gq.nmse(np.concatenate(rows), expected) < ROUNDED
    cache.truncate(9)
    again = [np.asarray(m.run(np.array([token]), cache)) for token in tokens[9:]]
    assert gq.nmse(np.concatenate(again), expected[9:]) < ROUNDED
    assert cache.reason == ""


@pytest.mark.parametrize("family", ["llama", "gpt-oss"])
def test_keys_and_values_in_blocks(card, fresh, tmp_path, family):
    """They are turned on the device as on the host: only roundings to codes of 8 bits may differ."""
    path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), types=("q8_0",))
    tokens = fresh.integers(3, 259, 50).tolist()  # more than the window has
    expected = gq.model.load(path, arithmetic="exact", cache="q8_0").logits(tokens)
    m = gq.model.load(path, device="cuda", cache="q8_0")
    assert np.median(gq.nmse(m.logits(tokens), expected, axis=1)) < 1e-3
    assert next(m.generate(tokens, 3)) == m.logits(tokens)[-1].argmax()
    assert "cuda" in repr(m)
    assert m.cache(5).layers[0].device == "cuda:0"


def test_attention_in_runs_of_positions(card, fresh, monkeypatch):
    """Maxima and sums that grow from run to run; a run of which a query sees nothing."""
    monkeypatch.setattr(cuda, "SCORES", 1)
    monkeypatch.setattr(cuda, "LEAST", 7)
    k, v = (gq.quantize(fresh.standard_normal((2, 40, 64), np.float32), "f16") for _ in range(2))
    q, sinks = fresh.standard_normal((4, 9, 64), np.float32), fresh.standard_normal(4).astype(np.float32)
    for window, cap, some in ((0, 0.0, None), (5, 0.0, None), (3, 2.0, sinks), (0, 2.0, sinks)):
        on_card = [gq.QuantArray(rows.format, rows.shape, on_device(rows.raw)) for rows in (k, v)]
        y = cuda.composed(
            on_device(q), Keys(*on_card), Seen(0.1, window, cap, None if some is None else on_device(some))
        )
        expected = gq.reference.attention(
            q[None],
            k.reshape(1, 2, 40, 64),
            v.reshape(1, 2, 40, 64),
            causal=True,
            scale=0.1,
            window=window or None,
            softcap=cap,
            sinks=some,
        )[0]
        assert gq.nmse(np.asarray(y), expected) < ROUNDED


def test_nodes(card, fresh, tmp_path):
    """Every intermediate, on the side where the tokens are."""
    path = family_model(tmp_path / "m.gguf", "mixtral", int(fresh.integers(1 << 30)), types=("q8_0",))
    tokens = fresh.integers(3, 259, 6)
    m, oracle = gq.model.load(path, device="cuda", cache="f32"), gq.model.load(path, "cpu", "exact", "f32")
    for (name, x), (other, expected) in zip(m.nodes(tokens), oracle.nodes(tokens), strict=True):
        assert name == other
        assert type(x) is np.ndarray
        if not name.startswith("ffn_moe_argsort"):  # experts that nobody chooses may be as good as each other
            assert gq.nmse(x, expected) < ROUNDED, name
    assert {name for name, x in m.nodes(on_device(tokens)) if type(x) is not DeviceArray} == set()
    assert type(m.logits(on_device(tokens))) is DeviceArray


def test_a_graph_that_cannot_be_recorded(card, fresh, tmp_path, monkeypatch):
    """Steps run without one, and the cache says why."""
    path = family_model(tmp_path / "m.gguf", "qwen2", int(fresh.integers(1 << 30)), types=("q8_0",))
    m = gq.model.load(path, device="cuda", cache="f32")
    tokens = fresh.integers(3, 259, 6).tolist()
    recorded = list(m.generate(tokens, 4))

    def refuse(self, rows):
        raise gq.errors.UnsupportedError("no such graph")

    monkeypatch.setattr(replay.Replay, "_once", refuse)
    assert list(m.generate(tokens, 4)) == recorded
    cache = m.cache(5)
    m.run(np.array([3]), cache)
    assert (cache.replay, cache.reason, len(cache)) == (False, "no such graph", 1)


# --- a card ---------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("cache", ["f16", "q8_0"])
def test_it_speaks_on_a_card(cupy, cache):
    """The trained model's greedy text, 200 tokens, is that of the CPU."""
    texts = []
    for where in ("cpu", "cuda"):
        m = gq.model.load(SPEAKS, device=where, cache=cache)
        texts.append(list(m.generate(m.tokenizer.encode("A room imports only rooms that stand on"), 200)))
    assert texts[0] == texts[1]


@pytest.mark.cuda
@pytest.mark.parametrize("types", [("q8_0", "q5_1"), ("q8_0", "f16")], ids="-".join)
@pytest.mark.parametrize("family", NAMES)
def test_logits_on_a_card(cupy, fresh, tmp_path, family, types):
    """As far from exact as kernels round: activations to bfloat16 or codes of 8 bits."""
    path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), types=types)
    tokens = fresh.integers(3, 259, 20).tolist()
    expected = gq.model.load(path, arithmetic="exact").logits(tokens)
    m = gq.model.load(path, device="cuda")
    cache = m.cache(20)
    rows = [m.run(np.array(part), cache).get() for part in (tokens[:13], *([t] for t in tokens[13:]))]
    for logits in (m.logits(tokens), np.concatenate(rows)):
        assert np.median(gq.nmse(logits, expected, axis=1)) < 1e-2
    if family != "mistral3":
        assert cache.reason == "", "few weights in floats are multiplied by CuPy"
