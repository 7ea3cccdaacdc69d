"""The judge of traced nodes on products of our own: what is right passes, what is wrong has a name."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import reference
from ggmlq.arrays.rows import rows
from ggmlq.check import cases
from ggmlq.cli import main
from ggmlq.cpu import projection
from ggmlq.cpu.attention import oracle as compiled_attention
from ggmlq.llama.program import Node
from ggmlq.llama.structs import HIDDEN
from ggmlq.reference.operands import quantize_runs, stored_scales
from ggmlq.trace import judging, report, verdicts
from ggmlq.trace import saved as saved_files
from ggmlq.trace.judging import Part
from ggmlq.trace.tracer import slices_of
from ggmlq.trace.verdicts import Judge

QUANTIZERS = {
    (fmt, arithmetic): reference.rule(fmt, arithmetic).quantizer
    for fmt, arithmetic in [
        ("q4_0", "ggml-cpu"), ("q4_K", "ggml-cpu"), ("q4_0", "ggml-ref"), ("q8_0", "q8"),
        ("q4_0", "ggml-mmvq"), ("q4_0", "ggml-mmq"), ("q2_K", "ggml-mmq"),
    ]
}  # fmt: skip


def float_tensor(name, array, kind="f32", buffer="CPU"):
    """What the library would say of an array, and its bytes."""
    array = np.ascontiguousarray(array)
    ne = [*array.shape[::-1], *[1] * (4 - array.ndim)]
    size, nb = array.itemsize, []
    for n in ne:
        nb.append(size)
        size *= n
    facts = {"name": name, "type": kind, "ne": ne, "nb": nb, "buffer": buffer}
    return facts, array.view(np.uint8).reshape(-1)


def product_node(y, x, q, name="out-0", buffer="CPU"):
    """A MUL_MAT node whose weights the model has."""
    tensors, arrays = {}, {}
    tensors["y"], arrays["y"] = float_tensor(name, y, buffer=buffer)
    tensors["x"], arrays["x"] = float_tensor("x", x)
    n, k = q.shape
    tensors["w"] = {"name": "w", "type": q.format.name, "ne": [k, n, 1, 1], "nb": [0] * 4, "buffer": buffer}
    return Node("MUL_MAT", 0, tensors, arrays)


@pytest.mark.parametrize("which", QUANTIZERS, ids="-".join)
def test_the_compiled_quantizer_has_the_codes_of_the_oracle(which, fresh):
    how = QUANTIZERS[which]
    x = fresh.standard_normal((7, 768)).astype(np.float32)
    x[1] *= np.exp2(fresh.integers(-140, 100, 768)).astype(np.float32)  # subnormal, and large
    x[2, :64], x[3, 5] = 0, -np.abs(x[3]).max() * 3
    x[4] = np.round(x[4] * 8) / 8  # ties
    x[5] = 1e-42
    codes, d = projection.quantize(x, how)
    with np.errstate(all="ignore"):
        wanted = quantize_runs(x, how)
        np.testing.assert_array_equal(codes, wanted.codes)
        np.testing.assert_array_equal(stored_scales(d, how), wanted.scale)


@pytest.mark.parametrize("arithmetic", ["ggml-cpu", "ggml-mmq", "ggml-mmvq", "f16", "f32"])
@pytest.mark.parametrize("fmt", ["q4_0", "q4_1", "q6_K", "q4_K", "f16"])
def test_random_sums_are_those_of_the_product(fmt, arithmetic, fresh, monkeypatch):
    """Compiled and in NumPy: Σ r·y is what the sums say, but for sums that are rounded on the way."""
    x = fresh.standard_normal((11, 512)).astype(np.float32)
    q = gq.quantize(fresh.standard_normal((48, 512)).astype(np.float32), fmt)
    signs = fresh.choice([-1.0, 1.0], (2, 11))
    wanted = signs @ reference.linear(x, q, arithmetic)
    rounds = arithmetic == "f16" or (arithmetic.startswith("ggml-mm") and fmt in ("q4_1", "q4_K", "f16"))
    for least in (1, 1 << 30):
        monkeypatch.setattr(judging, "COMPILED", least)
        a = judging.activations(x, q, arithmetic)
        sums, lengths = judging.expected_sums(a, q, arithmetic, signs)
        size = np.sqrt((x.astype(np.float64) ** 2).sum() * lengths / 512)
        assert (np.abs(sums - wanted) <= (1e-2 if rounds else 1e-6) * size).all()
        np.testing.assert_allclose(lengths, (q.dequantize(np.float64) ** 2).sum(axis=1))


@pytest.mark.parametrize("m", [1, 7, 40])
@pytest.mark.parametrize("fmt", ["q4_0", "q5_1", "q4_K", "iq4_xs", "bf16"])
def test_right_products_pass_and_one_wrong_element_is_found(fmt, m, fresh):
    x = fresh.standard_normal((m, 512)).astype(np.float32)
    q = gq.quantize(fresh.standard_normal((200, 512)).astype(np.float32), fmt)
    y = reference.linear(x, q, "ggml-cpu").astype(np.float32)
    assert Judge({"w": q}, "all").record(product_node(y, x, q)).verdict == "ok"
    i, j = int(fresh.integers(m)), int(fresh.integers(200))
    limit = float(reference.bound(x[i : i + 1], q[j : j + 1], "ggml-cpu")[0, 0])
    y[i, j] += 30 * limit
    found = judging.judge_parts([Part(y, x, q)], "CPU", m)
    assert not found.judgement.ok
    assert (found.worst["row"], found.worst["column"], found.judgement.out) == (i, j, 1)
    assert found.worst["error"] == pytest.approx(30 * limit, rel=0.2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found(value, fresh):
    x = fresh.standard_normal((20, 256)).astype(np.float32)
    q = gq.quantize(fresh.standard_normal((96, 256)).astype(np.float32), "q4_K")
    y = reference.linear(x, q, "ggml-cpu").astype(np.float32)
    y[13, 77] = value
    found = Judge({"w": q}, "all").record(product_node(y, x, q))
    assert found.verdict == "wrong"
    assert (found.worst["row"], found.worst["column"]) == (13, 77)
    assert found.facts()["worst"]["got"] is None


def test_activations_that_overflowed_accuse_nobody(fresh):
    """A row of infinities makes a row of NaN: that is right; the rows beside it are judged."""
    x = fresh.standard_normal((20, 256)).astype(np.float32)
    x[4] = np.inf
    q = gq.quantize(fresh.standard_normal((96, 256)).astype(np.float32), "q4_K")
    with np.errstate(all="ignore"):
        y = reference.linear(x, q, "ggml-cpu").astype(np.float32)
        y[4] = np.nan
        assert Judge({"w": q}, "all").record(product_node(y, x, q)).verdict == "ok"
        y[17, 50] += np.abs(y[17]).max()
        assert Judge({"w": q}, "all").record(product_node(y, x, q)).worst["row"] == 17


def test_a_fault_has_its_name(fresh, monkeypatch):
    monkeypatch.setattr(verdicts, "DIAGNOSED", 1)
    x = fresh.standard_normal((9, 512)).astype(np.float32)
    q = gq.quantize(fresh.standard_normal((64, 512)).astype(np.float32), "q6_K")
    y = reference.linear(x[:, :256], gq.quantize(np.asarray(q)[:, :256], "q6_K"), "ggml-cpu").astype(
        np.float32
    )
    exact = np.asarray(q, np.float64)
    y = (x[:, :256].astype(np.float64) @ exact[:, :256].T).astype(np.float32)
    judge = Judge({"w": q}, "all")
    for i in range(3):
        found = judge.record(product_node(y, x, q, f"out-{i}"))
        assert (found.verdict, found.fault, found.layer) == ("wrong", "k-tail-dropped", i)
        assert found.diagnose().fault == "k-tail-dropped"
    assert "not diagnosed itself" in found.text


def test_what_is_saved_is_diagnosed(fresh, tmp_path, capsys):
    x = fresh.standard_normal((3, 256)).astype(np.float32)
    q = gq.quantize(fresh.standard_normal((40, 256)).astype(np.float32), "q4_0")
    y = (x @ (np.asarray(q) + 8 * q.blocks["d"].astype(np.float32).repeat(32, axis=1)).T).astype(np.float32)
    found = Judge({"w": q}, "all").record(product_node(y, x, q, "up/0 view"))
    assert found.fault == "offset-missing"
    saved = saved_files.save(tmp_path / "new", found)
    assert main(["diagnose", saved.saved]) == 1
    assert "offset-missing" in capsys.readouterr().out
    case = cases.load(Path(saved.saved))
    assert (case.shape, case.format.name) == ("3x40x256", "q4_0")
    assert "WRONG: offset-missing" in report.line(saved)
    assert "offset-missing" in report.summary([saved])
    (tmp_path / "file").touch()
    with pytest.raises(gq.GGMLQError, match="name another folder"):
        saved_files.save(tmp_path / "file", found)


# --- experts --------------------------------------------------------------------------------


def experts_node(fresh, mistake=lambda y, ids, e: e):
    """A MUL_MAT_ID of 5 experts, 2 a token; ``mistake`` says which expert is really used."""
    q = gq.quantize(fresh.standard_normal((5, 64, 256)).astype(np.float32), "q4_K")
    x = fresh.standard_normal((12, 1, 256)).astype(np.float32)
    ids = np.argsort(fresh.random((12, 5)), axis=1)[:, :2].astype(np.int32)
    ids[:2] = [[1, 3], [3, 1]]
    y = np.empty((12, 2, 64), np.float32)
    for t in range(12):
        for u in range(2):
            e = mistake(y, ids, int(ids[t, u]))
            y[t, u] = reference.linear(x[t], q[e], "ggml-cpu")[0]
    tensors, arrays = {}, {}
    for name, array, kind in (("y", y, "f32"), ("x", x, "f32"), ("i", ids, "i32")):
        tensors[name], arrays[name] = float_tensor(name, array, kind)
    tensors["w"] = {"name": "w", "type": "q4_K", "ne": [256, 64, 5, 1], "nb": [0] * 4, "buffer": "CPU"}
    return Node("MUL_MAT_ID", 0, tensors, arrays), q


def test_experts_that_are_right(fresh):
    node, q = experts_node(fresh)
    found = Judge({"w": q}, "all").record(node)
    assert found.verdict == "ok"
    assert (found.m, found.n, found.k) == (24, 64, 256)
    assert 2 <= found.parts <= 5


def test_a_scale_of_weights_belongs_to_a_node_of_its_own(fresh):
    node, q = experts_node(fresh)
    scaled = gq.QuantArray.from_bytes(q.raw, q.format, q.shape, scale=fresh.uniform(2, 3, 5).astype("f4"))
    assert Judge({"w": scaled}, "all").record(node).verdict == "ok"


def test_experts_exchanged(fresh):
    node, q = experts_node(fresh, lambda y, ids, e: {1: 3, 3: 1}.get(e, e))
    found = Judge({"w": q}, "all").record(node)
    assert (found.verdict, found.fault) == ("wrong", "wrong-expert")
    assert "expert 1 by expert 3, expert 3 by expert 1" in found.text


def test_rows_of_tokens_exchanged(fresh):
    node, q = experts_node(fresh)
    y = node.arrays["y"].view(np.float32).reshape(24, 64).copy()
    y[[2, 9]] = y[[9, 2]]
    node.arrays["y"][:] = y.view(np.uint8).reshape(-1)
    found = Judge({"w": q}, "all").record(node)
    assert (found.verdict, found.fault) == ("wrong", "tokens-permuted")
    assert "2 holds 9" in found.text


def test_an_expert_that_does_not_exist(fresh):
    node, q = experts_node(fresh)
    node.arrays["i"].view(np.int32)[3] = 77
    found = Judge({"w": q}, "all").record(node)
    assert found.verdict == "not judged"
    assert "expert 77 is asked for, there are 5" in found.text


# --- attention ------------------------------------------------------------------------------


def attention_node(fresh, *, cap=0.0, bias=0.0, sinks=False, wrong=0.0):
    """FLASH_ATTN_EXT of 6 heads on 2 of keys, computed here a query at a time."""
    heads, m, cells, d, scale = 6, 5, 32, 64, 0.125
    q = fresh.standard_normal((1, heads, m, d)).astype(np.float32)
    k, v = (fresh.standard_normal((1, 2, cells, d)).astype(np.float16) for _ in range(2))
    mask = np.where(fresh.random((1, 1, m, cells)) < 0.3, -np.inf, 0).astype(np.float16)
    mask[..., 0] = 0
    mask[..., 1] = -2
    s = fresh.standard_normal(heads).astype(np.float32)
    y = np.empty((1, m, heads, d))
    for h in range(heads):
        slope = 1.0
        if bias:  # of the first four, then of the two between them
            slope = 2 ** (-bias * (h + 1) / 4) if h < 4 else 2 ** (-bias / 2 * (2 * (h - 4) + 1) / 4)
        for i in range(m):
            score = q[0, h, i].astype(float) @ k[0, h // 3].astype(float).T * scale
            score = cap * np.tanh(score / cap) if cap else score
            e = np.exp(score + slope * mask[0, 0, i].astype(float))
            y[0, i, h] = e @ v[0, h // 3].astype(float) / (e.sum() + (math.exp(s[h]) if sinks else 0))
    y[0, 3, 2, 7] += wrong
    tensors, arrays = {}, {}
    named = {"y": (y.astype(np.float32), "f32"), "q": (q, "f32"), "k": (k, "f16"), "v": (v, "f16"),
             "m": (mask, "f16")} | ({"s": (s, "f32")} if sinks else {})  # fmt: skip
    for name, (array, kind) in named.items():
        tensors[name], arrays[name] = float_tensor(name, array, kind)
    words = tuple(int(word) for word in np.array([scale, bias, cap, *[0] * 13], np.float32).view(np.int32))
    return Node("FLASH_ATTN_EXT", 0, tensors, arrays, words)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("how", [{}, {"cap": 5.0}, {"bias": 8.0}, {"sinks": True}], ids=str)
def test_attention(how, compiled, fresh, monkeypatch):
    monkeypatch.setattr(verdicts, "LARGE", 0 if compiled else math.inf)
    monkeypatch.setattr(verdicts, "ROWS", 1)
    record = Judge({}, "all").record(attention_node(fresh, **how))
    assert record.verdict == "ok", record.text
    assert record.arithmetic == "f32"
    assert record.judgement.distance < 1e-9
    assert record.judged >= (1 if compiled else 5) * 6 * 64
    record = Judge({}, "all").record(attention_node(fresh, **how, wrong=0.5))
    assert record.verdict == "wrong"
    assert (record.worst["row"], record.worst["column"]) == (2, 7)  # of a query: head and element
    assert record.worst["limit"] < 0.5


def attended(q, k, v, mask, slope, sinks, scale):
    """The attention of one stream, [heads, M, D], by NumPy."""
    k, v = (one.repeat(len(q) // len(one), axis=0) for one in (k, v))
    scores = q @ k.swapaxes(-1, -2) * scale
    if mask is not None:
        scores = scores + slope[:, None, None] * mask.repeat(len(q) // len(mask), axis=0)
    largest = np.maximum(scores.max(axis=-1, keepdims=True), sinks[:, None, None])
    powers = np.exp(scores - largest)
    return powers / (powers.sum(axis=-1, keepdims=True) + np.exp(sinks[:, None, None] - largest)) @ v


def test_attention_both_ways_where_nothing_is_attended_to(fresh):
    """Rows without a key, and one that is no number, are the same compiled and not."""
    shapes = (4, 9, 32), (2, 17, 32), (2, 17, 48)
    q, k, v = (fresh.standard_normal(shape) for shape in shapes)
    q[1, 2, 3] = np.nan
    mask = np.where(fresh.random((1, 9, 17)) < 0.5, -np.inf, fresh.standard_normal((1, 9, 17)))
    mask[0, 3] = -np.inf
    for sinks in (np.full(4, -np.inf), fresh.standard_normal(4)):
        for given in (mask, None):
            operands = q, k, v, given, np.ones(4), sinks, 0.2
            with np.errstate(all="ignore"):
                plain, made = attended(*operands), compiled_attention.attend(*operands, 0.0)
            known = np.isfinite(plain).all(axis=-1)
            assert known.any()
            assert (np.isfinite(made).all(axis=-1) == known).all()
            assert np.abs(made - plain)[known].max() < 1e-12


def test_a_product_across_heads(fresh):
    """K·q: a matrix on the left serves three heads on the right; a quantized cache."""
    q = gq.quantize(fresh.standard_normal((2, 40, 64)).astype(np.float32), "q8_0")
    x = fresh.standard_normal((1, 6, 3, 64)).astype(np.float32)
    y = np.stack([reference.linear(x[0, h], q[h // 3], "ggml-cpu") for h in range(6)])[None].astype(
        np.float32
    )
    tensors, arrays = {}, {}
    for name, array in (("y", y), ("x", x)):
        tensors[name], arrays[name] = float_tensor(name, array)
    row = q.format.row_bytes(64)
    nb = [34, row, 40 * row, 80 * row]
    tensors["w"] = {"name": "cache_k", "type": "q8_0", "ne": [64, 40, 2, 1], "nb": nb, "buffer": "CPU"}
    arrays["w"] = np.asarray(q.raw).reshape(-1).copy()
    found = Judge({}, "all").record(Node("MUL_MAT", 0, tensors, arrays))
    assert (found.verdict, found.parts, found.m) == ("ok", 6, 3)
    y[0, 4, 2, 33] += 1
    arrays["y"] = y.view(np.uint8).reshape(-1)
    found = Judge({}, "all").record(Node("MUL_MAT", 0, tensors, arrays))
    assert (found.verdict, found.worst["part"], found.worst["row"]) == ("wrong", "head 4", 2)


def test_a_large_product_is_kept_in_part(fresh, monkeypatch):
    monkeypatch.setattr(verdicts, "WHOLE", 1)
    x = rows("normal", 70, 256, 1)
    q = gq.quantize(rows("normal", 600, 256, 2), "q8_0")
    y = reference.linear(x, q, "ggml-cpu").astype(np.float32)
    y[:, 500] *= 2
    found = Judge({"w": q}, "all").record(product_node(y, x, q))
    assert found.verdict == "wrong"
    assert 500 in found.operands.columns
    assert found.operands.y.shape == (len(found.operands.rows), len(found.operands.columns))
    assert isinstance(judging.judge_parts([Part(y, x, q)], "CPU", 70), judging.Verdict)
    assert "AMX" in HIDDEN


# --- other nodes ------------------------------------------------------------------------------------


def norm_node(fresh, *, wrong=False):
    """RMS_NORM of five rows, perhaps with epsilon outside of the root."""
    x = 0.1 * fresh.standard_normal((1, 1, 5, 100)).astype(np.float32)
    size = np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + (0 if wrong else 1e-2))
    y = x / (size + (1e-2 if wrong else 0))
    tensors, arrays = {}, {}
    for name, array in (("y", y.astype(np.float32)), ("s0", x)):
        tensors[name], arrays[name] = float_tensor(name, array)
    tensors["y"] |= {"name": "norm-3", "number": 25}
    words = tuple(int(w) for w in np.array([1e-2, *[0] * 15], np.float32).view(np.int32))
    return Node("RMS_NORM", 0, tensors, arrays, words)


def test_a_node_that_is_no_product_has_a_record(fresh):
    right, wrong = (Judge({}, "all").record(norm_node(fresh, wrong=bad)) for bad in (False, True))
    assert (right.verdict, right.op, right.layer, right.m, right.n) == ("ok", "RMS_NORM", 3, 5, 100)
    assert right.diagnose().ok
    assert (wrong.verdict, wrong.fault) == ("wrong", "node-epsilon")
    facts = wrong.facts()
    assert (facts["op"], facts["verdict"], facts["fault"]) == ("RMS_NORM", "wrong", "node-epsilon")
    assert facts["limit"] < facts["error"]
    assert wrong.line.startswith("25 0 100 5 1 1 16 ")
    assert right.line is None
    assert "WRONG: node-epsilon" in report.line(wrong)
    assert report.share_of(right) <= 1 < report.share_of(wrong)
    last = report.last_line([right, wrong], {"OPT_STEP_SGD": 2}, 9)
    assert last.startswith("2 of 4 nodes judged, 5 views, 1 wrong, the first is norm-3 (RMS_NORM, step 0)")
    assert last.endswith("not judged: 2 of 4 nodes: OPT_STEP_SGD 2")


def test_a_node_without_an_oracle_is_not_judged(fresh):
    node = norm_node(fresh)
    record = Judge({}, "all").record(Node("OPT_STEP_SGD", 0, node.tensors, node.arrays, node.words))
    assert record.verdict == "not judged"
    assert "no model that is run has it" in record.text
    assert record.ok


def test_slices_of_a_large_node_are_judged_like_the_whole(fresh):
    x = fresh.standard_normal((1, 1, 400, 64)).astype(np.float32)
    tensors, whole = {}, {}
    for name, array in (("y", np.maximum(x, 0)), ("s0", x)):
        tensors[name], whole[name] = float_tensor(name, array)
        tensors[name]["block"] = 1
    cut = slices_of("RELU", tensors)
    picked = cut["y"].facts["rows"]
    assert picked[0] == 0
    assert picked[-1] == 399
    arrays = {}
    for name, slices in cut.items():
        arrays[name] = np.zeros(slices.length, np.uint8)
        for offset, start, size in slices.pieces:
            arrays[name][start : start + size] = whole[name][offset : offset + size]
    node = Node("RELU", 0, {name: slices.facts for name, slices in cut.items()}, arrays, (0,) * 16)
    record = Judge({}, "sample").record(node)
    assert (record.verdict, record.judged) == ("ok", 8 * 64)
    arrays["y"].view(np.float32)[1] += 1
    assert Judge({}, "sample").record(node).verdict == "wrong"
    assert slices_of("SUM", tensors) is None  # it needs all rows
    small, _ = float_tensor("y", x[:, :, :8])
    assert slices_of("RELU", {"y": {**small, "block": 1}}) is None


def test_a_product_that_is_nearer_to_float64_is_right(fresh):
    """Activations with 12 bits of fraction, where llama.cpp takes codes of 8."""
    x = fresh.standard_normal((40, 512)).astype(np.float32)
    q = gq.quantize(fresh.standard_normal((70, 512)).astype(np.float32), "q4_0")
    y = gq.reference.linear(np.round(x * 4096) / 4096, q).astype(np.float32)
    record = Judge({"w": q}, "all").record(product_node(y, x, q))
    assert (record.verdict, record.arithmetic, record.judgement.out) == ("ok", "other", 0), record.text
    y[3, 5] += y.std()
    assert Judge({"w": q}, "all").record(product_node(y, x, q)).verdict == "wrong"


def test_an_error_of_ours_is_a_record(fresh, monkeypatch):
    monkeypatch.setattr(verdicts, "record_node", lambda *args: None.ndim)
    record = Judge({}, "all").record(norm_node(fresh))
    assert record.verdict == "not judged"
    assert "an error of ggmlq itself, not of the library: AttributeError: 'NoneType'" in record.text
    monkeypatch.undo()
    monkeypatch.setattr(verdicts, "diagnosed", lambda *args, **more: None.ndim)
    record = Judge({}, "all").record(norm_node(fresh, wrong=True))
    assert (record.verdict, record.fault) == ("wrong", "unknown")
    assert "It was not diagnosed: an error of ggmlq itself" in record.text
