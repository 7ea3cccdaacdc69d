"""Products on a GPU in streams, and recorded as CUDA graphs."""

from __future__ import annotations

import numpy as np
import pytest
from block_cases import weights

import ggmlq as gq
from ggmlq.arrays.rows import rows

pytestmark = pytest.mark.cuda
SEED = int(np.random.default_rng().integers(1 << 31))
N, K = 40, 256


@pytest.fixture
def q(cupy):
    return weights("q4_0", N, K, SEED).to("cuda")


def busy(cupy, stream):
    """Some milliseconds of work on a stream."""
    with stream:
        big = cupy.ones((4096, 4096), np.float32)
        for _ in range(20):
            big = big * 1.0001
    return big


def test_work_waits_in_its_own_stream(cupy, q):
    """Operands that are made on a stream just before are those that are multiplied."""
    values = rows("normal", 4, K, SEED)
    want = gq.linear(cupy.asarray(values), q)
    for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(), cupy.cuda.Stream.null):
        x, late = cupy.zeros((4, K), np.float32), cupy.asarray(values)
        cupy.cuda.runtime.deviceSynchronize()
        busy(cupy, stream)
        with stream:
            x[...] = late
            y = gq.linear(x, q)
            x.fill(0)
        stream.synchronize()
        assert cupy.array_equal(y, want)


def test_the_first_product_may_be_anywhere(cupy):
    """What is prepared on one stream is there for all others."""
    x = cupy.asarray(rows("normal", 4, K, SEED))
    want = gq.linear(x, weights("q4_0", N, K, SEED).to("cuda"))
    q = weights("q4_0", N, K, SEED).to("cuda")
    cupy.cuda.runtime.deviceSynchronize()
    first, second = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    busy(cupy, first)
    with first:
        gq.linear(x, q)
    with second:
        y = gq.linear(x, q)
    second.synchronize()
    assert cupy.array_equal(y, want)


@pytest.mark.parametrize("m", [1, 8, 64])
@pytest.mark.parametrize("name", ["q4_0", "q4_K", "q8_0"])
def test_a_graph(name, m, cupy):
    """Replays see new activations, and nobody else gets the memory that they write to."""
    q = weights(name, 64, 512, SEED).to("cuda")
    x, out = cupy.zeros((m, 512), np.float32), cupy.zeros((m, 64), np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        gq.linear(x, q, out=out)
        stream.begin_capture()
        gq.linear(x, q, out=out)
        graph = stream.end_capture()
    others = [cupy.full(size, 7, np.uint8) for size in (512, 4096, 65536, 1 << 20) for _ in range(20)]
    with stream:
        others += [cupy.full(size, 7, np.uint8) for size in (512, 4096, 65536, 1 << 20) for _ in range(20)]
    for seed in range(3):
        values = cupy.asarray(rows("normal", m, 512, SEED + seed))
        want = gq.linear(values, q)
        cupy.cuda.runtime.deviceSynchronize()
        with stream:
            x[...] = values
            out.fill(np.nan)
            graph.launch(stream)
        stream.synchronize()
        assert cupy.array_equal(out, want), f"seed {SEED + seed}"
    assert all((other == 7).all() for other in others), "a replay wrote to memory of others"
    q.drop_prepared()
    assert not q.recorded


def test_a_graph_of_all_forms(cupy, q):
    """Everything around the kernel is recorded too: conversion, bias, a result in float16."""
    x = cupy.zeros((4, 2 * K), np.float64)[:, ::2]
    bias, out = cupy.arange(N, dtype=np.float64), cupy.zeros((4, N), np.float16)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        gq.linear(x, q, bias=bias, out=out)
        stream.begin_capture()
        gq.linear(x, q, bias=bias, out=out)
        graph = stream.end_capture()
        x[...] = cupy.asarray(rows("normal", 4, K, SEED))
        graph.launch(stream)
        stream.synchronize()
        assert cupy.array_equal(out, gq.linear(x, q, bias=bias, dtype=np.float16))


def test_a_graph_keeps_what_activations_become(cupy):
    """Codes of floats, rows of a transposed array: their memory is not given to others."""
    rng = np.random.default_rng(SEED)
    w = gq.quantize_scaled(rng.standard_normal((256, 512), np.float32), "e4m3", (128, 128)).to("cuda")
    q, x = weights("q4_0", 256, 512, SEED).to("cuda"), cupy.zeros((512, 40), np.float32).T
    for work in (lambda: gq.scaled_linear(x, w), lambda: gq.linear(x, q)):
        x[...] = 0
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            work()
            stream.begin_capture()
            y = work()
            graph = stream.end_capture()
            others = [
                cupy.full(size, 7, np.uint8) for size in (20480, 40 * 512 * 4, 1280, 512) for _ in range(9)
            ]
            x[...] = cupy.asarray(rng.standard_normal((40, 512), np.float32))
            graph.launch(stream)
            stream.synchronize()
            assert cupy.array_equal(y, work())
            assert all((other == 7).all() for other in others), "a replay wrote to memory of others"


def test_a_graph_needs_a_product_before(cupy):
    q, x = weights("q4_0", N, K, SEED).to("cuda"), cupy.ones((1, K), np.float32)
    options = {"kernel": "cuda:mma"}
    gq.linear(x, q, **options)
    q.drop_prepared()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(gq.GGMLQError, match="run the same product once before the capture"):
            gq.linear(x, q, **options)
        stream.end_capture()
        y = gq.linear(x, q, **options)
    stream.synchronize()
    assert gq.nmse(y, gq.reference.linear(x, q)) < 1e-3


def test_what_cannot_be_recorded_is_told(cupy, q):
    x = cupy.ones((4, K), np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        gq.linear(x, q, kernel="cuda:dequant_cublas")
        stream.begin_capture()
        with pytest.raises(gq.GGMLQError, match=r"while a CUDA graph is recorded.*cuda:mma_bf16"):
            gq.linear(x, q, kernel="cuda:dequant_cublas")
        stream.end_capture()
