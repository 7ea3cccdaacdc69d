"""Operands of the rungs that multiply bytes: codes in one array, scales in another.

Blocks of 18 or 34 bytes cannot be loaded with wide instructions. So codes go into a matrix of bytes and
scales into a matrix of floats, by column of blocks; both padded to whole tiles, so that kernels load
without a check. Codes in the padding may be anything, its scales are 0.

    codes   int8     [rows', k']          rows' and k' are multiples of 128
    scale   float32  [k' / run, rows']    run: 16 or 32 elements
    offset  float32  [k' / run, rows']    weights with an offset
    sums    float32  [k' / run, rows']    activations for those: scale times the sum of the codes

An array keeps its unpacked weights as long as it lives (9 bits a weight, or 10 with runs of 16).
Activations are quantized in each call, as the arithmetic q8 says: x * (127 / amax) of 32, to nearest even.
A weight is d · code - offset, so a product of a run is

    Σ x · w  =  dx · dw · Σ code · code  -  offset · (dx · Σ code of x)

whose first half is the lesson of each rung. The second is taken off the finished product here (compensate).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.problems import Linear
from ...formats import BLOCK_FORMATS, BlockFormat
from ...formats.packing import packing
from ..driver.device import cupy
from ..driver.launch import Kernel, array, family
from ..intrinsics import ptx
from ..intrinsics.atoms import atoms, inlined
from ..intrinsics.codes8 import four_bytes, four_codes
from ..intrinsics.lane import ALL_LANES, address
from ..intrinsics.language import cuda, float32, int32, int64, uint8, uint32, uint64

TILE = 128  # rows and columns of operands are filled up to multiples of it
MAX_ROWS = 8 * 65535  # of activations: a grid has 65535 rows of blocks, of 8 rows each or more


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
    if problem.m > MAX_ROWS:
        return f"takes up to {MAX_ROWS} rows of activations"
    return None


# --- weights ------------------------------------------------------------------------------------

WEIGHT_THREADS = 256

# Who unpacks what: block (row, i) has 256 times 16 columns of a row of weights, a thread 16 neighbours, which
# lie within one run. It decodes them one by one and stores them at once:
#
#     blocks   | scale, codes of 32 … | scale, codes of 32 … |        18 bytes each, as in a file of q4_0
#     thread       0         1            2         3
#     codes    | 16 bytes | 16 bytes | 16 bytes | 16 bytes | …        one store of 16 bytes a thread
#     scale        d 0                   d 1                          of the thread with which a run begins


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
        column = (uint32(cuda.blockIdx.y) * WEIGHT_THREADS + uint32(cuda.threadIdx.x)) * 16
        row = uint32(cuda.blockIdx.x)
        if column < uint32(blocks.shape[1] * size):  # the last block of threads sticks out of the row
            block = blocks[row, column // size]
            i = int64(column % size)
            # Four bytes a word, the first one lowest: the order in which a load gives them back.
            words = cuda.local.array(4, uint32)
            for w in range(4):
                word = uint32(0)
                for j in range(4):
                    word |= (uint32(code(block, i + 4 * w + j)) & 255) << uint32(8 * j)
                words[w] = word
            store16(address(codes, row, columns, column, 1), words[0], words[1], words[2], words[3])
            # With runs of 32 two threads have one: the first of them stores its scale.
            if column % run == 0:
                g = column // run
                store_float(address(scales, g, rows, row, 4), scale(block, i // group))
                if has_offset:
                    store_float(address(offsets, g, rows, row, 4), offset(block, i // group))

    parameters = (array(uint8, 3), uint64, uint64, uint64, uint32, uint32)
    return Kernel(f"unpacked weights of {fmt.name}", unpack, *parameters, threads=WEIGHT_THREADS)


def unpacked_weights(q: QuantArray) -> Unpacked:
    """The unpacked weights of an array [N, K] on its device; unpacked once and kept with the array."""
    weights: Unpacked = q.prepared(unpack_weights)
    return weights


def unpack_weights(q: QuantArray) -> Unpacked:
    """The unpacked weights of an array [N, K], unpacked now."""
    cp, fmt, (n, k) = cupy(), q.format, q.shape
    assert isinstance(fmt, BlockFormat)
    rows, columns, run = padded(n), padded(k), packing(fmt).run
    codes = cp.empty((rows, columns), np.int8)  # whatever lies in the padding is multiplied by scales of 0
    scale = cp.zeros((columns // run, rows), np.float32)
    offset = cp.zeros_like(scale) if fmt.has_offset else None
    blocks = q.raw.reshape(n, k // fmt.block_size, fmt.dtype.itemsize)
    grid = (n, -(-k // (16 * WEIGHT_THREADS)))
    weight_kernel(fmt)(
        grid, (WEIGHT_THREADS,), blocks, codes, scale, scale if offset is None else offset, rows, columns
    )
    return Unpacked(codes, scale, offset, run)


# --- activations --------------------------------------------------------------------------------

INT8_THREADS = 256

# Who quantizes what: eight neighbouring lanes have 32 columns of a row, four each. They find the largest of
# all by exchanges within the warp, so each knows the scale, and makes four codes: one word.
#
#     x        | v0 v1 v2 v3 | v0 … | … | … | … | … | … | v0 … v3 |      32 floats, a load of 16 bytes each
#     lane          0           1     2   3   4   5   6     7
#     largest       <------------ distances 4, 2, 1 -------------->      then q = x · (127 / largest)
#     codes         word       word   …                      word


@inlined
def place_of_row(row: Any) -> Any:
    """The place of a row's scale as ``mma`` wants it: rows r, r + 8, r + 16, r + 24 of 32 side by side."""
    return (row & ~uint32(31)) | (row & 7) << 2 | (row >> 3) & 3


@inlined
def as_it_is(row: Any) -> Any:
    """The place of a row's scale for all other kernels."""
    return row


@family((run, for_mma) for run in (16, 32) for for_mma in (False, True))
def activation_kernel(run: int, for_mma: bool) -> Kernel:
    """The kernel that quantizes: eight threads serve 32 neighbours, four each."""
    place = place_of_row if for_mma else as_it_is
    load_floats, store4, store_float = ptx.load_floats, ptx.store4, ptx.store_float
    mul = ptx.mul
    steps = (2, 1) if run == 16 else (4, 2, 1)

    def quantize(
        x: Any,  # float32 [m, k]
        codes: Any,  # int8 [rows, columns]
        scales: Any,  # float32 [columns / 32, rows]
        sums: Any,  # float32 [columns / run, rows]
        k: Any, rows: Any, columns: Any,
    ) -> None:  # fmt: skip
        thread = uint32(cuda.blockIdx.y) * INT8_THREADS + uint32(cuda.threadIdx.x)
        column, row = thread * 4, uint32(cuda.blockIdx.x)
        # A thread behind the end of the row stays: the exchanges below need all lanes of the warp. Its
        # zeros are no larger than anything, and add nothing.
        live = column < k
        v0 = v1 = v2 = v3 = float32(0)
        if live:
            v0, v1, v2, v3 = load_floats(address(x, row, k, column, 4))
        coded = four_codes(v0, v1, v2, v3)
        total = int32(int32(coded.q0 + coded.q1) + int32(coded.q2 + coded.q3))
        # Lanes at a distance of 4, 2, 1 add up: all eight of 32 columns, or the four of a run of 16.
        for step in steps:
            total = int32(total + cuda.shfl_xor_sync(ALL_LANES, total, step))
        if live:
            at = address(codes, row, columns, column, 1)
            store4(at, four_bytes(coded.q0, coded.q1, coded.q2, coded.q3))
            if column % run == 0:
                store_float(address(sums, column // run, rows, row, 4), mul(coded.scale, float32(total)))
                if column % 32 == 0:
                    store_float(address(scales, column // 32, rows, place(row), 4), coded.scale)

    parameters = (uint64, uint64, uint64, uint64, uint32, uint32, uint32)
    name = f"activations in runs of {run}{' for mma' if for_mma else ''}"
    return Kernel(name, quantize, *parameters, threads=INT8_THREADS)


def activations(x: Any, run: int, for_mma: bool = False) -> Unpacked:
    """Rows x [M, K] of floats as unpacked codes, for weights in runs of ``run``; ``scale`` is always by 32.

    ``for_mma``: scales in the order of :func:`place_of_row`.
    """
    cp, (m, k) = cupy(), x.shape
    rows, columns = padded(m), padded(k)
    make = cp.empty if columns == k else cp.zeros  # scales of columns in the padding must be 0
    codes = cp.empty((rows, columns), np.int8)
    scale = make((columns // 32, rows), np.float32)
    sums = make((columns // run, rows), np.float32)
    grid = (m, -(-k // (4 * INT8_THREADS)))
    x = cp.ascontiguousarray(x, np.float32)
    if x.data.ptr % 16:  # four floats are loaded at a time
        x = x.copy()
    activation_kernel(run, for_mma)(grid, (INT8_THREADS,), x, codes, scale, sums, k, rows, columns)
    return Unpacked(codes, scale, sums, run)


# --- offsets ------------------------------------------------------------------------------------

ROWS, COLUMNS, SLICES = 8, 32, 8  # outputs of a block, and threads that share the runs of one
PARTIAL = (SLICES, ROWS, COLUMNS)

# Who computes what: a block has 8 × 32 outputs and 32 × 8 threads. First thread (x, y) adds up the runs y,
# y + 8, y + 16, … of all eight rows of column x, so that each offset is loaded once for eight outputs. Then
# it adds the eight parts of the one output (row y, column x) out of shared memory.
#
#                column x                          column x
#     run y      o                row y            p0 + p1 + … + p7     of slices 0 … 7
#     run y + 8  o     × 8 rows
#     …
#
# Lanes are neighbours in x, so each row of partials is read and written in 32 different banks.


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
        column, row = uint32(cuda.blockIdx.x) * COLUMNS + tx, uint32(cuda.blockIdx.y) * ROWS
        total = cuda.local.array(ROWS, float32)
        for i in range(ROWS):
            total[i] = float32(0)
        for r in range(ty, runs, uint32(SLICES)):
            offset = load_float(address(offsets, r, n_rows, column, 4))
            for four in range(2):
                i = 4 * four
                v = load_floats(address(sums, r, m_rows, row + uint64(i), 4))
                total[i] += offset * v[0]
                total[i + 1] += offset * v[1]
                total[i + 2] += offset * v[2]
                total[i + 3] += offset * v[3]
        # ``total`` stands in registers: its loops have fixed ends, so the compiler knows each index.
        for i in range(ROWS):
            partials[ty, i, tx] = total[i]
        cuda.syncthreads()  # each thread reads parts that seven others wrote
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
