"""Which products on a device are ordinary, on arrays of NumPy in the guise of CuPy's: no GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cupy import DeviceArray, on_device

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.cuda.driver import device
from ggmlq.dispatch import ladder
from ggmlq.dispatch.card import Card
from ggmlq.dispatch.problems import Linear
from ggmlq.ops import plan

FULL = gq.quantize(rows("normal", 5, 64), "q8_0")
CARDS = [Card(name, (9, 0), 132, 227 << 10) for name in ("a card", "another")]


class OtherArray(DeviceArray):
    """A subclass, as one may be made of CuPy's arrays."""

    __module__ = "cupy"


@pytest.fixture
def gpu(monkeypatch):
    """Device 0 is current; each call of some rows is a warm one, and what multiplies is NumPy."""
    stream = SimpleNamespace(ptr=0, capturing=False, is_capturing=lambda: stream.capturing)
    state = SimpleNamespace(current=0, stream=stream, rows=[], added=[])

    def array(shape, dtype):
        return on_device(np.full(shape, np.nan, dtype), state.current)

    def launch(x, q, out):
        state.rows.append(len(x))
        out[...] = np.asarray(x, np.float32) @ FULL.dequantize().T

    def add(kind, bias, y):
        """The bias at one address, in that dtype, to float32 sums at another."""
        sums = at(y, (state.rows[-1], 5), "f")
        sums += at(bias, (5,), kind)
        state.added.append(kind)

    driver = SimpleNamespace(
        array=array, device=lambda: state.current, stream=lambda index: stream, share=np.may_share_memory
    )
    monkeypatch.setattr(plan, "cuda_driver", lambda: driver)
    monkeypatch.setattr(plan, "adder", lambda q, m, kind: lambda bias, y, stream: add(kind, bias, y))
    rung = ladder.Rung("linear", "cuda", "cuda:none", 0, "", "f32", "f32", launch)
    monkeypatch.setattr(gq.QuantArray, "recording", lambda q, key: {key: rung}[key])
    return state


def at(address, shape, kind):
    """The numbers at an address."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), kind).reshape(shape)


def weights(number=0, shape=(5, 64)):
    return gq.QuantArray(FULL.format, shape, on_device(FULL.raw.reshape(*shape[:-1], -1), number))


def product(x, q=None, kernel="auto", arithmetic=None, out=None, bias=None, dtype=np.float32):
    return plan.on_device(x, weights() if q is None else q, kernel, arithmetic, out, bias, dtype)


@pytest.mark.parametrize("shape", [(64,), (1, 64), (3, 64), (2, 3, 64)], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_ordinary(shape, dtype, gpu):
    x = on_device(np.random.default_rng().standard_normal(shape).astype(dtype))
    want = np.asarray(x, np.float32) @ FULL.dequantize().T
    y = product(x)
    assert (y.dtype, y.shape) == (np.float32, (*shape[:-1], 5))
    assert np.allclose(y, want, atol=1e-5)
    assert gpu.rows == [x.size // 64]
    out = on_device(np.full(y.shape, np.nan, np.float32))
    assert product(x, out=out) is out
    assert np.array_equal(out, y)
    for kind in "fe":
        bias = on_device(np.arange(5, dtype=kind))
        assert np.array_equal(product(x, bias=bias), y + np.arange(5, dtype=np.float32))
        assert gpu.added == [kind]
        assert product(x, out=out, bias=bias) is out
        assert np.array_equal(out, y + np.arange(5, dtype=np.float32))
        gpu.added.clear()
    assert np.array_equal(product(x, dtype=np.float16), y.astype(np.float16))
    assert product(x, dtype=np.float16).dtype == np.float16
    assert product(x, out=out, dtype=np.float16) is out
    assert np.array_equal(out, y)


def test_out_that_kernels_do_not_write(gpu):
    """Sums are float32 first where ``out`` is of float16, and where it does not lie as kernels store."""
    x = on_device(X)
    want = np.asarray(product(x))
    memory = on_device(np.full(16, np.nan, np.float32)).view(np.uint8)
    for out in (on_device(np.full((3, 5), np.nan, np.float16)), memory[1:61].view(np.float32).reshape(3, 5)):
        assert product(x, out=out) is out
        assert np.array_equal(out, want.astype(out.dtype))
        assert product(x, out=out, bias=on_device(np.ones(5, np.float32))) is out
        assert np.array_equal(out, (want + 1).astype(out.dtype))
    assert gpu.rows == [3] * 5


X = rows("normal", 3, 64)
STRANGE = {
    "x in float64": lambda: product(on_device(X.astype(np.float64))),
    "x of integers": lambda: product(on_device(X.astype(np.int32))),
    "x is a scalar": lambda: product(on_device(np.float32(1))),
    "x of another length": lambda: product(on_device(X[:, :32])),
    "x elsewhere": lambda: product(on_device(X, 1)),
    "x of another class": lambda: product(on_device(X, 0, OtherArray)),
    "q elsewhere": lambda: product(on_device(X), weights(1)),
    "both elsewhere": lambda: product(on_device(X, 1), weights(1)),
    "q on the host": lambda: product(on_device(X), FULL),
    "q no QuantArray": lambda: product(on_device(X), on_device(X)),
    "q in three axes": lambda: product(on_device(X), weights(0, (1, 5, 64))),
    "kernel no name": lambda: product(on_device(X), kernel=["auto"]),
    "arithmetic no name": lambda: product(on_device(X), arithmetic=["q8"]),
    "dtype of another kind": lambda: product(on_device(X), dtype=np.float64),
    "dtype by name": lambda: product(on_device(X), dtype="float32"),
    "bias of another shape": lambda: product(on_device(X), bias=on_device(np.ones(4, np.float32))),
    "bias of integers": lambda: product(on_device(X), bias=on_device(np.ones(5, np.int32))),
    "bias on the host": lambda: product(on_device(X), bias=np.ones(5, np.float32)),
    "bias elsewhere": lambda: product(on_device(X), bias=on_device(np.ones(5, np.float32), 1)),
    "bias in float64": lambda: product(on_device(X), bias=on_device(np.ones(5))),
    "bias strided": lambda: product(on_device(X), bias=on_device(np.ones(10, np.float32))[::2]),
    "out of another shape": lambda: product(on_device(X), out=on_device(np.ones((3, 4), np.float32))),
    "out in float64": lambda: product(on_device(X), out=on_device(np.ones((3, 5)))),
    "out of integers": lambda: product(on_device(X), out=on_device(np.ones((3, 5), np.int32))),
    "out strided": lambda: product(on_device(X), out=on_device(np.ones((5, 3), np.float32)).T),
    "out on the host": lambda: product(on_device(X), out=np.ones((3, 5), np.float32)),
    "out elsewhere": lambda: product(on_device(X), out=on_device(np.ones((3, 5), np.float32), 1)),
}


@pytest.mark.parametrize("what", STRANGE)
def test_strange(what, gpu):
    """All that may fail, convert or copy goes where it is checked with words."""
    assert STRANGE[what]() is None
    assert not gpu.rows


def test_out_that_overlaps(gpu):
    """No number that is still to be read is overwritten."""
    values = np.random.default_rng().standard_normal((64, 64)).astype(np.float32)
    sums, bias = np.asarray(product(on_device(values))), values.reshape(-1)[:5].copy()
    for part in (slice(64 * 5), slice(64 * 59, None)):
        x = on_device(values.copy())
        out = x.reshape(-1)[part].reshape(64, 5)
        assert product(x, out=out) is out
        assert np.array_equal(out, sums)
        x = on_device(values.copy())
        out = x.reshape(-1)[:320].reshape(64, 5)
        assert product(on_device(values), out=out, bias=x.reshape(-1)[:5]) is out
        assert np.array_equal(out, sums + bias)


def test_another_device_is_current(gpu):
    gpu.current = 1
    assert product(on_device(X)) is None
    assert product(on_device(X, 1), weights(1)) is not None
    assert gpu.rows == [3]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_stream_that_records_a_graph(gpu, monkeypatch, keeps):
    """CuPy's memory would go to others, and a rung may call cuBLAS."""
    monkeypatch.setattr(device, "keeps_memory", lambda: keeps)
    gpu.stream.ptr = 1234
    assert product(on_device(X)) is not None
    gpu.stream.capturing = True
    assert product(on_device(X)) is None


def test_the_choice_is_forgotten_when_a_kernel_is_registered(monkeypatch):
    asked = []
    monkeypatch.setattr(ladder, "_first", lambda *problem: asked.append(problem))
    monkeypatch.setattr(ladder, "_RUNGS", dict(ladder._RUNGS))
    first, second = (Linear(FULL.format, 1, 5, 64, device="cuda", card=card) for card in CARDS)
    ladder.forget_choices()
    try:
        for _ in range(2):
            ladder.explain(first)
        ladder.explain(second)
        assert len(asked) == 2
        ladder.register("ggmlq.cuda.ladder.linear.r0_mine", "Mine.", arithmetic="q8", accumulate="f32")(
            lambda *_: None
        )
        ladder.explain(first)
        assert len(asked) == 3
    finally:
        ladder.forget_choices()
