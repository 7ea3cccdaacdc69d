"""What could go wrong on a card without a wrong kernel: memory of graphs, caches, maps, the order of blocks.

Other risks have their tests elsewhere: recordings of many shapes in test_cuda_recorded.py, ``auto`` while a
graph is recorded on any card in test_choice.py.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from block_cases import weights
from fake_cupy import put_gpu

import ggmlq as gq
from ggmlq.cuda.driver import calls as driver_calls
from ggmlq.cuda.driver import device, tensor_maps
from ggmlq.cuda.driver.launch import Kernel
from ggmlq.cuda.intrinsics import hopper
from ggmlq.cuda.intrinsics.language import uint32, uint64
from ggmlq.cuda.kernels.cost import warp_specialized
from ggmlq.cuda.layouts import groups


class Pool:
    """A pool of a graph's memory, which counts."""

    def __init__(self, allocate):
        self.allocate, self.used, self.freed = allocate, 3, 0

    def malloc(self, size):
        return "of the graph", self.allocate(size)

    def free_all_blocks(self):
        self.freed += 1

    def used_bytes(self):
        return self.used


def test_memory_of_a_graph_goes_back_with_it(monkeypatch):
    gpu, captures, signals = put_gpu(monkeypatch), iter((5, 5, 6)), []
    gpu.cupy.cuda.MemoryPool, gpu.allocator = Pool, lambda size: f"{size} bytes"

    def call(name, *arguments):
        if name == "cuStreamGetCaptureInfo_v2":
            arguments[2]._obj.value = next(captures)
        elif name == "cuUserObjectCreate":
            signals.append(arguments[1].value)

    monkeypatch.setattr(driver_calls, "call", call)
    monkeypatch.setattr(device, "_OF_CAPTURES", captured := {})
    keep = []
    for _ in range(2):
        with device.recording("a product", keep):
            assert gpu.allocator(3) == ("of the graph", "3 bytes")
    assert list(captured) == [(5, 0)], "the products of a graph share its memory"
    assert gpu.allocator(7) == "7 bytes"
    ctypes.CDLL(None).sem_post(ctypes.c_void_p(*signals))  # as the driver does when the graph is destroyed
    memory, pool = captured[5, 0], captured[5, 0].pool
    assert memory.look(), "an array still lies in it"
    pool.used = 0
    with device.recording("a product", keep):
        pass
    assert list(captured) == [(6, 0)]
    assert (memory.pool, pool.freed) == (None, 2)
    assert keep == [], "weights hold nothing where the driver tells a graph's end"


def test_rows_of_experts_are_read_past_the_first_cache():
    """Before the predecessor ends: that cache may hold what an earlier kernel read of the same memory."""
    text = groups.x_tile_gatherer().ptx((9, 0))
    before = text[: text.index("griddepcontrol.wait")]
    assert "ld.global.cg" in before
    assert "ld.global.v" not in before
    assert "ld.global.nc" not in before


@pytest.mark.cuda
def test_a_hundred_recorded_products_take_the_memory_of_the_largest(cupy):
    q, pool = weights("q4_0", 512, 1024, 1).to("cuda"), cupy.get_default_memory_pool()
    x, out = cupy.ones((300, 1024), np.float32), cupy.zeros((300, 512), np.float32)
    stream, used = cupy.cuda.Stream(non_blocking=True), []
    with stream:
        gq.linear(x, q, out=out)
        stream.synchronize()
        before = pool.used_bytes()
        for count in (1, 100):
            stream.begin_capture()
            for _ in range(count):
                gq.linear(x, q, out=out)
            graph = stream.end_capture()
            graph.launch(stream)
            stream.synchronize()
            used.append(pool.used_bytes() - before)
            del graph
            cupy.cuda.runtime.deviceSynchronize()
            for _ in range(200):  # a thread of the driver says that the graph is gone
                device.give_back()
                if pool.used_bytes() == before:
                    break
                time.sleep(0.01)
            assert pool.used_bytes() == before
    assert used[0] == used[1]


@pytest.mark.cuda
def test_a_second_operand_that_is_rewritten(cupy, fresh):
    """A product with ``dynamic`` sees what was written just before, in a graph too."""
    x, *many = (
        gq.quantize_scaled(cupy.asarray(fresh.standard_normal((r, 512), np.float32)), "e4m3", tile)
        for r, tile in ((8, (1, 128)), (256, (128, 128)), (256, (128, 128)))
    )
    want = [gq.scaled_linear(x, w) for w in many]
    live, y = many[0].copy(), [cupy.zeros((8, 256), np.float32) for _ in range(40)]
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        gq.scaled_linear(x, live, dynamic=True)
        stream.begin_capture()
        for i, out in enumerate(y):
            live.codes[...], live.scales[...] = many[i % 2].codes, many[i % 2].scales
            gq.scaled_linear(x, live, out=out, dynamic=True)
        stream.end_capture().launch(stream)
    stream.synchronize()
    assert all(cupy.array_equal(out, want[i % 2]) for i, out in enumerate(y))


@pytest.mark.cuda
def test_blocks_that_start_one_after_the_other(cupy, monkeypatch):
    """Other work holds all multiprocessors but two, and blocks that share tiles wait for each other."""
    monkeypatch.setattr(warp_specialized.Wave, "takes_clusters", lambda *_: False)
    warp_specialized.best_split.cache_clear()
    load, wait_for_predecessor = hopper.load_relaxed, hopper.wait_for_predecessor

    def hold(flag, most):
        wait_for_predecessor()
        i = uint32(0)
        while i < most and load(flag) == uint32(0):
            i = uint32(i + uint32(1))

    sizes = {"threads": 1024, "shared": 150 << 10}
    holder = Kernel("holds a multiprocessor", hold, uint64, uint32, early=True, **sizes)
    q, x = weights("q4_0", 40 * 128, 4096, 1).to("cuda"), cupy.ones((128, 4096), np.float32)
    want = gq.linear(x, q, kernel="cuda:warp_specialized")
    flag, free, other = cupy.zeros(1, np.uint32), *(cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    cupy.cuda.runtime.deviceSynchronize()
    with other:
        holder((device.multiprocessors() - 2,), (1024,), flag, 1 << 22)
    with free:
        y = [gq.linear(x, q, kernel="cuda:warp_specialized") for _ in range(3)]
        flag.fill(1)
    cupy.cuda.runtime.deviceSynchronize()
    warp_specialized.best_split.cache_clear()
    assert all(cupy.array_equal(each, want) for each in y)


@pytest.mark.cuda
def test_maps_whose_places_are_used_again(cupy, fresh, monkeypatch):
    slots = tensor_maps._Slots()
    monkeypatch.setattr(tensor_maps, "_slots", lambda index: slots)
    monkeypatch.setattr(tensor_maps, "MOST", 8)
    monkeypatch.setattr(tensor_maps, "SLAB", 8)
    w = gq.quantize_scaled(cupy.asarray(fresh.standard_normal((256, 512), np.float32)), "e4m3", (128, 128))
    many = [
        gq.quantize_scaled(cupy.asarray(fresh.standard_normal((96, 512), np.float32)), "e4m3", (1, 128))
        for _ in range(64)
    ]
    want = [gq.scaled_linear(x, w, kernel="cuda:widen") for x in many]
    for _ in range(3):
        for x, y in zip(many, want, strict=True):
            assert gq.nmse(gq.scaled_linear(x, w), y) < 1e-6
    assert len(slots._slabs) <= 4, "places are used again"
