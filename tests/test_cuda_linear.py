"""Every rung of the CUDA ladder against the float64 oracle on the operands that it multiplies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from block_cases import weights
from right import assert_right, products

import ggmlq as gq
from ggmlq.arrays.rows import rows
from ggmlq.cuda.ladder.linear import r7_dequant_cublas, r11_dequant_bf16
from ggmlq.dispatch.card import Card
from ggmlq.dispatch.problems import Linear
from ggmlq.formats import FORMATS, BlockFormat

RUNGS = gq.kernels(device="cuda")
NAMES = [rung.name for rung in RUNGS]
GOLDEN = Path(__file__).parent / "golden"
SEED = int(np.random.default_rng().integers(1 << 31))
HOT = ("q4_0", "q8_0", "q4_1", "q6_K")  # no offset, an offset, groups of 16
SHAPES = [
    (1, 1, 256),
    (8, 31, 512),
    (9, 129, 768),
    (64, 64, 256),
    (65, 127, 1280),
    (130, 300, 2304),
    (33, 128, 14336),
]
# The sizes of a problem in the first experiment (bench/notes/ladder.md): it lists no cases, only that 21
# passed, three kernels by seven.
THEIR_SHAPES = [(m, 4096, k) for m in (1, 32, 512) for k in (4096, 14336)] + [(128, 4096, 4096)]
THEIR_KERNELS = {
    "W4A16": ("cuda:naive_f32", "q4_0"),
    "W4A8": ("cuda:naive", "q4_0"),
    "Q8_0": ("cuda:naive_f32", "q8_0"),
}
THEIR_NMSE = {"W4A16": 4.65e-3, "W4A8": 4.66e-3, "Q8_0": 1.4e-5}


def multiply(cupy, rung, x, q):
    """The product, run twice, into a poisoned array between two guard rows."""
    (m, _), n = x.shape, len(q)
    around = cupy.full((m + 2, n), np.nan, np.float32)
    y, device = around[1:-1], q.to("cuda")
    rung.launch(cupy.asarray(x), device, y)
    once = y.get()
    y.fill(np.nan)
    rung.launch(cupy.asarray(x), device, y)
    assert np.array_equal(once, y.get(), equal_nan=True), f"{rung.name}: two runs differ, seed {SEED}"
    assert np.isnan(around[[0, -1]].get()).all(), f"{rung.name} writes past its output, seed {SEED}"
    return once


def check(cupy, rung, name, m, n, k, kind="normal"):
    problem = Linear.here(FORMATS[name], m, n, k, device="cuda")
    if reason := rung.refuses(problem):
        assert reason[0].islower()
        return
    x, q = rows(kind, m, k, SEED), weights(name, n, k, SEED)
    assert_right(multiply(cupy, rung, x, q), x, q, rung)


@pytest.mark.cuda
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rung", RUNGS, ids=NAMES)
def test_formats(rung, name, cupy):
    fmt = FORMATS[name]
    if fmt.dtype.kind != "i" and name != "f64":
        check(cupy, rung, name, 5, 33, 512)


@pytest.mark.cuda
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rung", RUNGS, ids=NAMES)
def test_shapes(rung, shape, cupy):
    for name in HOT:
        check(cupy, rung, name, *shape)


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [(3, 17, 32), (9, 33, 96), (40, 33, 96)], ids=str)
@pytest.mark.parametrize("rung", RUNGS, ids=NAMES)
def test_columns_that_fill_no_record(rung, shape, cupy):
    for name in ("q4_0", "q8_0", "q4_1"):
        check(cupy, rung, name, *shape)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["heavy_tails", "outliers", "spikes", "zeros", "small", "ties"])
@pytest.mark.parametrize("rung", RUNGS, ids=NAMES)
def test_activations(rung, kind, cupy):
    for name in HOT:
        check(cupy, rung, name, 12, 40, 512, kind)
        check(cupy, rung, name, 5, 40, 512, kind)


@pytest.mark.cuda
@pytest.mark.parametrize("rung", RUNGS, ids=NAMES)
def test_many_rows(rung, cupy):
    check(cupy, rung, "q4_0", 4096, 72, 256)
    check(cupy, rung, "q8_0", 600, 1200, 512)


@pytest.mark.cuda
@pytest.mark.parametrize("name", HOT)
def test_rows_keep_their_bits(name, cupy, fresh):
    """With invariant=True, beside others, alone, and in tiles of all widths; the sums are right, too."""
    n, k, m = int(fresh.integers(1, 700)) * 2, 256 * int(fresh.integers(1, 17)), int(fresh.integers(129, 300))
    x, host = fresh.standard_normal((m, k), np.float32), weights(name, n, k, int(fresh.integers(1 << 30)))
    q = host.to("cuda")
    for kind, dtype in ((np.float32, np.float32), (np.float16, np.float32), (np.float32, np.float16)):
        rows, residual = cupy.asarray(x, kind), cupy.asarray(fresh.standard_normal((m, n), np.float32))
        y = gq.linear(rows, q, residual=residual, dtype=dtype, invariant=True)
        assert gq.nmse(y.get(), gq.reference.linear(x, host) + residual.get()) < 1e-4
        for size in (1, 1, *fresh.integers(2, 129, 5).tolist()):
            some = slice(start := int(fresh.integers(m - size)), start + size)
            alone = gq.linear(rows[some], q, residual=residual[some], dtype=dtype, invariant=True)
            assert cupy.array_equal(alone, y[some]), (size, n, k, kind, dtype)


@pytest.mark.cuda
@pytest.mark.parametrize("rung", RUNGS, ids=NAMES)
def test_nothing_to_multiply(rung, cupy):
    for m, n in ((0, 5), (4, 0)):
        check(cupy, rung, "q4_0", m, n, 64)


@pytest.mark.cuda
@pytest.mark.parametrize("rung", RUNGS, ids=NAMES)
def test_not_a_number_stays_one(rung, cupy):
    q, x = weights("q8_0", 9, 256, SEED), rows("normal", 3, 256)
    x[1, 70] = np.nan
    if not rung.refuses(Linear.here(q.format, 3, 9, 256, device="cuda")):
        assert np.isnan(multiply(cupy, rung, x, q)).any(axis=1).tolist() == [False, True, False]


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["q4_0", "q5_0", "q8_0", "iq4_nl", "mxfp4"])
def test_llama_cpp_on_cuda(name, cupy):
    """Up to 8 rows llama.cpp multiplies with the first experiment's formula, and so does cuda:naive."""
    runs = [p for p in products(GOLDEN, name, "cuda") if p.arithmetic == "ggml-mmvq"]
    assert runs
    for p in runs:
        y = gq.linear(cupy.asarray(p.x), p.q.to("cuda"), kernel="cuda:naive").get()
        assert gq.reference.row_errors(y, p.y, p.x, p.q).max() <= 1e-9


@pytest.mark.cuda
@pytest.mark.parametrize("shape", THEIR_SHAPES, ids=str)
@pytest.mark.parametrize("case", THEIR_KERNELS)
def test_the_first_experiments_cases(case, shape, cupy, capsys):
    """Its error beside the unquantized floats: at most half as much again as the first experiment saw."""
    (kernel, name), (m, n, k) = THEIR_KERNELS[case], shape
    rng = cupy.random.default_rng(SEED)
    x, w = (rng.uniform(-1, 1, size, np.float32) for size in ((m, k), (n, k)))
    y = gq.linear(x, gq.quantize(w, name), kernel=kernel)
    want = x.astype(np.float64) @ w.astype(np.float64).T
    nmse = float(((y - want) ** 2).sum() / (want**2).sum())
    with capsys.disabled():
        print(
            f"\n{case} M={m} N={n} K={k}: NMSE {nmse:.2e}, the first experiment saw {THEIR_NMSE[case]:.2e}",
            end="",
        )
    assert nmse <= 1.5 * THEIR_NMSE[case]


# --- choosing ---------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("name", FORMATS)
def test_auto_takes_every_format(name, cupy):
    q = weights(name, 40, 2 * FORMATS[name].block_size * (1 if FORMATS[name].block_size > 1 else 64), SEED)
    for m in (1, 200):
        x = rows("normal", m, q.shape[1], SEED)
        y = cupy.asarray(x) @ q.to("cuda").T
        assert gq.nmse(y, gq.reference.linear(x, q)) < 1e-3


@pytest.mark.cuda
@pytest.mark.parametrize("rung", ["cuda:dequant_cublas", "cuda:dequant_bf16"])
def test_slabs_of_a_large_matrix(rung, cupy, monkeypatch):
    """Decoded in slabs of 96 rows, the last one shorter: the same sums, whichever way cuBLAS takes."""
    q, x = weights("q5_1", 257, 512, SEED), rows("normal", 9, 512, SEED)
    given, device_q = cupy.asarray(x), q.to("cuda")
    whole = gq.linear(given, device_q, kernel=rung).get()
    for module in (r11_dequant_bf16, r7_dequant_cublas):
        monkeypatch.setattr(module, "SLAB", 100 * 2 * 512)
    y = gq.linear(given, device_q, kernel=rung).get()
    np.testing.assert_allclose(y, whole, rtol=0, atol=1e-5 * np.abs(whole).max())


@pytest.mark.cuda
def test_out_of_memory_is_told(cupy):
    q = weights("q4_0", 1 << 16, 512, SEED).to("cuda")
    few = cupy.ones((1, 512), np.float32)
    before = cupy.get_default_memory_pool().used_bytes()
    with pytest.raises(gq.GGMLQError, match=r"out of memory.*free_all_blocks"):
        gq.linear(cupy.broadcast_to(few, (1 << 20, 512)), q)  # 256 GiB of outputs
    assert cupy.get_default_memory_pool().used_bytes() <= before
    assert gq.linear(few, q).shape == (1, 1 << 16)


def test_rungs_say_what_they_need(monkeypatch):
    """An older GPU than those of today is told what is missing."""
    from ggmlq.cuda.driver import device

    monkeypatch.setattr(device, "_cublas_problem", lambda: None)
    old = Card("Tesla T4", (7, 5), 40, 64 << 10)
    problem = Linear(FORMATS["q4_0"], 64, 4096, 4096, device="cuda", card=old)
    by_name = {rung.name: rung.refuses(problem) for rung in RUNGS}
    assert by_name["cuda:mma"] == "needs compute capability 8.0, this GPU has 7.5"
    assert by_name["cuda:registers"] is None
    assert by_name["cuda:dequant_cublas"] is None


def test_planes_refuse_what_they_cannot_serve():
    reasons = {
        ("cuda:mma", "q6_K"): "whole runs of 32",
        ("cuda:mma_q8", "q8_K"): "scales made of halves",
        ("cuda:mma_q8", "mxfp4"): "floats of four bits",
        ("cuda:naive", "q4_1"): "no offset",
        ("cuda:tiled", "f16"): "is written for blocks",
        ("cuda:dequant_cublas", "f32"): "plain floats",
        ("cuda:dequant_bf16", "f32"): "plain floats",
    }
    for (rung, name), words in reasons.items():
        fmt = FORMATS[name]
        (found,) = [r for r in RUNGS if r.name == rung]
        assert words in str(found.refuses(Linear.here(fmt, 4, 64, 512, device="cuda")))
    for name in FORMATS:
        if isinstance(FORMATS[name], BlockFormat):
            takes = [r.name for r in gq.kernels(format=name, device="cuda")]
            assert {"cuda:dequant", "cuda:naive_f32", "cuda:tiled", "cuda:dequant_cublas"} <= set(takes)
