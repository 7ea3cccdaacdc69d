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
from ggmlq import errors
from ggmlq.arrays.protocols import OPERATIONS
from ggmlq.base import devices
from ggmlq.cuda.machine import device
from ggmlq.model import Model
from ggmlq.model.arithmetic import Exact, cuda
from ggmlq.model.config import Rope
from ggmlq.model.rope import turned
from ggmlq.ops import rows
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


def put_graphs(monkeypatch, state):
    """Graphs that compute a step anew, into the array that it gave while it was recorded."""
    walk, state.recorded, state.launches = Model._logits_of, [], 0

    def noted(model, *operands):
        state.recorded = [model, *operands, walk(model, *operands)]
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

    monkeypatch.setattr(Model, "_logits_of", noted)
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

    def put(request, q, ids, x, check):
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
        gated=lambda name, gate, up: single(Exact().gated(name, double(gate), double(up))),
    )  # fmt: skip
    monkeypatch.setattr(cuda, "cuda_module", lambda name: layers)
    for module in (rows, import_module("ggmlq.ops.dequantize")):
        monkeypatch.setattr(module, "cuda_module", lambda name: kernels)
    return state


@pytest.mark.drawn(4)
@pytest.mark.parametrize("family", NAMES)
def test_logits(card, fresh, tmp_path, family):
    path = family_model(tmp_path / "m.gguf", family, int(fresh.integers(1 << 30)), types=("q8_0", "f16"))
    tokens = fresh.integers(3, 259, 20).tolist()
    expected = gq.model.load(path, arithmetic="exact", cache="f32").logits(tokens)
    m = gq.model.load(path, device="cuda", cache="f32")
    y = m.logits(tokens)
    assert type(y) is np.ndarray
    print(gq.nmse(y, expected))
    cache = m.cache(20)
    m.run(np.array(tokens[:13]), cache)
    for token in tokens[13:]:
        last = m.run(np.array([token]), cache)
    assert type(last) is DeviceArray
    print(gq.nmse(np.asarray(last[-1]), expected[-1]))
