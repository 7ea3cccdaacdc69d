"""Strips: how many bytes they take, that no code gets lost, and that a lane finds its own again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")

import ggmlq as gq
from ggmlq.cuda import pairs
from ggmlq.cuda.strips import STEP, layout, stored
from ggmlq.formats import FORMATS, BlockFormat
from ggmlq.testing.blocks import random_blocks
from ggmlq.testing.rows import rows

BLOCKS = [fmt for fmt in FORMATS.values() if isinstance(fmt, BlockFormat)]
LEAN = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4"]
SEED = int(np.random.default_rng().integers(1 << 31))

# In a process of its own, for the simulator is chosen when Numba is imported: what the kernel that
# makes strips does with the codes of a lane, and what the products do with its words.
PROGRAM = """
import sys
import numpy as np
from ggmlq.cuda import fragments, strips
from ggmlq.formats import FORMATS, BlockFormat

rng = np.random.default_rng(int(sys.argv[1]))
for fmt in FORMATS.values():
    if not isinstance(fmt, BlockFormat):
        continue
    kept = strips.layout(fmt)
    raw = rng.integers(0, 256, (64, fmt.dtype.itemsize), np.uint8)
    with np.errstate(all="ignore"):
        codes = rng.choice(fmt.unpack(raw.view(fmt.dtype)[:, 0]).codes.ravel(), (4, 4, 2))
    words = [np.uint32(0)] * kept.bits
    for s in range(4):
        for r in range(4):
            for e in range(2):
                u = np.uint32(strips.stored(kept)[codes[s, r, e].view(np.uint8)])
                strips.placer(kept)(words, s, r, e, u)
    for raised in (False, True):
        too_much = -(fragments.zero_of(kept) >> 16 << 16) if raised else 0
        zero = np.uint32(fragments.zero_of(kept) & 0xFFFF0000).view(np.float32) if raised else 0
        for s in range(4):
            a = [None] * 4
            fragments.fragment_of(kept, raised)(words, s, a, np.uint32(0))
            for r in range(4):
                found = np.array([int(a[r]) << 16 & 0xFFFFFFFF, int(a[r]) & 0xFFFF0000], np.uint32)
                assert (found.view(np.float32) + zero == codes[s, r] - kept.middle).all(), (fmt.name, s, r)
"""


def weights(name, n, k):
    fmt = FORMATS[name]
    return gq.QuantArray.from_bytes(random_blocks(fmt, n, k // fmt.block_size, SEED), fmt, (n, k))


@pytest.mark.parametrize("name", LEAN)
def test_little_more_than_the_file(name):
    fmt = FORMATS[name]
    assert layout(fmt).record <= 1.13 * 16 * STEP * fmt.dtype.itemsize / fmt.block_size


@pytest.mark.parametrize("fmt", BLOCKS, ids=lambda fmt: fmt.name)
def test_a_record_is_whole_copies(fmt):
    kept = layout(fmt)
    assert kept.record % 16 == 0
    assert kept.scales_at == 128 * kept.bits
    assert kept.run in (16, 32)


@pytest.mark.parametrize("fmt", BLOCKS, ids=lambda fmt: fmt.name)
def test_every_code_has_a_place(fmt):
    """Blocks of any bytes hold no code that their layout does not know."""
    kept = layout(fmt)
    raw = np.random.default_rng(SEED).integers(0, 256, (2000, fmt.dtype.itemsize), np.uint8)
    with np.errstate(all="ignore"):
        codes = np.unique(fmt.unpack(raw.view(fmt.dtype)[:, 0]).codes)
    found = stored(kept)[codes.view(np.uint8)]
    assert len(set(found.tolist())) == len(codes)
    assert found.max() < 1 << kept.bits


def test_words_and_back():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-c", PROGRAM, str(SEED)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"seed {SEED}: {run.stderr}"


SHAPES = [("q4_0", 20, 96), ("q8_0", 17, 32), ("mxfp4", 3, 160), ("q5_1", 3, 96), ("q6_K", 2, 256)]
ANY = (BLOCKS[SEED % len(BLOCKS)].name, 2, 256)


@pytest.mark.parametrize(("name", "n", "k"), [*SHAPES, ("q3_K", 2, 256), ANY])
def test_strips_hold_the_weights(name, n, k):
    """Of rows that are no whole strip, and columns that are no whole record; against the oracle's weights."""
    program = Path(__file__).parent / "simulated_strips.py"
    command = [sys.executable, str(program), name, str(n), str(k), str(SEED)]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"seed {SEED}: {run.stderr}"


def test_pairs():
    assert pairs.narrowed.meaning(1.0, -2.0) == pairs.pair(1.0) & 0xFFFF | pairs.pair(-2.0) & 0xFFFF0000
    three = pairs.fma.meaning(np.uint32(pairs.pair(2)), pairs.ONES, np.uint32(pairs.pair(1)))
    assert three == pairs.pair(3)
    assert (
        pairs.permute.meaning(np.uint32(0x03020100), np.uint32(0x07060504), np.uint32(0x7362)) == 0x07030602
    )


# --- on a GPU ---------------------------------------------------------------------------------

RUNGS = ["cuda:gemv", "cuda:mma_bf16", "cuda:wgmma"]


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
    q = weights("q6_K", 48, 512)
    x = rows("normal", 4, 512, SEED) * np.float32(scale)
    y = gq.linear(cupy.asarray(x), q.to("cuda"), kernel=rung).get()
    assert gq.nmse(y, gq.reference.linear(x, q)) < 2e-5


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["q4_0", "q8_0", "mxfp4", "q4_K", "q6_K", "q2_K", "iq2_xs"])
@pytest.mark.parametrize("m", [1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 257])
def test_borders_between_kernels(name, m, cupy):
    """At each number of rows where another kernel begins, no worse than llama.cpp on the same data."""
    q, x = weights(name, 144, 1536), rows("normal", m, 1536, SEED)
    exact = gq.reference.linear(x, q)
    theirs = gq.nmse(gq.reference.linear(x, q, "ggml-mmq"), exact)
    device, given = q.to("cuda"), cupy.asarray(x)
    for kernel in ["auto", *RUNGS]:
        if kernel != "cuda:gemv" or m <= 32:
            y = gq.linear(given, device, kernel=kernel).get()
            assert gq.nmse(y, exact) <= theirs, kernel
