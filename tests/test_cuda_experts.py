"""Products with experts on a GPU, kernel by kernel against the oracle."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.formats import FORMATS, BlockFormat
from ggmlq.reference.judgement import TOLERANCE

RUNGS = gq.kernels("expert_linear", device="cuda")


def experts_of(name, shape, rng):
    fmt, (e, n, k) = FORMATS[name], shape
    if not isinstance(fmt, BlockFormat):
        return gq.quantize(rng.standard_normal(shape, np.float32), fmt)
    blocks = random_blocks(fmt, e * n, k // fmt.block_size, int(rng.integers(1 << 31)))
    return gq.QuantArray.from_bytes(np.ascontiguousarray(blocks).tobytes(), fmt, shape)


def replays(graph, stream, ids, experts, fresh):
    """A recorded product with other ids three times, which are given once it is done."""
    for _ in range(3):
        drawn = fresh.integers(0, experts, ids.shape)
        ids.set(drawn)
        graph.launch(stream)
        stream.synchronize()
        yield drawn


@pytest.mark.parametrize("rung", [r for r in RUNGS if r.arithmetic != "codes"], ids=lambda r: r.name)
@pytest.mark.parametrize("name", ["q4_0", "q4_K", "mxfp4", "f16"])
def test_kernels(rung, name, cupy, fresh):
    e, n, k, u = 5, 40, 512, 3
    q = experts_of(name, (e, n, k), fresh)
    served = 0
    for t in (1, 9, 70):
        x, ids = fresh.standard_normal((t, k)).astype(np.float32), fresh.integers(0, e - 1, (t, u))
        ids[t // 2 :, 0] = 0
        try:
            y = gq.expert_linear(cupy.asarray(x), q.to("cuda"), cupy.asarray(ids), kernel=rung.name)
        except gq.errors.UnsupportedError:
            continue
        want = gq.reference.expert_linear(x, q, ids, rung.arithmetic)
        assert gq.nmse(y, want) <= TOLERANCE[rung.accumulate]
        served += 1
    if not served:
        pytest.skip(f"{rung.name} does not take {name}")


@pytest.mark.parametrize("t", [1, 7, 100])
def test_in_a_graph(t, cupy, fresh):
    """Recorded once, replayed with other ids: nothing of them was looked at on the host."""
    e, n, k, u = 6, 140, 512, 2
    q = experts_of("q4_0", (e, n, k), fresh).to("cuda")
    x, ids = fresh.standard_normal((t, k)).astype(np.float32), cupy.zeros((t, u), np.int64)
    given, out, stream = (
        cupy.asarray(x),
        cupy.empty((t, u, n), np.float32),
        cupy.cuda.Stream(non_blocking=True),
    )
    with stream:
        gq.expert_linear(given, q, ids, out=out)
        stream.begin_capture()
        gq.expert_linear(given, q, ids, out=out)
        graph = stream.end_capture()
        for drawn in replays(graph, stream, ids, e, fresh):
            assert gq.nmse(out, gq.reference.expert_linear(x, q.to("cpu"), drawn)) <= 1e-3


@pytest.mark.parametrize("t", [7, 100, 700])
def test_ids_that_change_within_a_graph(t, cupy, fresh):
    """Blocks that start early see those of their own product."""
    e, n, k, u = 6, 140, 512, 2
    q, stream = experts_of("q4_0", (e, n, k), fresh).to("cuda"), cupy.cuda.Stream(non_blocking=True)
    x, drawn = fresh.standard_normal((t, k)).astype(np.float32), fresh.integers(0, e, (4, t, u))
    given, listed, ids = cupy.asarray(x), cupy.asarray(drawn), cupy.zeros((t, u), np.int64)
    out = cupy.zeros((4, t, u, n), np.float32)
    cupy.cuda.Device().synchronize()
    with stream:
        gq.expert_linear(given, q, ids, out=out[0], kernel="cuda:grouped")
        ids[...] = listed[0]
        stream.begin_capture()
        for i in range(4):
            ids[...] = listed[i]
            gq.expert_linear(given, q, ids, out=out[i], kernel="cuda:grouped")
        graph = stream.end_capture()
        for _ in range(3):
            out.fill(0)
            graph.launch(stream)
            stream.synchronize()
            for i in range(4):
                want = gq.reference.expert_linear(x, q.to("cpu"), drawn[i], "bf16s")
                assert gq.nmse(out[i], want) <= TOLERANCE["f16"]


@pytest.mark.parametrize("t", [3, 40, 300])
@pytest.mark.parametrize("name", ["q4_0", "q6_K", "mxfp4"])
def test_long_rows(name, t, cupy, fresh):
    """Blocks split the tiles of the last wave, here all tiles, along the columns; some blocks are zeros."""
    e, n, k, u = 3, 300, 6144, 2
    q = experts_of(name, (e, n, k), fresh)
    raw, size = q.raw.copy(), FORMATS[name].dtype.itemsize
    raw.reshape(-1, size)[fresh.random(raw.size // size) < 0.1] = 0
    q = gq.QuantArray.from_bytes(raw.tobytes(), name, (e, n, k))
    x, ids = fresh.standard_normal((t, k)).astype(np.float32), fresh.integers(0, e, (t, u))
    y = gq.expert_linear(cupy.asarray(x), q.to("cuda"), cupy.asarray(ids), kernel="cuda:grouped")
    assert gq.nmse(y, gq.reference.expert_linear(x, q, ids, "bf16s")) <= TOLERANCE["f16"]


@pytest.mark.parametrize("name", ["q4_0", "q6_K", "iq2_xs", "bf16"])
@pytest.mark.parametrize("apart", [False, True])
def test_what_auto_takes(name, apart, cupy, fresh):
    q, t, u = experts_of(name, (6, 33, 256), fresh), 20, 2
    x = fresh.standard_normal((t, u, 256) if apart else (t, 256)).astype(np.float32)
    ids = fresh.integers(0, 6, (t, u)).astype(fresh.choice([np.int32, np.int64, np.uint8]))
    device = gq.expert_linear(cupy.asarray(x), q.to("cuda"), cupy.asarray(ids))
    assert device.dtype == np.float32
    assert gq.nmse(device, gq.reference.expert_linear(x, q, ids)) <= 1e-3
    out = cupy.empty(device.shape, np.float16)
    assert gq.expert_linear(cupy.asarray(x), q.to("cuda"), cupy.asarray(ids), out=out) is out
    assert gq.nmse(out, device) <= 1e-6


@pytest.mark.parametrize(("code", "tile"), [("e4m3", (128, 128)), ("int8", (1, None))])
def test_scaled(code, tile, cupy, fresh):
    q = gq.quantize_scaled(fresh.standard_normal((4, 128, 256)), code, tile)
    x, ids = fresh.standard_normal((12, 256)).astype(np.float32), fresh.integers(0, 4, (12, 3))
    y = gq.expert_linear(cupy.asarray(x), q.to("cuda"), cupy.asarray(ids))
    assert gq.nmse(y, gq.expert_linear(x, q, ids)) <= 1e-6
    given = gq.quantize_scaled(x, code, (1, 128) if code == "e4m3" else (1, None)).to("cuda")
    assert gq.nmse(gq.expert_linear(given, q.to("cuda"), cupy.asarray(ids)), y) <= 1e-6


CODES = [  # codes of x and w, tiles, N
    (("e4m3", "e4m3"), ((1, 128), (128, 128)), 256),
    (("e5m2", "e4m3"), ((1, None), (140, None)), 140),
    (("e4m3", "e4m3"), ((1, 128), (1, 128)), 101),
    (("int8", "int8"), ((1, None), (1, None)), 300),
]


@pytest.mark.parametrize(("codes", "tiles", "n"), CODES)
@pytest.mark.parametrize("apart", [False, True])
def test_tiles_of_all_experts(codes, tiles, n, apart, cupy, fresh):
    """Codes with scales, sorted by expert on the device."""
    e, k, u, bound = 5, 400, 3, 1e-11 if codes[0] == "int8" else 2e-7
    w = gq.quantize_scaled(fresh.standard_normal((e, n, k)), codes[1], tiles[1], ragged="pad")
    for t in (1, 40, 700):
        floats = fresh.standard_normal((t, u, k) if apart else (t, k)).astype(np.float32)
        x = gq.quantize_scaled(floats, codes[0], tiles[0], ragged="pad")
        ids = fresh.integers(0, e, (t, u))
        ids[t // 2 :, 0], ids[-1, -1] = 1, e
        given = x.to("cuda"), w.to("cuda"), cupy.asarray(ids)
        try:
            y = gq.expert_linear(*given, kernel="cuda:grouped_codes").get()
        except gq.errors.UnsupportedError as refused:
            pytest.skip(str(refused))
        want = gq.reference.expert_linear(x, w, np.where(ids < e, ids, 0))
        assert np.isnan(y[ids == e]).all()
        assert gq.nmse(y[ids < e], want[ids < e]) <= bound
        assert np.array_equal(gq.expert_linear(*given, kernel="cuda:grouped_codes").get(), y, equal_nan=True)
        half = gq.expert_linear(*given, kernel="cuda:grouped_codes", dtype=np.float16).get()
        assert np.array_equal(half, y.astype(np.float16), equal_nan=True)


def test_codes_in_a_graph(cupy, fresh):
    """Recorded once with what quantizes x, replayed with other ids."""
    e, n, k, t, u = 6, 256, 512, 300, 2
    w = gq.quantize_scaled(fresh.standard_normal((e, n, k)), "e4m3", (128, 128)).to("cuda")
    x, ids = cupy.asarray(fresh.standard_normal((t, k)).astype(np.float32)), cupy.zeros((t, u), np.int64)
    out, stream = cupy.empty((t, u, n), np.float32), cupy.cuda.Stream(non_blocking=True)
    with stream:
        try:
            gq.expert_linear(x, w, ids, out=out, kernel="cuda:grouped_codes")
        except gq.errors.UnsupportedError as refused:
            pytest.skip(str(refused))
        stream.begin_capture()
        gq.expert_linear(x, w, ids, out=out, kernel="cuda:grouped_codes")
        graph = stream.end_capture()
        for drawn in replays(graph, stream, ids, e, fresh):
            assert gq.nmse(out, gq.expert_linear(x, w, cupy.asarray(drawn), kernel="cuda:codes")) <= 1e-6


def test_ids_that_are_no_expert(cupy, fresh):
    q, x = experts_of("q4_0", (3, 32, 64), fresh).to("cuda"), cupy.ones((4, 64), np.float32)
    ids = np.array([[0, 3], [-1, 1], [2, 2], [0, 0]])
    y = gq.expert_linear(x, q, cupy.asarray(ids))
    assert np.array_equal(cupy.isnan(y).all(axis=-1).get(), (ids < 0) | (ids > 2))
    with pytest.raises(gq.GGMLQError, match=r"ids\[0, 1\] is 3"):
        gq.expert_linear(x, q, cupy.asarray(ids), check=True)
    with pytest.raises(gq.GGMLQError, match="ids is on cpu"):
        gq.expert_linear(x, q, ids)


def test_without_the_bytes(cupy, fresh):
    host = experts_of("q4_0", (3, 40, 64), fresh)
    x, ids, q = (
        cupy.ones((5, 64), np.float32),
        cupy.asarray(fresh.integers(0, 3, (5, 2))),
        host.to("cuda").copy(),
    )
    want = gq.expert_linear(x, q, ids)
    q.drop_raw()
    assert bool((gq.expert_linear(x, q, ids) == want).all())
    assert np.array_equal(q[1].to("cpu").raw, host[1].raw)
    assert np.array_equal(q.raw.get(), host.raw)


def test_nothing_to_do(cupy, fresh):
    q = experts_of("q4_0", (3, 32, 64), fresh).to("cuda")
    y = gq.expert_linear(cupy.ones((0, 64), np.float32), q, cupy.zeros((0, 2), np.int32))
    assert y.shape == (0, 2, 32)


def test_tensors(cupy, fresh):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    q, x = experts_of("q4_0", (3, 32, 64), fresh), fresh.standard_normal((4, 64)).astype(np.float32)
    ids = fresh.integers(0, 3, (4, 2))
    y = gq.expert_linear(torch.as_tensor(x).cuda(), q.to("cuda"), torch.as_tensor(ids).cuda())
    assert y.is_cuda
    assert gq.nmse(y.cpu().numpy(), gq.reference.expert_linear(x, q, ids)) <= 1e-3
