"""Operands of int8 kernels as planes: codes in one array, scales in another.

Blocks of 18 or 34 bytes cannot be loaded with wide instructions. So codes go into a matrix of bytes
and scales into a matrix of floats, by column of blocks; both padded to whole tiles, so that kernels
load without a check. Codes in the padding may be anything, its scales are 0.

    codes   int8     [rows', k']          rows' and k' are multiples of 128
    scale   float32  [k' / run, rows']    run: 16 or 32 elements
    offset  float32  [k' / run, rows']    weights with an offset
    sums    float32  [k' / run, rows']    activations for those: scale times the sum of the codes

Weights keep their planes as long as the array lives (9 bits a weight, or 10 with runs of 16).
Activations are quantized as the arithmetic q8 says: x * (127 / amax) of 32, to nearest even.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..array import QuantArray
from ..formats import BlockFormat
from ..ladder import Problem
from . import ptx
from .atoms import atoms, inlined
from .convert import aligned_floats
from .dequantize import BLOCK_FORMATS
from .device import cupy
from .language import cuda, float32, int32, int64, uint8, uint32, uint64
from .launch import Kernel, array, family
from .quantize._block import EVERYONE, four_bytes, largest_size, size_of

TILE, THREADS = 128, 256
MOST = 8 * 65535  # rows of activations: a grid has 65535 rows of blocks, of 8 rows each or more


@dataclass(frozen=True)
class Planes:
    """One operand; see the head of the file."""

    codes: Any
    scale: Any
    extra: Any  # offset or sums, or None
    run: int


def padded(n: int) -> int:
    """So many rows or columns, in whole tiles."""
    return -(-n // TILE) * TILE


def run_of(fmt: BlockFormat) -> int:
    """Elements of a run: a group, but not more than share a scale of the activations."""
    return min(fmt.group, 32)


def refuses(problem: Problem) -> str | None:
    """Why planes do not serve a problem, or None: the ``refuses`` of rungs that work on them."""
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > MOST:
        return f"takes up to {MOST} rows of activations"
    return None


# --- weights ----------------------------------------------------------------------------------


@family((fmt,) for fmt in BLOCK_FORMATS)
def weight_kernel(fmt: BlockFormat) -> Kernel:
    """A thread unpacks 16 neighbours; it always lies within a run."""
    code, scale, offset = atoms(fmt)
    size, group, run, has_offset = fmt.block_size, fmt.group, run_of(fmt), fmt.has_offset
    store16, store_float = ptx.store16, ptx.store_float

    def unpack(blocks: Any, codes: Any, scales: Any, offsets: Any, rows: Any, columns: Any) -> None:
        column = (uint32(cuda.blockIdx.y) * uint32(THREADS) + uint32(cuda.threadIdx.x)) * uint32(16)
        row = uint32(cuda.blockIdx.x)
        if column < uint32(blocks.shape[1] * size):
            block = blocks[row, column // uint32(size)]
            i = int64(column % uint32(size))
            words = cuda.local.array(4, uint32)
            for w in range(4):
                word = uint32(0)
                for j in range(4):
                    word |= (uint32(code(block, i + 4 * w + j)) & uint32(255)) << uint32(8 * j)
                words[w] = word
            at = uint64(row) * uint64(columns) + uint64(column)
            store16(codes + at, words[0], words[1], words[2], words[3])
            if column % uint32(run) == uint32(0):
                at = (uint64(column // uint32(run)) * uint64(rows) + uint64(row)) * uint64(4)
                store_float(scales + at, scale(block, i // group))
                if has_offset:
                    store_float(offsets + at, offset(block, i // group))

    parameters = (array(uint8, 3), uint64, uint64, uint64, uint32, uint32)
    return Kernel(f"planes of {fmt.name}", unpack, *parameters, threads=THREADS)


def weights(q: QuantArray) -> Planes:
    """The planes of an array [N, K] on its device; made once and kept with it."""
    found: Planes = q.prepared(unpacked)
    return found


def unpacked(q: QuantArray) -> Planes:
    """The planes of an array [N, K], made now."""
    cp, fmt, (n, k) = cupy(), q.format, q.shape
    assert isinstance(fmt, BlockFormat)
    rows, columns, run = padded(n), padded(k), run_of(fmt)
    codes = cp.empty((rows, columns), np.int8)
    scale = cp.zeros((columns // run, rows), np.float32)
    offset = cp.zeros_like(scale) if fmt.has_offset else None
    blocks = q.raw.reshape(n, k // fmt.block_size, fmt.dtype.itemsize)
    grid = (n, -(-k // (16 * THREADS)))
    weight_kernel(fmt)(
        grid, (THREADS,), blocks, codes, scale, scale if offset is None else offset, rows, columns
    )
    return Planes(codes, scale, offset, run)


# --- activations ------------------------------------------------------------------------------


@inlined
def place_of_row(row: Any) -> Any:
    """Where ``mma`` wants the scale of a row: rows r, r + 8, r + 16, r + 24 of 32 side by side."""
    return (row & ~uint32(31)) | (row & uint32(7)) << uint32(2) | (row >> uint32(3)) & uint32(3)


@inlined
def as_it_is(row: Any) -> Any:
    return row


@family((run, for_mma) for run in (16, 32) for for_mma in (False, True))
def activation_kernel(run: int, for_mma: bool) -> Kernel:
    """Eight threads serve 32 neighbours, four each."""
    place = place_of_row if for_mma else as_it_is
    load_floats, store4, store_float = ptx.load_floats, ptx.store4, ptx.store_float
    mul, div, nearest_even = ptx.mul, ptx.div, ptx.nearest_even
    steps = (2, 1) if run == 16 else (4, 2, 1)

    @inlined
    def code(value: Any, per: Any) -> Any:
        return min(max(nearest_even(mul(value, per)), int32(-127)), int32(127))

    def quantize(x: Any, codes: Any, scales: Any, sums: Any, k: Any, rows: Any, columns: Any) -> None:
        thread = uint32(cuda.blockIdx.y) * uint32(THREADS) + uint32(cuda.threadIdx.x)
        column, row = thread * uint32(4), uint32(cuda.blockIdx.x)
        live = column < k
        v0 = v1 = v2 = v3 = float32(0)
        if live:
            v0, v1, v2, v3 = load_floats(x + (uint64(row) * uint64(k) + uint64(column)) * uint64(4))
        largest = largest_size(v0, v1, v2, v3)
        d, per = div(largest, float32(127)), div(float32(127), largest)
        if size_of(largest) == uint32(0):
            per = float32(0)
        q0, q1, q2, q3 = code(v0, per), code(v1, per), code(v2, per), code(v3, per)
        total = int32(int32(q0 + q1) + int32(q2 + q3))
        for step in steps:
            total = int32(total + cuda.shfl_xor_sync(EVERYONE, total, step))
        if live:
            store4(codes + uint64(row) * uint64(columns) + uint64(column), four_bytes(q0, q1, q2, q3))
            if column % uint32(run) == uint32(0):
                at = (uint64(column // uint32(run)) * uint64(rows) + uint64(row)) * uint64(4)
                store_float(sums + at, mul(d, float32(total)))
                if column % uint32(32) == uint32(0):
                    at = (uint64(column // uint32(32)) * uint64(rows) + uint64(place(row))) * uint64(4)
                    store_float(scales + at, d)

    parameters = (uint64, uint64, uint64, uint64, uint32, uint32, uint32)
    name = f"activations in runs of {run}{' for mma' if for_mma else ''}"
    return Kernel(name, quantize, *parameters, threads=THREADS)


def activations(x: Any, run: int, for_mma: bool = False) -> Planes:
    """Rows x [M, K] of floats as planes, for weights in such runs; ``scale`` is always by 32.

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
    return Planes(codes, scale, sums, run)


# --- offsets ----------------------------------------------------------------------------------

ROWS, COLUMNS, SLICES = 8, 32, 8  # outputs of a block, and threads that share the runs of one
PARTS = (SLICES, ROWS, COLUMNS)


@family()
def compensation_kernel() -> Kernel:
    """Takes Σ sums · offset off each output: a product that is 1/32 (1/16) of the whole."""
    load_floats, load_float, store_float = ptx.load_floats, ptx.load_float, ptx.store_float

    def compensate(
        sums: Any, offsets: Any, y: Any, m: Any, n: Any, runs: Any, m_rows: Any, n_rows: Any
    ) -> None:
        parts = cuda.shared.array(PARTS, float32)
        tx, ty = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        column, row = uint32(cuda.blockIdx.x) * uint32(COLUMNS) + tx, uint32(cuda.blockIdx.y) * uint32(ROWS)
        total = cuda.local.array(ROWS, float32)
        for i in range(ROWS):
            total[i] = float32(0)
        for r in range(ty, runs, uint32(SLICES)):
            offset = load_float(offsets + (uint64(r) * uint64(n_rows) + uint64(column)) * uint64(4))
            for half in range(2):
                at = uint64(r) * uint64(m_rows) + uint64(row) + uint64(4 * half)
                v = load_floats(sums + at * uint64(4))
                i = 4 * half
                total[i] += offset * v[0]
                total[i + 1] += offset * v[1]
                total[i + 2] += offset * v[2]
                total[i + 3] += offset * v[3]
        for i in range(ROWS):
            parts[ty, i, tx] = total[i]
        cuda.syncthreads()
        own = float32(0)
        for i in range(SLICES):
            own += parts[i, ty, tx]
        if row + ty < m and column < n:
            at = y + (uint64(row + ty) * uint64(n) + uint64(column)) * uint64(4)
            store_float(at, load_float(at) - own)

    parameters = (uint64,) * 3 + (uint32,) * 5
    return Kernel("compensation", compensate, *parameters, threads=COLUMNS * SLICES)


def compensate(y: Any, a: Planes, w: Planes) -> None:
    """Take the offsets of the weights off a product."""
    if w.extra is not None:
        (m, n), (runs, n_rows), m_rows = y.shape, w.extra.shape, a.extra.shape[1]
        grid = (-(-n // COLUMNS), -(-m // ROWS))
        sizes = (m, n, runs, m_rows, n_rows)
        compensation_kernel()(grid, (COLUMNS, SLICES), a.extra, w.extra, y, *sizes)
