"""KVCache on an emulated card: lengths that live there, recorded calls, rotation, values within keys."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from emulated_gpu import put_emulated
from fake_cupy import Device, DeviceArray, on_device

import ggmlq as gq
from ggmlq import errors
from ggmlq.arrays.array import QuantArray
from ggmlq.cuda.driver import device
from ggmlq.cuda.driver.launch import Kernel
from ggmlq.cuda.kernels import layers
from ggmlq.cuda.kernels.attention import call
from ggmlq.ops.cache import Rotation, hadamard

REFUSE = device.refuse_capture
B, HK, D, POSITIONS = 3, 2, 32, 20


def on_host(q):
    return QuantArray(q.format, q.shape, np.array(q.raw))


@pytest.fixture
def card(monkeypatch):
    """A card whose attention is the oracle's; while a graph is recorded launches wait in ``recorded``."""
    state = put_emulated(monkeypatch)
    state.recorded, state.calls = [], []
    state.cupy.asarray = lambda x, dtype=None: on_device(np.asarray(x, dtype))
    state.cupy.minimum, state.cupy.maximum = np.minimum, np.maximum
    monkeypatch.setattr(device, "named", lambda name: Device(0))
    monkeypatch.setattr(device, "upload", lambda array, name: on_device(array))
    monkeypatch.setattr(device, "refuse_capture", REFUSE)
    run = Kernel.__call__

    def launch(*arguments, **options):
        if state.capturing:
            state.recorded.append(lambda: run(*arguments, **options))
        else:
            run(*arguments, **options)

    def attend(request, a, kind, invariant):
        y = np.zeros(a.shape, kind).view(DeviceArray)

        def compute():
            k, v, many = on_host(a.k), on_host(a.v), np.minimum(np.array(a.lengths), a.k.shape[2])
            y[...] = gq.reference.attention(np.array(a.q), k, v, causal=a.causal, lengths=many)

        state.calls.append(a)
        if state.capturing:
            state.recorded.append(compute)
        else:
            compute()
        return y

    monkeypatch.setattr(Kernel, "__call__", launch)
    monkeypatch.setattr(import_module("ggmlq.ops.attention"), "_on_gpu", attend)
    return state


def both(types=("q8_0", "f16"), **options):
    """The same cache on the host and on the card."""
    facts = {"k": types[0], "v": types[1], "batch": B} | options
    return [gq.KVCache(HK, D, POSITIONS, device=name, **facts) for name in ("cpu", "cuda")]


def new(fresh, positions, width=D):
    return fresh.standard_normal((B, HK, positions, width)).astype(np.float32)


def agree(host, there):
    """The same lengths, the same bytes."""
    assert np.array_equal(np.asarray(there.lengths), host.lengths)
    for a, b in ((host.k, there.k), (host.v, there.v)):
        assert np.array_equal(a.raw, np.array(b.raw))


def test_lengths_of_the_host_and_of_the_card(card, fresh):
    host, there = both()
    address, waits = there.lengths, card.waits
    for number, more in enumerate((None, [1, 0, 2], [2, 2, 2], [0, 5, 1], [3, 9, -2])):
        k, v = new(fresh, 3), new(fresh, 3)
        much = more if more is None or number < 3 else on_device(more)
        host.append(k, v, lengths=None if more is None else np.clip(more, 0, 3))
        there.append(on_device(k), on_device(v), lengths=much)
        agree(host, there)
    assert there.lengths is address
    assert "? of 20 positions" in repr(there)
    for n in (11, [4, 8, 3], on_device([3, 20, -1]), 2):
        host.truncate(np.maximum(np.asarray(n), 0))
        there.truncate(n)
        agree(host, there)
    assert card.waits == waits
    assert len(there) == len(host) == 2
    assert "2 of 20 positions" in repr(there)  # it knows them again
    host.advance(3)
    there.advance(3)
    q = fresh.standard_normal((B, 4, 2, D)).astype(np.float32)
    assert np.allclose(np.asarray(there.attend(on_device(q))), host.attend(q), atol=1e-5)
    agree(host, there)


def test_no_room(card, fresh):
    """An error while the host knows; else rows are left out, and nothing is written elsewhere."""
    host, there = both()
    k = on_device(new(fresh, 9))
    there.append(k, k)
    there.append(k, k, lengths=[9, 9, 5])
    with pytest.raises(errors.BlockIndexError, match="sequence 0 has 18 positions and would get 9"):
        there.append(k, k)
    there.append(k, k, lengths=on_device([9, 1, 5]))
    x = np.asarray(k)
    for part, more in ((x, None), (x, [9, 9, 5]), (x, [2, 1, 5])):
        host.append(part, part, lengths=more)
    agree(host, there)
    there.append(k, k)
    assert np.asarray(there.lengths).tolist() == [20, 20, 20]
    assert np.array_equal(np.array(there.k.raw)[0], host.k.raw[0])
    assert len(there) == 20
    with pytest.raises(errors.BlockIndexError, match="the cache holds 20"):
        there.append(k[:, :, :1], k[:, :, :1])


def test_a_graph_goes_on(card, fresh):
    """Replays append behind what there is, and attend over it; the host waits to know how much that is."""
    host, there = both(rotate=True)
    k, v, q = new(fresh, 2), new(fresh, 2), fresh.standard_normal((B, 4, 2, D)).astype(np.float32)
    operands = [on_device(x) for x in (k, v, q)]
    there.append(*operands[:2])
    there.truncate(1)
    there.k[:, :, 1:].recorded.append("memory of a graph")
    card.capturing = True
    there.append(*operands[:2])
    y = there.attend(operands[2], causal=True)
    card.capturing = False
    assert card.calls[-1].lengths is there.lengths
    host.append(k, v)
    host.truncate(1)
    for replay in range(3):
        for x, operand in zip((k, v, q), operands, strict=True):
            x[...] = fresh.standard_normal(x.shape)
            operand[...] = x
        for launch in card.recorded:
            launch()
        host.append(k, v)
        agree(host, there)
        assert np.allclose(np.asarray(y), host.attend(q, causal=True), atol=1e-5), replay
        if replay == 1:
            host.truncate([3, 1, 5])
            there.truncate([3, 1, 5])
    assert len(there) == len(host) == 7
    assert there.k.recorded == ["memory of a graph"]
    assert "? of" in repr(there)
    card.capturing = True
    with pytest.raises(errors.DeviceError, match=r"differ are on the host; .*array on the device"):
        there.append(*operands[:2], lengths=[1, 2, 0])
    with pytest.raises(errors.DeviceError, match="read on the host"):
        len(there)


@pytest.mark.parametrize(("width", "part", "block"), [(128, 0, 128), (192, 128, 64), (48, 0, 16), (5, 0, 1)])
def test_rotations(card, fresh, width, part, block):
    """Those of the host to the bit, there and back, also of the first columns; and without signs."""
    rotation, x = Rotation(width, 3, part), fresh.standard_normal((2, 3, width)).astype(np.float32)
    assert rotation.block == block
    for some in (x, x[..., : part or width].copy()):
        y = rotation.forward(on_device(some))
        assert np.array_equal(np.asarray(y), rotation.forward(some))
        assert np.array_equal(np.asarray(rotation.back(y)), rotation.back(np.array(y)))
    y = np.asarray(layers.hadamard(on_device(x), block))
    assert np.array_equal(y.reshape(-1, block), hadamard(x.reshape(-1, block)))


@pytest.mark.parametrize("width_v", [None, 64])
def test_rotation(card, fresh, width_v):
    """Bytes of the host's cache; results rotated back."""
    host, there = (
        gq.KVCache(HK, 96, 9, batch=B, rotate=5, device=name, shared=width_v is not None, width_v=width_v)
        for name in ("cpu", "cuda")
    )
    k, q = new(fresh, 4, 96), fresh.standard_normal((B, 4, 1, 96)).astype(np.float32)
    x = (k,) if width_v else (k, k[..., ::-1].copy())
    host.append(*x)
    there.append(*map(on_device, x))
    agree(host, there)
    out = on_device(np.zeros((B, 4, 1, width_v or 96), np.float16))
    assert there.attend(on_device(q), out=out) is out
    assert np.allclose(np.asarray(out), host.attend(q), atol=2e-3)
    assert there.attend(on_device(q), dtype=np.float16).dtype == np.float16


def test_values_within_keys_are_a_view(card, fresh):
    """Columns of a GPU's array are a view that attention knows; others get a copy, which follows a put."""
    there = gq.KVCache(HK, 96, 9, batch=B, shared=True, width_v=64, device="cuda")
    k = new(fresh, 4, 96)
    there.append(on_device(k))
    assert there.v.strided.base is not None
    assert there.v.strided.ctypes.data == there.k.raw.ctypes.data
    assert not there.v.writable
    there.attend(on_device(new(fresh, 1, 96)))
    a = card.calls[-1]
    assert call._holds_values(a.k, a.v)
    assert call._holds_values(*(on_device(np.zeros((1, 1, 3, 64))),) * 2)
    assert not call._holds_values(there.k, there.k[..., 32:])
    assert not call._holds_values(there.k, on_device(np.zeros((B, HK, 9, 32))))
    view = there.k[:, :, 1:3]
    assert np.array_equal(on_host(view).dequantize(), on_host(there.k).dequantize()[:, :, 1:3])
    assert np.array_equal(np.array(there.v.raw), np.array(there.k.raw)[..., : there.v.raw.shape[-1]])
    there.truncate(1)
    there.append(on_device(k))
    assert np.array_equal(np.array(view.raw), np.array(there.k.raw)[:, :, 1:3])
    assert view.reshape(B, HK * 2, 96).shape == (B, HK * 2, 96)
    with pytest.raises(errors.DTypeError, match="read-only"):
        gq.put(view, on_device([0]), on_device(np.zeros((1, HK, 2, 96), np.float32)))
