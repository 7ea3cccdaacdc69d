"""The GPU kernel that reads memory, for its roof."""

from __future__ import annotations

from typing import Any

from ..cuda.driver import device
from ..cuda.driver.launch import Kernel, family
from ..cuda.intrinsics import ptx
from ..cuda.intrinsics.language import cuda, int32, uint32, uint64

THREADS, BLOCKS, LOADS = 256, 4, 8  # of a block; blocks of a multiprocessor; loads in flight a thread
NEVER = 0x5EED  # a total that the bytes do not have: so the store below never happens


@family()
def reader() -> Kernel:
    """The kernel that reads memory: a thread loads 8 times 16 bytes a step, next to its neighbours."""
    load16, store4 = ptx.load16, ptx.store4

    def read(source: Any, total_out: Any, steps: Any) -> None:
        thread = uint64(cuda.blockIdx.x) * uint64(THREADS) + uint64(cuda.threadIdx.x)
        stride = uint64(cuda.gridDim.x) * uint64(16 * THREADS)
        at, total = source + thread * uint64(16), int32(0)
        for _ in range(steps):
            a, b, c, d = load16(at), load16(at + stride), load16(at + 2 * stride), load16(at + 3 * stride)
            at += 4 * stride
            e, f, g, h = load16(at), load16(at + stride), load16(at + 2 * stride), load16(at + 3 * stride)
            at += 4 * stride
            total ^= a[0] ^ b[1] ^ c[2] ^ d[3] ^ e[0] ^ f[1] ^ g[2] ^ h[3]
        if total == int32(NEVER):
            store4(total_out, uint32(total))

    return Kernel("read memory", read, uint64, uint64, uint32, threads=THREADS, blocks=BLOCKS)


def read(memory: Any) -> int:
    """Read an array from its beginning, in whole steps; the number of bytes that were read."""
    grid = BLOCKS * device.multiprocessors()
    steps = memory.nbytes // (16 * THREADS * LOADS * grid)
    reader()((grid,), (THREADS,), memory, memory, steps)
    return int(16 * THREADS * LOADS * grid * steps)
