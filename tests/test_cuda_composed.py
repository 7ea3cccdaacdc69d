"""Arguments of products that a GPU composes from kernels that stand: on arrays that say they are CuPy's.

Kernels are NumPy's products here, and remember how many rows they got and in which dtype they wrote.
"""

from __future__ import annotations

import itertools
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
from block_cases import weights
from fake_cupy import DeviceArray, on_device, put_gpu

import ggmlq as gq
from ggmlq import errors
from ggmlq.arrays.protocols import OPERATIONS
from ggmlq.base import devices
from ggmlq.base.devices import place_of
from ggmlq.cuda.driver import device
from ggmlq.dispatch import ladder
from ggmlq.dispatch.epilogue import PLAIN
from ggmlq.formats import FORMATS
from ggmlq.ops import plan, product, transposed
from ggmlq.ops.epilogue import Result, Wishes
from ggmlq.ops.gated_linear import ACTIVATIONS

PRODUCTS = [import_module(f"ggmlq.ops.{name}") for name in ("linear", "scaled_linear", "expert_linear")]


class Arrays:
    """NumPy's functions, with results on the device."""

    def __init__(self, cuda):
        self.cuda = cuda

    def __getattr__(self, name):
        function = getattr(np, name)

        def call(*arguments, **options):
            result = function(*arguments, **options)
            return result.view(DeviceArray) if isinstance(result, np.ndarray) else result

        return call


def gated(activation, gates, ups, y):
    """The kernel behind two products, which knows the tangent's GELU as gelu."""
    name = {"gelu": "gelu_tanh"}.get(activation, activation)
    with np.errstate(over="ignore"):
        y[...] = ACTIVATIONS[name](np, np.array(gates), np.array(ups)).reshape(y.shape)


GATES = SimpleNamespace(gated=gated, refuses=lambda *operands: "is NumPy")


@pytest.fixture
def card(monkeypatch):
    """A card whose products are NumPy's; ``calls`` has their rows and dtypes."""
    state = put_gpu(monkeypatch)
    arrays = Arrays(state.cupy.cuda)
    state.calls, state.kernels = [], set()
    driver = SimpleNamespace(
        device=lambda: 0, card=lambda index: None, share=np.may_share_memory,
        stream=lambda index: SimpleNamespace(ptr=0, is_capturing=lambda: False),
    )  # fmt: skip
    gpu = SimpleNamespace(cupy=lambda: arrays, capturing=lambda index: False)
    for module in (devices, plan, product, transposed, *PRODUCTS):
        for name, value in (("cuda_driver", lambda: driver), ("cuda_device", lambda: gpu)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(plan, "repeat", lambda *call: None)
    monkeypatch.setattr(import_module("ggmlq.ops.gated_linear"), "cuda_module", lambda name: GATES)

    def kernel_of(problem, kernel, arithmetic):
        assert (problem.m, kernel) == (1, "auto")  # one choice for all numbers of rows
        return "cuda:chosen"

    monkeypatch.setattr(PRODUCTS[0], "kernel_of", kernel_of)

    def run(problem, operands, result, wishes, *rest):
        state.kernels.add(wishes.kernel)
        x, q = operands[:2]
        rows = decoded(x) if hasattr(x, "codes") else np.asarray(x, np.float32)
        values = decoded(q)
        if len(operands) == 3:
            ids = np.asarray(operands[2])
            per = ids.size // len(rows)
            y = np.stack([rows[i // per] @ values[e].T for i, e in enumerate(ids.reshape(-1))])
        else:
            y = rows @ values.T
        state.calls.append((len(rows), result.dtype))
        if result.bias is not None:
            y = y + np.asarray(result.bias, np.float32)
        if getattr(result, "residual", None) is not None:
            y = y + np.asarray(result.residual, np.float32)
        y = y.reshape(result.shape).astype(result.dtype).view(DeviceArray)
        if result.out is None:
            return y
        result.out[...] = y
        return result.out

    for module in PRODUCTS:
        monkeypatch.setattr(module, "run", run)
    monkeypatch.setitem(
        OPERATIONS, "dequantize", lambda q, dtype, out=None: decoded(q).astype(dtype).view(DeviceArray)
    )
    return state


def decoded(q):
    """The values of an array, decoded on the host."""
    if isinstance(q, gq.ScaledArray):
        return gq.ScaledArray(np.array(q.codes), np.array(q.scales), q.code, q.tile).dequantize()
    return q.format.decode(gq.QuantArray(q.format, q.shape, np.array(q.raw)).blocks).reshape(q.shape)


def moved(q):
    """An array on the device."""
    return gq.QuantArray(q.format, q.shape, on_device(q.raw))


def floats(fresh, *shape, kind=np.float32):
    return on_device(fresh.standard_normal(shape).astype(kind))


@pytest.fixture
def q(card, fresh):
    return moved(weights("q8_0", 24, 64, seed=int(fresh.integers(1 << 30))))


def test_a_residual_is_added_before_results_are_rounded(card, q, fresh):
    x, bias, residual = floats(fresh, 5, 64), floats(fresh, 24), floats(fresh, 5, 24, kind=np.float16)
    sums = np.asarray(x) @ decoded(q).T + np.asarray(bias)
    y = gq.linear(x, q, bias=bias, residual=residual, dtype=np.float16)
    assert type(y) is DeviceArray
    assert np.array_equal(y, (sums + residual).astype(np.float16))
    assert card.calls == [(5, np.float16)]  # one product is asked for all of it
    out, want = residual.copy(), (sums + residual).astype(np.float16)
    assert gq.linear(x, q, bias=bias, residual=out, out=out) is out
    assert np.array_equal(out, want)
    out = floats(fresh, 5, 24)
    assert gq.linear(x, q, residual=residual[:1], out=out) is out
    assert np.array_equal(out, np.asarray(x) @ decoded(q).T + residual[:1])


@pytest.mark.parametrize(("ends", "adds"), [(False, False), (True, False), (True, True)])
def test_what_a_kernel_does_not_add_is_added_behind_it(ends, adds, card, q, fresh, monkeypatch):
    """In float32, rounded once; the residual may be the result, and of one row it is a bias."""

    def launch(x, w, out, end=PLAIN):
        assert adds or end.residual is None
        assert ends or end is PLAIN
        sums = np.asarray(x) @ decoded(w).T
        for part in end.bias, end.residual:
            sums = sums if part is None else sums + np.asarray(part, np.float32)
        out[...] = sums

    rung = SimpleNamespace(device="cuda", ends=ends, adds=adds, narrow=True, repeats=True, launch=launch)
    monkeypatch.setattr(product.tuning, "chosen", lambda *facts: rung)
    wishes = Wishes(kernel="cuda:chosen")
    for m, bias, kind, dtype in itertools.product((1, 3), (None, floats(fresh, 24)), "efd", "ef"):
        for shape in ((m, 24), (24,), (m, 1)):
            x, residual = floats(fresh, m, 64), floats(fresh, *shape, kind=kind)
            want = np.asarray(x) @ decoded(q).T + (0 if bias is None else np.asarray(bias))
            want = (want + np.asarray(residual).astype(np.float32)).astype(dtype)
            result = Result("linear", (m, 24), np.dtype(dtype), place_of(x), None, bias, residual)
            problem = PRODUCTS[0].problem_of(x, q, place_of(x))
            y = product.run(problem, (x, q), result, wishes)
            assert y.dtype == dtype
            assert np.allclose(y, want, rtol=2.0**-10, atol=2.0**-20), (m, kind, shape)
            if shape == (m, 24):
                result = result._replace(out=residual, dtype=residual.dtype)
                assert product.run(problem, (x, q), result, wishes) is residual
                assert np.allclose(residual, want, rtol=2.0**-10, atol=2.0**-10)


@pytest.mark.parametrize("m", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("alone", [False, True])
def test_rows_go_in_pieces_of_one_size(m, alone, card, q, fresh, monkeypatch):
    """``alone``: a kernel keeps bits itself, and takes as many rows as there are."""
    monkeypatch.setattr(PRODUCTS[0], "takes_alone", lambda problem, kernel, arithmetic: alone)
    x, bias, most = floats(fresh, m, 64), floats(fresh, 24), product.ALONE if alone else product.ROWS
    sizes = [min(most, m - start) if alone else most for start in range(0, m, most)]
    y = gq.linear(x, q, bias=bias, invariant=True, dtype=np.float16)
    assert np.allclose(y, np.asarray(x) @ decoded(q).T + bias, rtol=2e-3, atol=2e-3)
    assert card.calls == [(size, np.float16) for size in sizes]
    assert card.kernels == {"auto" if alone else "cuda:chosen"}
    out = floats(fresh, m, 24)
    assert gq.linear(x, q, residual=out.copy(), invariant=True, out=out) is out
    assert [rows for rows, _ in card.calls] == 2 * sizes


def test_weights_as_they_lie(card, q, fresh, monkeypatch):
    monkeypatch.setattr(transposed, "MOST_DECODED", 4 * 64 * 10)
    y, residual = floats(fresh, 70, 24), floats(fresh, 64)
    want = np.asarray(y) @ decoded(q)
    result = gq.linear(y, q.T)
    assert type(result) is DeviceArray
    assert np.allclose(result, want, atol=1e-4)
    assert np.allclose(y @ q, want, atol=1e-4)
    assert np.allclose(gq.linear(y, q.T, invariant=True, residual=residual), want + residual, atol=1e-4)
    half = gq.linear(y.astype(np.float16), q.T, bias=residual, dtype=np.float16)
    assert half.dtype == np.float16
    with pytest.raises(gq.GGMLQError, match="'cuda:transposed'"):
        gq.linear(y, q.T, kernel="cpu:transposed")
    with pytest.raises(gq.GGMLQError, match="y is on cpu, q on cuda:0"):
        gq.linear(np.asarray(y), q.T)


def test_weights_as_they_lie_on_hopper(card, q, fresh, monkeypatch):
    """A kernel gets float32 or float16, and writes either with its bias; the rest follows it."""
    calls = []

    def multiply(rows, weights, out, bias, by_library):
        assert by_library
        calls.append((rows.dtype.char, out.dtype.char, bias is not None))
        out[...] = np.asarray(rows, np.float32) @ decoded(weights) + (0 if bias is None else np.asarray(bias))

    kernels = SimpleNamespace(refuses=lambda q, card: None, multiply=multiply)
    monkeypatch.setattr(transposed, "cuda_module", lambda name: kernels)
    y, bias, residual = floats(fresh, 7, 24), floats(fresh, 64), floats(fresh, 7, 64)
    y = y.astype(np.float16).astype(np.float32)
    want = np.asarray(y) @ decoded(q) + np.asarray(bias)
    half = gq.linear(y.astype(np.float16), q.T, bias=bias, dtype=np.float16)
    assert np.allclose(half, want, rtol=1e-3, atol=1e-3)
    out = floats(fresh, 7, 64)
    assert gq.linear(y.astype(np.float64), q.T, bias=bias, out=out) is out
    assert np.allclose(out, want, atol=1e-4)
    more = gq.linear(y, q.T, bias=bias, residual=residual, kernel="cuda:transposed_bf16")
    assert np.allclose(more, want + np.asarray(residual), atol=1e-4)
    strided = floats(fresh, 7, 128)[:, ::2]
    assert gq.linear(y, q.T, bias=bias.astype(np.float64), out=strided, arithmetic="bf16s") is strided
    assert np.allclose(strided, want, atol=1e-4)
    assert calls == [("e", "e", True), ("f", "f", True), ("f", "f", False), ("f", "f", False)]
    gq.linear(y, q.T, invariant=True)
    gq.linear(y, q.T, arithmetic="f32")
    assert len(calls) == 4
    with pytest.raises(gq.GGMLQError, match="does not keep the bits of a row"):
        gq.linear(y, q.T, invariant=True, kernel="cuda:transposed_bf16")


def test_a_gate_of_one_row_is_one_launch(card, q, fresh, monkeypatch):
    """Of two matrices of one type, without invariance; the kernel knows the tangent's GELU as gelu."""
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
    up = moved(weights(q.format.name, 24, 64, seed=int(fresh.integers(1 << 30))))
    x = floats(fresh, 1, 64)
    calls = []

    def multiply(activation, rows, pair, out):
        calls.append((activation, rows.shape, out.dtype.char))
        gate, let_through, biases = pair
        g, u = (
            np.asarray(rows, np.float32) @ decoded(w).T + (0 if bias is None else np.asarray(bias))
            for w, bias in zip((gate, let_through), biases, strict=True)
        )
        name = {"gelu": "gelu_tanh"}.get(activation, activation)
        out[...] = ACTIVATIONS[name](np, g, u).reshape(out.shape)

    kernels = SimpleNamespace(
        refuses=lambda card, gate, up: None if gate.format is up.format else "of two types",
        pair_of=lambda gate, up, biases: (gate, up, biases), multiply=multiply, gated=gated,
    )  # fmt: skip
    monkeypatch.setattr(import_module("ggmlq.ops.gated_linear"), "cuda_module", lambda name: kernels)
    bias = floats(fresh, 24), None
    with np.errstate(over="ignore"):
        for rows, options in ((x, {}), (x[0], {"bias": bias}), (x, {"dtype": np.float16})):
            for name in ("silu", "gelu_tanh", "swiglu_oai"):
                g, u = (np.asarray(rows) @ decoded(w).T for w in (q, up))
                if "bias" in options:
                    g = g + np.asarray(bias[0])
                y = gq.gated_linear(rows, q, up, activation=name, **options)
                assert y.shape == (*rows.shape[:-1], 24)
                assert np.allclose(y, ACTIVATIONS[name](np, g, u), rtol=1e-3, atol=1e-3)
        out = floats(fresh, 1, 24)
        assert gq.gated_linear(x, q, up, out=out) is out
        assert len(calls) == 10
        for more in ({"activation": "relu"}, {"invariant": True}, {"arithmetic": "bf16x"}):
            gq.gated_linear(x, q, up, **more)
        other = moved(weights("q5_1", 24, 64, seed=int(fresh.integers(1 << 30))))
        gq.gated_linear(x, q, other)
        gq.gated_linear(floats(fresh, 2, 64), q, up)
        choice = SimpleNamespace(why="timed on this machine", rung=SimpleNamespace(name="cuda:gemv"))
        monkeypatch.setattr(import_module("ggmlq.ops.gated_linear"), "explain", lambda problem: choice)
        gq.gated_linear(x, q, up)  # a machine on which another kernel was faster
    assert len(calls) == 10


def test_a_gate(card, q, fresh):
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
    up, x = moved(weights("q4_0", 24, 64, seed=int(fresh.integers(1 << 30)))), floats(fresh, 5, 64)
    g, u = (np.asarray(x) @ decoded(w).T for w in (q, up))
    y = gq.gated_linear(x, q, up, activation="swiglu_oai", dtype=np.float16)
    assert type(y) is DeviceArray
    with np.errstate(over="ignore"):
        assert np.array_equal(y, ACTIVATIONS["swiglu_oai"](np, g, u).astype(np.float16))
    assert card.calls == [(5, np.float32)] * 2
    g, u = (np.asarray(x) @ decoded(w).T for w in (q, up))
    out = floats(fresh, 5, 24)
    assert gq.gated_linear(x, q, up, out=out) is out
    with np.errstate(over="ignore"):
        assert np.allclose(out, ACTIVATIONS["silu"](np, g, u), atol=1e-5)


@pytest.mark.parametrize("gates", [True, False])
def test_a_gate_that_the_second_product_multiplies_with(gates, card, q, fresh, monkeypatch):
    """One kernel is asked for the product and all behind it; where another one was timed it stands behind."""
    up, linear = moved(weights("q4_0", 24, 64, seed=int(fresh.integers(1 << 30)))), PRODUCTS[0]
    x, ends = floats(fresh, 5, 64), []

    def launch(x, w, out, end=PLAIN):
        ends.append(end)
        assert gates or end is PLAIN
        product = np.asarray(x) @ decoded(w).T
        if end.gate:
            gated(end.gate, end.residual, product, product)
        out[...] = product

    rung = SimpleNamespace(
        device="cuda", ends=True, adds=True, gates=96 * gates, narrow=True, repeats=True, launch=launch
    )
    monkeypatch.setattr(linear.ladder, "choose", lambda *facts: SimpleNamespace(gates=96))
    monkeypatch.setattr(product.tuning, "chosen", lambda *facts: rung)
    monkeypatch.setattr(product, "cuda_module", lambda name: SimpleNamespace(gated=gated))
    monkeypatch.setattr(plan, "on_device", lambda *facts: None)
    monkeypatch.setattr(
        product, "launched", lambda rung, problem, operands, y, facts, end: launch(*operands, y, end) or True
    )
    monkeypatch.setattr(linear, "run", product.run)
    g, u = (np.asarray(x) @ decoded(w).T for w in (q, up))
    for name, dtype in itertools.product(("silu", "gelu_tanh"), "ef"):
        with np.errstate(over="ignore"):
            want = ACTIVATIONS[name](np, g.copy(), u)
            y = gq.gated_linear(x, q, up, activation=name, dtype=np.dtype(dtype).type)
        assert np.allclose(y, want, rtol=2.0**-9, atol=1e-4)
        assert (ends[-1].gate is not None) == gates
    out = floats(fresh, 5, 24)
    assert gq.gated_linear(x, q, up, activation="gelu_tanh", out=out) is out
    assert np.allclose(out, want, rtol=1e-4, atol=1e-4)


def test_experts(card, fresh):
    q = moved(weights("q8_0", 72, 64, seed=int(fresh.integers(1 << 30))).reshape(3, 24, 64))
    x, ids = floats(fresh, 4, 64), on_device(fresh.integers(0, 3, (4, 2)))
    bias, share, stream = floats(fresh, 3, 24), floats(fresh, 4, 2), floats(fresh, 4, 24)
    each = np.einsum("tk,tunk->tun", np.asarray(x), decoded(q)[np.asarray(ids)]) + np.asarray(bias)[ids]
    want = (each * np.asarray(share)[..., None]).sum(1) + stream
    y = gq.expert_linear(x, q, ids, bias=bias, weights=share, residual=stream)
    assert type(y) is DeviceArray
    assert np.allclose(y, want, atol=1e-4)
    assert card.calls == [(4, np.float32)]
    card.calls.clear()
    y = gq.expert_linear(x, q, ids, bias=bias, weights=share, residual=stream, invariant=True)
    assert np.allclose(y, want, atol=1e-4)
    assert card.calls == [(1, np.float32)] * ids.size


def test_codes(card, fresh):
    host = gq.quantize_scaled(fresh.standard_normal((24, 256), np.float32), "int8", (1, None))
    w = gq.ScaledArray(on_device(host.codes), on_device(host.scales), "int8", (1, None))
    rows = gq.quantize_scaled(fresh.standard_normal((70, 256), np.float32), "int8", (1, None))
    x = gq.ScaledArray(on_device(rows.codes), on_device(rows.scales), "int8", (1, None))
    want = rows.dequantize() @ host.dequantize().T
    residual = floats(fresh, 24)
    assert np.allclose(gq.scaled_linear(x, w, residual=residual), want + residual, atol=1e-3)
    card.calls.clear()
    assert np.allclose(gq.scaled_linear(x, w, invariant=True, dynamic=True), want, atol=1e-3)
    assert card.calls == [(product.ROWS, np.float32)] * 2
    assert not w.has_prepared


def test_a_product_tells_that_a_graph_is_recorded(monkeypatch):
    state = put_gpu(monkeypatch)
    driver = device.driver()
    driver.share = np.may_share_memory
    monkeypatch.setattr(devices, "cuda_driver", lambda: driver)
    q = gq.QuantArray(FORMATS["q4_0"], (8, 64), on_device(np.zeros((8, 36), np.uint8)))
    seen = []

    def told(problem, *rest):
        seen.append((problem.captured, rest[0]))
        raise errors.UnsupportedError("no kernel")

    monkeypatch.setattr(ladder, "choose", told)
    x = on_device(np.ones((3, 64), np.float32))
    for state.capturing, kernel in ((False, "auto"), (True, "auto"), (True, "cuda:dequant")):
        with pytest.raises(errors.UnsupportedError, match="no kernel"):
            gq.linear(x, q, kernel=kernel)
    assert seen == [(False, "auto"), (True, "auto"), (False, "cuda:dequant")]
