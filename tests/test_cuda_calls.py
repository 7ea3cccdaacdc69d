"""How products on a GPU are called: forms of operands, threads, devices."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from block_cases import weights

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.ops import plan

pytestmark = pytest.mark.cuda
SEED = int(np.random.default_rng().integers(1 << 31))
N, K = 40, 256


@pytest.fixture
def q(cupy):
    return weights("q4_0", N, K, SEED).to("cuda")


@pytest.fixture
def checked(monkeypatch):
    """The product by the way of all checks."""

    def call(*operands, **options):
        with monkeypatch.context() as patch:
            patch.setattr(plan, "on_device", lambda *_: None)
            return gq.linear(*operands, **options)

    return call


def forms(cupy, x):
    """The same rows in other memory, and values that float16 holds too."""
    odd = cupy.empty(x.size + 1, x.dtype)[1:].reshape(x.shape)
    odd[...] = x
    return {
        "plain": x,
        "odd address": odd,
        "columns first": cupy.asfortranarray(x),
        "every other column": cupy.repeat(x, 2, axis=-1)[..., ::2],
        "every other row": cupy.repeat(x, 2, axis=0)[::2],
        "backwards": x[::-1].copy()[::-1],
    }


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(K,), (1, K), (9, K), (3, 2, K), (2, 1, 4, K)], ids=str)
def test_forms_of_x(shape, dtype, cupy, q, checked):
    values = rows("normal", 24, K, SEED)[: int(np.prod(shape[:-1]))].reshape(shape)
    x = cupy.asarray(values.astype(np.float16).astype(dtype))
    want = checked(x, q).get()
    assert gq.nmse(want, gq.reference.linear(x.get().astype(np.float32), q.to("cpu"))) < 1e-3
    for name, form in forms(cupy, x).items():
        y = gq.linear(form, q)
        assert (y.dtype, y.shape) == (np.float32, want.shape), name
        assert np.array_equal(y.get(), want), f"{name}, seed {SEED}"
        assert np.array_equal((form @ q.T).get(), want), f"{name}, seed {SEED}"


@pytest.mark.parametrize("shape", [(0, K), (3, 0, K), (0, 2, K)], ids=str)
def test_nothing_to_multiply(shape, cupy, q):
    for dtype in (np.float16, np.float32, np.float64):
        assert gq.linear(cupy.empty(shape, dtype), q).shape == (*shape[:-1], N)


def test_bfloat16(cupy, q):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    x = cupy.asarray(rows("normal", 5, K, SEED)).astype(ml_dtypes.bfloat16)
    assert cupy.array_equal(gq.linear(x, q), gq.linear(x.astype(np.float32), q))
    with pytest.raises(gq.GGMLQError, match=r"x is uint16.*bfloat16"):
        gq.linear(x.view(np.uint16), q)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_results(dtype, cupy, q, checked):
    x = cupy.asarray(rows("normal", 9, K, SEED))
    bias = cupy.asarray(np.random.default_rng(SEED).standard_normal(N))
    for b in (None, bias, bias.astype(np.float32), bias.astype(np.float16)):
        want = checked(x, q, bias=b)
        y = gq.linear(x, q, bias=b, dtype=dtype)
        assert y.dtype == dtype
        assert cupy.array_equal(y, want.astype(dtype))
        strided = cupy.full((9, 2 * N), np.nan, dtype)
        for out in (cupy.full((9, N), np.nan, dtype), cupy.full((N, 9), np.nan, dtype).T, strided[:, ::2]):
            assert gq.linear(x, q, out=out, bias=b) is out
            assert cupy.array_equal(out, want.astype(dtype))
        assert cupy.isnan(strided[:, 1::2]).all()


def test_out_may_overlap_what_is_read(cupy):
    q = weights("q4_0", K, K, SEED).to("cuda")
    x = cupy.asarray(rows("normal", 9, K, SEED))
    want = gq.linear(x, q)
    assert cupy.array_equal(gq.linear(x, q, out=x), want)


def test_no_memory_but_of_the_pool(cupy, q):
    x, out = cupy.ones((8, K), np.float32), cupy.empty((8, N), np.float32)
    pool = cupy.get_default_memory_pool()
    for _ in range(3):
        gq.linear(x, q, out=out)
        gq.linear(x, q)
    before = pool.used_bytes(), pool.total_bytes()
    for _ in range(50):
        gq.linear(x, q, out=out)
        gq.linear(x, q)
    assert (pool.used_bytes(), pool.total_bytes()) == before


# --- threads ----------------------------------------------------------------------------------


def test_a_thread_that_does_nothing_else(cupy, q):
    """Memory out of the pool, the default stream: nothing but the product makes the GPU's context current."""
    x, out = cupy.ones((3, K), np.float32), cupy.empty((3, N), np.float32)
    want = gq.linear(x, q).copy()
    failed = []

    def work():
        try:
            gq.linear(x, q, out=out)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed
    cupy.testing.assert_array_equal(out, want)


def test_threads(cupy, q):
    """Each with a stream and operands of its own; some of them have never seen the GPU."""
    values = [rows("normal", m, K, SEED + m) for m in (1, 2, 5, 8, 17, 33)]
    want = [gq.linear(cupy.asarray(x), q).get() for x in values]
    wrong = []

    def work(i):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.asarray(values[i])
            for _ in range(200):
                y = gq.linear(x, q)
            stream.synchronize()
            if not np.array_equal(y.get(), want[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(values))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- several devices --------------------------------------------------------------------------


@pytest.fixture
def second(cupy):
    """The number of a second GPU."""
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one GPU only")
    return 1


def test_a_device_that_is_not_current(cupy, q, second):
    values = rows("normal", 9, K, SEED)
    x, want = cupy.asarray(values), gq.linear(cupy.asarray(values), q).get()
    there = q.to(f"cuda:{second}")
    with cupy.cuda.Device(second):
        y = cupy.asarray(values)
    for _ in range(2):
        found = gq.linear(y, there, bias=None)  # device 0 is current
        assert found.device.id == second
        assert np.array_equal(found.get(), want)
        assert cupy.cuda.runtime.getDevice() == 0
        with cupy.cuda.Device(second):
            assert np.array_equal(gq.linear(y, there).get(), want)
            assert np.array_equal(gq.linear(x, q).get(), want)
            out = cupy.empty((9, N), np.float32)
        assert np.array_equal(gq.linear(y, there, out=out).get(), want)
        for operands in ((x, there), (y, q)):
            with pytest.raises(gq.GGMLQError, match="both must be on one device"):
                gq.linear(*operands)
        with pytest.raises(gq.GGMLQError, match="out is not on cuda:0"):
            gq.linear(x, q, out=out)
        assert np.array_equal(there.dequantize().get(), q.dequantize().get())


def test_a_stream_of_another_device(cupy, second):
    q = weights("q4_0", N, K, SEED).to(f"cuda:{second}")
    with cupy.cuda.Device(second), cupy.cuda.Stream(non_blocking=True) as stream:
        x, out = cupy.ones((4, K), np.float32), cupy.zeros((4, N), np.float32)
        gq.linear(x, q, out=out)
        stream.begin_capture()
        gq.linear(x, q, out=out)
        graph = stream.end_capture()
        out.fill(0)
        graph.launch(stream)
        stream.synchronize()
    assert np.array_equal(out.get(), gq.linear(x, q).get())


@pytest.mark.cuda
@pytest.mark.parametrize("step", [slice(None, None, 2), slice(None, None, -1), slice(7, 40, 3)])
@pytest.mark.parametrize("m", [1, 20, 80, 600])
def test_rows_with_a_step(m, step, cupy):
    """Kernels read rows that lie together; a slice with a step is made so."""
    q, x = weights("q4_0", N, K, SEED), cupy.asarray(rows("normal", m, K))
    y = gq.linear(x, q.to("cuda")[step])
    assert gq.nmse(y.get(), gq.reference.linear(x.get(), q[step])) < 1e-4


@pytest.mark.parametrize("m", [1, 7, 16, 32, 70, 300])
def test_products_that_feed_each_other(m, cupy):
    """Kernels that start early wait for what they read, and write over nothing that is still read."""
    names = "gemv", "mma_bf16", "warp_specialized", "dequant_bf16"
    k, kernels = 1024, ["auto", *(f"cuda:{name}" for name in names)]
    matrices = [weights("q8_0", k, k, SEED + i).to("cuda") for i in range(3)]
    start = cupy.asarray(rows("normal", m, k, SEED))
    able = [kernel for kernel in kernels if runs(kernel, matrices[0], start)]
    two = [cupy.empty((m, k), np.float32) for _ in range(2)]

    def chain(wait):
        x = start
        for i in range(60):
            out = two[i % 2]
            gq.linear(x, matrices[i % 3], kernel=able[i % len(able)], out=out)
            if wait:
                cupy.cuda.Device().synchronize()
            out /= cupy.abs(out).max()
            x = out
        return x.get()

    want = chain(wait=True)
    for _ in range(10):
        np.testing.assert_array_equal(chain(wait=False), want)


def runs(kernel, q, x):
    """Whether the kernel takes the product on this GPU."""
    try:
        gq.linear(x, q, kernel=kernel)
    except gq.errors.UnsupportedError:
        return False
    return True


@pytest.mark.parametrize(("m", "k"), [(3, 5), (3, 4), (1, 12), (9, 40)])
def test_rows_of_bfloat16_that_fill_no_word(m, k, cupy):
    values = rows("normal", 7, k, SEED)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    q, x = gq.QuantArray.from_bytes(bits.view(np.uint8), "bf16", (7, k)), rows("normal", m, k, SEED + 1)
    y = gq.linear(cupy.asarray(x), q.to("cuda")).get()
    assert gq.nmse(y, gq.reference.linear(x, q)) < 1e-5


def test_an_upload_is_there_for_every_stream(cupy):
    """The first product on another stream packs weights, which stay: none of bytes on their way."""
    from ggmlq.cuda.layouts.pack import pack_weights

    q = gq.quantize(rows("normal", 4096, 4096), "q4_0")
    want = q.dequantize()
    for _ in range(5):
        with cupy.cuda.Stream(non_blocking=True):
            d = q.to("cuda")
        with cupy.cuda.Stream(non_blocking=True) as other:
            packed = d.prepared(pack_weights)
            other.synchronize()
        assert packed.fragments.size
        d.drop_raw()
        assert np.array_equal(d.to("cpu").raw, q.raw)
    assert np.array_equal(d.dequantize().get(), want)


def test_prepared_memory_is_not_used_again_too_early(cupy):
    """A product runs on while its packed weights are dropped on another stream and others take the memory."""
    q = gq.quantize(rows("normal", 4096, 4096), "q4_0").to("cuda")
    x = cupy.asarray(rows("normal", 8, 4096, seed=2))
    want = (x @ q.T).get()
    for _ in range(5):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            got = [x @ q.T for _ in range(20)]
        q.drop_prepared()
        cupy.full(1 << 24, 0xFF, np.uint8)
        stream.synchronize()
        assert all(np.array_equal(y.get(), want) for y in got)
