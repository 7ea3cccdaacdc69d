"""Several GPUs for real: two of them, or one that is given twice."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from engines import two_processes

import ggmlq as gq
from ggmlq.cuda.driver.parallel import nccl

SHAPES = [(96, 512, 1), (1024, 2048, 7), (4096, 4096, 513)]


@pytest.fixture(params=["one card twice", "two cards"])
def devices(request, cupy):
    """The devices of the parts."""
    if request.param == "one card twice":
        return ["cuda:0", "cuda:0"]
    return needs_two(cupy)


def needs_two(cupy):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("this machine has one GPU; two are needed")
    return ["cuda:0", "cuda:1"]


def near(y, single):
    """Relative to the size of a row of weights: the same arithmetic, or that of another kernel."""
    y, single = (np.asarray(a.get(), np.float64) for a in (y, single))
    assert y.shape == single.shape
    error = ((y - single) ** 2).mean(axis=0) / np.maximum((single**2).mean(axis=0), (single**2).mean() * 0.1)
    assert not np.any(error > 1e-4), error.max()


def ways(devices):
    """The ways to make sums."""
    return (None, "copies", *["nccl"] * (len(set(devices)) > 1 and nccl.library() is not None))


@pytest.mark.parametrize("name", ["q4_0", "q4_K", "f16"])
@pytest.mark.parametrize(("n", "k", "m"), SHAPES)
def test_products_on_cards(name, n, k, m, devices, cupy, fresh):
    q = gq.quantize(fresh.standard_normal((n, k), np.float32), name)
    x = cupy.asarray(fresh.standard_normal((m, k), np.float32))
    single = x @ q.to("cuda:0").T
    bias = cupy.asarray(fresh.standard_normal(n, np.float32))
    for axis in (0, 1):
        for sums in ways(devices) if axis else (None,):
            s = gq.parallel.shard(q, devices, axis, sums=sums)
            assert gq.equal(s.to("cpu"), q)
            near(x @ s.T, single)
            near(gq.linear(x, s, bias=bias), single + bias)
            y = gq.parallel.linear(x, s)
            near(y.gather(), single)
            assert np.array_equal((x @ s.T).get(), (x @ s.T).get())  # the same bits again
            if axis:
                assert all(np.array_equal(part.get(), y.parts[0].get()) for part in y.parts)


@pytest.mark.parametrize("sums", [None, "copies", "nccl"])
def test_a_graph_of_a_block(sums, devices, cupy, fresh):
    """Captured on one stream, replayed with other activations: the results of eager calls."""
    up, gate = (gq.quantize(fresh.standard_normal((1024, 512), np.float32) / 20, "q4_0") for _ in range(2))
    down = gq.quantize(fresh.standard_normal((256, 1024), np.float32) / 20, "q4_K")
    a, b = (gq.parallel.shard(q, devices) for q in (gate, up))
    if sums not in ways(devices) or (len(set(devices)) == 1 and sums is not None):
        pytest.skip("one card adds without copies or NCCL")
    a, b, c = (gq.parallel.shard(q, devices, axis, sums=sums) for q, axis in ((gate, 0), (up, 0), (down, 1)))
    silu = gq.parallel.silu

    def block(x):
        with gq.parallel.together(a, b, c, x=x):
            every = gq.parallel.replicate(x, devices)
            h = gq.parallel.linear(every, a).map(silu).map(cupy.multiply, gq.parallel.linear(every, b))
            return gq.linear(h, c)

    x, stream = cupy.empty((64, 512), np.float32), cupy.cuda.Stream(non_blocking=True)
    with stream:
        x[...] = 1
        for _ in range(2):
            block(x)
        stream.synchronize()
        stream.begin_capture()
        y = block(x)
        graph = stream.end_capture()
        for _ in range(3):
            x[...] = cupy.asarray(fresh.standard_normal((64, 512), np.float32))
            graph.launch(stream)
            stream.synchronize()
            made = y.copy()
            want = silu(x @ gate.to("cuda:0").T) * (x @ up.to("cuda:0").T) @ down.to("cuda:0").T
            near(made, want)
            near(made, block(x))


@pytest.mark.parametrize("axis", [0, 1, "experts"])
def test_experts_on_real_cards(axis, devices, cupy, fresh):
    q = gq.quantize(fresh.standard_normal((6, 256, 512), np.float32), "q4_K")
    x = cupy.asarray(fresh.standard_normal((40, 512), np.float32))
    ids = cupy.asarray(fresh.integers(0, 6, (40, 2)))
    single = gq.expert_linear(x, q.to("cuda:0"), ids)
    y = gq.expert_linear(x, gq.parallel.shard(q, devices, axis), ids)
    near(y.reshape(80, -1), single.reshape(80, -1))
    ids[3, 1] = 77
    assert cupy.isnan(gq.expert_linear(x, gq.parallel.shard(q, devices, axis), ids)[3, 1]).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_scaled_on_real_cards(axis, devices, cupy, fresh):
    w = gq.quantize_scaled(fresh.standard_normal((512, 1024), np.float32), "e4m3", (128, 128))
    x = cupy.asarray(fresh.standard_normal((130, 1024), np.float32))
    s = gq.parallel.shard(w, devices, axis)
    near(x @ s.T, x @ w.to("cuda:0").T)
    near(gq.quantize_scaled(x, "e4m3", (1, 128)) @ s.T, x @ w.to("cuda:0").T)


def test_a_file_straight_to_the_cards(devices, cupy, fresh, tmp_path):
    tensors = {
        "blk.0.ffn_up.weight": gq.quantize(fresh.standard_normal((512, 256), np.float32), "q4_K"),
        "blk.0.ffn_down.weight": gq.quantize(fresh.standard_normal((256, 512), np.float32), "q4_K"),
        "norm.weight": fresh.standard_normal(256, np.float32),
    }
    for byteorder in ("little", "big"):
        gq.save(tmp_path / "a.gguf", tensors, byteorder=byteorder)
        with gq.open(tmp_path / "a.gguf") as f:
            made = f.to(devices, axis=gq.parallel.tensor_parallel)
            assert [s.axis for s in made.values()] == [0, 1, None]
            for name, s in made.items():
                assert np.array_equal(np.asarray(s), np.asarray(f[name]))
                assert [part.device for part in s.parts] == devices


def test_threads_and_streams(devices, cupy, fresh):
    """Threads with a stream each use the same weights at the same time."""
    q = gq.quantize(fresh.standard_normal((512, 1024), np.float32), "q4_0")
    shards = [gq.parallel.shard(q, devices, axis) for axis in (0, 1)]
    xs = [cupy.asarray(fresh.standard_normal((16, 1024), np.float32)) for _ in range(4)]
    want = [[(x @ s.T).get() for s in shards] for x in xs]
    wrong = []

    def work(x, want):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for _ in range(20):
                made = [x @ s.T for s in shards]
                stream.synchronize()
                wrong.extend(1 for y, z in zip(made, want, strict=True) if not np.array_equal(y.get(), z))

    threads = [threading.Thread(target=work, args=each) for each in zip(xs, want, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_tensors_on_cards(devices, cupy, fresh):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q = gq.quantize(fresh.standard_normal((512, 1024), np.float32), "q4_0")
    x = fresh.standard_normal((9, 1024), np.float32)
    single = cupy.asarray(x) @ q.to("cuda:0").T
    for axis in (0, 1):
        y = gq.linear(torch.from_numpy(x).cuda(0), gq.parallel.shard(q, devices, axis))
        assert y.device.index == 0
        near(cupy.from_dlpack(y), single)


@pytest.mark.parametrize("engine", ["nccl by torch", "nccl by cupyx"])
def test_two_processes_two_cards(engine, cupy, fresh, tmp_path):
    needs_two(cupy)
    if engine == "nccl by torch":
        pytest.importorskip("torch", reason="torch is not installed")
    elif nccl.library() is None:
        pytest.skip("NCCL is not installed")
    (one, two), (h, y), said = two_processes(engine, tmp_path, fresh)
    assert said.count("cuda:0") == said.count("cuda:1") == 1
    assert one["y"].tobytes() == two["y"].tobytes()
    assert np.allclose(one["y"], y, rtol=2e-2, atol=2)
    for each in (one, two):
        assert np.allclose(each["h"], h, rtol=2e-2, atol=0.3)
        assert each["told"].tolist() == [[0] * 2 + [1] * 5]
