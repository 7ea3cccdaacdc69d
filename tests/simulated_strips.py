"""Run by test_cuda_strips in Numba's simulator: the kernels that make strips, and what products read of them.

    python tests/simulated_strips.py FORMAT N K SEED

Device memory is an array here, and an address is a place in it.
"""

import sys

import numpy as np

import ggmlq as gq
from ggmlq.formats import FORMATS
from ggmlq.reference import weights as held
from ggmlq.testing.blocks import random_blocks


def main():
    from numba import cuda

    from ggmlq.cuda import fragments, ptx, strips

    name, n, k, seed = sys.argv[1], *map(int, sys.argv[2:])
    fmt, kept = FORMATS[name], strips.layout(FORMATS[name])
    q = gq.QuantArray.from_bytes(random_blocks(fmt, n, k // fmt.block_size, seed), fmt, (n, k))
    blocks = q.raw.copy().reshape(n, -1, fmt.dtype.itemsize)
    count, steps = -(-n // 16), -(-k // 64)
    factors = np.ones(16 * count, np.float32)
    records = np.zeros(count * steps * kept.record, np.uint8)

    def put(dtype):
        def store(address, value):
            records[int(address) : int(address) + np.dtype(dtype).itemsize].view(dtype)[0] = value

        return store

    def put_factor(address, value):
        factors[int(address) // 4] = value

    ptx.store4, ptx.store2, ptx.store_float = put("<u4"), put("<u2"), put_factor
    ptx.load_float = lambda address: factors[int(address) // 4]
    cuda.jit(strips.factor_kernel(fmt).function)[n, strips.THREADS](blocks, 0)
    grid = (count, -(-32 * steps // strips.THREADS))
    cuda.jit(strips.strip_kernel(fmt).function)[grid, strips.THREADS](blocks, 0, 0, steps)

    found = np.full((16 * count, 64 * steps), np.nan)
    fragment = fragments.fragment_of(kept)
    for strip in range(count):
        for step in range(steps):
            record = records.reshape(count, steps, -1)[strip, step]
            scales = record[kept.scales_at :].view("<f2").astype(np.float64).reshape(8, 2, kept.scales)
            for lane in range(32):
                g, t = divmod(lane, 4)
                words = []
                wide = 4 * (kept.low == 8)
                for at, bits in ((0, min(kept.low, 4)), (512, wide), (kept.high_at, kept.high)):
                    words += [record[at + 4 * (bits * lane + i) :][:4].view("<u4")[0] for i in range(bits)]
                for s in range(4):
                    a = [None] * 4
                    fragment(words, s, a, np.uint32(0))
                    for r in range(4):
                        pair = np.array([int(a[r]) << 16 & 0xFFFFFFFF, int(a[r]) & 0xFFFF0000], np.uint32)
                        run, row = 16 * s // kept.run, 16 * strip + g + 8 * (r % 2)
                        value = pair.view(np.float32) * scales[g, r % 2, run]
                        if kept.has_offset:
                            value = value - scales[g, r % 2, kept.runs + run]
                        column = 64 * step + 16 * s + 4 * t + 2 * (r // 2)
                        found[row, column : column + 2] = value * factors[row]
    assert not found[n:].any()
    assert not found[:, k:].any()
    want = held(q, "bf16x").values
    error = np.abs(found[:n, :k] - want).max(axis=1) / np.abs(want).max(axis=1)
    assert error.max() < 1e-6, error.max()


if __name__ == "__main__":
    main()
