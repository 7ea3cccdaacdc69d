"""What needs a GPU: arrays on a device, and the atoms as CUDA code."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from test_atoms import BLOCKS, any_blocks, assert_equal_parts

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.arrays.rows import rows
from ggmlq.formats import FORMATS

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("fmt", BLOCKS, ids=lambda fmt: fmt.name)
def test_atoms(fmt, cupy):
    from numba import cuda

    from ggmlq.cuda.intrinsics.atoms import atoms

    code, scale, offset = atoms(fmt)

    @cuda.jit
    def run(raw, codes, scales, offsets):
        b = cuda.blockIdx.x
        for i in range(cuda.threadIdx.x, codes.shape[1], cuda.blockDim.x):
            codes[b, i] = code(raw[b], i)
        for g in range(cuda.threadIdx.x, scales.shape[1], cuda.blockDim.x):
            scales[b, g] = scale(raw[b], g)
            offsets[b, g] = offset(raw[b], g)

    raw = any_blocks(fmt, 400)
    codes = cupy.zeros((400, fmt.block_size), np.int8)
    scales = cupy.zeros((400, fmt.block_size // fmt.group), np.float32)
    offsets = cupy.zeros_like(scales)
    run[400, 64](cupy.asarray(raw), codes, scales, offsets)
    assert_equal_parts(fmt, raw, codes.get(), scales.get(), offsets.get())


@pytest.mark.parametrize("name", FORMATS)
def test_there_and_back(name, cupy):
    fmt = FORMATS[name]
    q = gq.QuantArray.from_bytes(random_blocks(fmt, 6, 4), fmt, (6, 4 * fmt.block_size))
    d = q.to("cuda")
    assert d.device == "cuda:0"
    assert isinstance(d.raw, cupy.ndarray)
    assert (d.shape, d.nbytes, d.raw.dtype) == (q.shape, q.nbytes, np.uint8)
    assert np.array_equal(d.to("cpu").raw, q.raw)
    assert np.array_equal(d.dequantize().get(), q.dequantize())
    assert isinstance(d.dequantize(np.float16), cupy.ndarray)
    assert np.array_equal(gq.QuantArray.from_bytes(d.raw, fmt, q.shape).to("cpu").raw, q.raw)


def test_rows(cupy):
    q = gq.quantize(rows("normal", 6, 64).reshape(3, 2, 64), "q4_0")
    d = q.to("cuda:0")
    for index in (1, slice(1, 3), (2, 1), (slice(None), 0)):
        assert np.array_equal(d[index].to("cpu").raw, q[index].raw)
    for ids in ([0, 2], np.array([2, 2]), cupy.array([1, 0])):
        assert np.array_equal(
            d[ids].to("cpu").raw, q[np.asarray(ids.get() if hasattr(ids, "get") else ids)].raw
        )
    assert [part.shape for part in d] == [(2, 64)] * 3
    assert "cuda:0" in repr(d)


def test_quantize_stays_on_the_device(cupy):
    x = rows("normal", 4, 64)
    d = gq.quantize(cupy.asarray(x), "q8_1", imatrix=cupy.ones(64, np.float32))
    assert d.device == "cuda:0"
    assert np.array_equal(d.to("cpu").raw, gq.quantize(x, "q8_1").raw)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda q: pickle.loads(pickle.dumps(q))])
def test_clones(clone, cupy):
    d = gq.quantize(rows("normal", 4, 64), "q4_0").to("cuda")
    other = clone(d)
    assert other.device == d.device
    assert np.array_equal(other.raw.get(), d.raw.get())
    assert other.raw.data.ptr != d.raw.data.ptr


def test_the_bytes_carry_the_array_protocols(cupy):
    d = gq.quantize(rows("normal", 4, 64), "q4_0").to("cuda")
    assert cupy.from_dlpack(d.raw).nbytes == d.nbytes
    assert d.raw.__cuda_array_interface__["typestr"] == "|u1"


def test_words_instead_of_stack_traces(cupy):
    x = rows("normal", 4, 64)
    q = gq.quantize(x, "q4_0")
    d, xd = q.to("cuda"), cupy.asarray(x)
    for call, words in (
        (lambda: d.blocks, r"host only.*q\.to\(.cpu.\)"),
        (lambda: np.asarray(d), "not on the host"),
        (lambda: x @ d.T, "x is on cpu, q on cuda:0"),
        (lambda: xd @ q.T, "x is on cuda:0, q on cpu"),
        (lambda: xd @ d, r"write x @ q\.T"),
        (lambda: q.to("cuda:99"), "this machine has"),
        (lambda: gq.quantize(cupy.full((2, 32), cupy.nan, np.float32), "q4_0"), r"x\[0, 0\] is nan"),
        (lambda: gq.QuantArray.from_bytes(d.raw[:, ::2], "q4_0", (4, 32)), "not C-contiguous"),
    ):
        with pytest.raises(gq.GGMLQError, match=words):
            call()


def test_a_product_on_the_device_reaches_us(cupy):
    """CuPy hands ``x @ q.T`` over; which kernels take it is the ladder's business."""
    x = rows("normal", 4, 64)
    q = gq.quantize(x, "q4_0")
    y = cupy.asarray(x) @ q.to("cuda").T
    assert not gq.nmse(y, gq.reference.linear(x, q)) > 1e-3


def test_oracles_take_device_arrays(cupy):
    x = rows("normal", 4, 64)
    q = gq.quantize(x, "q4_0")
    want = gq.reference.linear(x, q)
    assert np.array_equal(gq.reference.linear(cupy.asarray(x), q.to("cuda")), want)
    assert gq.nmse(cupy.asarray(want), want) == 0


def test_doctor_sees_the_gpu(cupy):
    from ggmlq import doctor

    (first, *_) = doctor.examine()["gpu"]["devices"]
    assert first["device"] == "cuda:0"
    assert first["memory_bytes"] > 1 << 30


def test_files_take_device_arrays(cupy, tmp_path):
    x = rows("normal", 4, 64)
    q = gq.quantize(x, "q4_0")
    path = str(tmp_path / "device.gguf")
    gq.save(path, {"q": q.to("cuda"), "x": cupy.asarray(x)})
    f = gq.open(path)
    assert np.array_equal(f["q"].raw, q.raw)
    assert np.array_equal(f["x"].dequantize(), x)
    assert np.array_equal(f["q"].to("cuda").raw.get(), q.raw)


def test_diagnose_takes_device_arrays(cupy):
    x, q = rows("normal", 9, 256), gq.quantize(rows("normal", 64, 256, seed=1), "q4_0")
    y = x @ q.T
    assert gq.diagnose(cupy.asarray(y), cupy.asarray(x), q.to("cuda")).ok
    y[:, 60:] = 0
    found = gq.diagnose(cupy.asarray(y), cupy.asarray(x), q.to("cuda"), repeats=[cupy.asarray(y)])
    assert found.fault == "n-tail"


def test_metrics_take_device_arrays(cupy):
    q = gq.quantize(rows("normal", 2, 32), "q8_0")
    assert gq.nmse(q.to("cuda"), cupy.asarray(q.dequantize())) == 0
    assert gq.reference.bound(cupy.asarray(rows("normal", 3, 32)), q.to("cuda"), "q8").shape == (3, 2)
