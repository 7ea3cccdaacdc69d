"""Activations as halves, each row times a power of two, so that sums of halves do not overflow.

    halves   float16 [m, k]: the row's largest is below 2**top
    factors  float32 [m, rounded up to whole tiles]: what a row's results are multiplied with

A power of two changes no bit of a half but where one falls below the least normal one: 2**-14, that is
2**-(14 + top) of the row's largest. The largest of a row with infinity or NaN counts as 2**128.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..intrinsics import codes, dependent_launch, halves, ptx
from ..intrinsics.address import address
from ..intrinsics.floats import KINDS, LEAST
from ..intrinsics.lane import ALL_LANES, warp_and_lane
from ..intrinsics.language import cuda, int32, uint32, uint64
from ..machine.launch import Kernel, family
from ..machine.recorded import between
from .code_tiles import four_loader
from .x_tiles import readable_rows

THREADS, FOUR = 512, 4  # of a block, which serves a row; values of a thread at a time
BELOW, MOST = 253, 253  # the exponent's bits of 1 over the largest's power of two; the most that are taken
SIGN_OFF = 254  # exponent's bits of a power of two and of its inverse, together


@family((kind,) for kind in KINDS)
def half_row_kernel(kind: str) -> Kernel:
    """The kernel from floats of a kind to halves and factors: block (row)."""
    load, size, store8, store_float = four_loader(kind), KINDS[kind], codes.store8, ptx.store_float
    size_of, mul, float_of, narrowed = codes.size_of, ptx.mul, ptx.float_of, halves.narrowed
    take_turn, warps = dependent_launch.take_turn, THREADS // 32

    def scale(
        x: Any,  # of the kind [m, k]
        rows: Any,  # float16 [m, k]
        factors: Any,  # float32 [m]
        k: Any, top: Any,
    ) -> None:  # fmt: skip
        take_turn()
        row, (warp, lane), largest = uint32(cuda.blockIdx.x), warp_and_lane(), uint32(0)
        column, apart = uint32(uint32(cuda.threadIdx.x) * uint32(FOUR)), uint32(THREADS * FOUR)
        at = column
        while at < k:
            v = load(address(x, row, k, at, size))
            largest = max(largest, size_of(v[0]), size_of(v[1]), size_of(v[2]), size_of(v[3]))
            at = uint32(at + apart)
        for step in (16, 8, 4, 2, 1):
            largest = max(largest, uint32(cuda.shfl_xor_sync(ALL_LANES, int32(largest), step)))
        all_largest = cuda.shared.array(warps, uint32)
        if lane == uint32(0):
            all_largest[warp] = largest
        cuda.syncthreads()
        for i in range(warps):
            largest = max(largest, uint32(all_largest[i]))
        up = min(max(int32(top + int32(BELOW) - int32(largest >> uint32(23))), int32(1)), int32(MOST))
        factor = float_of(uint32(uint32(up) << uint32(23)))
        at = column
        while at < k:
            v = load(address(x, row, k, at, size))
            low, high = (
                narrowed(mul(v[0], factor), mul(v[1], factor)),
                narrowed(mul(v[2], factor), mul(v[3], factor)),
            )
            store8(address(rows, row, k, at, 2), low, high)
            at = uint32(at + apart)
        if uint32(cuda.threadIdx.x) == uint32(0):
            store_float(
                factors + uint64(row) * uint64(4),
                float_of(uint32(uint32(int32(SIGN_OFF) - up) << uint32(23))),
            )

    parameters = (uint64, uint64, uint64, uint32, int32)
    return Kernel(
        f"{kind} to halves times powers of two", scale, *parameters, threads=THREADS,
        least=LEAST["bfloat16"], early=True,
    )  # fmt: skip


def half_rows_of(x: Any, rows: int, top: int) -> tuple[Any, Any]:
    """Halves of rows of floats, below 2**top, and their factors, of whole tiles of ``rows``."""
    x, kind = readable_rows(x)
    m, k = x.shape
    y, factors = between((m, k), np.float16), between((-(-m // rows) * rows,), np.float32)
    half_row_kernel(kind)((m,), (THREADS,), x, y, factors, k, top)
    return y, factors
