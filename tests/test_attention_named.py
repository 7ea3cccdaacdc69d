"""Attention in llama.cpp's arithmetics by name, beside its steps in float32 and float16 written here.

The real library stands beside ``ggml-cpu-attention`` in tests/llama/test_check_ops.py; for CUDA these steps
are all that a machine without a GPU has.
"""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.check.nodes import Habits, Operands, as_judged, diagnosed, judge_node
from ggmlq.errors import GGMLQError
from ggmlq.faults import diagnose_node
from ggmlq.faults.imitations import imitations
from ggmlq.reference.nodes import node
from ggmlq.reference.nodes.number import LARGEST

F, H = np.float32, np.float16
RAISED = F(3) * F(0.6931)


def half(x):
    return np.asarray(x).astype(H).astype(F)


def decoded(rows):
    return np.asarray(rows.dequantize() if isinstance(rows, gq.QuantArray) else rows, F)


def on_cpu(scores, v, parts):
    """One row, position by position: halves are added to a sum of halves."""
    halves = v.dtype == H
    values = decoded(v)
    rounded = half if halves else np.asarray
    states = []
    for span in np.array_split(np.arange(len(scores)), parts):
        top, total, acc = F(-np.inf), F(0), np.zeros(values.shape[1], F)
        for i in span:
            if scores[i] > top:
                shrink, weight = np.exp(top - scores[i]), F(1)
                top, acc = scores[i], rounded(acc * shrink)
            else:
                shrink, weight = F(1), np.exp(scores[i] - top)
            acc = rounded(acc + values[i] * weight)
            total = total * shrink + weight
        states.append((top, total, acc))
    top = max(one[0] for one in states)
    total = sum(one[1] * np.exp(one[0] - top) for one in states)
    return sum(one[2] * np.exp(one[0] - top) for one in states) / total


def in_lanes(scores, v):
    """One row with AVX512-FP16: the first 128 columns are added in halves, with weights that are halves."""
    states, values = on_cpu(scores, v, 1), decoded(v).astype(float)
    top, total, acc = F(-np.inf), F(0), np.zeros(128)
    for score, value in zip(scores, values, strict=True):
        if score > top:
            shrink, weight = np.exp(top - score), F(1)
            top, acc = score, (acc * float(H(shrink))).astype(H).astype(float)
        else:
            shrink, weight = F(1), np.exp(score - top)
        acc = (acc + value[:128] * float(H(weight))).astype(H).astype(float)
        total = total * shrink + weight
    return np.concatenate([acc / total, states[128:]]).astype(F)


def on_vec(scores, v):
    """One row: four warps have 32 positions of every 128, and are put together at the end."""
    values = decoded(v)
    states = []
    for warp in range(4):
        top, total, acc = F(-3e38), F(0), np.zeros(values.shape[1], F)
        for start in range(32 * warp, len(scores), 128):
            some = scores[start : start + 32]
            new = max(top, some.max() + RAISED)
            weights = np.exp(some - new)
            shrink, top = np.exp(top - new), new
            acc, total = acc * shrink, total * shrink + weights.sum()
            for weight, value in zip(weights, values[start : start + 32], strict=True):
                acc = acc + weight * value
        states.append((top, total, acc))
    top = max(one[0] for one in states)
    total = sum(one[1] * np.exp(one[0] - top) for one in states)
    return sum(one[2] * np.exp(one[0] - top) for one in states) / total


def on_tensor_cores(scores, v):
    """One row: tiles of 64 positions, weights as halves, 16 at a time added to a sum of halves."""
    values = half(decoded(v))
    top, total, acc = F(-3e38), F(0), np.zeros(values.shape[1], F)
    for start in range(0, len(scores), 64):
        some = scores[start : start + 64]
        new = max(top, some.max() + RAISED)
        weights = np.exp(some - new)
        shrink, top = np.exp(top - new), new
        acc, total = half(acc * half(shrink)), total * shrink + weights.sum()
        for at in range(0, len(some), 16):
            acc = half(acc + half(weights[at : at + 16]) @ values[start + at : start + at + 16])
    return acc / total


def codes_of(q, scale):
    """Q8_1 with scales and sums in float32."""
    x = (q * F(scale)).reshape(len(q), -1, 32)
    d = np.abs(x).max(axis=-1, keepdims=True) / F(127)
    codes = np.copysign(np.floor(np.abs(x / d) + F(0.5)), x)
    return codes, d, x.sum(axis=-1, keepdims=True)


def scores_of(name, q, k, scale):
    keys = decoded(k)
    blocks = isinstance(k, gq.QuantArray)
    if name == "ggml-cpu-attention":
        products = gq.reference.linear(q, k, "ggml-cpu").astype(F) if blocks else half(q) @ keys.T
        return products * F(scale)
    if name == "ggml-cuda-mma":
        return half(half(q) * half(scale)) @ half(keys).T
    if not blocks:
        return (q * F(scale)) @ keys.T
    codes, d, sums = codes_of(q, scale)
    how = gq.formats[k.format.name].unpack(k.blocks)
    right = how.codes.reshape(len(keys), -1, 32).astype(F)
    scales = how.scale.reshape(len(keys), -1, 1)
    zero = k.format.zero
    dots = np.einsum("mgi,ngi->mng", codes, right + F(zero)) * d[:, None, :, 0]
    dots = (dots - F(zero) * sums[:, None, :, 0]) * scales[None, :, :, 0]
    if how.offset is not None:
        dots = dots - sums[:, None, :, 0] * how.offset.reshape(len(keys), -1)
    return dots.sum(axis=-1, dtype=F)


def case(fresh, kind, positions=150, rows=3):
    q = fresh.standard_normal((rows, 64)).astype(F)
    k, v = fresh.standard_normal((2, positions, 64)).astype(F)
    k[-1] = 0  # the last position is one of many
    return (q, k.astype(H), v.astype(H)) if kind == "f16" else (q, gq.quantize(k, kind), gq.quantize(v, kind))


def four(x):
    if isinstance(x, gq.QuantArray):
        return gq.QuantArray.from_bytes(np.asarray(x.raw).reshape(-1), x.format, (1, 1, *x.shape))
    return x[None, None]


STEPS = {"ggml-cpu-attention": on_cpu, "ggml-cuda-vec": on_vec, "ggml-cuda-mma": on_tensor_cores}


def result_of(name, scores, v, parts=1):
    return np.stack(
        [STEPS[name](row, v, *([parts] if name == "ggml-cpu-attention" else [])) for row in scores]
    )


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_programs_lie_within_the_bound(name, fresh):
    for kind in ("f16", "q8_0", "q4_0", "q5_1")[: 4 if name == "ggml-cuda-vec" else 3]:
        parts = 3 if name == "ggml-cpu-attention" else 1
        q, k, v = case(fresh, kind)
        y = result_of(name, scores_of(name, q, k, 0.125), v, parts)
        operands = [four(x) for x in (q, k, v)]
        options = {"scale": 0.125, "arithmetic": name, "parts": parts}
        right = gq.reference.attention(*operands, **options)[0, 0]
        bound = gq.reference.attention_bound(*operands, **options)[0, 0]
        assert (np.abs(y - right) <= bound).all(), (name, kind)
        limit = 0.05 if name == "ggml-cuda-mma" else 1e-3
        assert np.median(bound) < limit * np.sqrt((right**2).mean()), (name, kind)
        exact = gq.reference.attention(*operands, scale=0.125)[0, 0]
        if name != "ggml-cuda-mma" and (name, kind) != ("ggml-cuda-vec", "f16"):  # roundings are no freedom
            assert (np.abs(exact - right) > bound).mean() > 0.5, (name, kind)


def judged(fresh, kind, positions=150, rows=3):
    """A right attention of the CPU's arithmetic as a node."""
    q, k, v = case(fresh, kind, positions, rows)
    y = result_of("ggml-cpu-attention", scores_of("ggml-cpu-attention", q, k, 0.125), v)
    params = {"scale": 0.125, "bias": 0.0, "cap": 0.0, "kinds": (kind, kind), "shape": (1, rows, 1, 64)}
    return Operands(
        "FLASH_ATTN_EXT", [four(x) for x in (q, k, v)] + [None, None], params, y[None, :, None].astype(F)
    )


def test_a_library_is_held_to_its_arithmetic(fresh):
    """A position of 150 that is left out lies within the bound of any kernel, and is found all the same."""
    habits = Habits()
    these = judged(fresh, "q8_0")
    verdict = judge_node(these, habits=habits)
    assert (verdict.how, verdict.out) == ("ggml-cpu-attention", 0)
    named = as_judged(these, verdict)
    left_out = next(
        one for one in imitations(named.op, named.inputs, named.params) if one.fault == "node-positions"
    )
    wrong = node(left_out.op, left_out.inputs, left_out.params).value.astype(F)
    other = Operands(these.op, these.inputs, these.params, wrong)
    assert not judge_node(other).out
    verdict = judge_node(other, habits=habits)
    assert verdict.out > 100
    assert diagnosed(other, verdict=verdict).fault == "node-positions"
    claimed = judge_node(other, arithmetic="ggml-cpu-attention")
    assert claimed.out == verdict.out
    assert not judge_node(judged(fresh, "q8_0"), habits=habits).out


def test_a_kernel_of_another_arithmetic_is_not_accused(fresh):
    these = judged(fresh, "f16")
    q, k, v = these.inputs[:3]
    y = gq.attention(q, k, v, scale=0.125).swapaxes(1, 2)
    verdict = judge_node(Operands(these.op, these.inputs, these.params, y))
    assert (verdict.how, verdict.out) == ("f32", 0)
    in_bf16 = (q.view(np.uint32) & 0xFFFF0000).view(
        F
    )  # some other rounding of q, in no arithmetic that is known
    y = gq.attention(in_bf16, k, v, scale=0.125).swapaxes(1, 2)
    odd = Operands(these.op, these.inputs, these.params, y)
    assert judge_node(odd, arithmetic="f32").out


def test_names(fresh):
    q, k, v = (four(x) for x in case(fresh, "q8_0", 40))
    assert set(gq.reference.ATTENTIONS) == {"exact", "f32", "bf16", "ggml-cpu-attention-fp16", *STEPS}
    with pytest.raises(
        GGMLQError, match=r"arithmetic 'ggml-mmq'; this version computes attention in 'exact'"
    ):
        gq.reference.attention(q, k, v, arithmetic="ggml-mmq")
    with pytest.raises(GGMLQError, match=r"keys are iq4_nl; llama\.cpp's kernel multiplies"):
        gq.reference.attention(q, gq.quantize(k.dequantize(), "iq4_nl"), v, arithmetic="ggml-cuda-vec")
    with pytest.raises(GGMLQError, match="parts is 0; it is a number of threads"):
        gq.reference.attention(q, k, v, arithmetic="f32", parts=0)
    with pytest.raises(GGMLQError, match="arithmetic 'tf32' of attention"):
        node("FLASH_ATTN_EXT", [q, k, v], {"scale": 1.0, "arithmetic": "tf32"})


def test_lanes_of_halves(fresh):
    """llama.cpp with AVX512-FP16: rows of 128 columns and more, whose other columns are added as ever."""
    q = fresh.standard_normal((3, 160)).astype(F)
    k, v = fresh.standard_normal((2, 120, 160)).astype(H)
    name = "ggml-cpu-attention-fp16"
    scores = gq.reference.linear(q, gq.quantize(k.astype(F), "f16"), "ggml-cpu-fp16").astype(F) * F(0.08)
    y = np.stack([in_lanes(row, v) for row in scores])
    right, bound = (
        function(four(q), four(k), four(v), scale=float(F(0.08)), arithmetic=name)[0, 0]
        for function in (gq.reference.attention, gq.reference.attention_bound)
    )
    assert (np.abs(y - right) <= bound).all()
    other = gq.reference.attention(four(q), four(k), four(v), scale=0.08, arithmetic="ggml-cpu-attention")[
        0, 0
    ]
    assert (np.abs(other - right) > bound).mean() > 0.3
    params = {
        "scale": float(F(0.08)),
        "bias": 0.0,
        "cap": 0.0,
        "kinds": ("f16", "f16"),
        "shape": (1, 3, 1, 160),
    }
    these = Operands("FLASH_ATTN_EXT", [four(x) for x in (q, k, v)] + [None, None], params, y[None, :, None])
    habits = Habits()
    assert judge_node(these, habits=habits).how == name
    narrow = judged(fresh, "f16")  # rows that fill no lanes are computed alike with and without
    assert judge_node(narrow, habits=habits).how == "ggml-cpu-attention"


@pytest.mark.parametrize(
    "options", [{"causal": True}, {"window": 9}, {"lengths": [30]}, {"softcap": 5.0}, {"alibi": 4.0}]
)
def test_options_are_those_of_attention(options, fresh):
    q, k, v = (four(x) for x in case(fresh, "f16", 60))
    error = np.abs(
        gq.attention(q, k, v, **options) - gq.reference.attention(q, k, v, arithmetic="f32", **options)
    )
    assert (error <= gq.reference.attention_bound(q, k, v, arithmetic="f32", **options)).all()


def test_weight_for_positions_that_fill_a_tile_is_named(fresh):
    """Ggml's CPUs in August 2026: scores behind the last position were -infinity before the cap."""
    q = fresh.standard_normal((1, 2, 5, 64)).astype(F)
    k, v = fresh.standard_normal((2, 1, 1, 100, 64)).astype(F)
    params = {"scale": 0.125, "bias": 0.0, "cap": 5.0, "arithmetic": "f32"}
    filled = np.concatenate([v, v[..., 36:64, :]], axis=2)  # what the tile before has left
    mask = np.concatenate([np.zeros((1, 1, 5, 100)), np.full((1, 1, 5, 28), -5.0)], axis=-1)
    keys = np.concatenate([k, np.zeros((1, 1, 28, 64), F)], axis=2)
    y = gq.reference.attention(q, keys, filled, scale=0.125, softcap=5.0, mask=mask).swapaxes(1, 2).astype(F)
    diagnosis = diagnose_node("FLASH_ATTN_EXT", [q, k, v, None, None], params, y)
    assert diagnosis.fault == "node-padding"


def test_rows_that_see_nothing_are_zeros(fresh):
    q, k, v = (four(x) for x in case(fresh, "f16", 20))
    mask = np.ones((3, 20), bool)
    mask[1] = False
    for name in gq.reference.ATTENTIONS:
        y = gq.reference.attention(q, k, v, mask=mask, arithmetic=name)
        assert not y[0, 0, 1].any(), name
        assert y[0, 0, 0].any(), name
        assert not gq.reference.attention(q, k[:, :, :0], v[:, :, :0], arithmetic=name).any(), name
    bound = gq.reference.attention_bound(q, k, v, mask=mask, arithmetic="f32")
    assert (bound[0, 0, 1] < 1e-30).all(), "the zero is promised"
    assert np.isfinite(bound).all()
    assert bound[0, 0, 0].any()


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_scores_that_float32_does_not_hold_promise_nothing(fresh, kind):
    """Keys of 5e19 are infinite as halves; in float32 they overflow with such a query, or cancel."""
    q, k, v = (x.copy() for x in case(fresh, "f16", 20, rows=4))
    dtype = {"f16": H, "f32": F}[kind]
    k, v = k.astype(dtype), v.astype(dtype)
    with np.errstate(over="ignore"):
        k[7, :2] = np.array([5e19, -5e19], F)
    q[:, :2] = [[-5e19, -5e19], [5e19, 0], [5e19, 0], [0, 0]] if kind == "f32" else np.abs(q[:, :2]) + 1
    mask = np.zeros((4, 20), F)
    mask[2:, [7, 15]] = -np.inf
    v[15, 3] = np.inf
    inputs = [four(x) for x in (q, k, v, mask)] + [None]
    for name in (None, "f32", "ggml-cpu-attention"):
        params = {"scale": 0.125, "kinds": (kind, kind), "shape": (1, 4, 1, 64)}
        result = node("FLASH_ATTN_EXT", inputs, {**params, **({"arithmetic": name} if name else {})})
        for y in (np.nan, -0.52, v[7]):
            wrong = result.wrong(np.broadcast_to(np.asarray(y, F), result.value.shape))[0, :, 0]
            assert not wrong[:2].any(), name
            assert wrong[3, 4:].mean() > 0.8, name  # a row that does not see that key
    scores = np.where(fresh.random((1, 1, 2, 9)) < 0.5, 0, -np.inf).astype(F)
    scores[0, 0, 1, 4] = LARGEST
    softmax = node("SOFT_MAX", [scores, None, None], {"scale": 2.0})
    assert softmax.wrong(np.full(scores.shape, np.nan, F))[0, 0].any(axis=-1).tolist() == [True, False]


def test_a_softmax_that_sees_nothing_is_zero_where_it_has_a_sink():
    scores, sinks = np.full((1, 2, 3, 9), -np.inf, F), np.ones(2, F)
    for more, promised in (None, False), (sinks, True):
        softmax = node("SOFT_MAX", [scores, None, more], {"scale": 2.0})
        assert not softmax.wrong(np.zeros(scores.shape, F)).any()
        assert softmax.wrong(np.full(scores.shape, np.nan, F)).all() == promised
