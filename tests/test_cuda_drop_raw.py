"""Arrays on a GPU without their bytes: what brings them back, tried on arrays of NumPy in disguise."""

from __future__ import annotations

import copy
import threading
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from fake_cupy import on_device, put_gpu

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.cuda.driver import device
from ggmlq.cuda.layouts import to_blocks
from ggmlq.dispatch.card import Card
from ggmlq.formats import FORMATS

SEED = int(np.random.default_rng().integers(1 << 31))


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that packs by the verbs of a format, and counts how often it packs and restores."""
    state = put_gpu(monkeypatch)
    state.made = state.restored = 0

    def pack(q):
        state.made += 1
        blocks = np.asarray(q.raw).reshape(-1, q.format.dtype.itemsize)
        return SimpleNamespace(fragments=on_device(to_blocks.elements(q.format, blocks)))

    def restored(q):
        state.restored += 1
        blocks = to_blocks.put_together(to_blocks.sources(q.format), q.prepared(pack).fragments)
        return on_device(blocks.reshape(*q.shape[:-1], -1))

    monkeypatch.setattr(to_blocks, "packed_weights", lambda q: q.prepared(pack))
    monkeypatch.setattr(to_blocks, "restored", restored)
    state.pack = pack
    return state


def weights(name="q4_K", n=3, columns=512):
    fmt = FORMATS[name]
    raw = random_blocks(fmt, n, columns // fmt.block_size, SEED).view(np.uint8).reshape(n, -1)
    return gq.QuantArray(fmt, (n, columns), on_device(raw)), raw


def test_what_does_without(gpu):
    q, raw = weights()
    before = repr(q), q.nbytes, q.shape, q.device, q.immutable, len(q), q.T.shape
    q.drop_raw()
    assert (repr(q), q.nbytes, q.shape, q.device, q.immutable, len(q), q.T.shape) == before
    assert q.prepared(gpu.pack).fragments is q.memory
    with pytest.raises(gq.GGMLQError, match="host only"):
        _ = q.blocks
    q.drop_raw()
    assert (gpu.made, gpu.restored) == (1, 0)
    assert q.nbytes == raw.nbytes


NEEDED = {
    "raw": lambda q: q.raw,
    "to": lambda q: q.to("cpu").raw,
    "slice": lambda q: q[:].raw,
    "rows": lambda q: np.stack([row.raw for row in q]),
    "copy": lambda q: q.copy().raw,
    "deepcopy": lambda q: copy.deepcopy(q).raw,
    "pickle": lambda q: q.__reduce__()[1][2],
}


@pytest.mark.parametrize("how", NEEDED)
@pytest.mark.parametrize("name", ["q4_K", "q6_K", "mxfp4", "q8_0"])
def test_what_needs_the_bytes(how, name, gpu):
    q, raw = weights(name)
    for times in (1, 2):
        q.drop_raw()
        assert np.array_equal(NEEDED[how](q), raw)
        assert np.array_equal(q.raw, raw)
        assert q.memory is q.raw
        assert (gpu.made, gpu.restored) == (1, times)


def test_experts(gpu):
    """One matrix of them needs the bytes of all."""
    whole, raw = weights(n=6)
    q = gq.QuantArray(whole.format, (2, 3, 512), whole.raw.reshape(2, 3, -1))
    q.drop_raw()
    assert q.memory is q.prepared(gpu.pack).fragments
    assert np.array_equal(q[1].raw, raw[3:])
    assert q.raw.shape == (2, 3, raw.shape[1])
    assert gpu.restored == 1


def test_nothing_is_lost(gpu):
    """What kernels keep is all that there is: the bytes come first, then it may go."""
    q, raw = weights()
    q.drop_raw()
    q.drop_prepared()
    assert gpu.restored == 1
    q.drop_raw()
    assert gpu.made == 2
    assert np.array_equal(q.raw, raw)


def test_other_orders_need_the_bytes(gpu):
    q, raw = weights()
    q.drop_raw()
    assert np.array_equal(q.prepared(lambda weights: weights.raw), raw)


def test_threads_make_them_once(gpu):
    q, raw = weights()
    q.drop_raw()
    start, found = threading.Barrier(8), []

    def ask():
        start.wait()
        found.append(q.raw)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gpu.restored == 1
    assert all(a is found[0] for a in found)
    assert np.array_equal(found[0], raw)


def test_not_while_a_graph_is_recorded(gpu):
    q, raw = weights()
    gpu.capturing = True
    with pytest.raises(gq.GGMLQError, match=r"drop_raw\(\) of .*records a CUDA graph.*before the capture"):
        q.drop_raw()
    assert np.array_equal(q.raw, raw)
    gpu.capturing = False
    q.drop_raw()
    gpu.capturing = True
    q.prepared(gpu.pack)
    for need in (lambda: q.raw, q.drop_prepared):
        with pytest.raises(gq.GGMLQError, match=r"bytes of .* were dropped.*records a CUDA graph"):
            need()
    gpu.capturing = False
    assert np.array_equal(q.raw, raw)


@pytest.mark.parametrize("name", ["iq2_xs", "tq1_0", "q8_K"])
def test_formats_that_need_their_bytes(name, gpu):
    q, raw = weights(name)
    with pytest.raises(
        gq.GGMLQError, match=rf"no packed weights hold all bits of {name}, as those of q4_0, "
    ):
        q.drop_raw()
    assert q.raw is q.memory
    assert np.array_equal(q.raw, raw)
    floats = gq.QuantArray(FORMATS["f16"], (2, 8), on_device(np.zeros((2, 16), np.uint8)))
    with pytest.raises(gq.GGMLQError, match="no packed weights hold all bits of f16"):
        floats.drop_raw()


def test_arrays_that_need_their_bytes(gpu):
    q, _ = weights()
    with pytest.raises(gq.GGMLQError, match="two axes or three, this has 1"):
        q[0].drop_raw()
    with pytest.raises(gq.GGMLQError, match=r"drop_raw\(\) of .*is on the host.*q\.to\(\"cuda\"\)"):
        gq.quantize(np.ones((2, 32), np.float32), "q4_0").drop_raw()


def test_a_gpu_whose_kernels_read_the_bytes(gpu, monkeypatch):
    monkeypatch.setattr(device, "card", lambda: Card("Tesla T4", (7, 5), 40, 64 << 10))
    q, raw = weights()
    with pytest.raises(
        gq.GGMLQError, match=r"needs compute capability 8\.0, this GPU has 7\.5; keep the bytes"
    ):
        q.drop_raw()
    assert np.array_equal(q.raw, raw)


def test_bytes_stay_where_nobody_can_wait(gpu, monkeypatch):
    q, _ = weights()
    bytes_before = q.memory

    def wait():
        raise RuntimeError("not now")

    monkeypatch.setattr(device, "wait", wait)
    with pytest.raises(gq.GGMLQError, match=r"cannot be waited for \(not now\).*bytes are still there"):
        q.drop_raw()
    assert q.memory is q.raw is bytes_before
    assert not gpu.restored


def test_where_it_is_already(gpu):
    """The current device is what "cuda" says: what lies there stays as it is, and without its bytes."""
    q, _ = weights()
    q.drop_raw()
    assert q.to("cuda") is q.to("cuda:0") is q
    assert not gpu.restored


def test_prepared_copies_are_given_back_when_the_device_is_done(gpu):
    """A product may still run on another stream, and read the memory that would be used again."""
    q, _ = weights()
    q.drop_prepared()
    assert gpu.device_waits == 0  # nothing was kept
    q.prepared(gpu.pack)
    q.drop_prepared()
    assert gpu.device_waits == 1
    q.prepared(gpu.pack)
    gpu.capturing = True
    with pytest.raises(gq.GGMLQError, match=r"drop_prepared\(\) of .*records a CUDA graph"):
        q.drop_prepared()
    assert q.prepared_copy(gpu.pack)


def test_prepared_copies_stay_where_nobody_can_wait(gpu, monkeypatch):
    q, _ = weights()
    q.prepared(gpu.pack)

    def wait():
        raise RuntimeError("not now")

    monkeypatch.setattr(device, "wait", wait)
    with pytest.raises(gq.GGMLQError, match=r"cannot be waited for \(not now\).*is still there"):
        q.drop_prepared()
    assert q.prepared_copy(gpu.pack)


def test_an_upload_has_arrived(gpu):
    """Weights are packed on any stream, and kept: bytes on their way would be wrong for good."""
    q = gq.quantize(np.ones((2, 32), np.float32), "q4_0")
    d = q.to("cuda:0")
    assert gpu.waits == 1
    assert np.array_equal(d.raw, q.raw)
    gpu.capturing = True
    with pytest.raises(gq.GGMLQError, match=r"a copy to cuda:0, and the current stream records a CUDA graph"):
        q.to("cuda:0")
