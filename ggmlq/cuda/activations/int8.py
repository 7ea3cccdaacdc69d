"""Rows of floats as int8 codes with a scale for each 32: the activations of the arithmetic ``q8``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..intrinsics import ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.codes import four_bytes, size_of
from ..intrinsics.lane import ALL_LANES
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.device import cupy
from ..machine.launch import Kernel, family
from ..unpacked.layout import Unpacked, padded
from .floats import aligned_floats

THREADS = 256


@inlined
def place_of_row(row: Any) -> Any:
    """The place of a row's scale as ``mma`` wants it: rows r, r + 8, r + 16, r + 24 of 32 side by side."""
    return (row & ~uint32(31)) | (row & uint32(7)) << uint32(2) | (row >> uint32(3)) & uint32(3)


@inlined
def as_it_is(row: Any) -> Any:
    return row


@inlined
def largest_size(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    """The largest magnitude among four values of each of eight threads; NaN if there is one."""
    size = max(size_of(v0), size_of(v1), size_of(v2), size_of(v3))
    for step in (4, 2, 1):
        size = max(size, uint32(cuda.shfl_xor_sync(ALL_LANES, int32(size), step)))
    return ptx.float_of(size)


@family((run, for_mma) for run in (16, 32) for for_mma in (False, True))
def activation_kernel(run: int, for_mma: bool) -> Kernel:
    """The kernel that quantizes: eight threads serve 32 neighbours, four each."""
    place = place_of_row if for_mma else as_it_is
    load_floats, store4, store_float = ptx.load_floats, ptx.store4, ptx.store_float
    mul, div, nearest_even = ptx.mul, ptx.div, ptx.nearest_even
    steps = (2, 1) if run == 16 else (4, 2, 1)

    @inlined
    def code(value: Any, per: Any) -> Any:
        return min(max(nearest_even(mul(value, per)), int32(-127)), int32(127))

    def quantize(
        x: Any,  # float32 [m, k]
        codes: Any,  # int8 [rows, columns]
        scales: Any,  # float32 [columns / 32, rows]
        sums: Any,  # float32 [columns / run, rows]
        k: Any, rows: Any, columns: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.blockIdx.y) * uint32(THREADS) + uint32(cuda.threadIdx.x)
        column, row = thread * uint32(4), uint32(cuda.blockIdx.x)
        live = column < k
        v0 = v1 = v2 = v3 = float32(0)
        if live:
            v0, v1, v2, v3 = load_floats(address(x, row, k, column, 4))
        largest = largest_size(v0, v1, v2, v3)
        d, per = div(largest, float32(127)), div(float32(127), largest)
        if size_of(largest) == uint32(0):
            per = float32(0)
        q0, q1, q2, q3 = code(v0, per), code(v1, per), code(v2, per), code(v3, per)
        total = int32(int32(q0 + q1) + int32(q2 + q3))
        for step in steps:
            total = int32(total + cuda.shfl_xor_sync(ALL_LANES, total, step))
        if live:
            store4(address(codes, row, columns, column, 1), four_bytes(q0, q1, q2, q3))
            if column % uint32(run) == uint32(0):
                store_float(address(sums, column // uint32(run), rows, row, 4), mul(d, float32(total)))
                if column % uint32(32) == uint32(0):
                    store_float(address(scales, column // uint32(32), rows, place(row), 4), d)

    parameters = (uint64, uint64, uint64, uint64, uint32, uint32, uint32)
    name = f"activations in runs of {run}{' for mma' if for_mma else ''}"
    return Kernel(name, quantize, *parameters, threads=THREADS)


def activations(x: Any, run: int, for_mma: bool = False) -> Unpacked:
    """Rows x [M, K] of floats as unpacked codes, for weights in runs of ``run``; ``scale`` is always by 32.

    ``for_mma``: scales in the order of :func:`place_of_row`.
    """
    cp, (m, k) = cupy(), x.shape
    rows, columns = padded(m), padded(k)
    make = cp.empty if columns == k else cp.zeros
    codes = cp.empty((rows, columns), np.int8)
    scale = make((columns // 32, rows), np.float32)
    sums = make((columns // run, rows), np.float32)
    grid = (m, -(-k // (4 * THREADS)))
    activation_kernel(run, for_mma)(grid, (THREADS,), aligned_floats(x), codes, scale, sums, k, rows, columns)
    return Unpacked(codes, scale, sums, run)
