"""A model on a GPU: every byte arrives, on any stream, and what does not fit leaves nothing behind."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from test_gguf_load import SEED, assert_loaded, saved, tensors

import ggmlq as gq
from ggmlq.errors import DeviceError
from ggmlq.gguf import load

pytestmark = pytest.mark.cuda


@pytest.fixture
def pool(cupy):
    """The memory of the GPU, with nothing in it but what tests of other files still hold."""
    gc.collect()
    found = cupy.get_default_memory_pool()
    found.free_all_blocks()
    yield found
    found.set_limit(size=0)


def on_host(got):
    """Arrays of a GPU on the host, once it is sure that they came from there."""
    assert all(q.device.startswith("cuda:") for q in got.values())
    return {name: q.to("cpu") for name, q in got.items()}


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("threads", [1, 2, 16])
def test_everything_arrives(tmp_path, monkeypatch, cupy, threads, byteorder):
    monkeypatch.setattr(load, "BUFFER_BYTES", 1 << 17)
    monkeypatch.setattr(load, "num_threads", lambda: threads)
    f = saved(tmp_path, byteorder=byteorder)
    for _ in range(3):
        got = f.to("cuda")
        assert all(isinstance(q.raw, cupy.ndarray) for q in got.values())
        assert_loaded(on_host(got), f)


def test_every_gpu(tmp_path, cupy):
    f = saved(tmp_path)
    before = cupy.cuda.runtime.getDevice()
    for index in range(cupy.cuda.runtime.getDeviceCount()):
        got = f.to(f"cuda:{index}")
        assert {q.device for q in got.values()} == {f"cuda:{index}"}
        assert_loaded(on_host(got), f)
        assert cupy.cuda.runtime.getDevice() == before
    with pytest.raises(DeviceError, match="this machine has"):
        f.to("cuda:99")


def test_products_at_once_on_a_stream(tmp_path, cupy):
    w = np.random.default_rng(SEED).standard_normal((512, 256), np.float32)
    gq.save(tmp_path / "m.gguf", {"w": gq.quantize(w, "q8_0")})
    x = np.random.default_rng(SEED + 1).standard_normal((4, 256), np.float32)
    f = gq.open(tmp_path / "m.gguf")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        y = cupy.asarray(x) @ f.to("cuda")["w"].T
        stream.synchronize()
    assert not gq.nmse(y, gq.reference.linear(x, f["w"])) > 1e-3


def test_memory_that_work_before_still_writes_to(tmp_path, cupy):
    """The pool hands out memory that kernels under way still use; copies must come after them."""
    n = 64 << 20
    raw = np.random.default_rng(SEED).integers(-128, 128, n, np.int8)
    gq.save(tmp_path / "m.gguf", {"a": raw})
    f = gq.open(tmp_path / "m.gguf")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        old = cupy.zeros(n, np.uint8)
        address = old.data.ptr
        for _ in range(1000):
            old += 1
        del old
        got = f.to("cuda")["a"]
        stream.synchronize()
        assert got.raw.data.ptr == address, "otherwise this tests nothing"
        assert np.array_equal(got.raw.get(), f["a"].raw)


def test_host_memory_that_cannot_be_locked(tmp_path, monkeypatch, cupy, pool):
    def refuses(nbytes):
        raise cupy.cuda.runtime.CUDARuntimeError(2)  # cudaErrorMemoryAllocation

    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", refuses)
    before = pool.used_bytes()
    with pytest.raises(DeviceError, match="could not be locked"):
        saved(tmp_path).to("cuda")
    assert pool.used_bytes() == before


def test_a_model_saved_from_the_gpu(tmp_path, cupy):
    f = saved(tmp_path)
    gq.save(tmp_path / "again.gguf", f.to("cuda"))
    assert_loaded(gq.open(tmp_path / "again.gguf"), f)
    assert set(f) == set(tensors())
