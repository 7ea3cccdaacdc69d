"""Mistakes of nodes that fixed kernels had: named by the values, places and rows in which they show.

Each is a public bug of ggml, rebuilt on a result of the oracle.
"""

from __future__ import annotations

import numpy as np
import pytest

from ggmlq import reference
from ggmlq.arrays.array import QuantArray
from ggmlq.arrays.blocks import random_blocks
from ggmlq.check.opcases import CASES
from ggmlq.faults import NODES, diagnose_node
from ggmlq.formats import FORMATS


def rows(fresh, *shape):
    """Random float32 with four axes."""
    return fresh.standard_normal((1,) * (4 - len(shape)) + shape).astype(np.float32)


def fault(op, inputs, params, y):
    """The name of the mistake that gives y."""
    diagnosis = diagnose_node(op, inputs, params, y)
    assert not diagnosis.ok
    return diagnosis.fault


def right(op, inputs, **params):
    """The result of the oracle, as a kernel stores it."""
    value = reference.node(op, inputs, params).value
    return value if value.dtype.kind == "i" else value.astype(np.float32)


def step_of_zero(fresh):  # a55769ce: STEP on Vulkan
    x = np.round(rows(fresh, 5, 37))
    return "STEP", [x], {}, (x >= 0).astype(np.float32)


def epsilon_under_the_root(fresh):  # 616b937c, b5d892af, 145115b4: L2_NORM on Vulkan, Metal and OpenCL
    x = rows(fresh, 9, 40) * np.logspace(0, -9, 9, dtype=np.float32)[:, None]
    size = np.sqrt(np.maximum((x.astype(float) ** 2).sum(-1, keepdims=True), 1e-4))
    return "L2_NORM", [x], {"eps": 1e-4}, (x / size).astype(np.float32)


def ties(fresh):  # e95bb22d: TOP_K on Vulkan
    x = np.zeros((1, 1, 3, 16), np.float32)
    y = right("TOP_K", [x], shape=(1, 1, 3, 4))
    return "TOP_K", [x], {"shape": y.shape}, np.zeros_like(y)


def beyond_a_row(fresh):  # 2faffa95: ARGMAX on Vulkan
    x = rows(fresh, 4, 9)
    return "ARGMAX", [x], {}, right("ARGMAX", [x]) + np.array([0, 9, 0, 0])


def no_numbers(fresh):  # da6b57bf: UPSCALE of one row; d25ad89f: SOFT_MAX on SYCL
    x = rows(fresh, 4, 33)
    y = right("SOFT_MAX", [x, None, None], scale=1.0, bias=0.0)
    y[0, 0, 2] = np.nan
    return "SOFT_MAX", [x, None, None], {"scale": 1.0, "bias": 0.0}, y


def planes_in_turn(fresh):  # 9cdb5ee8: OUT_PROD of groups
    a, b = rows(fresh, 3, 2, 5, 7), rows(fresh, 6, 4, 5, 3)
    tiled = np.tile(a, (1, 2, 1, 1))
    return "OUT_PROD", [a, b], {}, right("OUT_PROD", [tiled, b])


def slopes_of_later_heads(fresh):  # 33696bbb: ALiBi on CANN
    x, mask = rows(fresh, 6, 5, 33), -np.abs(rows(fresh, 1, 5, 33))
    params = {"scale": 0.5, "bias": 8.0}
    y = right("SOFT_MAX", [x, mask, None], **params)
    y[:, 4:] = right("SOFT_MAX", [x[:, 4:], mask, None], scale=0.5, bias=0.0)
    return "SOFT_MAX", [x, mask, None], params, y


def sequences_at_planes(fresh):  # dfde6352, 32681905: ROPE on CUDA and Vulkan
    memory = rows(fresh, 2, 9, 3, 64)
    x, tokens = memory[:, :7], np.arange(7, dtype=np.int32).reshape(1, 1, 1, 7)
    near = np.lib.stride_tricks.as_strided(x, x.shape, (7 * x.strides[1], *x.strides[1:]))
    params = {"dims": 64, "mode": 0, "context": 4096, "base": 1e4, "scale": 1.0, "mix": 0.0, "factor": 1.0}
    params |= {"fast": 32.0, "slow": 1.0}
    return "ROPE", [x, tokens, None], params, right("ROPE", [near, tokens, None], **params)


def transposed_planes(fresh):  # 18e936b2: CONT on CUDA
    memory = rows(fresh, 6, 5, 8)  # planes of every other plane
    x = memory[:, ::2].swapaxes(-1, -2)
    near = np.lib.stride_tricks.as_strided(x, x.shape, (x.strides[0], 160, *x.strides[2:]))
    return "CONT", [x], {"type": "f32", "shape": x.shape}, np.ascontiguousarray(near)


def longer_groups(fresh):  # 38433280: GROUP_NORM on Vulkan
    x = rows(fresh, 6, 7, 5)
    y = right("GROUP_NORM", [x], groups=3, eps=1e-5)
    y[0, :4] = (y[0, :4] - 0.3) * 1.1
    return "GROUP_NORM", [x], {"groups": 3, "eps": 1e-5}, y


def pairs_of_halves(fresh):  # 6a95a4c4: GET_ROWS of q4_K on SYCL
    raw = random_blocks(FORMATS["q4_K"], 11, 1, 3).view(np.uint8).reshape(11, -1)
    q = QuantArray.from_bytes(raw, "q4_K", (1, 1, 11, 256))
    ids = fresh.integers(0, 11, (1, 1, 1, 9)).astype(np.int32)
    y = right("GET_ROWS", [q, ids], type="f32", shape=(1, 1, 9, 256))
    order = np.arange(256)
    order[1::2] = (order[::2] + 32) % 256
    return "GET_ROWS", [q, ids], {"type": "f32", "shape": y.shape}, y[..., order]


def rows_of_another_plane(fresh):  # they are decoded, and no row of the result
    raw = random_blocks(FORMATS["q8_0"], 22, 2, 3).view(np.uint8).reshape(22, -1)
    q = QuantArray.from_bytes(raw, "q8_0", (1, 2, 11, 64))
    ids = fresh.permuted(np.tile(np.arange(11, dtype=np.int32), (1, 2, 1)), axis=-1)[..., :4]
    y = q.dequantize()[:, 0][:, ids[0]]
    return "GET_ROWS", [q, ids], {"type": "f32", "shape": y.shape}, y


def other_rows(fresh):
    x = rows(fresh, 3, 5, 33)
    y = right("NEG", [x])
    return "NEG", [x], {}, y[:, [1, 0, 2]]


NAMED = {
    step_of_zero: "node-values", epsilon_under_the_root: "node-epsilon", ties: "node-ties",
    beyond_a_row: "node-outside", no_numbers: "node-nan", planes_in_turn: "node-broadcast",
    slopes_of_later_heads: "node-alibi", sequences_at_planes: "node-stride", transposed_planes: "node-stride",
    longer_groups: "node-row-sum", pairs_of_halves: "nibble-order", other_rows: "node-moved",
    rows_of_another_plane: "node-ids",
}  # fmt: skip


@pytest.mark.parametrize("planted", NAMED, ids=lambda planted: planted.__name__)
def test_bugs_of_other_backends_are_named(planted, fresh):
    op, inputs, params, y = planted(fresh)
    assert fault(op, inputs, params, y) == NAMED[planted]
    assert NAMED[planted] in NODES or NAMED[planted] == "nibble-order"


def test_a_loose_bound_explains_nothing(fresh):
    """What any value fits is no mistake by name: the imitation must be nearer than the right result."""
    q, k, v = rows(fresh, 2, 3, 16), rows(fresh, 2, 20, 16).astype(np.float16), rows(fresh, 2, 20, 16)
    params = {"scale": 0.25, "bias": 0.0, "cap": 0.0, "kinds": ("f16", "f32")}
    inputs = [q, k, v, None, None]
    y = reference.node("FLASH_ATTN_EXT", inputs, params).value.astype(np.float32)
    y[0, 1] += 100 * rows(fresh, *y.shape[2:])[0, 0]
    assert fault("FLASH_ATTN_EXT", inputs, params, y) in ("unknown", "node-rows")


def test_cases_leave_what_models_have_in_each_respect():
    """Sequences that lie apart, ties, zeros, many rows: each hid a mistake that was mended."""
    names = {op: [str(case) for case in CASES[op](0)] for op in ("TOP_K", "ARGSORT", "ROPE", "ACC", "STEP")}
    for op, word in (
        ("TOP_K", "equal elements"), ("ARGSORT", "ne=[20,1024"), ("ROPE", "2 sequences, apart"),
        ("ACC", "part [15,5,2,2]"), ("STEP", "whole numbers"),
    ):  # fmt: skip
        assert any(word in name for name in names[op]), (op, word)
    (case,) = [case for case in CASES["CLAMP"](0) if "ne=[17,5,3,2], rows apart" in str(case)]
    strides = [value for _, value in case.program.steps[0].arguments[5:8]]
    assert strides[2] > 3 * strides[1]  # sequences do not begin where the planes before them end
