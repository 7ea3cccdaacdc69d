"""Run by test_cuda_packed in Numba's simulator: what the warps of cuda:gemv make of one span of fragments.

    python tests/simulated_warp.py SEED FORMAT,COLUMNS,SPAN ...

A block of 32 threads is a warp; its tensor cores wait for all lanes and multiply in float64.
"""

import sys
import threading

import numpy as np
import simulated_packed
from numba import cuda
from simulated_packed import FORMATS, READ, exact, packed

from ggmlq.testing.cases import weights

GIVEN, ALL = [None] * 32, threading.Barrier(32)


def both(bits):
    return np.array([int(bits) << 16 & 0xFFFFFFFF, int(bits) & 0xFFFF0000], np.uint32).view(np.float32)


def mma(a0, a1, a2, a3, b0, b1, *start):
    lane = cuda.threadIdx.x
    GIVEN[lane] = a0, a1, a2, a3, b0, b1
    ALL.wait()
    g, t = divmod(lane, 4)
    found = []
    for i in range(4):
        total = np.float64(start[i])
        for k in range(4):
            a, b = GIVEN[4 * g + k], GIVEN[4 * (2 * t + i % 2) + k]
            for half in range(2):
                total += both(a[i // 2 + 2 * half]).astype(np.float64) @ both(b[4 + half])
        found.append(np.float32(total))
    ALL.wait()
    return tuple(found)


def check(fmt, columns, span, seed):
    from ggmlq.cuda.gemv import by_runs, stages
    from ggmlq.cuda.linear import r13_gemv
    from ggmlq.cuda.packed import layout

    stage, k = stages.GemvStage(layout.layout_of(fmt), columns, span), max(128, fmt.block_size)
    q = weights(fmt, 32, k, seed)
    fragments = packed(q.raw.copy().reshape(32, -1, fmt.dtype.itemsize), fmt)[:, :span]
    x = np.random.default_rng(seed).integers(-8, 9, (columns, 64 * span)).astype(np.float32)
    READ.bytes = np.zeros(stage.length, np.uint8)
    READ.bytes[: fragments.size] = fragments.reshape(-1)
    pitched = READ.bytes[fragments.size :].reshape(columns, stage.pitch)
    pitched[:, : stage.row_bytes] = x.view(np.uint8)
    assert 2 * stage.size == fragments.size
    spreads = by_runs.serves(stage)
    multiply = (by_runs if spreads else r13_gemv).multiplier(stage)
    found = np.zeros((32, 8), np.float32)

    def run(found):
        sums = cuda.local.array(8, np.float32)
        for i in range(8):
            sums[i] = 0
        multiply(np.uint32(0), np.uint32(cuda.threadIdx.x), np.uint32(0), sums, np.uint32(0))
        for i in range(8):
            found[cuda.threadIdx.x, i] = sums[i]

    cuda.jit(run)[1, 32](found)
    by = found.reshape(8, 4, 2, 2, 2)  # g, t, fragment row, row g or g + 8, column
    rows = by.transpose(2, 3, 0, 1, 4).reshape(32, 4, 2)
    if spreads:  # lanes that have the same rows
        rows = rows.reshape(32, 4 // -(-columns // 2), -1).sum(axis=1)
    y = rows.reshape(32, -1).T[:columns]
    want = x @ exact(q)[:, : 64 * span].T
    error = np.abs(y - want).max() / np.abs(want).max()
    assert error < 1e-4, (fmt.name, columns, span, error)


def main():
    from ggmlq.cuda.intrinsics import bf16x2, ptx

    simulated_packed.patch()
    bf16x2.mma, ptx.take_floats = mma, lambda address: READ.bytes[int(address) :][:16].view(np.float32)
    for asked in sys.argv[2:]:
        name, columns, span = asked.split(",")
        check(FORMATS[name], int(columns), int(span), int(sys.argv[1]))


if __name__ == "__main__":
    main()
