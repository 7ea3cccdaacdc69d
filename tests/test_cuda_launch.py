"""What a launch hands to CuPy, and what goes on while a CUDA graph is recorded: with a CuPy made of words."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")

import ggmlq as gq
from ggmlq import devices
from ggmlq.cuda import device
from ggmlq.cuda.language import float32, uint8, uint32, uint64
from ggmlq.cuda.launch import Kernel, array


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that remembers what is asked of it."""
    state = SimpleNamespace(capturing=False, waits=0, allocator=len)

    @contextmanager
    def using_allocator(allocator):
        before, state.allocator = state.allocator, allocator
        try:
            yield
        finally:
            state.allocator = before

    def synchronize():
        assert not state.capturing
        state.waits += 1

    stream = SimpleNamespace(ptr=99, is_capturing=lambda: state.capturing, synchronize=synchronize)
    driver = SimpleNamespace(device=lambda: 0, stream=lambda index: stream)
    cuda = SimpleNamespace(get_allocator=lambda: state.allocator, using_allocator=using_allocator)
    monkeypatch.setattr(device, "driver", lambda: driver)
    monkeypatch.setattr(device, "cupy", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(device, "capability", lambda: (9, 0))
    state.stream = stream
    return state


def kernel(*parameters):
    """A kernel that is loaded already, and the launches of it."""
    made, launches = Kernel("nothing", lambda *_: None, *parameters, threads=32, shared=64), []
    made._loaded[0] = lambda *launch: launches.append(launch)
    return made, launches


def test_a_launch(gpu):
    made, launches = kernel(uint64, uint64, uint32)
    x = np.ones((2, 3), np.float32)
    made((4, 2), (32,), x, 1 << 40, 5)
    (launch,) = launches
    assert launch == ((4, 2), (32,), (x, 1 << 40, 5), 64)


def test_an_array_is_a_row_of_words(gpu):
    made, launches = kernel(array(float32, 2), uint32, array(uint8, 1))
    x, y = np.ones((2, 3), np.float32), np.ones(7, np.uint8)
    made((1,), (32,), x, 5, y)
    assert launches[0][2] == (0, 0, 6, 4, x, 2, 3, 12, 4, 5, 0, 0, 7, 1, y, 7, 1)


def test_an_empty_grid_does_nothing(gpu):
    made, launches = kernel(uint64)
    for grid in ((0,), (1, 0), (0, 4, 1)):
        made(grid, (32,), 1)
    assert not launches


def test_words_only(gpu):
    """CuPy passes a Python float in eight bytes, of which a float32 would take the wrong four."""
    with pytest.raises(AssertionError, match="scaled"):
        Kernel("scaled", lambda *_: None, uint64, float32, threads=32)
    made, launches = kernel(uint64, uint32)
    with pytest.raises(AssertionError, match="nothing"):
        made((1,), (32,), 1)
    assert not launches


def test_the_default_stream_records_nothing(gpu):
    gpu.capturing = True
    assert device.capturing(0)
    gpu.stream.ptr = 0
    assert not device.capturing(0)


def test_no_kernel_is_loaded_into_a_graph(gpu):
    made = Kernel("late", lambda *_: None, uint64, threads=32)
    gpu.capturing = True
    with pytest.raises(gq.GGMLQError, match=r"late: the kernel is not loaded yet.*before the capture"):
        made((1,), (32,), 1)


class DeviceArray(np.ndarray):
    """As much of a CuPy array as a QuantArray looks at."""

    __module__ = "cupy"
    device = SimpleNamespace(id=0)


def test_weights_are_prepared_once_and_in_no_graph(gpu, monkeypatch):
    monkeypatch.setattr(devices, "cuda_device", lambda: device)
    q = gq.quantize(np.ones((2, 32), np.float32), "q4_0")
    q = gq.QuantArray(q.format, q.shape, np.array(q.raw).view(DeviceArray))
    made = []

    def make(weights):
        made.append(weights)
        return len(made)

    gpu.capturing = True
    with pytest.raises(gq.GGMLQError, match="run the same product once before the capture"):
        q.prepared(make)
    gpu.capturing = False
    assert [q.prepared(make), q.prepared(make)] == [1, 1]
    assert gpu.waits == 1
    gpu.capturing = True
    assert q.prepared(make) == 1
    gpu.capturing = False
    q.recorded.append("memory")
    q.drop_prepared()
    assert not q.recorded
    assert q.prepared(make) == 2


def test_memory_of_a_graph_is_kept(gpu):
    gpu.allocator, kept = lambda size: f"{size} bytes", []
    with device.recording("a product", kept):
        assert [gpu.allocator(3), gpu.allocator(5)] == ["3 bytes", "5 bytes"]
    assert gpu.allocator(7) == "7 bytes"
    assert kept == ["3 bytes", "5 bytes"]

    class Memory:
        kept_for_graphs = True

    gpu.allocator = torchs = Memory()
    with device.recording("a product", kept):
        assert gpu.allocator is torchs


def test_what_cannot_be_recorded(gpu):
    with (
        pytest.raises(gq.GGMLQError, match=r"a product while a CUDA graph is recorded: CuPy says no cuBLAS"),
        device.recording("a product", []),
    ):
        raise NotImplementedError("no cuBLAS")
    with pytest.raises(gq.GGMLQError, match=r"^no kernel$"), device.recording("a product", []):
        raise gq.errors.UnsupportedError("no kernel")
