"""Whole models on a GPU: on arrays that say they are CuPy's, with NumPy's products; and on a real card."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cupy import Device, DeviceArray, on_device, put_gpu
from families import NAMES, family_model
from recurrent_families import RECURRENT

import ggmlq as gq
from ggmlq.base import devices
from ggmlq.commands import _talk
from ggmlq.cuda.driver import device
from ggmlq.model import ahead, alike, caches, fixed, replay
from ggmlq.model.arithmetic import cuda
from ggmlq.model.arithmetic.kernels import Keys, Seen, apply_rope
from ggmlq.model.arithmetic.oracles import Exact
from ggmlq.model.batch import Piece
from ggmlq.model.config import Rope
from ggmlq.ops import cache as lengths
from ggmlq.ops import plan, rows
from ggmlq.ops.cache import hadamard
from ggmlq.testing.models import Shape, tiny_model

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
    return gq.QuantArray(q.format, q.shape, np.array(q.raw), scale=q._scale)


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
    """Graphs of which the last one of a step computes it anew, into the array that it gave while recorded."""
    begin, state.begun, state.launches, state.recorded = replay.Replay._begin, None, 0, 0

    def noted(*operands):
        state.begun = operands
        return begin(*operands)

    def graph():
        operands, state.recorded = state.begun, state.recorded + 1

        def launch(stream=None):
            state.launches += 1
            step = operands[0]
            if step._graphs and step._graphs[-1].launch is launch:
                step._logits[...] = list(begin(*operands))[-1]

        return SimpleNamespace(launch=launch)

    class Stream(nullcontext):
        def __init__(self, non_blocking):
            super().__init__()
            self.synchronize = self.begin_capture = lambda: None
            self.wait_event = lambda event: None
            self.end_capture = graph

    monkeypatch.setattr(replay.Replay, "_begin", noted)
    state.cupy.cuda.Stream = Stream
    state.stream.record, state.cupy.cuda.get_current_stream = lambda: None, lambda: state.stream
    state.cupy.cuda.MemoryPool = lambda: SimpleNamespace(malloc=len, free_all_blocks=lambda: None)


def kernels_of_layers(put):
    """The host's in place of kernels for parts of a layer; ``put`` puts rows."""

    def append(heads, halves, angles, ids, cache, batch):
        q, k = (
            single(apply_rope(double(x), Rope(2 * angles[0].shape[1], halves, 1.0), *angles))
            for x in heads[:2]
        )
        for one, x in zip(cache, (k, heads[2]), strict=True):
            raw = one.raw.reshape(-1, one.raw.shape[3])
            put("", gq.QuantArray(one.format, (len(raw), one.shape[3]), raw), ids, x, check=False)
        return q.reshape(batch, -1, *q.shape[1:]).transpose(0, 2, 1, 3)

    def spread(heads, halves, angles, batch):
        rope = Rope(2 * angles[0].shape[1], halves, 1.0)
        parts = [apply_rope(double(x), rope, *angles) for x in heads[:2]] + [double(heads[2])]
        sizes = heads[0].shape[2], heads[0].shape[2], 64
        parts = [hadamard(x.reshape(-1, n)).reshape(x.shape) for x, n in zip(parts, sizes, strict=True)]
        q, k, v = map(single, parts)
        return q.reshape(batch, -1, *q.shape[1:]).transpose(0, 2, 1, 3), k, v

    def by_queries(x, places, batch, each):
        rows = x if places is None else x[places.reshape(-1)]
        return rows.reshape(batch, each, *x.shape[1:]).transpose(0, 2, 1, 3)

    def by_rows(y, places):
        rows = y.transpose(0, 2, 1, 3).reshape(-1, y.shape[1], y.shape[3])
        return rows if places is None else rows[places]

    def routed(scores, used, after, of_one, scale):
        ids = np.argsort(-scores, axis=-1, kind="stable")[:, :used]
        weights = np.take_along_axis(Exact().softmax(double(scores)), np.array(ids), -1)
        weights = scale * weights / (weights.sum(axis=-1, keepdims=True) if after or of_one else 1)
        return ids, single(weights)

    return SimpleNamespace(
        routed=routed, takes=lambda experts, used: True,
        scored=lambda x, w: single(double(x) @ double(w).T),
        mixed=lambda y, weights: single((double(y) * double(weights)[..., None]).sum(axis=1)),
        append=append, best=lambda rows: rows.argmax(axis=-1),
        by_queries=by_queries, by_rows=by_rows,
        normed_sum=lambda x, y, w, e: (x + y, single(Exact().norm(double(x + y), e) * w)),
        gated_pair=lambda name, both: single(Exact().gated(name, *map(double, np.split(both, 2, axis=-1)))),
        of_stack=lambda *operands: None, of_expert_stack=lambda *operands: None,
        normed=lambda x, w, e: single(Exact().norm(double(x), e) * w),
        apply_rope=lambda x, neox, c, s: single(apply_rope(double(x), Rope(2 * c.shape[1], neox, 1.0), c, s)),
        spread=spread, hadamard=lambda rows: single(hadamard(np.array(rows))),
        gate_product=lambda name, gate, up: single(Exact().gated(name, double(gate), double(up))),
    )  # fmt: skip


class Nowhere:
    """Plans that nobody makes ahead."""

    add = end = stop = lambda self, *operands, **options: None


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
    for module in (devices, plan, *PRODUCTS):
        if hasattr(module, "cuda_driver"):
            monkeypatch.setattr(module, "cuda_driver", lambda: driver)
    monkeypatch.setattr(plan, "repeat", lambda *call: None)

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
    monkeypatch.setattr(lengths, "cuda_module", lambda name: SimpleNamespace(cache_rows=numbered))

    monkeypatch.setattr(gq.model.Model, "_plans_ahead", lambda self: Nowhere())
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

    layers = kernels_of_layers(put)
    for module in (cuda, caches, fixed):
        monkeypatch.setattr(module, "cuda_module", lambda name: layers)
    for module in (rows, import_module("ggmlq.ops.dequantize")):
        monkeypatch.setattr(module, "cuda_module", lambda name: kernels)
    return state


# Sums of float32 in a layer are off by some units in the last place, 2^-24 of it; through two layers,
# norms and logits by less than a thousand of them.
ROUNDED = (1000 * 2.0**-24) ** 2
STATE = "its layers have a state"  # such steps are not recorded


@pytest.mark.drawn(2)
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
    before = card.launches
    for token in tokens[13:]:
        last = m.run(np.array([token]), cache)
    assert type(last) is DeviceArray
    assert last.shape == (1, 288)
    assert len(cache) == 20
    assert gq.nmse(np.asarray(last[-1]), expected[-1]) < ROUNDED
    expected = (7, "") if card.attends else (0, "a step is recorded where gq.attention has a kernel")
    expected = (0, STATE) if m.config.state else expected  # each step of one token
    assert (card.launches - before, cache.reason) == expected


def test_steps_over_more_positions(card, fresh, tmp_path, monkeypatch):
    """A sequence that grows beyond the positions of a recorded step, and one that is cut back."""
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


@pytest.mark.drawn(2)
@pytest.mark.parametrize("family", NAMES)
def test_prompts_again(card, fresh, tmp_path, monkeypatch, family):
    """Prompts of nearly the same length in caches that follow each other: run, recorded, replayed."""
    monkeypatch.setattr(replay, "FIRST", ())
    monkeypatch.setattr(replay, "LAYERS", 1)
    path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), types=("q8_0",))
    m = gq.model.load(path, device="cuda", cache="f32")
    oracle = gq.model.load(path, arithmetic="exact", cache="f32")
    launches = []
    for count in fresh.integers(33, 49, 4).tolist():  # rounded up to 48
        tokens, before = fresh.integers(3, 259, count).tolist(), card.launches
        cache = m.cache(int(fresh.integers(count, 250)))
        last = np.asarray(m.prompt(tokens, cache))
        assert gq.nmse(last, oracle.logits(tokens)[-1]) < ROUNDED
        assert (len(cache), cache.reason) == (count, STATE if m.config.state else "")
        launches.append(card.launches - before)
        del cache
    graphs = 0 if m.config.state else m.config.layers + 2
    assert (launches, card.recorded) == ([0, graphs, graphs, graphs], graphs)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_drafts_are_recorded(card, fresh, tmp_path, family):
    """Steps with the logits of all their few tokens, of one sequence and of some; of many they are none."""
    path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), types=("q8_0",))
    m = gq.model.load(path, device="cuda", cache="f32")
    oracle = gq.model.load(path, arithmetic="exact", cache="f32")
    texts = [fresh.integers(3, 259, int(fresh.integers(40, 60))) for _ in range(2)]
    rows = [oracle.logits(one) for one in texts]
    cache = m.cache(100)
    m.prompt(texts[0][:20], cache)
    for end in (22, 27, 27 + int(fresh.integers(2, 13))):
        start, before = len(cache), card.launches
        assert gq.nmse(np.asarray(m.run(texts[0][start:end], cache)), rows[0][start:end]) < ROUNDED
        assert card.launches > before
    before = card.launches
    m.run(fresh.integers(3, 259, 65)[: 100 - len(cache)].repeat(2)[:65], m.cache(100))
    assert (card.launches, cache.reason) == (before, ""), "it has too many tokens"
    several = m.cache(70, 2)
    m.together([Piece(i, one[:9]) for i, one in enumerate(texts)], several.parts, True)
    before = card.launches
    y = m.together([Piece(0, texts[0][9:14]), Piece(1, texts[1][9:12])], several.parts, False)
    assert card.launches > before
    assert gq.nmse(np.asarray(y), np.concatenate([rows[0][9:14], rows[1][9:12]])) < ROUNDED


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss"])
def test_prompts_of_some_sequences(card, fresh, tmp_path, family):
    """Tokens of some sequences of a cache, one of each or more, and of those that go on, in any mix."""
    path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), types=("q8_0",))
    m = gq.model.load(path, device="cuda", cache="f32")
    oracle = gq.model.load(path, arithmetic="exact", cache="f32")
    m.logits([3])  # prepares weights
    cache, texts = m.cache(90, 4), [[] for _ in range(4)]
    for _ in range(4):
        some = fresh.permutation(4)[: fresh.integers(1, 5)].tolist()
        counts = [1 if fresh.integers(2) else int(fresh.integers(2, 20)) for _ in some]
        pieces = [Piece(i, fresh.integers(3, 259, n)) for i, n in zip(some, counts, strict=True)]
        rows = np.asarray(m.together(pieces, cache.parts, last=True))
        for piece, logits in zip(pieces, rows, strict=True):
            texts[piece.sequence] += piece.tokens.tolist()
            assert len(cache.parts[piece.sequence]) == len(texts[piece.sequence])
            assert gq.nmse(logits, oracle.logits(texts[piece.sequence])[-1]) < ROUNDED
    assert cache.reason == ""
    assert card.recorded
    assert m.together([Piece(1, np.array([5])), Piece(1, np.array([6]))], cache.parts, True).shape == (2, 288)


def test_attention_goes_over_few_of_many_sequences(fresh):
    """Over all that have tokens, and not over many others; from few places on."""
    for _ in range(100):
        batch = int(fresh.integers(1, 70))
        low, high = sorted(fresh.integers(0, batch, 2).tolist())
        first, count = replay._window([high, low], batch)
        assert 0 <= first <= low <= high < first + count <= batch
        assert count < 4 * (high - low + 1)
        assert first % max(1, (1 << (count - 1).bit_length()) // 2) == 0


def test_a_full_cache(card, fresh, tmp_path):
    """Steps that are filled up need no room for that: the last position can be reached."""
    path = family_model(tmp_path / "m.gguf", "qwen3", int(fresh.integers(1 << 30)), types=("q8_0",))
    m = gq.model.load(path, device="cuda", cache="f32")
    room = caches.roomy(1)
    tokens = fresh.integers(3, 259, room).tolist() if room <= 64 else fresh.integers(3, 259, 100).tolist()
    cache = m.cache(len(tokens))
    m.prompt(tokens[:20], cache)
    m.prompt(tokens[20:-1], cache)
    last = np.asarray(m.run(np.array(tokens[-1:]), cache)[-1])
    expected = gq.model.load(path, arithmetic="exact", cache="f32").logits(tokens)[-1]
    assert gq.nmse(last, expected) < ROUNDED
    assert (len(cache), cache.reason) == (len(tokens), "")
    with pytest.raises(gq.errors.BlockIndexError, match="it is full"):
        m.run(np.array([3]), cache)


def test_memory_goes_from_cache_to_cache(card, fresh, tmp_path, monkeypatch):
    """Recorded steps go with it; caches that live at one time have each their own; too much is freed."""
    monkeypatch.setattr(caches, "LEAST_ROOM", 64)
    monkeypatch.setattr(caches, "STEP", 16)
    path = family_model(tmp_path / "m.gguf", "llama", int(fresh.integers(1 << 30)), types=("q8_0",))
    m = gq.model.load(path, device="cuda", cache="f32")
    m.logits([3])
    home = m._home
    home._most = 1 << 40
    first, second = m.cache(20), m.cache(30)
    assert first.memory is not second.memory
    assert (first.memory.room, caches.roomy(100), caches.roomy(100, 2)) == (64, 112, 112)
    left = first.memory
    m.run(np.array([5]), first)
    del first
    assert m.cache(64).memory is left
    assert left.steps
    part = m.cache(64).parts[0]
    assert part.memory is left
    assert m.cache(64).memory is not left, "who has a sequence keeps others out"
    del part
    long = m.cache(100).memory  # was dropped at once
    assert m.cache(100).memory is long
    assert m.cache(70).memory is long, "it has up to twice the room"
    assert m.cache(300).memory is not long
    assert m.cache(40, 2).memory.batch == 2
    made, make = [], caches.Memory

    def memory(config, room, *others):
        made.append(len(home._free))
        if home._free:
            raise MemoryError("none is left")
        return make(config, room, *others)

    monkeypatch.setattr(caches, "Memory", memory)
    del second
    assert m.cache(500).memory.room == 512
    assert made == [*range(made[0], -1, -1)], "what nobody lives in is freed first"
    home._most = 0
    both = [m.cache(20), m.cache(200)]
    del both
    assert len(home._free) == 1


def test_plans_made_ahead(card, fresh, monkeypatch):
    """Products of all sizes with the first weights of a kind; what they prepared is made of the others."""
    run, sizes = PRODUCTS[0].run, ahead.ROWS

    def make(q):
        return q.shape

    def prepares(problem, operands, *rest):
        rows, q = operands
        if len(rows) == sizes[4]:
            raise gq.errors.UnsupportedError("no code for so many rows")
        q.prepared(make)
        return run(problem, operands, *rest)

    monkeypatch.setattr(PRODUCTS[0], "run", prepares)
    on_card = [
        gq.QuantArray(q.format, q.shape, on_device(q.raw))
        for q in (gq.quantize(fresh.standard_normal((n, 32)), kind) for n, kind in [
            (4, "q8_0"), (4, "q8_0"), (4, "q4_0"), (8, "q8_0"), (4, "f16"), (12, "q8_0")
        ])
    ]  # fmt: skip
    plans = ahead.Ahead("cuda:0", False)
    plans.add(on_card[:3])
    plans.add(on_card[3:5])
    plans.add(on_card[5:], few=True)
    plans.end()
    plans._thread.join()
    # The first product of a kind prepares its weights, and is made again.
    assert card.products == 3 * len(sizes) + len(ahead.KERNELS) + 1
    assert [q.prepared_copy(make) is not None for q in on_card] == [True] * 4 + [False, True]
    plans.stop()
    plans = ahead.Ahead("cuda:0", False)
    plans.stop()
    assert not plans._thread.is_alive()


def test_a_talk(card, fresh, tmp_path):
    """Its steps begin before tokens have arrived; what a stop makes needless is cut off the cache."""
    path = family_model(tmp_path / "m.gguf", "qwen3", int(fresh.integers(1 << 30)), types=("q8_0",))
    m = gq.model.load(path, device="cuda", cache="f32")
    tokens = fresh.integers(3, 259, 9).tolist()
    words = list(m.generate(tokens, 8))
    for stop in (frozenset(), frozenset(words[5:6])):
        talk = _talk.Talk(m, _talk.Sampling(), fresh, stop, 64)
        talk.hear(tokens)
        end = words.index(words[5]) if stop else 8
        assert list(talk.answer(8)) == words[:end]
        assert talk.reason == ("stop" if stop else "length")
        assert len(talk.tokens) == 9 + min(end, 7)
        assert len(talk.cache) - len(talk.tokens) in (0, 1)
        assert talk.said.tokens == min(end, 7)
        talk.hear([*tokens, 5])
        more = list(m.generate([*tokens, 5], 2))
        assert list(talk.answer(2)) == more[: next((i for i, word in enumerate(more) if word in stop), 2)]


def test_graphs_whose_memory_was_given_back(card, fresh, tmp_path):
    """A pool that runs out frees what is free, which graphs may write to: they are recorded anew."""
    total = SimpleNamespace(bytes=0)
    pool = SimpleNamespace(malloc=lambda size: size, total_bytes=lambda: total.bytes)
    card.cupy.cuda.MemoryPool = lambda: pool
    arena = replay.Arena(card.cupy)
    for size, then, version in ((1000, 1024, 0), (512, 1024, 0), (5000, 6144, 0), (9000, 9216, 1)):
        total.bytes = then
        assert (arena(size), arena.version) == (size, version)
    path = family_model(tmp_path / "m.gguf", "llama", int(fresh.integers(1 << 30)), types=("q8_0",))
    m = gq.model.load(path, device="cuda", cache="f32")
    cache = m.cache(20)
    for i in range(6):
        logits = m.run(np.array([5 + i]), cache)
        if i == 3:
            next(iter(cache.memory.arenas.values())).version += 1
    assert (card.recorded, cache.reason) == (2, "")
    expected = gq.model.load(path, arithmetic="exact", cache="f32").logits(range(5, 11))
    assert gq.nmse(np.asarray(logits[-1]), expected[-1]) < ROUNDED


def test_what_is_prepared_lies_outside_the_memory_of_graphs(card, monkeypatch):
    """Replays of older graphs write to what was free there when they were recorded."""
    cuda, streams = card.cupy.cuda, []
    outside, arena = cuda.get_allocator(), replay.Arena(card.cupy)
    monkeypatch.setattr(cuda, "Stream", lambda non_blocking: streams.append(1) or nullcontext())
    for capturing in (False, True):
        monkeypatch.setattr(device, "capturing", lambda index, now=capturing: now)
        with cuda.using_allocator(arena):
            assert device.once("something is prepared", cuda.get_allocator) is outside
            assert cuda.get_allocator() is arena
        assert len(streams) == capturing
    with pytest.raises(gq.errors.DeviceError, match="records a CUDA graph"):
        device.once("something is prepared", cuda.get_allocator)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("family", [name for name in NAMES if name != "deepseek-lite"])
def test_sequences_together(card, fresh, tmp_path, family):
    """Several sequences: each says what it says alone; a step of all of them is one graph."""
    path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), types=("q8_0",))
    sizes = (9, 11, 4) if fresh.integers(2) else (10, 9, 10)  # apart, or filled up to one size
    sequences = [fresh.integers(3, 259, size).tolist() for size in sizes]
    m = gq.model.load(path, device="cuda", cache="f32")
    oracle = gq.model.load(path, arithmetic="exact", cache="f32")
    whole = np.stack(list(m.generate(sequences, 8))).T.tolist()
    assert (card.launches, card.recorded) == ((0, 0) if m.config.state else (7, 1))
    for one, said in zip(sequences, whole, strict=True):
        rows = oracle.logits(one + said[:-1])[len(one) - 1 :]
        behind = rows.max(axis=1) - rows[np.arange(8), said]
        assert (behind <= 1e-3 * np.abs(rows).max(axis=1)).all(), "the best token, or one as good as it"
    ends = {whole[0][2]}
    steps = np.stack(list(m.generate(sequences, 8, stop=ends))).T.tolist()
    for said, one in zip(steps, whole, strict=True):
        end = next((i + 1 for i, token in enumerate(one) if token in ends), 8)
        assert said == (one[:end] + [-1] * 8)[: len(said)]
    assert gq.nmse(m.logits(sequences)[1], oracle.logits(sequences[1])) < ROUNDED


@pytest.mark.drawn(2)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-oss"])
def test_sequences_that_join_and_leave(card, fresh, tmp_path, monkeypatch, family):
    """In one cache, which grows with them; places of those that left are taken again."""
    monkeypatch.setattr("ggmlq.model.seats.LEAST", 16)
    path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), types=("q8_0",))
    m = gq.model.load(path, device="cuda", cache="f32", invariant=bool(fresh.integers(2)))
    oracle = gq.model.load(path, arithmetic="exact", cache="f32")
    b, sizes, texts = m.batch(), {}, {}
    for i in range(9):
        for size in fresh.integers(1, 14, 2).tolist() if i in (0, 1, 4) else []:
            sizes[b.add(fresh.integers(3, 259, size).tolist())] = size
        assert len(b.step()) == len(b)
        texts |= {one: b.tokens(one) for one in b}
        if i in (3, 6):
            b.drop(int(fresh.choice([*b])))
    assert len(b._seats.parts) <= 8
    for one, tokens in texts.items():
        rows, said = oracle.logits(tokens)[sizes[one] - 1 : -1], tokens[sizes[one] :]
        behind = rows.max(axis=1) - rows[np.arange(len(said)), said]
        assert (behind <= 1e-3 * np.abs(rows).max(axis=1)).all(), "the best token, or one as good as it"


def test_kernels_whose_rows_keep_their_bits(card, fresh, tmp_path, monkeypatch):
    """All products and attentions of an invariant model are such, recorded or not; drafts change no token."""
    path = family_model(tmp_path / "m.gguf", "mixtral", int(fresh.integers(1 << 30)), types=("q8_0",))
    m = gq.model.load(path, device="cuda", cache="f32", invariant=True)
    asked, door = (
        [],
        [import_module(f"ggmlq.ops.{name}") for name in ("linear", "expert_linear", "attention")],
    )
    for name, module in zip(("linear", "expert_linear", "attention"), door, strict=True):
        function = getattr(module, name)

        def noted(*operands, invariant=False, function=function, **options):
            asked.append(invariant)
            return function(*operands, invariant=invariant, **options)

        monkeypatch.setattr(cuda, name, noted)
    tokens = fresh.integers(3, 259, 9).tolist()
    plain = list(m.generate(tokens, 12))
    answer = m.generate(tokens, 12, draft="lookup")
    assert list(answer) == plain
    assert answer.accepted <= answer.drafted
    assert asked
    assert all(asked)
    card.attends = False
    with pytest.raises(gq.errors.UnsupportedError, match="load without invariant=True"):
        gq.model.load(path, device="cuda", cache="f32", invariant=True).logits(tokens)


@pytest.mark.parametrize("family", ["llama", "gpt-oss", "deepseek2"])
def test_keys_and_values_in_blocks(card, fresh, tmp_path, family):
    """They are spread on the device as on the host: only roundings to codes of 8 bits may differ."""
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
            on_device(q),
            Keys(*(rows.reshape(1, *rows.shape) for rows in on_card)),
            Seen(0.1, window, cap, None if some is None else on_device(some)),
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


@pytest.mark.parametrize(("family", "count"), [("llama", 4), ("qwen2", 4), ("phi3", 4), ("qwen3moe", 4)])
def test_matrices_of_one_type_are_one_product(card, fresh, tmp_path, family, count):
    """Queries, keys and values, gate and up; nodes have products of their own, with parts of that memory."""
    path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), types=("q8_0",))
    m = gq.model.load(path, device="cuda", cache="f32")
    tokens = fresh.integers(3, 259, 6).tolist()
    m.logits(tokens)
    assert card.products == count * m.config.layers + 1
    nodes, oracle = m.nodes(tokens), gq.model.load(path, arithmetic="exact", cache="f32").nodes(tokens)
    for (name, x), (_, expected) in zip(nodes, oracle, strict=True):
        assert name.startswith("ffn_moe_argsort") or gq.nmse(x, expected) < ROUNDED, name
    if family != "phi3":
        stack, *others = m._weights.stacks(*(f"blk.0.attn_{role}" for role in "qkv"))
        assert not others
        assert np.may_share_memory(stack.q.raw, m._weights.matrix("blk.0.attn_k").raw)


def test_matrices_of_two_types(card, fresh, tmp_path):
    """Those of one type are one product."""
    path = family_model(tmp_path / "m.gguf", "llama", int(fresh.integers(1 << 30)), types=("q8_0", "q4_0"))
    m = gq.model.load(path, device="cuda", cache="f32")
    tokens = fresh.integers(3, 259, 6).tolist()
    expected = gq.model.load(path, arithmetic="exact", cache="f32").logits(tokens)
    assert gq.nmse(m.logits(tokens), expected) < ROUNDED
    stacks = m._weights.stacks(*(f"blk.0.attn_{role}" for role in "qkv"))
    assert [stack.names for stack in stacks] == [["blk.0.attn_q", "blk.0.attn_v"], ["blk.0.attn_k"]]


def test_a_graph_that_cannot_be_recorded(card, fresh, tmp_path, monkeypatch):
    """Steps run without one, and the cache says why."""
    path = family_model(tmp_path / "m.gguf", "qwen2", int(fresh.integers(1 << 30)), types=("q8_0",))
    m = gq.model.load(path, device="cuda", cache="f32")
    tokens = fresh.integers(3, 259, 6).tolist()
    recorded = list(m.generate(tokens, 4))

    def refuse(self, memory, walk):
        raise gq.errors.UnsupportedError("no such graph")

    monkeypatch.setattr(replay.Replay, "_begin", refuse)
    m = gq.model.load(path, device="cuda", cache="f32")
    assert list(m.generate(tokens, 4)) == recorded
    cache = m.cache(700)
    m.run(np.array([3]), cache)
    assert (list(cache.memory.steps.values()), cache.reason, len(cache)) == ([False], "no such graph", 1)


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
@pytest.mark.parametrize("cache", ["f16", "q8_0"])
def test_layers_that_are_alike_on_a_card(cupy, fresh, tmp_path, monkeypatch, cache):
    """Each kind is walked once, and what others repeat of it has the bits of layers that are walked."""
    shape, kinds = Shape(layers=8), [{"down": "q6_K"}, {"down": "q4_K"}]
    types = [kinds[i] for i in [0, 1, *fresh.permutation([0, 0, 0, 1, 1, 1])]]
    path = tiny_model(tmp_path / "m.gguf", types, shape, int(fresh.integers(1 << 30)))
    tokens, walked, results = fresh.integers(3, 259, 100).tolist(), [], []
    walk = alike.Alike._walked
    monkeypatch.setattr(alike.Alike, "_walked", lambda self, *a: walked.append(a[3]) or walk(self, *a))
    for is_on in (True, False):
        if not is_on:
            monkeypatch.setattr(alike.Alike, "__call__", lambda self, walk, step, x, layer: walk(x, layer))
        m = gq.model.load(path, device="cuda", cache=cache)
        rows = m.cache(200)
        m.logits([3])
        first, again = m.prompt(tokens, rows).get(), m.run(np.array([5]), rows).get()
        together = np.stack(list(m.generate([tokens[:20], tokens[20:90]], 6)))
        results.append([first, again, together])
        assert rows.reason == ""
        if is_on:
            assert len(walked) <= 2 * 5, "steps of a prompt, of a token, of two prompts and of two tokens"
            walked.clear()
    assert walked == []
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.cuda
@pytest.mark.parametrize("cache", ["f16", "q8_0"])
@pytest.mark.parametrize("family", NAMES)
def test_bits_of_logits_on_a_card(cupy, fresh, tmp_path, family, cache):
    """Of an invariant model: as one prompt, in pieces, beside others, recorded or not, the same."""
    path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), types=("q8_0", "q5_1"))
    m = gq.model.load(path, device="cuda", cache=cache, invariant=True)
    sequences = [fresh.integers(3, 259, int(fresh.integers(30, 150))) for _ in range(3)]
    whole = [m.logits(one) for one in sequences]
    assert all(np.array_equal(a, b) for a, b in zip(m.logits(sequences), whole, strict=True))
    for tokens, logits in zip(sequences, whole, strict=True):
        rows = m.cache(160)
        while (start := len(rows)) < len(tokens):
            end = min(start + int(fresh.choice([1, 1, 1, 2, 16, 17, 40])), len(tokens))
            assert np.array_equal(m.run(tokens[start:end], rows, last=True).get()[-1], logits[end - 1])
    prompts = [one[:20].tolist() for one in sequences]
    together = np.stack(list(m.generate(prompts, 12))).T.tolist()
    for one, said in zip(prompts, together, strict=True):
        for draft in (None,) if m.config.state else (None, "lookup"):
            assert list(m.generate(one, 12, draft=draft)) == said


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
    if not (m.config.experts and "f16" in types):  # experts in floats are multiplied one after the other
        assert bool(cache.reason) == (family in RECURRENT), "few weights in floats are multiplied by a kernel"


@pytest.mark.cuda
@pytest.mark.parametrize("cache", ["f16", "q8_0"])
@pytest.mark.parametrize("family", NAMES)
def test_prompts_and_sequences_on_a_card(cupy, fresh, tmp_path, family, cache):
    """Prompts of nearly one length, recorded and replayed; and some sequences that go on together."""
    path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), types=("q8_0", "q5_1"))
    m, oracle = gq.model.load(path, device="cuda", cache=cache), gq.model.load(path, arithmetic="exact")
    beside, off = [], []  # of a prompt in one go, but for the order of sums; of exact logits
    for count in fresh.integers(113, 129, 5).tolist():
        tokens = fresh.integers(3, 259, count).tolist()
        rows = m.cache(200)
        last = m.prompt(tokens, rows).get()
        beside.append(gq.nmse(last, m.logits(tokens)[-1]))
        off.append(gq.nmse(last, oracle.logits(tokens)[-1]))
        assert bool(rows.reason) == (family in RECURRENT)
        del rows
    if not m.config.experts:
        assert max(beside) < 1e-3, "each prompt"
        assert max(off) < 3e-2
    assert np.median(beside) < 1e-3, "a token's last expert may be another one by rounding"
    assert np.median(off) < 3e-2
    sequences = [fresh.integers(3, 259, size).tolist() for size in (9, 11, 4)]
    steps = np.stack(list(m.generate(sequences, 8))).T.tolist()
    for one, said in zip(sequences, steps, strict=True):
        logits = m.logits(one + said[:-1])[len(one) - 1 :]
        behind = logits.max(axis=1) - logits[np.arange(8), said]
        assert np.median(behind / np.abs(logits).max(axis=1)) < 0.05
