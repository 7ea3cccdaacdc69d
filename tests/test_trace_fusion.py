"""Groups of nodes that one kernel may compute, and their judgement as one, without a library."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.reference.nodes import Number
from ggmlq.trace.fused import record_group
from ggmlq.trace.fusion import Group, groups_of
from ggmlq.trace.judging import Part, finite


class Graph:
    """A list of nodes as a trace makes it; every tensor is an address."""

    def __init__(self):
        self.listing, self._next = [], itertools.count(1)

    def leaf(self):
        return -next(self._next)

    def node(self, op, *of, ne=(64, 3, 1, 1), buffer="CUDA0", type="f32", origin=0):
        at = next(self._next)
        self.listing.append({
            "number": len(self.listing), "op": op, "step": 0, "at": at, "of": list(of), "origin": origin,
            "ne": list(ne), "buffer": buffer, "type": type, "name": f"{op}-{at}",
        })  # fmt: skip
        return at

    def groups(self):
        return ["+".join(self.listing[i]["op"] for i in group) for group in groups_of(self.listing)]


def test_known_fusions():
    g = Graph()
    x = g.node("ADD", g.leaf(), g.leaf())
    norm = g.node("MUL", g.node("RMS_NORM", x), g.leaf())
    q = g.node("ADD", g.node("MUL_MAT", g.leaf(), norm), g.leaf())
    k = g.node("MUL_MAT", g.leaf(), norm)
    heads = g.node("RESHAPE", k, origin=k)
    rope = g.node("ROPE", g.node("MUL", g.node("RMS_NORM", heads), g.leaf()), g.leaf())
    cache = g.leaf()
    g.node("SET_ROWS", g.node("VIEW", rope, origin=rope), g.leaf(), cache, origin=cache, type="f16")
    gate = g.node("ADD", g.node("MUL_MAT", g.leaf(), q), g.leaf())
    up = g.node("ADD", g.node("MUL_MAT", g.leaf(), q), g.leaf())
    down = g.node("MUL_MAT", g.leaf(), g.node("SWIGLU", gate, up))
    g.node("ADD", down, x)
    assert g.groups() == [
        "RMS_NORM+MUL", "MUL_MAT+ADD", "RMS_NORM+MUL+ROPE+SET_ROWS", "MUL_MAT+ADD+MUL_MAT+ADD+SWIGLU",
        "MUL_MAT+ADD",
    ]  # fmt: skip


def test_routing_of_experts():
    g = Graph()
    logits = g.node("MUL_MAT", g.leaf(), g.leaf())
    probs = g.node("SOFT_MAX", logits)
    order = g.node("ARGSORT", probs, type="i32")
    ids = g.node("VIEW", order, origin=order)
    weights = g.node("GET_ROWS", g.node("RESHAPE", probs, origin=probs), ids)
    flat = g.node("RESHAPE", weights, origin=weights)
    total = g.node("CLAMP", g.node("SUM_ROWS", flat))
    scaled = g.node("DIV", flat, total)
    g.node("MUL_MAT_ID", g.leaf(), g.leaf(), ids)
    assert g.groups() == ["SOFT_MAX+ARGSORT+GET_ROWS+SUM_ROWS+CLAMP+DIV"]
    assert scaled


@pytest.mark.parametrize(
    "case", ["read twice", "elsewhere", "many rows", "on a CPU", "of blocks", "not next"]
)
def test_what_cannot_be_one_kernel(case):
    g = Graph()
    buffer = "CPU" if case == "on a CPU" else "CUDA0"
    product = g.node(
        "MUL_MAT", g.leaf(), g.leaf(), ne=(64, 9 if case == "many rows" else 3, 1, 1), buffer=buffer
    )
    if case == "not next":
        g.node("FLASH_ATTN_EXT", g.leaf(), g.leaf(), g.leaf())
    if case == "of blocks":
        cache = g.leaf()
        g.node("SET_ROWS", product, g.leaf(), cache, origin=cache, type="q8_0")
    else:
        g.node("ADD", product, g.leaf(), buffer="CPU" if case == "elsewhere" else buffer)
    if case == "read twice":
        g.node("SCALE", product)
    assert g.groups() == []


# --- judged as one ----------------------------------------------------------------------------


def facts(name, array, kind="f32"):
    ne = [*array.shape[::-1], *[1] * (4 - array.ndim)]
    size = array.itemsize
    nb = [size, size * ne[0], size * ne[0] * ne[1], size * ne[0] * ne[1] * ne[2]]
    return {"name": name, "type": kind, "ne": ne, "nb": nb, "buffer": "CPU", "block": 1}


class Made:
    """A group from arrays: outside ones by name, and members in their order."""

    def __init__(self, model=None):
        self.model, self.tensors, self.arrays, self.members = model or {}, {}, {}, []

    def outside(self, array, kind="f32", name=""):
        key = f"e{len(self.tensors)}"
        self.tensors[key] = facts(name or key, array, kind)
        self.arrays[key] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return key

    def weights(self, name):
        q = self.model[name]
        key = f"e{len(self.tensors)}"
        self.tensors[key] = {"name": name, "type": q.format.name, "ne": [*q.shape[::-1], 1, 1], "nb": [0] * 4,
                             "buffer": "CUDA0", "block": 32}  # fmt: skip
        return key

    def member(self, op, shape, *sources, words=(), kind="f32"):
        size = {"f32": 4, "i32": 4, "f16": 2}[kind]
        array = np.empty(shape, {4: np.float32, 2: np.float16}[size])
        entry = facts(f"{op}-{len(self.members)}", array, kind)
        self.members.append(
            {"op": op, "facts": entry, "sources": list(sources), "words": [*words, *[0] * 16][:16]}
        )
        return {"member": len(self.members) - 1, "ne": entry["ne"], "nb": entry["nb"], "offset": 0}

    def judged(self, y, kind="f32", how="all", **orders):
        for name, array in {"y": y, **orders}.items():
            self.tensors[name] = facts(name, array, "i32" if name != "y" else kind)
            self.arrays[name] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        op = "+".join(member["op"] for member in self.members)
        return record_group(
            Group(op, 0, self.tensors, self.arrays, members=tuple(self.members)), self.model, how
        )


def words_of(*values):
    return np.array(values, np.float32).view(np.int32).tolist()


def normed(fresh, added):
    """RMS_NORM, MUL and perhaps ADD, as a kernel in float32 computes them."""
    x, w, b = (fresh.standard_normal(shape).astype(np.float32) for shape in ((3, 64), (64,), (3, 64)))
    made = Made()
    last = made.member("RMS_NORM", x.shape, made.outside(x), words=words_of(1e-5))
    last = made.member("MUL", x.shape, last, made.outside(w))
    y = x / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(1e-5)) * w
    if added:
        made.member("ADD", x.shape, last, made.outside(b))
        y = y + b
    return made, y, x


@pytest.mark.parametrize("added", [False, True])
def test_a_norm_with_its_weights(fresh, added):
    made, y, x = normed(fresh, added)
    right = made.judged(y)
    assert (right.verdict, right.arithmetic, right.judged) == ("ok", "f32", 192)
    assert right.group == (("RMS_NORM-0", "MUL-1", "ADD-2") if added else ("RMS_NORM-0", "MUL-1"))
    wrong = y.copy()
    wrong[2, 17] += 1e-3
    record = made.judged(wrong)
    assert (record.verdict, record.fault, record.judgement.out) == ("wrong", "fused-kernel", 1)
    assert (record.worst["row"], record.worst["column"]) == (2, 17)
    if not added:
        bare = x / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(1e-5))
        assert "the group without its MUL" in made.judged(bare).text


def test_some_rows_of_a_large_group(fresh):
    """A sample judges eight rows, the first and the last among them; broadcast weights serve all."""
    x, w = (fresh.standard_normal(shape).astype(np.float32) for shape in ((300, 64), (64,)))
    y = x / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(1e-5)) * w
    y[-1, 5] += 1
    records = {}
    for how in ("sample", "all"):
        made = Made()
        last = made.member("RMS_NORM", x.shape, made.outside(x), words=words_of(1e-5))
        made.member("MUL", x.shape, last, made.outside(w))
        records[how] = made.judged(y, how=how)
    assert [records[how].judged for how in ("sample", "all")] == [8 * 64, 300 * 64]
    assert {record.judgement.out for record in records.values()} == {1}


def test_bounds_of_a_group_are_those_of_its_steps(fresh):
    """The bound grows by the roundings of each step, and stays far below any mistake."""
    x, w = (fresh.standard_normal(shape).astype(np.float32) for shape in ((1, 1, 4, 96), (1, 1, 1, 96)))
    first = gq.reference.node("RMS_NORM", [x], {"eps": 1e-5})
    last = gq.reference.node("MUL", [Number(first.value, first.bound), w])
    assert (last.bound >= first.bound * np.abs(w)).all()
    assert (last.bound <= 1e-5 * np.abs(last.value) + 1e-30).all()


@pytest.mark.parametrize("arithmetic", ["ggml-mmvq", "q8", "f32"])
def test_gate_and_up_with_their_activation(fresh, arithmetic):
    model = {name: gq.quantize(rows("normal", 48, 256, seed=int(fresh.integers(99))), kind)
             for name, kind in (("gate", "q4_K"), ("up", "q6_K"))}  # fmt: skip
    x, bias = (fresh.standard_normal(shape).astype(np.float32) for shape in ((2, 256), (48,)))
    g, u = (gq.reference.linear(x, model[name], arithmetic).astype(np.float32) for name in ("gate", "up"))
    made = Made(model)
    activations = made.outside(x)
    gate = made.member("MUL_MAT", (2, 48), made.weights("gate"), activations)
    gate = made.member("ADD", (2, 48), gate, made.outside(bias))
    up = made.member("MUL_MAT", (2, 48), made.weights("up"), activations)
    made.member("SWIGLU", (2, 48), gate, up)
    biased = g + bias
    y = (biased / (1 + np.exp(-biased)) * u).astype(np.float32)
    right = made.judged(y)
    assert right.verdict == "ok", right.text
    assert right.weights == "gate"
    if arithmetic != "f32":
        assert right.arithmetic == arithmetic
    assert made.judged((g / (1 + np.exp(-g)) * u).astype(np.float32)).verdict == "wrong"
    exchanged = made.judged((u / (1 + np.exp(-u)) * biased).astype(np.float32))
    assert exchanged.verdict == "wrong"


def test_nan_that_a_node_before_made(fresh):
    """Whatever a kernel makes of NaN is right; elements that hold none are judged as ever."""
    made, y, _ = normed(fresh, True)
    source = made.arrays["e0"].view(np.float32).reshape(3, 64)
    source[1, 5] = np.nan
    y[1] = 7.0
    assert made.judged(y).verdict == "ok"
    y[2, 9] += 1
    assert made.judged(y).judgement.out == 1
    order = np.array([[2, 0, 1]])
    values = np.array([[1.0, np.nan, 3.0]])
    right = gq.reference.node("ARGSORT", [values], {"descending": 1})
    assert not right.wrong(order).any()
    assert right.wrong(np.array([[2, 0, 0]])).any()
    q = gq.quantize(rows("normal", 4, 32), "q8_0")
    part = Part(np.zeros((3, 4), np.float32), np.zeros((3, 32), np.float32), q)
    part.x[1, 3] = np.inf
    assert finite(part).rows.tolist() == [0, 2]
    part.x[:, 0] = np.nan
    assert finite(part) is None


def test_some_columns_of_a_large_product(fresh, monkeypatch):
    monkeypatch.setattr("ggmlq.trace.fused.LARGE", 1 << 10)
    monkeypatch.setattr("ggmlq.trace.fused.COLUMNS", 16)
    model = {"w": gq.quantize(rows("normal", 96, 64, seed=int(fresh.integers(99))), "q8_0")}
    x, bias = (fresh.standard_normal(shape).astype(np.float32) for shape in ((1, 64), (96,)))
    made = Made(model)
    product = made.member("MUL_MAT", (1, 96), made.weights("w"), made.outside(x))
    made.member("ADD", (1, 96), product, made.outside(bias))
    y = (gq.reference.linear(x, model["w"], "ggml-cpu") + bias).astype(np.float32)
    record = made.judged(y)
    assert (record.verdict, record.judged) == ("ok", 16)
    assert made.judged(y - bias).verdict == "wrong"


@pytest.mark.parametrize(
    "mistake", ["", "a smaller one", "twice", "out of order", "weights of others", "outside"]
)
def test_routing_as_one(fresh, mistake):
    n, used, tokens = 8, 3, 5
    logits = fresh.permuted(np.tile(np.linspace(-2, 2, n), (tokens, 1)), axis=1).astype(np.float32)
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    order = np.argsort(-probs, axis=1, kind="stable").astype(np.int32)
    if mistake == "a smaller one":
        order[2, 2] = order[2, 5]
    if mistake == "twice":
        order[2, 2] = order[2, 1]
    if mistake == "out of order":
        order[2, [0, 1]] = order[2, [1, 0]]
    if mistake == "outside":
        order[2, 0] = n
    order[:, used:] = -7  # a kernel of routing does not write the rest
    picked = np.take_along_axis(probs, np.clip(order[:, :used], 0, n - 1), 1)
    y = picked / picked.sum(1, keepdims=True)
    if mistake == "weights of others":
        y = y[:, ::-1]
    made = Made()
    soft = made.member(
        "SOFT_MAX", (1, 1, tokens, n), made.outside(logits.reshape(1, 1, tokens, n)), words=words_of(1, 0)
    )
    places = made.member("ARGSORT", (1, 1, tokens, n), soft, words=[1], kind="i32")
    ids = {**places, "ne": [used, tokens, 1, 1]}
    shaped = {**soft, "ne": [1, n, tokens, 1], "nb": [4, 4, 4 * n, 4 * n * tokens]}
    weights = made.member("GET_ROWS", (1, tokens, used, 1), shaped, ids)
    flat = {**weights, "ne": [used, tokens, 1, 1], "nb": [4, 4 * used, 4 * used * tokens, 4 * used * tokens]}
    total = made.member("SUM_ROWS", (1, 1, tokens, 1), flat)
    made.member("DIV", (1, 1, tokens, used), flat, total)
    record = made.judged(y.reshape(1, 1, tokens, used).astype(np.float32), o1=order.reshape(1, 1, tokens, n))
    assert (record.verdict == "ok") == (mistake == ""), (record.text, record.worst)


def test_rows_of_a_cache_from_rope(fresh):
    tokens, heads, width, cells = 3, 2, 16, 8
    x = fresh.standard_normal((1, tokens, heads, width)).astype(np.float32)
    words = [0, width, 2, 0, 32, *words_of(10000.0, 1.0, 0.0, 1.0, 32.0, 1.0)]
    params = gq.reference.nodes.named_words("ROPE", np.array([*words, *[0] * 5], np.int32))
    rotated = gq.reference.node("ROPE", [x, np.arange(tokens, dtype=np.int32)], params).value
    before = fresh.standard_normal((1, 1, cells, heads * width)).astype(np.float16)
    ids = np.array([5, 0, 2], np.int64)
    after = before.copy()
    after[0, 0, ids] = rotated.reshape(tokens, -1).astype(np.float16)
    made = Made()
    rope = made.member(
        "ROPE", x.shape, made.outside(x), made.outside(np.arange(tokens, dtype=np.int32), "i32"), words=words
    )
    flat = {**rope, "ne": [heads * width, tokens, 1, 1], "nb": [4, 4 * heads * width, 4 * x.size, 4 * x.size]}
    made.member(
        "SET_ROWS", before.shape, flat, made.outside(ids, "i64"), made.outside(before, "f16"), kind="f16"
    )
    assert made.judged(after, "f16").verdict == "ok"
    other = after.copy()
    other[0, 0, 7, 3] += np.float16(0.01)  # a row that nobody wrote
    assert made.judged(other, "f16").verdict == "wrong"
    swapped = before.copy()
    swapped[0, 0, ids[::-1]] = rotated.reshape(tokens, -1).astype(np.float16)
    assert made.judged(swapped, "f16").verdict == "wrong"
