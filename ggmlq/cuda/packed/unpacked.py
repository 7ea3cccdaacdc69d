"""Weights of block formats unpacked to int8 codes and float32 scales, once for each array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.problems import Linear
from ...formats import BLOCK_FORMATS, BlockFormat
from ...formats.packing import packing
from ..intrinsics import ptx
from ..intrinsics.atoms import atoms
from ..intrinsics.lane import address
from ..intrinsics.language import cuda, float32, int64, uint8, uint32, uint64
from ..machine.device import cupy
from ..machine.launch import Kernel, array, family

# The kernel that takes the offsets of unpacked weights off a finished product of codes and scales.

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


# Unpacked operands of int8 kernels: codes in one array, scales in another.
#
# Blocks of 18 or 34 bytes cannot be loaded with wide instructions. So codes go into a matrix of bytes and
# scales into a matrix of floats, by column of blocks; both padded to whole tiles, so that kernels load
# without a check. Codes in the padding may be anything, its scales are 0.
#
#     codes   int8     [rows', k']          rows' and k' are multiples of 128
#     scale   float32  [k' / run, rows']    run: 16 or 32 elements
#     offset  float32  [k' / run, rows']    weights with an offset
#     sums    float32  [k' / run, rows']    activations for those: scale times the sum of the codes
#
# An array keeps its unpacked weights as long as it lives (9 bits a weight, or 10 with runs of 16).
# Activations are quantized as the arithmetic q8 says: x * (127 / amax) of 32, to nearest even.

TILE = 128
MOST = 8 * 65535  # rows of activations: a grid has 65535 rows of blocks, of 8 rows each or more


@dataclass(frozen=True)
class Unpacked:
    """An unpacked operand; the head of the file has its arrays."""

    codes: Any
    scale: Any
    extra: Any  # offset of weights, sums of activations, or None
    run: int


def padded(n: int) -> int:
    """The number of rows or columns, filled up to whole tiles."""
    return -(-n // TILE) * TILE


def refuses(problem: Linear) -> str | None:
    """The reason why unpacked operands do not serve a problem, or None."""
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > MOST:
        return f"takes up to {MOST} rows of activations"
    return None


THREADS = 256


@family((fmt,) for fmt in BLOCK_FORMATS)
def weight_kernel(fmt: BlockFormat) -> Kernel:
    """The kernel that unpacks blocks: a thread unpacks 16 neighbours, which always lie within a run."""
    code, scale, offset = atoms(fmt)
    size, group, run, has_offset = fmt.block_size, fmt.group, packing(fmt).run, fmt.has_offset
    store16, store_float = ptx.store16, ptx.store_float

    def unpack(
        blocks: Any,  # uint8 [rows of weights, blocks of a row, bytes of a block]
        codes: Any,  # int8 [rows, columns]
        scales: Any,  # float32 [columns / run, rows]
        offsets: Any,  # as scales, where the format has them
        rows: Any, columns: Any,
    ) -> None:  # fmt: skip
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
            store16(address(codes, row, columns, column, 1), words[0], words[1], words[2], words[3])
            if column % uint32(run) == uint32(0):
                g = column // uint32(run)
                store_float(address(scales, g, rows, row, 4), scale(block, i // group))
                if has_offset:
                    store_float(address(offsets, g, rows, row, 4), offset(block, i // group))

    parameters = (array(uint8, 3), uint64, uint64, uint64, uint32, uint32)
    return Kernel(f"unpacked weights of {fmt.name}", unpack, *parameters, threads=THREADS)


def unpacked_weights(q: QuantArray) -> Unpacked:
    """The unpacked weights of an array [N, K] on its device; unpacked once and kept with the array."""
    weights: Unpacked = q.prepared(unpack_weights)
    return weights


def unpack_weights(q: QuantArray) -> Unpacked:
    """The unpacked weights of an array [N, K], unpacked now."""
    cp, fmt, (n, k) = cupy(), q.format, q.shape
    assert isinstance(fmt, BlockFormat)
    rows, columns, run = padded(n), padded(k), packing(fmt).run
    codes = cp.empty((rows, columns), np.int8)
    scale = cp.zeros((columns // run, rows), np.float32)
    offset = cp.zeros_like(scale) if fmt.has_offset else None
    blocks = q.raw.reshape(n, k // fmt.block_size, fmt.dtype.itemsize)
    grid = (n, -(-k // (16 * THREADS)))
    weight_kernel(fmt)(
        grid, (THREADS,), blocks, codes, scale, scale if offset is None else offset, rows, columns
    )
    return Unpacked(codes, scale, offset, run)
