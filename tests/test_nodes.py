"""Oracles of operations: against formulas written here, with bounds that float32 keeps and faults exceed."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import reference
from ggmlq.check.nodes import judge_node, operands
from ggmlq.check.opcases import CASES
from ggmlq.errors import GGMLQError
from ggmlq.faults import NODES, diagnose_node
from ggmlq.faults.imitations import MAKERS
from ggmlq.llama.program import Node
from ggmlq.reference.nodes import NOT_COVERED, OPERATIONS, PRODUCTS, Number, freedoms
from ggmlq.reference.nodes.number import LARGEST

# Every operation of ggml's enum (ggml 0.25.3), its unary and its gated ones: an independent list.
GGML = [
    "NONE",
    "DUP",
    "ADD",
    "ADD_ID",
    "ADD1",
    "ACC",
    "SUB",
    "MUL",
    "DIV",
    "SQR",
    "SQRT",
    "LOG",
    "SIN",
    "COS",
    "SUM",
    "SUM_ROWS",
    "CUMSUM",
    "MEAN",
    "ARGMAX",
    "COUNT_EQUAL",
    "REPEAT",
    "REPEAT_BACK",
    "CONCAT",
    "SILU_BACK",
    "NORM",
    "RMS_NORM",
    "RMS_NORM_BACK",
    "GROUP_NORM",
    "L2_NORM",
    "MUL_MAT",
    "MUL_MAT_ID",
    "OUT_PROD",
    "SCALE",
    "SET",
    "CPY",
    "CONT",
    "RESHAPE",
    "VIEW",
    "PERMUTE",
    "TRANSPOSE",
    "GET_ROWS",
    "GET_ROWS_BACK",
    "SET_ROWS",
    "DIAG",
    "DIAG_MASK_INF",
    "DIAG_MASK_ZERO",
    "SOFT_MAX",
    "SOFT_MAX_BACK",
    "ROPE",
    "ROPE_BACK",
    "CLAMP",
    "CONV_TRANSPOSE_1D",
    "IM2COL",
    "IM2COL_BACK",
    "IM2COL_3D",
    "COL2IM_1D",
    "CONV_2D",
    "CONV_3D",
    "CONV_2D_DW",
    "CONV_TRANSPOSE_2D",
    "POOL_1D",
    "POOL_2D",
    "POOL_2D_BACK",
    "UPSCALE",
    "PAD",
    "PAD_REFLECT_1D",
    "ROLL",
    "ARANGE",
    "TIMESTEP_EMBEDDING",
    "ARGSORT",
    "TOP_K",
    "LEAKY_RELU",
    "TRI",
    "FILL",
    "FLASH_ATTN_EXT",
    "FLASH_ATTN_BACK",
    "SSM_CONV",
    "SSM_SCAN",
    "WIN_PART",
    "WIN_UNPART",
    "GET_REL_POS",
    "ADD_REL_POS",
    "RWKV_WKV6",
    "GATED_LINEAR_ATTN",
    "RWKV_WKV7",
    "SOLVE_TRI",
    "GATED_DELTA_NET",
    "LIGHTNING_INDEXER",
    "DSV4_HC_COMB",
    "DSV4_HC_PRE",
    "DSV4_HC_POST",
    "MAP_CUSTOM1",
    "MAP_CUSTOM2",
    "MAP_CUSTOM3",
    "CUSTOM",
    "CROSS_ENTROPY_LOSS",
    "CROSS_ENTROPY_LOSS_BACK",
    "OPT_STEP_ADAMW",
    "OPT_STEP_SGD",
    "ABS",
    "SGN",
    "NEG",
    "STEP",
    "TANH",
    "ELU",
    "RELU",
    "SIGMOID",
    "GELU",
    "GELU_QUICK",
    "SILU",
    "HARDSWISH",
    "HARDSIGMOID",
    "EXP",
    "EXPM1",
    "SOFTPLUS",
    "GELU_ERF",
    "XIELU",
    "FLOOR",
    "CEIL",
    "ROUND",
    "TRUNC",
    "REGLU",
    "GEGLU",
    "SWIGLU",
    "SWIGLU_OAI",
    "GEGLU_ERF",
    "GEGLU_QUICK",
    "SWIGLU_CLAMP",
]


def test_every_operation_has_an_oracle_or_a_reason():
    assert set(GGML) == OPERATIONS.keys() | NOT_COVERED.keys() | set(PRODUCTS)
    assert not OPERATIONS.keys() & NOT_COVERED.keys()
    assert all(len(reason.split()) >= 4 for reason in NOT_COVERED.values())
    assert CASES.keys() <= OPERATIONS.keys()
    assert MAKERS.keys() <= OPERATIONS.keys()


def test_an_operation_without_an_oracle_is_refused():
    with pytest.raises(GGMLQError, match="NOT_COVERED"):
        reference.node("OPT_STEP_SGD", [])
    with pytest.raises(GGMLQError, match="source 1 of 1"):
        reference.node("ADD", [np.ones((1, 1, 1, 4), np.float32)])


# --- the error analysis ---------------------------------------------------------------------------


def float32(x):
    """A Number of exact values, and the same values in float32."""
    x = x.astype(np.float32)
    return Number(x.astype(np.float64)), x


@pytest.mark.parametrize(
    "formula",
    [
        lambda a, b, m: (a + b) * a - b, lambda a, b, m: a / (b * b + 1.0), lambda a, b, m: m.exp(a * 3.0),
        lambda a, b, m: m.sqrt(a * a + b * b), lambda a, b, m: m.tanh(a * b), lambda a, b, m: m.sin(a * 5.0),
        lambda a, b, m: m.log(a * a + 0.5), lambda a, b, m: m.sum(a * b) / 7.0, lambda a, b, m: m.expm1(a),
        lambda a, b, m: a / m.sqrt(m.sum(a * a)),
    ],
)  # fmt: skip
def test_float32_keeps_the_bounds_and_uses_them(formula, fresh, rounds):
    """The same formula in NumPy's float32, whose roundings are those of any kernel."""

    class Wide:
        exp, sqrt, tanh, sin = Number.exp, Number.sqrt, Number.tanh, Number.sin
        log, expm1, sum = Number.log, Number.expm1, Number.sum

    class Short:
        exp, sqrt, tanh, sin, log, expm1 = np.exp, np.sqrt, np.tanh, np.sin, np.log, np.expm1
        sum = staticmethod(lambda x: np.cumsum(x, axis=-1)[..., -1:])  # one after the other

    largest = 0.0
    for _ in rounds(0.1):
        shape = (40, int(fresh.integers(1, 300)))
        a, x = float32(fresh.standard_normal(shape))
        b, y = float32(fresh.standard_normal(shape) * 10.0 ** fresh.integers(-3, 3, shape))
        right, rounded = formula(a, b, Wide), formula(x, y, Short)
        assert rounded.dtype == np.float32
        share = np.abs(rounded - right.value) / (right.errors() + 2.0**-140)
        assert share.max() <= 1
        largest = max(largest, float(share.max()))
    assert largest > 0.005  # a bound that nothing comes near to would find nothing


def test_quick_functions_are_granted_to_gpus_alone():
    x = np.linspace(-3, 3, 50, dtype=np.float32).reshape(1, 1, 1, 50)
    y = np.tanh(x.astype(np.float64)) * (1 + 3e-4)
    assert reference.node("TANH", [x]).wrong(y).any()
    with freedoms(quick=True):
        assert not reference.node("TANH", [x]).wrong(y).any()


def test_a_gpu_masks_with_the_least_float(fresh):
    x = fresh.standard_normal((1, 2, 5, 7)).astype(np.float32)
    hidden = np.triu(np.ones((5, 7), np.bool_), 3)
    infinite, least = np.where(hidden, -np.inf, x), np.where(hidden, x - np.float32(LARGEST), x)
    for y, on_a_cpu, on_a_gpu in ((infinite, True, True), (least, False, True), (x, False, False)):
        assert reference.node("DIAG_MASK_INF", [x], {"past": 2}).wrong(y).any() != on_a_cpu
        with freedoms(quick=True):
            assert reference.node("DIAG_MASK_INF", [x], {"past": 2}).wrong(y).any() != on_a_gpu


def test_a_gpu_may_multiply_in_tf32(fresh):
    a, b = (fresh.standard_normal((1, 1, 40, n)).astype(np.float32) for n in (9, 5))
    short = [
        (v.view(np.uint32) + np.uint32(1 << 12) & ~np.uint32((1 << 13) - 1)).view(np.float32) for v in (a, b)
    ]
    y = np.einsum("zsnm,zsnp->zspm", *(v.astype(np.float64) for v in short)).astype(np.float32)
    assert reference.node("OUT_PROD", [a, b]).wrong(y).any()
    with freedoms(quick=True):
        assert not reference.node("OUT_PROD", [a, b]).wrong(y).any()


# --- right results, by formulas of this file ------------------------------------------------------


def rows(fresh, *shape):
    """Random float32 with four axes."""
    return fresh.standard_normal((1,) * (4 - len(shape)) + shape).astype(np.float32)


def right(op, inputs, params, y):
    """The result of an oracle, which takes y as right."""
    result = reference.node(op, inputs, params)
    assert not result.wrong(np.asarray(y, np.float32)).any(), (
        op,
        result.excess(np.asarray(y, np.float32)).max(),
    )
    return result


def test_norms(fresh):
    x = rows(fresh, 5, 100) + 3
    wide = x.astype(np.float64)
    eps = 1e-2
    away = wide - wide.mean(-1, keepdims=True)
    right("NORM", [x], {"eps": eps}, away / np.sqrt((away**2).mean(-1, keepdims=True) + eps))
    right("RMS_NORM", [x], {"eps": eps}, wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps))
    right("L2_NORM", [x], {"eps": eps}, wide / np.sqrt((wide**2).sum(-1, keepdims=True)))


def test_softmax_with_all_its_terms(fresh):
    x, mask, sinks = rows(fresh, 1, 6, 4, 33), rows(fresh, 4, 33), rows(fresh, 6)
    heads = np.array([2.0 ** (-2 * (h + 1)) if h < 4 else 2.0 ** (-(2 * (h - 4) + 1)) for h in range(6)])
    scores = 0.5 * x.astype(float) + heads[None, :, None, None] * mask.astype(float)
    powers = np.exp(scores)
    y = powers / (powers.sum(-1, keepdims=True) + np.exp(sinks.astype(float).reshape(1, 6, 1, 1)))
    right("SOFT_MAX", [x, mask, sinks], {"scale": 0.5, "bias": 8.0}, y)


def rope_params(**more):
    """Parameters of ROPE without anything special."""
    return {
        "dims": 64, "mode": 0, "context": 4096, "base": 10000.0, "scale": 1.0, "mix": 0.0, "factor": 1.0,
        "fast": 32.0, "slow": 1.0, "section0": 0, "section1": 0, "section2": 0, "section3": 0, **more,
    }  # fmt: skip


def test_rope_by_complex_numbers(fresh):
    x, at = rows(fresh, 5, 3, 64), np.array([0, 1, 7, 100, 2000], np.int32)
    turn = np.exp(1j * at[:, None] * 10000.0 ** (-np.arange(32) / 32))[:, None]
    pairs = (x[0, ..., 0::2] + 1j * x[0, ..., 1::2]) * turn
    y = np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)
    right("ROPE", [x, at], rope_params(), y)
    right("ROPE_BACK", [y.astype(np.float32), at], rope_params(), x.astype(float) * 1.0)
    halves = (x[0, ..., :32] + 1j * x[0, ..., 32:]) * turn
    y = np.concatenate([halves.real, halves.imag], axis=-1)[None]
    right("ROPE", [x, at], rope_params(mode=2), y)
    wrong = reference.node("ROPE", [x, at], rope_params()).wrong(y.astype(np.float32))
    assert wrong.mean() > 0.5


def test_copies_are_right_to_the_bit(fresh):
    x = rows(fresh, 6, 64) * 100
    halves = x.astype(np.float16)
    result = reference.node("CPY", [x], {"type": "f16"})
    assert not result.wrong(halves).any()
    off = halves.copy()
    off.view(np.uint16)[0, 0, 3, 5] ^= 1
    assert np.argwhere(result.wrong(off)).tolist() == [[0, 0, 3, 5]]
    blocks = np.asarray(gq.quantize(x[0, 0], "q8_0").raw)
    result = reference.node("CPY", [x], {"type": "q8_0"})
    assert not result.wrong(blocks.reshape(1, 1, 6, -1)).any()
    off = blocks.reshape(1, 1, 6, -1).copy()
    off[0, 0, 2, 2] += 2  # a code; one step may be a tie
    assert np.argwhere(result.wrong(off)).tolist() == [[0, 0, 2, 0]]


def test_a_code_at_a_tie_may_go_either_way():
    x = np.zeros((1, 1, 1, 32), np.float32)
    x[..., 0], x[..., 1] = 127.0, 2.5
    result = reference.node("CPY", [x], {"type": "q8_0"})
    for code, is_wrong in ((2, False), (3, False), (4, True), (1, True)):
        raw = np.asarray(gq.quantize(x[0, 0], "q8_0").raw).reshape(1, 1, 1, -1).copy()
        raw[..., 3] = code
        assert result.wrong(raw).any() == is_wrong


def test_rows_by_ids(fresh):
    x, ids = rows(fresh, 9, 20), np.array([[[[3, 3, 0, 8]]]], np.int32)
    y = x[:, :, [3, 3, 0, 8]]
    assert not reference.node("GET_ROWS", [x, ids], {"type": "f32"}).wrong(y).any()
    assert reference.node("GET_ROWS", [x, ids], {"type": "f32"}).wrong(y[:, :, ::-1]).any()
    fresh_rows = rows(fresh, 2, 20)
    before = x.astype(np.float16)
    after = before.copy()
    after[0, 0, [7, 1]] = fresh_rows[0, 0]
    ids = np.array([[[[7, 1]]]], np.int64)
    result = reference.node("SET_ROWS", [fresh_rows, ids, before])
    assert not result.wrong(after).any()
    after[0, 0, 5, 0] += 1  # a row that nobody may touch
    assert np.argwhere(result.wrong(after)).tolist() == [[0, 0, 5, 0]]


def test_orders_have_no_single_right_result():
    x = np.array([[[[1, 2, 2, 0]]]], np.float32)
    result = reference.node("ARGSORT", [x], {"descending": 1})
    for order, is_wrong in (
        ([1, 2, 0, 3], False),
        ([2, 1, 0, 3], False),
        ([1, 1, 0, 3], True),
        ([3, 0, 1, 2], True),
    ):
        assert result.wrong(np.array([[[order]]], np.int32)).any() == is_wrong
    result = reference.node("TOP_K", [x], {"shape": (1, 1, 1, 2)})
    assert not result.wrong(np.array([[[[2, 1]]]], np.int32)).any()
    assert result.wrong(np.array([[[[2, 0]]]], np.int32)).any()


def test_states_are_carried(fresh):
    heads, tokens, size = 2, 3, 8
    k, v, q, g = (0.3 * rows(fresh, tokens, heads, size) for _ in range(4))
    s = 0.3 * rows(fresh, 1, heads * size * size)
    state, outputs = s.reshape(heads, size, size).astype(float), []
    for t in range(tokens):
        state = (
            state * g[0, t][:, :, None].astype(float) + k[0, t][:, :, None].astype(float) * v[0, t][:, None]
        )
        outputs.append(np.einsum("hij,hi->hj", state, q[0, t].astype(float) * 0.25))
    y = np.concatenate([np.ravel(outputs), state.ravel()]).reshape(1, 1, tokens + size, heads * size)
    right("GATED_LINEAR_ATTN", [k, v, q, g, s], {"scale": 0.25, "shape": y.shape}, y)


# --- planted faults -------------------------------------------------------------------------------


def attention_by_heads(q, k, v, mask, scale, pick, cap=0.0):
    """Attention of each head with the head of K and V that ``pick`` says, in plain loops."""
    out = np.zeros((1, q.shape[2], q.shape[1], v.shape[-1]))
    for h in range(q.shape[1]):
        scores = q[0, h].astype(float) @ k[0, pick(h)].astype(float).T * scale
        scores = cap * np.tanh(scores / cap) if cap else scores
        powers = np.exp(scores + mask.astype(float))
        out[0, :, h] = powers / powers.sum(-1, keepdims=True) @ v[0, pick(h)].astype(float)
    return out


def planted_in_rows(fresh):
    """Tails, rows, biases, norms."""
    x = rows(fresh, 7, 100)
    wide = x.astype(np.float64)
    tail = (wide * 0.7 - 1.3).astype(np.float32)
    tail[..., 96:] = x[..., 96:]
    yield "node-tail", "SCALE", [x], {"scale": 0.7, "bias": -1.3}, tail
    yield "node-bias", "SCALE", [x], {"scale": 0.7, "bias": -1.3}, 0.7 * wide
    yield "node-bias", "SCALE", [x], {"scale": 0.7, "bias": -1.3}, 0.7 * (wide - 1.3)
    part = np.clip(x, -0.5, 0.75)
    part[..., 1::2, :] = x[..., 1::2, :]
    yield "node-rows", "CLAMP", [x], {"low": -0.5, "high": 0.75}, part
    empty = np.clip(x, -0.5, 0.75)
    empty[..., 5:, :] = np.array([0x7FC0BEEF], np.uint32).view(np.float32)[0]
    yield "node-unwritten", "CLAMP", [x], {"low": -0.5, "high": 0.75}, empty
    shifted = wide + 3
    short = np.sqrt((wide[..., :96] ** 2).sum(-1, keepdims=True) / 100 + 1e-5)
    yield "node-row-sum", "RMS_NORM", [x], {"eps": 1e-5}, wide / short
    root = np.sqrt((shifted**2).mean(-1, keepdims=True) + 1e-5)
    yield "node-mean", "NORM", [x + 3], {"eps": 1e-5}, shifted / root
    small = x * 0.1
    root = np.sqrt((small.astype(float) ** 2).mean(-1, keepdims=True))
    yield "node-epsilon", "RMS_NORM", [small], {"eps": 1e-2}, small / (root + 1e-2)
    yield "node-epsilon", "RMS_NORM", [small], {"eps": 1e-2}, small / root


def planted_in_rope(fresh):
    """Pairs and directions."""
    at = np.arange(7, dtype=np.int32) * 9
    heads = rows(fresh, 7, 3, 64)
    turn = at[:, None] * 10000.0 ** (-np.arange(32) / 32)
    cos, sin = np.cos(turn)[:, None], np.sin(turn)[:, None]
    a, b = heads[..., :32].astype(float), heads[..., 32:].astype(float)
    yield (
        "node-rope-pairs",
        "ROPE",
        [heads, at],
        rope_params(),
        np.concatenate([a * cos - b * sin, a * sin + b * cos], -1),
    )
    yield (
        "node-rope-direction",
        "ROPE",
        [heads, at],
        rope_params(mode=2),
        np.concatenate([a * cos + b * sin, b * cos - a * sin], -1),
    )

    yarn, pairs_of_all = rope_params(dims=32, scale=0.25, mix=1.0, factor=1.2), 2 * math.pi / 4096
    for mistake in (
        {"mix": 0.0}, {"factor": 1.2 / (1 + 0.1 * math.log(4))},
        {"fast": 32.0**2 * pairs_of_all, "slow": pairs_of_all},
    ):  # fmt: skip
        y = reference.node("ROPE", [heads, at], yarn | mistake).value
        yield "node-rope-factors", "ROPE", [heads, at], yarn, y


def planted_in_attention(fresh):
    """Heads, masks, caps, sinks."""
    q = rows(fresh, 1, 6, 5, 64)
    k, v = (fresh.standard_normal((1, 2, 33, 64)).astype(np.float16) for _ in range(2))
    mask = np.where(fresh.random((1, 1, 5, 33)) < 0.3, -np.inf, 0).astype(np.float16)
    mask[..., 0] = 0
    how = {"scale": 0.125, "bias": 0.0, "cap": 0.0}
    yield (
        "node-gqa",
        "FLASH_ATTN_EXT",
        [q, k, v, mask],
        how,
        attention_by_heads(q, k, v, mask, 0.125, lambda h: h % 2),
    )
    none = np.zeros_like(mask)
    yield (
        "node-mask-ignored",
        "FLASH_ATTN_EXT",
        [q, k, v, mask],
        how,
        attention_by_heads(q, k, v, none, 0.125, lambda h: h // 3),
    )
    moved = np.roll(mask, 1, axis=-2)
    moved[..., 0] = mask[..., 0]
    yield (
        "node-mask-shifted",
        "FLASH_ATTN_EXT",
        [q, k, v, np.where(np.arange(33) == 0, 0, mask)],
        how,
        attention_by_heads(q, k, v, moved, 0.125, lambda h: h // 3),
    )
    how = {"scale": 0.125, "bias": 0.0, "cap": 5.0}
    unscaled = 5.0 / 0.125 * 0.125  # the cap before the scale
    y = attention_by_heads(q, k, v, mask, 0.125, lambda h: h // 3, cap=unscaled * 0.125)
    yield "node-cap", "FLASH_ATTN_EXT", [q, k, v, mask], how, y
    scores = rows(fresh, 1, 2, 5, 33)
    plain = np.exp(0.3 * scores.astype(float))
    plain /= plain.sum(-1, keepdims=True)
    yield "node-mask-ignored", "SOFT_MAX", [scores, mask], {"scale": 0.3, "bias": 0.0}, plain
    yield "node-sinks", "SOFT_MAX", [scores, None, rows(fresh, 2)], {"scale": 0.3, "bias": 0.0}, plain


def planted_elsewhere(fresh):
    """Operands, functions, strides, orders, ids, windows."""
    x = rows(fresh, 7, 100)
    gate, up = rows(fresh, 5, 33), rows(fresh, 5, 33)
    silu = up.astype(float) / (1 + np.exp(-up.astype(float)))
    yield "node-operands-exchanged", "SWIGLU", [gate, up], {"swapped": 0}, silu * gate
    erf = np.vectorize(math.erf)(gate / math.sqrt(2))
    yield "node-function", "SWIGLU", [gate, up], {"swapped": 0}, 0.5 * gate * (1 + erf) * up
    short = rows(fresh, 2, 20)
    yield "node-broadcast", "ADD", [rows(fresh, 6, 20), short], {}, None
    whole = rows(fresh, 3, 7, 20)
    yield "node-stride", "SQR", [whole.swapaxes(1, 2)], {}, whole.reshape(1, 7, 3, 20).astype(float) ** 2
    yield "node-order", "ARGSORT", [x], {"descending": 1}, np.argsort(x, axis=-1)
    yield "node-axis", "SUM_ROWS", [rows(fresh, 2, 9, 9)], {}, None
    ids = np.array([[[[3, 1, 0, 6]]]], np.int32)
    yield "node-ids", "GET_ROWS", [x, ids], {"type": "f32"}, x[:, :, [6, 3, 1, 0]]
    images, kernel = rows(fresh, 1, 2, 9, 11), rows(fresh, 3, 2, 3, 3)
    turned = np.zeros((1, 3, 7, 9))
    for i in range(3):
        for j in range(3):
            turned += np.einsum(
                "nchw,kc->nkhw", images[..., i : i + 7, j : j + 9].astype(float), kernel[..., 2 - i, 2 - j]
            )
    steps = {"s0": 1, "s1": 1, "p0": 0, "p1": 0, "d0": 1, "d1": 1, "shape": turned.shape}
    yield "node-window", "CONV_2D", [kernel, images], steps, turned


@pytest.mark.parametrize(
    ("planted", "kinds"),
    [(planted_in_rows, 7), (planted_in_rope, 3), (planted_in_attention, 5), (planted_elsewhere, 8)],
)
def test_planted_faults_are_named(planted, kinds, fresh):
    names = set()
    for fault, op, inputs, params, wrong in planted(fresh):
        y = wrong
        if fault == "node-broadcast":
            y = inputs[0].astype(float) + inputs[1].repeat(3, axis=2)
        elif fault == "node-axis":
            y = inputs[0].astype(float).sum(-2)[..., None]
        y = np.asarray(y)
        y = y if y.dtype.kind == "i" else y.astype(np.float32)
        diagnosis = diagnose_node(op, inputs, params, y)
        assert not diagnosis.ok
        assert fault in (diagnosis.fault, *diagnosis.alternatives), (fault, op, diagnosis)
        assert NODES[diagnosis.fault].says in diagnosis.text
        names.add(fault)
    assert len(names) == kinds


def test_a_right_node_is_not_accused(fresh):
    x = rows(fresh, 7, 100)
    y = np.clip(x, -0.5, 0.75)
    diagnosis = diagnose_node("CLAMP", [x], {"low": -0.5, "high": 0.75}, y)
    assert diagnosis.ok
    assert diagnosis.fault == "correct"


def test_scan_with_another_group_is_named(fresh):
    """The bug of SSM_SCAN that stood 55 days: heads took the groups in turns."""
    state, x = rows(fresh, 1, 8, 4, 16), rows(fresh, 1, 3, 8, 4)
    dt, a = rows(fresh, 1, 3, 8), -np.abs(rows(fresh, 8, 1))
    b, c = (rows(fresh, 1, 3, 4, 16) for _ in "bc")
    ids = np.zeros((1, 1, 1, 1), np.int32)
    s, outputs = state[0].astype(float), []
    for t in range(3):
        step = np.log1p(np.exp(dt[0, 0, t].astype(float)))[:, None, None]
        group = np.arange(8) % 4
        s = s * np.exp(step * a[0, 0][:, :, None]) + x[0, t][..., None] * step * b[0, t, group][:, None]
        outputs.append(np.einsum("hdn,hn->hd", s, c[0, t, group].astype(float)))
    y = np.concatenate([np.ravel(outputs), s.ravel()]).astype(np.float32).reshape(1, 1, 1, -1)
    inputs = [state, x, dt, a, b, c, ids]
    diagnosis = diagnose_node("SSM_SCAN", inputs, {"states": 1, "shape": y.shape}, y)
    assert diagnosis.fault == "node-groups"


# --- from a captured node -------------------------------------------------------------------------


def test_operands_of_a_captured_node(fresh):
    """Strided sources, a missing mask, and parameters by name."""
    x = rows(fresh, 2, 3, 20)
    y = x.swapaxes(1, 2)
    facts = {
        "s0": {"name": "x", "type": "f32", "ne": [20, 2, 3, 1], "nb": [4, 240, 80, 480], "block": 1,
               "buffer": "CPU"},
        "y": {"name": "y", "type": "f32", "ne": [20, 2, 3, 1], "nb": [4, 80, 160, 480], "block": 1,
              "buffer": "CPU"},
    }  # fmt: skip
    arrays = {"s0": x.view(np.uint8).reshape(-1), "y": np.ascontiguousarray(y).view(np.uint8).reshape(-1)}
    words = tuple(int(w) for w in np.array([0.5, 8.0, *[0] * 14], np.float32).view(np.int32))
    these = operands(Node("SOFT_MAX", 0, facts, arrays, words))
    assert np.array_equal(these.inputs[0], y)
    assert these.inputs[1:] == [None, None]
    assert (these.params["scale"], these.params["bias"]) == (0.5, 8.0)
    assert np.array_equal(these.y, y)


def test_rows_of_a_cache_whose_node_does_not_name_it(fresh):
    """SET_ROWS of June to September 2025 has two sources: what was in the cache before is not known."""
    x, ids = rows(fresh, 2, 20), np.array([4, 1], np.int64)
    y = rows(fresh, 6, 20)
    y[0, 0, ids] = x[0, 0]
    kinds = {"s0": (x, "f32", 4), "s1": (ids.reshape(1, 1, 1, 2), "i64", 8), "y": (y, "f32", 4)}
    facts, arrays = {}, {}
    for name, (array, kind, size) in kinds.items():
        ne = list(array.shape[::-1])
        nb = [size, size * ne[0], size * ne[0] * ne[1], size * ne[0] * ne[1] * ne[2]]
        facts[name] = {"name": name, "type": kind, "ne": ne, "nb": nb, "block": 1, "buffer": "CPU"}
        arrays[name] = array.view(np.uint8).reshape(-1)
    node = Node("SET_ROWS", 0, facts, arrays, (0,) * 16)
    assert not judge_node(operands(node)).out
    y[0, 0, 1, 3] += 1
    assert judge_node(operands(node)).out == 1
