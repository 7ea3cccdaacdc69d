"""Packed weights: their size, that no bit gets lost, and that a lane finds its own codes again."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from ml_dtypes import bfloat16

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

import made_up
from block_cases import BLOCKS, weights
from emulated_gpu import put_emulated
from emulated_packed import pack_blocks
from fake_cupy import on_device

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.arrays.rows import rows
from ggmlq.cuda.intrinsics import bf16x2, ptx
from ggmlq.cuda.intrinsics.tensor_cores import MAGIC
from ggmlq.cuda.kernels.quantize.decode import decoded
from ggmlq.cuda.layouts import pack, to_blocks
from ggmlq.cuda.layouts.layout import STEP, layout_of, stored_codes
from ggmlq.cuda.layouts.pack import packed_weights
from ggmlq.cuda.layouts.to_bf16 import decode_packed
from ggmlq.dispatch.problems import Linear
from ggmlq.formats import FORMATS

# Bytes of packed weights for one of the file.
SIZES = {
    "q4_0": 1, "q4_1": 1, "q5_0": 1, "q5_1": 1, "q8_0": 1, "q8_1": 1, "q2_0": 1, "iq4_nl": 1,
    "mxfp4": 1, "nvfp4": 1,
    "q2_K": 1.143, "q3_K": 1.091, "q4_K": 1.112, "q5_K": 1.091, "q6_K": 1.029, "iq4_xs": 1.059,
    "tq2_0": 1.091, "q1_0": 2,
}  # fmt: skip
SEED = int(np.random.default_rng().integers(1 << 31))

# In a process of its own, for the simulator is chosen when Numba is imported: what the kernel that
# packs weights does with the codes of a lane, and what the products do with its words.
PROGRAM = """
import sys
import numpy as np
from ggmlq.cuda.layouts import codes as coded, pack, scales
from ggmlq.cuda.layouts.layout import layout_of, stored_codes
from ggmlq.cuda.intrinsics import bf16x2
from ggmlq.formats import FORMATS, BlockFormat
from ggmlq.formats._tables import FP4

rng = np.random.default_rng(int(sys.argv[1]))
np.seterr(invalid="ignore")  # infinity times 0


def check_codes(fmt, layout):
    raw = rng.integers(0, 256, (64, fmt.dtype.itemsize), np.uint8)
    with np.errstate(all="ignore"):
        codes = rng.choice(fmt.unpack(raw.view(fmt.dtype)[:, 0]).codes.ravel(), (4, 4, 2))
    stored_as = stored_codes(layout)[codes.view(np.uint8)]
    if layout.fp4:
        stored_as = rng.integers(0, 16, codes.shape)
        codes = FP4[stored_as]
    words = [np.uint32(0)] * layout.bits
    for s in range(4):
        for r in range(4):
            for e in range(2):
                pack.code_placer(layout)(words, s, r, e, np.uint32(stored_as[s, r, e]))
    for raised in (False, True):
        raises = raised and not (layout.levels or layout.low == 8)
        zero = layout.lowest - 128 if raises else 0
        assert not raises or layout.has_offset or coded.excess_pair(layout) == bf16x2.pair(zero)
        for s in range(4):
            a = [None] * 4
            coded.sixteen_unpacker(layout, raised=raised)(words, s, a, np.uint32(0))
            for r in range(4):
                found = np.array([int(a[r]) << 16 & 0xFFFFFFFF, int(a[r]) & 0xFFFF0000], np.uint32)
                assert (found.view(np.float32) + zero == codes[s, r]).all(), (fmt.name, s, r)


HALVES = np.array([0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0xFBFF, 0x8001, 0x8000, 0x7C00, 0xFC00], np.uint16)


def check_scales(fmt, layout):
    value = scales.scale_value(layout)
    places = [(s, p, r) for s in range(2) for p in range(1 + layout.has_offset) for r in range(layout.runs)]
    how, runs = fmt.scales, layout.runs
    for byte in range(256):
        halves = rng.choice(HALVES, 2 * layout.half_words)
        bytes_ = np.full(4 * layout.sub_words, byte, np.uint8)
        words = [*halves.view(np.uint32), *bytes_.view(np.uint32)]
        values = [value(words, *place) for place in places]
        d = halves.view(np.float16).astype(np.float64).reshape(-1, 2)
        if layout.scale == "single":
            want = np.repeat(np.stack([halves[::2], halves[1::2]]).view(np.float32), runs)
        elif how.table is not None:
            want = np.repeat(how.table[byte], 2 * runs)
        else:
            scale = d[: layout.blocks].T.repeat(runs // layout.blocks, axis=1)
            if how.sub is not None:
                scale = scale * ((byte & 15 if how.nibbles else byte) - how.zero) * how.unit
            if layout.has_offset:
                offset = d[layout.blocks : 2 * layout.blocks].T.repeat(runs // layout.blocks, axis=1)
                offset = offset * how.sign
                if how.nibbles or how.low is not None:
                    offset = offset * (byte >> 4 if how.nibbles else byte)
                scale = np.concatenate([scale, offset], axis=1)
            want = scale.ravel()
        found = np.array(values, np.float64)
        assert np.array_equal(found, want, equal_nan=True), (fmt.name, byte, found, want)


for fmt in FORMATS.values():
    if isinstance(fmt, BlockFormat):
        check_codes(fmt, layout_of(fmt))
        check_scales(fmt, layout_of(fmt))
"""


@pytest.mark.parametrize("name", SIZES)
def test_little_more_than_the_file(name):
    fmt = FORMATS[name]
    assert layout_of(fmt).fragment_bytes <= SIZES[name] * 16 * STEP * fmt.dtype.itemsize / fmt.block_size


@pytest.mark.parametrize("fmt", BLOCKS, ids=lambda fmt: fmt.name)
def test_a_fragment_is_whole_copies(fmt):
    layout = layout_of(fmt)
    assert layout.fragment_bytes % 16 == 0
    assert layout.halves_at == 128 * layout.bits
    assert layout.half_stride in (4, 8, 16) or not layout.half_words
    assert layout.sub_stride in (4, 8, 16) or not layout.sub_words
    assert layout.run in (16, 32)


@pytest.mark.parametrize("fmt", BLOCKS, ids=lambda fmt: fmt.name)
def test_every_code_has_a_place(fmt):
    """Blocks of any bytes hold no code that their layout does not know."""
    layout = layout_of(fmt)
    raw = np.random.default_rng(SEED).integers(0, 256, (2000, fmt.dtype.itemsize), np.uint8)
    with np.errstate(all="ignore"):
        codes = np.unique(fmt.unpack(raw.view(fmt.dtype)[:, 0]).codes)
    found = stored_codes(layout)[codes.view(np.uint8)]
    assert len(set(found.tolist())) == len(codes)
    assert found.max() < 1 << layout.bits


def test_what_can_be_turned_back():
    """All but types with code books, with digits to the base of three, and with sums beside their codes."""
    assert {fmt.name for fmt in BLOCKS if to_blocks.sources(fmt) is not None} == set(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_every_bit_has_a_place(name):
    fmt = FORMATS[name]
    raw = np.random.default_rng(SEED).integers(0, 256, (500, fmt.dtype.itemsize), np.uint8)
    assert np.array_equal(to_blocks.put_together(to_blocks.sources(fmt), to_blocks.elements(fmt, raw)), raw)


def simulated(*arguments):
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, *map(str, arguments)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"seed {SEED}: {run.stderr}"


def test_words_and_back():
    simulated("-c", PROGRAM, SEED)


@pytest.fixture
def card(monkeypatch):
    return put_emulated(monkeypatch)


def there(card, array):
    card.memory.add(copy := on_device(array))
    return copy


TYPES = [*BLOCKS, *made_up.FORMATS.values()]
NOT_AS_BYTES = "mxfp4", "nvfp4", "q8_K"  # codes that are floats; scales of more bits than a half
some = pytest.mark.parametrize("fmt", TYPES, ids=lambda fmt: fmt.name)


@pytest.mark.slow
@pytest.mark.drawn(1, by="fmt")
@some
def test_packed_weights_hold_the_weights(fmt, card, fresh):
    """Rows that fill no fragment row: bytes are where NumPy puts them, and come back; so do values."""
    n, k = 18, -(-96 // fmt.block_size) * fmt.block_size
    raw = (
        random_blocks(fmt, n, k // fmt.block_size, int(fresh.integers(1 << 30))).view(np.uint8).reshape(n, -1)
    )
    q, host = (gq.QuantArray(fmt, (n, k), memory) for memory in (there(card, raw), raw))
    values = there(card, np.full((n + 1, k), 7, np.uint16))
    assert np.array_equal(pack.packed_weights(q).fragments, pack_blocks(host)[0])
    if to_blocks.sources(fmt) is not None:
        assert np.array_equal(to_blocks.restored(q), raw)
    for first in (0, 16):
        values[...] = 7
        decode_packed(pack.packed_weights(q), first, values[: n - first])
        found = np.asarray(values).view(bfloat16)
        np.testing.assert_array_equal(found[: n - first], np.asarray(host)[first:].astype(bfloat16))
        assert (np.asarray(values[n - first :]) == 7).all()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["cuda:gemv", "cuda:mma_bf16", "cuda:mma_q8", "cuda:mma_f16"])
@some
def test_products_of_any_type(fmt, name, card, fresh):
    """All readers of packed weights: codes as floats, as bytes and as halves, runs of gemv's lanes."""
    rung = next(each for each in gq.kernels(device="cuda") if each.name == name)
    m, n, k = int(fresh.integers(1, 9)), 18, -(-96 // fmt.block_size) * fmt.block_size
    reason = rung.refuses(Linear.here(fmt, m, n, k, device="cuda"))
    assert (reason is not None) == (name == "cuda:mma_q8" and fmt.name in NOT_AS_BYTES), reason
    if reason is not None:
        pytest.skip(reason)
    host, x = weights(fmt, n, k, SEED), rows("normal", m, k, SEED)
    q, y = gq.QuantArray(fmt, (n, k), there(card, host.raw)), there(card, np.full((m + 2, n), np.nan, "f4"))
    rung.launch(there(card, x), q, y[1:-1])
    assert np.isnan(y[[0, -1]]).all(), "written past its outputs"
    error = np.abs(np.asarray(y[1:-1]) - gq.reference.linear(x, host, rung.arithmetic))
    assert (error <= gq.reference.bound(x, host, rung.arithmetic)).all()


@some
def test_a_large_float_times_a_scale_is_exact(fmt):
    """cuda:mma_q8 adds a large float to its sums and takes it off again times the scale. Where that product
    is rounded, a sum is off by up to 1, and so are results at its worth: such types are refused.
    """
    scale = fmt.unpack(random_blocks(fmt, 500, 1, SEED)).scale
    exact = (scale * np.float32(MAGIC)).astype(np.float64) == scale.astype(np.float64) * MAGIC
    assert scale.dtype == np.float32
    assert exact.all() == (layout_of(fmt).scale != "single"), f"seed {SEED}"


def test_pairs():
    assert bf16x2.narrowed.meaning(1.0, -2.0) == bf16x2.pair(1.0) & 0xFFFF | bf16x2.pair(-2.0) & 0xFFFF0000
    three = bf16x2.fma.meaning(np.uint32(bf16x2.pair(2)), bf16x2.ones, np.uint32(bf16x2.pair(1)))
    assert three == bf16x2.pair(3)
    assert ptx.permute.meaning(np.uint32(0x03020100), np.uint32(0x07060504), np.uint32(0x7362)) == 0x07030602


# --- on a GPU ---------------------------------------------------------------------------------

RUNGS = ["cuda:gemv", "cuda:mma_bf16", "cuda:warp_specialized"]


@pytest.mark.cuda
@pytest.mark.parametrize("rung", RUNGS)
def test_nothing_overflows(rung, cupy):
    """Weights up to 127 times 6e4, activations up to 1e6: far beyond halves, and right."""
    d = np.float16(6e4)
    blocks = np.zeros((40, 8), FORMATS["q8_0"].dtype)
    blocks["d"] = d
    blocks["qs"] = np.random.default_rng(SEED).integers(-127, 128, blocks["qs"].shape, np.int8)
    q = gq.QuantArray.from_bytes(blocks.view(np.uint8), "q8_0", (40, 256))
    x = rows("normal", 5, 256, SEED) * np.float32(1e6)
    y = gq.linear(cupy.asarray(x), q.to("cuda"), kernel=rung).get()
    assert gq.nmse(y, gq.reference.linear(x, q)) < 2e-5


@pytest.mark.cuda
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8])
def test_scales_of_any_size(rung, scale, cupy):
    """Tiny and huge activations are as exact as others, and rows of weights keep their own scale."""
    q = weights("q6_K", 48, 512, SEED)
    x = rows("normal", 4, 512, SEED) * np.float32(scale)
    y = gq.linear(cupy.asarray(x), q.to("cuda"), kernel=rung).get()
    assert gq.nmse(y, gq.reference.linear(x, q)) < 2e-5


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["q4_0", "q8_0", "mxfp4", "q4_K", "q6_K", "q2_K", "iq2_xs"])
@pytest.mark.parametrize("m", [1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 257])
def test_borders_between_kernels(name, m, cupy):
    """Results are no worse than llama.cpp's on the same data, at each number of rows where another kernel
    begins.
    """
    q, x = weights(name, 144, 1536, SEED), rows("normal", m, 1536, SEED)
    exact = gq.reference.linear(x, q)
    theirs = gq.nmse(gq.reference.linear(x, q, "ggml-mmq"), exact)
    device, given = q.to("cuda"), cupy.asarray(x)
    for kernel in ["auto", *RUNGS]:
        if kernel != "cuda:gemv" or m <= 32:
            y = gq.linear(given, device, kernel=kernel).get()
            assert gq.nmse(y, exact) <= theirs, kernel


# --- without the file's bytes, on a GPU ---------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [(1, 1), (17, 3), (130, 2)], ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_any_bytes_come_back(name, shape, cupy):
    fmt, (n, blocks) = FORMATS[name], shape
    raw = np.random.default_rng(SEED).integers(0, 256, (n, blocks * fmt.dtype.itemsize), np.uint8)
    q = gq.QuantArray.from_bytes(cupy.asarray(raw), fmt, (n, blocks * fmt.block_size))
    for _ in range(2):
        q.drop_raw()
        assert q.memory.dtype == np.uint8
        assert q.memory.ndim == 3
        assert np.array_equal(q.to("cpu").raw, raw), f"seed {SEED}"
        assert q.memory is q.raw
    values = q.dequantize()
    q.drop_raw()
    assert cupy.array_equal(q.dequantize(), values, equal_nan=True)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["q4_0", "q4_K", "q6_K", "mxfp4"])
def test_products_without_the_bytes(name, cupy):
    q, x = weights(name, 144, 1536, SEED).to("cuda"), cupy.asarray(rows("normal", 8, 1536, SEED))
    want = {rung: gq.linear(x, q, kernel=rung) for rung in RUNGS}
    others = gq.linear(x, q, kernel="cuda:dequant_cublas")
    q.drop_raw()
    held = q.memory
    for rung in RUNGS:
        assert cupy.array_equal(gq.linear(x, q, kernel=rung), want[rung])
        assert cupy.array_equal(x @ q.T, gq.linear(x, q))
    assert q.memory is held
    again = gq.linear(x, q, kernel="cuda:dequant_cublas")
    assert cupy.array_equal(again, others, equal_nan=True)  # mxfp4 exceeds the range of halves
    assert q.memory is q.raw
    q.drop_raw()
    q.drop_prepared()
    assert cupy.array_equal(gq.linear(x, q, kernel=RUNGS[0]), want[RUNGS[0]])


@pytest.mark.cuda
def test_memory_is_given_back(cupy):
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    q = weights("q4_0", 1024, 2048, SEED).to("cuda")
    q.drop_raw()
    held = pool.used_bytes() - before
    assert q.nbytes <= held <= q.nbytes + 4096
    _ = q.raw
    assert pool.used_bytes() - before >= 2 * q.nbytes


@pytest.mark.cuda
def test_graphs_without_the_bytes(cupy):
    q, x = weights("q4_K", 40, 256, SEED).to("cuda"), cupy.asarray(rows("normal", 2, 256, SEED))
    q.drop_raw()
    stream, out = cupy.cuda.Stream(non_blocking=True), cupy.empty((2, 40), np.float32)
    with stream:
        want = gq.linear(x, q, kernel="cuda:gemv", out=out).copy()
        out.fill(0)
        stream.begin_capture()
        gq.linear(x, q, kernel="cuda:gemv", out=out)
        with pytest.raises(gq.GGMLQError, match=r"were dropped.*records a CUDA graph"):
            _ = q.raw
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    assert cupy.array_equal(out, want)


@pytest.mark.cuda
@pytest.mark.parametrize("name", [fmt.name for fmt in BLOCKS])
def test_decoded_packed_weights_are_the_decoded_weights(name, cupy):
    """Both are equal to the bit, but for the sign of a zero; for some of the rows too, and columns that
    fill no fragment.
    """
    fmt = FORMATS[name]
    q = weights(name, 53, 192 if 192 % fmt.block_size == 0 else 768, SEED).to("cuda")
    want = decoded(q, "bfloat16").get().astype(np.uint32) << 16
    for first, rows_each in ((0, 53), (16, 20), (48, 5)):
        found = cupy.full((rows_each, q.shape[1]), 0x7FC1, np.uint16)
        decode_packed(packed_weights(q), first, found)
        found = found.get().astype(np.uint32) << 16
        part = want[first : first + rows_each]
        np.testing.assert_array_equal(found.view(np.float32), part.view(np.float32))


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["q4_K", "q8_0", "mxfp4"])
def test_cublas_after_the_bytes_are_gone(name, cupy):
    """Decoding packed weights gives what decoding bytes gave, and does not bring the bytes back."""
    q, x = weights(name, 130, 512, SEED).to("cuda"), cupy.asarray(rows("normal", 64, 512, SEED))
    before = gq.linear(x, q, kernel="cuda:dequant_bf16").get()
    q.drop_raw()
    after = gq.linear(x, q, kernel="cuda:dequant_bf16").get()
    np.testing.assert_array_equal(before, after)
    assert q.memory is packed_weights(q).fragments
