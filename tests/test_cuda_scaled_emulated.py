"""The rungs' own launches on an emulated card: PTX by NumPy, all warps, barriers, boxes and clusters.

What it shows without a GPU: that nothing waits for ever, that boxes, swizzles, scales and outputs meet, that
nothing is read or written outside. Each run takes one case of each kind, and some of all by its seed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

import ml_dtypes
from emulated_gpu import launched, put_emulated
from emulated_words import Locked
from fake_cupy import DeviceArray, on_device
from test_cuda_scaled_linear import error, scaled

import ggmlq as gq
from ggmlq.cuda.kernels.codes8.tiles import BoxTile
from ggmlq.dispatch import ladder
from ggmlq.dispatch.epilogue import PLAIN, Epilogue

RUNGS = {rung.name[5:]: rung for rung in gq.kernels("scaled_linear", device="cuda")}
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
GROUPS, ROWS, TENSORS, BLOCKS = (1, 128), (1, None), (None, None), (128, 128)
TALL, WIDE = {"tile": BoxTile(128, 192, 5)}, {"tile": BoxTile(256, 128, 4)}
NARROW = {"tile": BoxTile(128, 64, 8), "split": 2}
ODD = (1, 24), (2, None)
LOWER = [  # rung, M, N, K, codes, tiles, outputs, zero points, more
    ("naive", 3, 9, 70, ("e4m3", "e5m2"), (GROUPS, BLOCKS), "float32", False, {}),
    ("naive", 3, 9, 70, ("int16", "uint8"), ODD, "float32", True, {}),
    ("tiled", 3, 7, 42, ("int8", "uint8"), ODD, "float32", True, {}),
    ("dp4a", 3, 7, 42, ("uint8", "int8"), ODD, "float32", True, {}),
    ("mma_int8", 19, 40, 300, ("int8", "uint8"), (ROWS, ROWS), "float32", True, {}),
    ("mma_int8", 37, 21, 160, ("uint8", "int8"), ((1, 32), (3, None)), "float32", True, {}),
    ("mma_int8", 19, 40, 300, ("int8", "int8_full"), (GROUPS, BLOCKS), "float32", False, {}),
    ("widen", 37, 40, 272, ("e4m3", "e5m2"), (GROUPS, BLOCKS), "float32", False, {}),
    ("widen", 19, 21, 150, ("e5m2", "e4m3"), ((5, 32), ROWS), "float32", False, {}),
    ("mma_e4m3", 37, 40, 272, ("e4m3", "e5m2"), (GROUPS, BLOCKS), "float32", False, {}),
    ("mma_e4m3", 19, 21, 150, ("e5m2", "e5m2"), (TENSORS, ROWS), "float32", False, {}),
]
FIRST = [
    ("small_m", 3, 80, 272, ("e4m3", "e5m2"), (GROUPS, BLOCKS), "float32", False, {"split": 2}),
    ("persistent", 19, 70, 272, ("e4m3", "e5m2"), (GROUPS, BLOCKS), "float32", False, {}),
    ("split_k", 70, 70, 272, ("e4m3", "e5m2"), (GROUPS, BLOCKS), "float32", False, {"split": 2}),
]
MORE = [
    ("persistent", 130, 136, 400, ("e4m3", "e4m3"), (GROUPS, BLOCKS), "bfloat16", False, {}),
    ("persistent", 140, 7, 256, ("e4m3", "e4m3"), (BLOCKS, BLOCKS), "float32", False, {}),
    ("persistent", 300, 100, 300, ("e4m3", "e5m2"), (ROWS, ROWS), "float32", False, {}),
    ("persistent", 130, 200, 384, ("e4m3", "e5m2"), ((1, 384), BLOCKS), "float32", False, TALL),
    ("persistent", 260, 100, 272, ("int8", "uint8"), (ROWS, ROWS), "float32", True, WIDE),
    ("persistent", 100, 260, 300, ("int8", "int8_full"), (ROWS, TENSORS), "bfloat16", False, {}),
    ("persistent", 70, 40, 328, ("e5m2", "e5m2"), ((5, 256), (128, None)), "float32", False, {}),
    ("small_m", 5, 136, 128 * 36, ("e4m3", "e4m3"), (GROUPS, BLOCKS), "float16", False, {"split": 1}),
    ("small_m", 64, 70, 128 * 18, ("e4m3", "e4m3"), (GROUPS, BLOCKS), "float32", False, {"split": 1}),
    ("small_m", 50, 200, 300, ("uint8", "int8"), (ROWS, ROWS), "float32", True, {}),
    ("small_m", 64, 136, 128 * 10, ("e5m2", "e4m3"), (GROUPS, GROUPS), "bfloat16", False, {"split": 2}),
    ("small_m", 32, 64, 128 * 14, ("e4m3", "e4m3"), (GROUPS, BLOCKS), "bfloat16", False, {"split": 2}),
    ("small_m", 12, 64, 128 * 17, ("e4m3", "e5m2"), (ROWS, GROUPS), "bfloat16", False, {"split": 8}),
    ("split_k", 130, 200, 128 * 11, ("e4m3", "e5m2"), (GROUPS, BLOCKS), "bfloat16", False, {"split": 3}),
    ("split_k", 70, 101, 128 * 20 + 16, ("e4m3", "e4m3"), (GROUPS, BLOCKS), "float32", False, NARROW),
    ("split_k", 40, 140, 300, ("e4m3", "e4m3"), (GROUPS, GROUPS), "float16", False, {"split": 7}),
]  # fmt: skip

ENDINGS = [  # rung, M, N, K, codes, tiles, result, with a bias, shape of its scales, more
    ("small_m", 3, 70, 272, ("int8", "int8"), (ROWS, ROWS), "int8", True, (1, 1), {"split": 2}),
    ("persistent", 130, 140, 272, ("int8", "uint8"), (ROWS, ROWS), "int8_full", True, (1, 0), {}),
    ("persistent", 140, 101, 256, ("int8", "int8"), (ROWS, ROWS), "uint8", True, (0, 1), WIDE),
    ("persistent", 130, 136, 272, ("int8", "int8"), (ROWS, ROWS), "bfloat16", True, None, {}),
    ("persistent", 70, 150, 272, ("e4m3", "e4m3"), (GROUPS, BLOCKS), "float32", True, None, {}),
    ("persistent", 130, 130, 272, ("e4m3", "e5m2"), (GROUPS, BLOCKS), "e4m3", False, (0, 1), WIDE),
    ("small_m", 12, 66, 300, ("e4m3", "e4m3"), (GROUPS, BLOCKS), "e5m2", True, (0, 0), {"split": 1}),
    ("small_m", 64, 80, 272, ("e4m3", "e4m3"), (GROUPS, BLOCKS), "float16", True, None, {"split": 1}),
    ("split_k", 70, 131, 400, ("e4m3", "e4m3"), (GROUPS, BLOCKS), "int8", True, (1, 0), {"split": 2}),
    ("split_k", 130, 100, 400, ("e4m3", "e4m3"), (GROUPS, BLOCKS), "bfloat16", True, None, {"split": 3}),
]  # fmt: skip


def on_card(s):
    scales = (
        on_device(s.scales) if s.scales.flags.c_contiguous else np.asfortranarray(s.scales).view(DeviceArray)
    )
    return gq.ScaledArray(
        on_device(s.codes), scales, s.code, s.tile, None if s.zeros is None else on_device(s.zeros)
    )


def product(state, case, rng):
    """The outputs between rows that must stay as they are, and the right ones."""
    name, m, n, k, codes, tiles, kind, zeros, more = case
    order = rng.choice(["rows", "columns"])
    x = scaled(rng, codes[0], tiles[0], m, k, zeros, order)
    w = scaled(rng, codes[1], tiles[1], n, k, zeros, order)
    if kind == "float16":
        x.scales[...] *= np.float32(1e-5)  # or all would be infinite
    around = np.full((m + 2, n), np.nan, DTYPES[kind]).view(DeviceArray)
    operands = on_card(x), on_card(w)
    for array in (*x.parts(), *operands[0].parts(), *operands[1].parts()):
        state.memory.add(array)
    launched(state, RUNGS[name], *operands, around[1:-1], **more)
    assert np.isnan(np.asarray(around[[0, -1]]).astype(np.float32)).all(), "written past its outputs"
    want = gq.scaled_linear(x, w, kernel="cpu:naive") if zeros else gq.reference.scaled_linear(x, w)
    return np.asarray(around[1:-1]), want


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("case", [*LOWER, *FIRST, "drawn"], ids=lambda case: case[0])
def test_a_launch(case, monkeypatch, fresh):
    case = MORE[fresh.integers(len(MORE))] if case == "drawn" else case
    state = put_emulated(monkeypatch)
    y, want = product(state, case, fresh)
    narrow = y.dtype.itemsize == 2
    bound = 0 if case[-2] else 3e-3 if narrow else 1e-6
    assert error(y.astype(np.float32), np.asarray(want).astype(y.dtype).astype(np.float32)) <= bound, case


def check_ending(monkeypatch, case, rng):
    """A bias and codes as kernels make them themselves are what one step after the other gives."""
    name, m, n, k, codes, tiles, result, with_bias, shape, more = case
    state = put_emulated(monkeypatch)
    x, w = scaled(rng, codes[0], tiles[0], m, k), scaled(rng, codes[1], tiles[1], n, k)
    if result == "float16":
        x.scales[...] *= np.float32(1e-5)
    integer = x.code.kind == "integer"
    y = gq.scaled_linear(x, w, kernel="cpu:naive") if integer else gq.reference.scaled_linear(x, w)
    y = np.asarray(y).astype(np.float32)
    bias = (rng.standard_normal(n) * np.abs(y).max()).astype(np.float32) if with_bias else None
    y += 0 if bias is None else bias
    operands, end = on_card(x), Epilogue(bias if bias is None else on_device(bias))
    dtype = DTYPES.get(result)
    if shape:
        rows, columns = (size if one else 1 for size, one in zip((m, n), shape, strict=True))
        scales = np.abs(y).max() / 100 * rng.uniform(0.5, 2, (rows, columns)).astype(np.float32)
        scales[0, 0] = 2.0 ** np.floor(np.log2(scales[0, 0]))  # which is divided by in another way
        tile = tuple(1 if one else None for one in shape)
        want = gq.quantize_scaled(y, result, tile, scales=scales)
        end, dtype = end._replace(code=want.code, scales=on_device(scales)), want.codes.dtype
    around = np.full((m + 2, n), 77, dtype).view(DeviceArray)
    for array in (*operands.parts(), *on_card(w).parts()):
        state.memory.add(array)
    launched(state, RUNGS[name], operands, on_card(w), around[1:-1], end=end, **more)
    assert (np.asarray(around[[0, -1]]) == 77).all(), "written past its outputs"
    outputs = np.asarray(around[1:-1])
    if not shape:
        bound = 0 if integer else 3e-3 if np.dtype(dtype).itemsize == 2 else 1e-6
        assert error(outputs.astype(np.float32), y.astype(dtype).astype(np.float32)) <= bound, case
    elif integer:
        assert (outputs == want.codes).all(), case
    else:
        values = np.asarray(gq.ScaledArray(outputs, scales, result, tile))
        assert (np.abs(values - y) <= np.abs(np.asarray(want) - y) + 1e-4 * np.abs(y).max()).all(), case
        assert (outputs != want.codes).mean() < 0.01


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("case", [ENDINGS[0], "drawn"], ids=["small_m", "drawn"])
def test_an_ending(case, monkeypatch, fresh):
    check_ending(monkeypatch, ENDINGS[fresh.integers(len(ENDINGS))] if case == "drawn" else case, fresh)


@pytest.mark.slow
def test_a_kernel_rounds_its_own_results(monkeypatch, fresh):
    """scaled_linear asks those that can to write halves, and the result is what they wrote."""
    x, w = scaled(fresh, "e4m3", GROUPS, 2, 128), scaled(fresh, "e4m3", BLOCKS, 16, 128)
    written = []

    def launch(x, w, out, end=PLAIN):
        written.append(out)
        out[...] = 1.5 if end.bias is None else 1.5 + end.bias[0]

    rung = next(rung for rung in ladder.rungs("scaled_linear", "cuda") if rung.name == "cuda:small_m")
    rung_that_writes = replace(rung, launch=launch)
    monkeypatch.setattr(ladder, "choose", lambda *operands: rung_that_writes)
    assert gq.scaled_linear(x, w, dtype="bfloat16").dtype == ml_dtypes.bfloat16
    out = np.empty((2, 16), np.float16)
    assert gq.scaled_linear(x, w, out=out) is out
    assert gq.scaled_linear(x, w, dtype=np.float64).dtype == np.float64
    assert gq.scaled_linear(x, w, dtype=np.float16, bias=np.ones(16, np.float32))[0, 0] == 2.5
    assert gq.scaled_linear(x, w, dtype=np.float16, bias=np.ones(16, np.float64))[0, 0] == 2.5
    assert [str(y.dtype) for y in written] == ["bfloat16", "float16", "float32", "float16", "float32"]
    assert written[1].base is out or written[1] is out


def test_the_emulator_finds_what_it_is_for(monkeypatch):
    """A barrier that nobody arrives at; an access outside."""
    from emulated_ptx import Machine, Memory

    text = (
        ".visible .entry kernel(.param .u64 p_0)\n{{ .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>; "
        "ld.param.u64 %rd1, [p_0]; mov.u32 %r1, %tid.x; mov.u32 %r2, 4096; mov.u32 %r3, 2; "
        "setp.ne.s32 %p1, %r1, 0; "
        "@%p1 bra $L1; mbarrier.init.shared::cta.b64 [%r2], %r3; $L1: {} ret; }}"
    )
    looked = "mbarrier.try_wait.parity.shared::cta.b64 done, [%r2], 0;"
    wait = f"{{.reg .pred done; again: {looked} @!done bra again;}}"
    memory = Memory()
    memory.add(np.zeros(4, np.float32))
    with pytest.raises(Locked):
        Machine(text.format(wait), memory, 32, 8192)((1,), 0)
    with pytest.raises(IndexError, match="handed over"):
        Machine(text.format("st.global.u32 [%rd1], %r1;"), memory, 32, 8192)((1,), 64)
    with pytest.raises(Locked, match="elsewhere"):
        Machine(text.format("@%p1 bra $L2; bar.sync 0; $L2: bar.warp.sync -1;"), memory, 32, 8192)((1,), 64)
