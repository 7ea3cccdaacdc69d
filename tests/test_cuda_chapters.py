"""Chapters of the ladder: right on an emulated card and on a real one, and as plain as they promise to be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

from emulated_gpu import put_emulated
from fake_cupy import on_device
from scripts import ROOT

from ggmlq.codes import CODES
from ggmlq.cuda.driver.coverage import families
from ggmlq.cuda.ladder.chapters import (
    c1_swizzle,
    c2_boxes,
    c3_warp_specialized,
    c4_multicast,
    c5_stream_k,
    c6_epilogue,
    c7_split_softmax,
    c8_scaled_codes,
)
from ggmlq.errors import ShapeError

FOLDER = ROOT / "ggmlq" / "cuda" / "ladder" / "chapters"
WHOLE = {  # chapter: its product, and a shape
    "c1_swizzle, plain": (partial(c1_swizzle.product, layout="plain"), 64, 64, 256),
    "c1_swizzle, padded": (partial(c1_swizzle.product, layout="padded"), 128, 32, 128),
    "c1_swizzle, swizzled": (c1_swizzle.product, 64, 64, 256),
    "c2_boxes": (c2_boxes.product, 128, 128, 256),
    "c3_warp_specialized": (c3_warp_specialized.product, 64, 128, 640),  # more steps than stages
    "c4_multicast": (c4_multicast.product, 256, 128, 256),
    "c5_stream_k": (partial(c5_stream_k.product, blocks=5), 128, 128, 384),  # 12 units: none is a whole tile
    "c5_stream_k, few": (partial(c5_stream_k.product, blocks=2), 192, 64, 256),  # a tile and a half each
}


def codes(fresh, *shape):
    return fresh.integers(-128, 128, shape, dtype=np.int64).astype(np.int8)


@pytest.fixture
def emulated(monkeypatch):
    """A function that hands an array over to an emulated card."""
    state = put_emulated(monkeypatch)

    def hand(array):
        there = on_device(array)
        state.memory.add(there)
        return there

    return hand


def exact(x, w):
    return x.astype(np.int64) @ w.astype(np.int64).T


@pytest.mark.slow
@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_are_exact(name, fresh, emulated):
    product, m, n, k = WHOLE[name]
    x, w = codes(fresh, m, k), codes(fresh, n, k)
    np.testing.assert_array_equal(product(emulated(x), emulated(w)), exact(x, w))


@pytest.mark.cuda
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_are_exact_on_a_card(name, fresh, cupy):
    product, *_ = WHOLE[name]
    for m, n, k in ((128, 128, 256), (384, 512, 1152)):
        x, w = codes(fresh, m, k), codes(fresh, n, k)
        got = product(cupy.asarray(x), cupy.asarray(w)).get()
        np.testing.assert_array_equal(got, exact(x, w))


# --- FP8 with scales ----------------------------------------------------------------------------


def scaled_operands(fresh, m, n, k):
    """Codes and scales of x and w, and their product in float64."""
    values = CODES["e4m3"]
    x, w = (values.encode(fresh.standard_normal((rows, k)).astype(np.float32)) for rows in (m, n))
    x_scales, w_scales = (
        np.exp2(fresh.uniform(-4, 4, (rows, k // 128))).astype(np.float32) for rows in (m, n // 64)
    )
    left = values.decode(x).astype(np.float64) * np.repeat(x_scales.astype(np.float64), 128, axis=1)
    right = values.decode(w) * np.repeat(np.repeat(w_scales.astype(np.float64), 128, axis=1), 64, axis=0)
    sizes = np.abs(left) @ np.abs(right).T
    return (x.view(np.uint8), x_scales, w.view(np.uint8), w_scales), left @ right.T, sizes


def test_scaled_codes(fresh, emulated):
    """Products are exact there; a rounding of float32 for each of three groups, and one of two scales."""
    operands, want, sizes = scaled_operands(fresh, 64, 128, 384)
    got = c8_scaled_codes.product(*map(emulated, operands))
    assert (np.abs(got - want) <= 8 * 2.0**-24 * sizes).all()


@pytest.mark.cuda
def test_scaled_codes_on_a_card(fresh, cupy):
    """The tensor cores keep 14 bits of each sum of 128 products."""
    operands, want, sizes = scaled_operands(fresh, 192, 256, 1024)
    got = c8_scaled_codes.product(*map(cupy.asarray, operands)).get()
    assert (np.abs(got - want) <= 2.0**-11 * sizes).all()


def test_shares_are_all_units_in_order(fresh):
    units, count = (int(fresh.integers(1, 500)) for _ in range(2))
    parts = c5_stream_k.shares(units, count)
    assert [unit for part in parts for unit in part] == list(range(units))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_only_the_plain_layout_has_conflicts():
    for chunk in range(c1_swizzle.CHUNKS):
        clocks = {name: c1_swizzle.conflicts(name, chunk) for name in c1_swizzle.LAYOUTS}
        assert clocks == {"plain": 8, "padded": 1, "swizzled": 1}


@pytest.mark.parametrize("layout", c1_swizzle.LAYOUTS)
def test_no_two_chunks_share_a_place(layout):
    where = c1_swizzle.LAYOUTS[layout]
    places = [where(row, chunk) for row in range(96) for chunk in range(c1_swizzle.CHUNKS)]
    assert len(set(places)) == len(places)
    assert max(places) < where(96, 0)


# --- what follows a product ---------------------------------------------------------------------


def ending_operands(fresh, m, n, k):
    """Codes, scales and a bias; the results in float64, and the sizes of what was added for each."""
    x, w = codes(fresh, m, k), codes(fresh, n, k)
    x_scales, w_scales = (fresh.uniform(0.5, 2, rows).astype(np.float32) / k for rows in (m, n))
    bias = fresh.standard_normal(n).astype(np.float32)
    value = exact(x, w) * np.outer(x_scales.astype(np.float64), w_scales) + bias
    return (x, x_scales, w, w_scales, bias), np.maximum(value, 0), np.abs(value - bias) + np.abs(bias)


def check_ending(bits, want, sizes):
    """Results are rounded to 8 bits once, what they are made of a few times to 24."""
    got = (bits.astype(np.uint32) << 16).view(np.float32)
    assert (np.abs(got - want) <= 2.0**-8 * want + 2.0**-21 * sizes).all()


def test_epilogue(fresh, emulated):
    operands, *more = ending_operands(fresh, 64, 128, 128)
    check_ending(np.asarray(c6_epilogue.product(*map(emulated, operands))), *more)


@pytest.mark.cuda
def test_epilogue_on_a_card(fresh, cupy):
    operands, *more = ending_operands(fresh, 192, 320, 1024)
    check_ending(c6_epilogue.product(*map(cupy.asarray, operands)).get(), *more)


# --- attention ----------------------------------------------------------------------------------


def softmax_case(fresh, heads, positions, width):
    """Operands with large logits; the result in float64, and a bound for float32."""
    q = (8 * fresh.standard_normal((heads, width))).astype(np.float32)
    k, v = (fresh.standard_normal((heads, positions, width)).astype(np.float32) for _ in range(2))
    logits = np.einsum("hd,hsd->hs", q.astype(np.float64), k) / np.sqrt(width)
    sizes = np.einsum("hd,hsd->hs", np.abs(q).astype(np.float64), np.abs(k)) / np.sqrt(width)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    off = 2.0**-23 * (width + positions + 8 * sizes.max(1))  # relative: roundings of logits, and of sums
    most = np.einsum("hs,hsd->hd", p, np.abs(v))
    return (q, k, v), np.einsum("hs,hsd->hd", p, v.astype(np.float64)), off[:, None] * most


SIMULATION = """
import sys
import numpy as np
from numba import cuda
from ggmlq.cuda.ladder.chapters import c7_split_softmax as chapter

case = np.load(sys.argv[1])
q, k, v = (case[name] for name in "qkv")
parts, (heads, width) = int(sys.argv[2]), q.shape
maxima, sums = (np.zeros((heads, parts), np.float32) for _ in range(2))
outputs, y = np.zeros((heads, parts, width), np.float32), np.zeros((heads, width), np.float32)
scale = np.full(1, width**-0.5, np.float32)
cuda.jit(chapter.kernel().function)[(parts, heads), chapter.THREADS](q, k, v, maxima, sums, outputs, scale)
cuda.jit(chapter.joiner().function)[heads, chapter.THREADS](maxima, sums, outputs, y)
np.save(sys.argv[3], y)
"""


def test_split_softmax(fresh, tmp_path):
    """By Numba's simulator, in a process of its own."""
    (q, k, v), want, bound = softmax_case(fresh, 2, 11, 16)
    np.savez(tmp_path / "case.npz", q=q, k=k, v=v)
    words = [tmp_path / "case.npz", str(fresh.integers(1, 5)), tmp_path / "y.npy"]
    done = subprocess.run(
        [sys.executable, "-c", SIMULATION, *words],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert (np.abs(np.load(tmp_path / "y.npy") - want) <= bound).all()


@pytest.mark.cuda
@pytest.mark.parametrize("parts", [1, 7, 8])
def test_split_softmax_on_a_card(parts, fresh, cupy):
    operands, want, bound = softmax_case(fresh, 4, 1000, 128)
    got = c7_split_softmax.attention(*map(cupy.asarray, operands), parts=parts).get()
    assert (np.abs(got - want) <= bound).all()


# --- all of them --------------------------------------------------------------------------------

CHAPTERS = sorted(path.stem for path in FOLDER.glob("c[0-9]*.py"))


def test_nothing_of_the_package_imports_a_chapter():
    """So chapters can be changed or dropped alone; ``ggmlq ladder page`` reads their text."""
    for path in (ROOT / "ggmlq").rglob("*.py"):
        if path.parent != FOLDER:
            assert not re.search(r"(import|from) [\w., ]*\bladder\.?c\d", path.read_text("utf-8")), path


@pytest.mark.slow
@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_becomes_machine_code(name):
    """Without a register in memory, and without what the assembler would ignore or put in a row."""
    for family_name, family in families().items():
        if family_name.startswith(f"ggmlq.cuda.ladder.chapters.{name}."):
            for case in family.cases:
                kernel = family.make(*case)
                _, said = kernel.linked(max(kernel.least, (8, 0))) if kernel.lto else (b"", "")
                if kernel.lto:
                    assert not re.search(r"C7\d\d\d|warning", said), said
                    assert "0 bytes stack frame, 0 bytes spill stores" in said
                else:
                    assert kernel.assemble((8, 0))[1].stack == 0, kernel


def test_shapes_that_do_not_fit():
    x, w = np.zeros((64, 128), np.int8), np.zeros((96, 128), np.int8)
    with pytest.raises(ShapeError, match=r"M is a multiple of 64, N of 64; pad the operands with zeros"):
        c2_boxes.product(x, w)
    with pytest.raises(ShapeError, match=r"x \(int32\) and w \(int8\): both hold codes of a byte"):
        c2_boxes.product(x.astype(np.int32), w)
    with pytest.raises(ShapeError, match="row after row"):
        c3_warp_specialized.product(np.zeros((128, 64), np.int8).T, w)
    q, k = np.zeros((2, 8), np.float32), np.zeros((2, 3000, 8), np.float32)
    with pytest.raises(ShapeError, match=r"a part has 1 to 1024 of them; pass parts=8"):
        c7_split_softmax.attention(q, k, k, parts=2)
    with pytest.raises(ShapeError, match=r"k and v are \[H, S, D\]"):
        c7_split_softmax.attention(q, k, k[:, :5])
