"""The arguments of a launch as the driver gets them, and the launches of a CUDA graph: with a fake CuPy."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from fake_cupy import on_device, put_gpu

import ggmlq as gq
from ggmlq.base import devices
from ggmlq.cuda.driver import device, submit
from ggmlq.cuda.driver.launch import Kernel, array
from ggmlq.cuda.intrinsics.language import Blank, cuda, elements_of, float32, types, uint8, uint32, uint64


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that records its calls."""
    return put_gpu(monkeypatch)


class Array(SimpleNamespace):
    """The attributes of a CuPy array that a launch reads."""

    def __init__(self, address, array):
        super().__init__(data=SimpleNamespace(ptr=address), size=array.size, itemsize=array.itemsize)
        self.shape, self.strides = array.shape, array.strides


@pytest.fixture
def launches(gpu, monkeypatch):
    """The driver's arguments: a configuration, the function, the words of arguments."""
    calls, state = [], SimpleNamespace(words=0, status=0)

    def launch(shape_at, function, pointers_at, extra):
        facts = submit.SHAPE.unpack(ctypes.string_at(shape_at, submit.SHAPE.size))
        pointers = (ctypes.c_void_p * state.words).from_address(pointers_at)
        words = [int.from_bytes(ctypes.string_at(at, 8), "little") for at in pointers]
        calls.append(SimpleNamespace(facts=facts, function=function, words=words, extra=extra))
        return state.status

    monkeypatch.setattr(submit, "driver_launch", lambda: launch)
    return SimpleNamespace(calls=calls, state=state)


def kernel(*parameters, early=False):
    """A kernel that is loaded already."""
    made = Kernel("nothing", lambda *_: None, *parameters, threads=32, shared=64)
    made._loaded[0] = (SimpleNamespace(ptr=77), 64, early)
    return made


def test_a_launch(launches):
    launches.state.words = 3
    kernel(uint64, uint64, uint32)((4, 2), (32,), Array(1000, np.ones((2, 3))), 1 << 40, 5)
    (launch,) = launches.calls
    assert (launch.function, launch.words, launch.extra) == (77, [1000, 1 << 40, 5], 0)
    *shape, stream, _, count = launch.facts
    assert (shape, stream, count) == ([4, 2, 1, 32, 1, 1, 64], 99, 0)


def test_an_array_of_two_axes(launches):
    """Numba's own words: owner, parent, elements, bytes of one, address, shape, strides in bytes."""
    launches.state.words = 9
    kernel(array(float32, 2))((1,), (32,), Array(4096, np.zeros((3, 5), np.float32)))
    assert launches.calls[0].words == [0, 0, 15, 4, 4096, 3, 5, 20, 4]


def test_an_early_launch_has_one_attribute(launches):
    kernel(early=True)((1, 2, 3), (4, 5, 6))
    *shape, _, attributes, count = launches.calls[0].facts
    assert (shape, count) == ([1, 2, 3, 4, 5, 6, 64], 1)
    kind, _, allowed = (ctypes.c_uint32 * 3).from_address(attributes)
    assert (kind, allowed) == (6, 1)
    assert len(submit.EARLY) == 72


def test_an_array_is_a_row_of_words(launches):
    launches.state.words = 17
    made = kernel(array(float32, 2), uint32, array(uint8, 1))
    x, y = Array(1000, np.ones((2, 3), np.float32)), Array(2000, np.ones(7, np.uint8))
    made((1,), (32,), x, 5, y)
    assert launches.calls[0].words == [0, 0, 6, 4, 1000, 2, 3, 12, 4, 5, 0, 0, 7, 1, 2000, 7, 1]


def test_an_empty_grid_does_nothing(launches):
    made = kernel(uint64)
    for grid in ((0,), (1, 0), (0, 4, 1)):
        made(grid, (32,), 1)
    assert not launches.calls


def test_a_launch_that_fails(launches, monkeypatch):
    driver = SimpleNamespace(CUDADriverError=lambda status: f"CUDA says {status}")
    monkeypatch.setattr(device, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(driver=driver)))
    launches.state.status = 700
    with pytest.raises(gq.GGMLQError, match=r"launch of \(2,\) blocks of \(32,\) threads .* CUDA says 700"):
        kernel()((2,), (32,))


def test_a_thread_that_has_not_used_the_gpu_yet(launches, monkeypatch):
    """The driver misses a context there; CuPy makes it current, and the launch is tried again."""
    runtime = SimpleNamespace(free=lambda address: setattr(launches.state, "status", 0))
    monkeypatch.setattr(device, "cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    launches.state.status = submit.NO_CONTEXT
    kernel()((2,), (32,))
    assert len(launches.calls) == 2


def test_words_only(launches):
    """Arguments go as eight bytes, of which a float32 would take the wrong four."""
    with pytest.raises(AssertionError, match="scaled"):
        Kernel("scaled", lambda *_: None, uint64, float32, threads=32)
    with pytest.raises(AssertionError, match="nothing"):
        kernel(uint64, uint32)((1,), (32,), 1)
    assert not launches.calls


def test_words_of_parameters():
    """The same where nothing is compiled, as of stand-ins for Numba's types."""
    mixed, blank = (uint64, uint32, uint64), Blank("types")
    assert elements_of(uint32) == (uint32,)
    assert elements_of(types.Tuple(mixed)) == mixed
    assert elements_of(types.UniTuple(uint32, 2)) == (uint32, uint32)
    assert elements_of(types.UniTuple(uint32, 0)) == ()
    assert elements_of(blank.uint32) == (blank.uint32,)
    assert elements_of(blank.Tuple((blank.uint64, blank.uint32))) == (blank.uint64, blank.uint32)
    assert elements_of(blank.UniTuple(blank.uint32, 2)) == (blank.uint32, blank.uint32)


def test_only_kernels_that_wait_start_early():
    def waits_not(x):
        cuda.syncthreads()

    with pytest.raises(AssertionError, match="hasty"):
        Kernel("hasty", waits_not, uint64, threads=32, early=True).ptx((9, 0))


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


def test_weights_are_prepared_once_and_in_no_graph(gpu, monkeypatch):
    monkeypatch.setattr(devices, "cuda_device", lambda: device)
    q = gq.quantize(np.ones((2, 32), np.float32), "q4_0")
    q = gq.QuantArray(q.format, q.shape, on_device(q.raw))
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
