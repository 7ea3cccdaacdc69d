"""The kernel that takes the offsets of unpacked weights off a finished product of codes and scales."""

from __future__ import annotations

from typing import Any

from ..intrinsics import ptx
from ..intrinsics.address import address
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine.launch import Kernel, family
from .layout import Unpacked

ROWS, COLUMNS, SLICES = 8, 32, 8  # outputs of a block, and threads that share the runs of one
PARTIAL = (SLICES, ROWS, COLUMNS)


@family()
def compensation_kernel() -> Kernel:
    """The kernel that takes Σ sums · offset off each output: a product of 1/32 (1/16) of the size."""
    load_floats, load_float, store_float = ptx.load_floats, ptx.load_float, ptx.store_float

    def compensate(
        sums: Any,  # float32 [runs, m_rows]
        offsets: Any,  # float32 [runs, n_rows]
        y: Any,  # float32 [m, n]
        m: Any, n: Any, runs: Any, m_rows: Any, n_rows: Any,
    ) -> None:  # fmt: skip
        partials = cuda.shared.array(PARTIAL, float32)
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        column, row = uint32(cuda.blockIdx.x) * uint32(COLUMNS) + tx, uint32(cuda.blockIdx.y) * uint32(ROWS)
        total = cuda.local.array(ROWS, float32)
        for i in range(ROWS):
            total[i] = float32(0)
        for r in range(ty, runs, uint32(SLICES)):
            offset = load_float(address(offsets, r, n_rows, column, 4))
            for four in range(2):
                i = 4 * four
                v = load_floats(address(sums, r, m_rows, uint64(row) + uint64(i), 4))
                total[i] += offset * v[0]
                total[i + 1] += offset * v[1]
                total[i + 2] += offset * v[2]
                total[i + 3] += offset * v[3]
        for i in range(ROWS):
            partials[ty, i, tx] = total[i]
        cuda.syncthreads()
        sum_of_slices = float32(0)
        for i in range(SLICES):
            sum_of_slices += partials[i, ty, tx]
        if row + ty < m and column < n:
            at = address(y, row + ty, n, column, 4)
            store_float(at, load_float(at) - sum_of_slices)

    parameters = (uint64,) * 3 + (uint32,) * 5
    return Kernel("compensation", compensate, *parameters, threads=COLUMNS * SLICES)


def compensate(y: Any, a: Unpacked, w: Unpacked) -> None:
    """Take the offsets of the weights off a product."""
    if w.extra is not None:
        (m, n), (runs, n_rows), m_rows = y.shape, w.extra.shape, a.extra.shape[1]
        grid = (-(-n // COLUMNS), -(-m // ROWS))
        sizes = (m, n, runs, m_rows, n_rows)
        compensation_kernel()(grid, (COLUMNS, SLICES), a.extra, w.extra, y, *sizes)
