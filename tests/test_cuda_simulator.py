"""Rungs without instructions of a warp, run by Numba's simulator: their logic, on tiny shapes.

The simulator is chosen when Numba is imported, so it has a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")

PROGRAM = """
import sys
import numpy as np
from numba import cuda
import ggmlq as gq
from ggmlq.cuda.linear import r0_naive_f32, r1_naive, r2_tiled, r4_dp4a
from ggmlq.formats import FORMATS
from ggmlq.reference import linear, row_errors
from ggmlq.reference.operands import activations
from ggmlq.testing.cases import weights

name, m, n, k, seed = sys.argv[1], *map(int, sys.argv[2:])
fmt = FORMATS[name]
q = weights(fmt, n, k, seed)
x = np.random.default_rng(seed).standard_normal((m, k)).astype(np.float32)
blocks = q.raw.copy().reshape(n, -1, fmt.dtype.itemsize)


def check(rung, kernel, grid, *operands):
    y = np.full((m, n), np.nan, np.float32)
    cuda.jit(kernel.function)[grid, (16, 16)](*operands, y)
    error = row_errors(y, linear(x, q, rung.arithmetic), x, q).max()
    assert error <= {"f32": 1e-10, "int32": 1e-11}[rung.accumulate], (rung.name, error)


def padded(a, rows, columns):
    full = np.zeros((rows, columns), a.dtype)
    full[: a.shape[0], : a.shape[1]] = a
    return full


grid = (-(-n // 16), -(-m // 16))
check(r0_naive_f32.launch, r0_naive_f32.kernel(fmt), grid, x, blocks)
if fmt in r1_naive.SIMPLE:
    a = activations(x, fmt, "ggml-mmvq")
    x8 = np.zeros((m, k // 32), FORMATS["q8_1"].dtype)
    x8["d"], x8["s"], x8["qs"] = a.scale, a.sums, a.codes.reshape(m, -1, 32)
    check(r1_naive.launch, r1_naive.kernel(fmt), grid, x8.view(np.uint8).reshape(m, -1, 36), blocks)
a = activations(x, fmt, "q8")
codes, scale = padded(a.codes, 128, 128), padded(a.scale.T.astype(np.float32), 4, 128)
check(r2_tiled.launch, r2_tiled.kernel(fmt), grid, codes, scale, blocks)
if not fmt.has_offset:
    run = min(fmt.group, 32)
    parts = fmt.unpack(q.blocks)
    w = padded(parts.codes.reshape(n, k), 128, 128)
    by_run = parts.scale.reshape(n, -1).repeat(fmt.group // run, axis=1)
    dw = padded(by_run.T, 128 // run, 128)
    check(r4_dp4a.launch, r4_dp4a.kernel(run), grid, codes.view("i4"), scale, w.view("i4"), dw)
"""


@pytest.mark.parametrize(
    ("name", "m", "n", "k"),
    [("q4_0", 1, 3, 64), ("q8_0", 2, 17, 32), ("mxfp4", 2, 2, 96), ("nvfp4", 3, 2, 64)],
)
def test_rungs(name, m, n, k):
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    arguments = [name, *map(str, (m, n, k, os.getpid()))]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"{arguments}: {run.stderr[-3000:]}"
