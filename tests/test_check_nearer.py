"""Kernels that are more exact than llama.cpp's arithmetic are right; a mistake on top of it is found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from test_attention_named import judged

import ggmlq as gq
from ggmlq.check import batches
from ggmlq.check.cases import Case
from ggmlq.check.nodes import Habits, Operands, judge_node
from ggmlq.check.plan import Settings
from ggmlq.check.run import run_case
from ggmlq.llama.bridge import Measurement

F = np.float32


def cut(x, bits=12):
    """Activations with few bits of fraction, in no arithmetic that is known."""
    scale = 2.0 ** (bits - np.floor(np.log2(np.abs(x) + 1e-30)))
    return (np.round(x * scale) / scale).astype(F)


@dataclass
class Kernel:
    """A library of one product."""

    multiply: object
    reports = ""

    def measure(self, x, q, *args, ids=None, **more):
        y = self.multiply(x, q) if ids is None else self.multiply(x, q, ids)
        return Measurement(np.ascontiguousarray(y, F), (), (), "CPU")


def exact(x, q, *ids):
    function = gq.reference.expert_linear if ids else gq.reference.linear
    return function(cut(x), q, *ids)


def outcome(multiply, shape=(9, 33, 256), name="q4_0", data="normal", **how):
    case = Case(gq.formats[name], *shape, data, 5)
    return run_case(Kernel(multiply), case, Settings("CPU", "CPU", **how))


@pytest.mark.parametrize("name", ["q4_0", "q4_K", "iq4_nl"])
def test_products_nearer_to_float64(name):
    for shape in ((1, 7, 256), (1, 65, 512), (9, 33, 256)):
        right = outcome(exact, shape, name)
        assert (right.verdict, right.arithmetic) == ("ok", "other"), (shape, right.text)
    for data in ("outliers", "huge", "tiny"):
        assert outcome(exact, data=data, name=name).verdict == "ok", data
    assert outcome(exact, name=name, arithmetic="ggml-cpu").verdict == "wrong", "what is claimed is held to"


def test_products_with_experts_nearer_to_float64():
    case = batches.with_experts(
        Case(gq.formats["q4_0"], 9, 33, 64, seed=3), (6, 2), "uniform", row_per_use=False
    )
    assert run_case(Kernel(exact), case, Settings("CPU", "CPU")).verdict == "ok"


def in_halves(x, q, order=1, lost=0):
    """A shader of Vulkan: halves, added up in halves, each lane its own part of K."""
    with np.errstate(over="ignore", invalid="ignore"):
        a, w = x.astype(np.float16), q.dequantize().astype(np.float16)
        k = x.shape[1] - lost
        sums = np.zeros((order, len(x), len(w)), np.float16)
        for i in range(k):
            sums[i % order] += a[:, i, None] * w[:, i]
        return sums.sum(axis=0).astype(F)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q4_1", "f32"])
def test_sums_in_halves_are_right_on_backends_that_have_them(name):
    def by(multiply, backend="Vulkan", m=9, data="normal", **how):
        case = Case(gq.formats[name], m, 33, 1024, data, 5)
        return run_case(Kernel(multiply), case, Settings(f"{backend}0", backend, **how))

    right = by(in_halves)
    assert (right.verdict, right.arithmetic) == ("ok", "f16 sums"), right.text
    assert by(lambda x, q: in_halves(x, q, order=32)).verdict == "ok"
    for data in ("outliers", "huge", "tiny"):
        assert by(in_halves, data=data).verdict == "ok", data
    assert by(lambda x, q: in_halves(x, q, lost=64)).verdict == "wrong"
    assert by(in_halves, m=8).verdict == "wrong", "few rows are added up in float32 there"
    assert by(in_halves, "CPU").verdict == "wrong"
    case = Case(gq.formats[name], 3, 33, 1024, "normal", 5)
    how = Settings("Vulkan0", "Vulkan")
    few = Kernel(lambda x, q: in_halves(x.reshape(-1, x.shape[-1]), q).reshape(*x.shape[:-1], -1))
    assert run_case(few, batches.in_batches(case, (2,)), how).verdict == "ok", "batches of few rows"


def test_sums_of_bfloats_are_not_in_halves():
    case = Case(gq.formats["bf16"], 9, 33, 1024, "normal", 5)
    assert run_case(Kernel(in_halves), case, Settings("Vulkan0", "Vulkan")).verdict == "wrong"


def test_mistakes_beside_it_are_wrong():
    def one_column(x, q):
        y = exact(x, q)
        y[:, 5] *= 1.02
        return y

    def one_element(x, q):
        y = exact(x, q)
        y[3, 5] += 0.3 * y.std()
        return y

    def on_top(x, q):  # far below the error of 8-bit codes
        return gq.reference.linear(x, q, "ggml-cpu") * (1 + 1e-3)

    for multiply in (one_column, one_element, on_top):
        assert outcome(multiply).verdict == "wrong", multiply


def test_attention_nearer_than_the_arithmetic_that_was_shown(fresh):
    """A kernel in tiles: q as halves, the rest in float32."""
    habits = Habits()
    these = judged(fresh, "f16")
    assert judge_node(these, habits=habits).how == "ggml-cpu-attention"
    q, k, v = these.inputs[:3]
    y = gq.reference.attention(cut(q, 10), k, v, scale=0.125).swapaxes(1, 2).astype(F)
    verdict = judge_node(Operands(these.op, these.inputs, these.params, y), habits=habits)
    assert (verdict.how, verdict.out) == ("other", 0)
    known = gq.reference.attention(q, k, v, scale=0.125, arithmetic="ggml-cpu-attention").swapaxes(1, 2)
    for wrong in (y * F(1.01), known * (1 + 1e-3)):
        one = Operands(these.op, these.inputs, these.params, wrong.astype(F))
        assert judge_node(one, habits=habits).out, "within the bound of any kernel, and further off"
    claimed = judge_node(Operands(these.op, these.inputs, these.params, y), arithmetic="ggml-cpu-attention")
    assert claimed.out


def test_what_a_sanitizer_reports_is_wrong():
    kernel = Kernel(gq.linear)
    kernel.reports = "a sanitizer says: gemm.cpp:3:5: runtime error: index 9 out of bounds"
    case = Case(gq.formats["q4_0"], 3, 33, 256, "normal", 5)
    told = run_case(kernel, case, Settings("CPU", "CPU"))
    assert (told.verdict, told.fault, told.text) == ("wrong", "sanitizer", kernel.reports)
