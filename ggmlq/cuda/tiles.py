"""Feeding the tensor cores: tiles of planes through a ring of stages in shared memory.

A block of threads makes a tile of outputs. It walks along the columns, 128 codes (four runs of 32) a
step. Copies into shared memory run past the registers (cp.async) and ahead: while one stage is
multiplied, the next ones are on their way, with one barrier a step.

    stage    codes of activations [rows, 128 bytes] · codes of weights [columns, 128 bytes]
             · scales of activations [4, rows] · scales of weights [4, columns]

A row of a stage is eight chunks of 16 bytes, and chunk c of row r lies at place c ^ (r % 8): so
neither the copies, which go along rows, nor ldmatrix, which goes down columns, meets a bank twice.

What a warp does with four int32 sums is the rung's own: it passes ``start`` (what the sums begin
with) and ``scaled`` (how sums, two scales and what was added up so far become what is added up).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from . import ptx
from .atoms import inlined
from .language import cuda, float32, int32, uint32, uint64

STEP, RUNS = 128, 4  # columns of a stage, and runs of 32 in it


@dataclass(frozen=True)
class Shape:
    """Outputs of a block and of a warp, and stages in flight."""

    rows: int = 128  # of activations
    columns: int = 128  # rows of weights: columns of outputs
    warp_rows: int = 64
    warp_columns: int = 32
    stages: int = 4
    blocks: int = 1  # that should fit on a multiprocessor together

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    @property
    def stage(self) -> int:
        """Bytes of a stage."""
        return (self.rows + self.columns) * (STEP + 4 * RUNS)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.stages * self.stage

    @property
    def sums(self) -> int:
        """Outputs of a thread."""
        return self.warp_rows * self.warp_columns // 32

    def __str__(self) -> str:
        return (
            f"{self.rows}x{self.columns} in {self.warp_rows}x{self.warp_columns}, "
            f"{self.stages} stages, {self.blocks} blocks"
        )


class Tools(NamedTuple):
    """Device functions for one shape."""

    accumulate: Any  # (sums, m0, n0, operands, first step, last step)
    store: Any  # (sums, y, m0, n0, rows, columns)


@inlined
def swizzled(row: Any, chunk: Any) -> Any:
    """Where a chunk of 16 bytes lies in a stage."""
    return row * uint32(128) + ((chunk ^ (row & uint32(7))) << uint32(4))


@cache
def tools(shape: Shape, start: int, scaled: Any) -> Tools:
    """The main loop and the stores of a tile; see the head of the file."""
    threads, stages, stage = shape.threads, shape.stages, shape.stage
    rows, columns = shape.rows, shape.columns
    of_weights = rows * STEP  # where the parts of a stage begin
    scales_of_x = of_weights + columns * STEP
    scales_of_w = scales_of_x + RUNS * rows * 4
    passes_x, passes_w, step_rows = rows * 8 // threads, columns * 8 // threads, threads // 8
    scale_passes_x, scale_passes_w = -(-rows // threads), -(-columns // threads)
    down, across = shape.warp_rows // 16, shape.warp_columns // 8  # mma tiles of a warp
    warps_across = columns // shape.warp_columns
    warp_rows, warp_columns = shape.warp_rows, shape.warp_columns
    count_a, count_da, count_b = 4 * down, 2 * down, 2 * across
    copy16, commit, wait = ptx.copy16, ptx.commit, ptx.wait_for_all_but(stages - 2)
    base, load_matrices, mma = ptx.shared_base, ptx.load_matrices, ptx.mma_s8
    take_float, take_pair = ptx.take_float, ptx.take_pair

    @inlined
    def fetch(at: Any, x: Any, dx: Any, w: Any, dw: Any, step: Any, k: Any, m_rows: Any, n_rows: Any) -> None:
        """Start the copies of one stage."""
        tid = uint32(cuda.threadIdx.x)
        row, chunk = tid >> uint32(3), tid & uint32(7)
        along = uint64(step) * uint64(STEP) + uint64(chunk) * uint64(16)
        for p in range(passes_x):
            r = row + uint32(p * step_rows)
            copy16(at + swizzled(r, chunk), x + uint64(r) * uint64(k) + along)
        for p in range(passes_w):
            r = row + uint32(p * step_rows)
            copy16(at + uint32(of_weights) + swizzled(r, chunk), w + uint64(r) * uint64(k) + along)
        for p in range(scale_passes_x):
            c = tid + uint32(p * threads)
            if c < uint32(rows):
                run, place = c // uint32(rows // 4), c % uint32(rows // 4) * uint32(16)
                source = (uint64(step) * uint64(RUNS) + uint64(run)) * uint64(m_rows) * uint64(4)
                copy16(at + uint32(scales_of_x) + c * uint32(16), dx + source + uint64(place))
        for p in range(scale_passes_w):
            c = tid + uint32(p * threads)
            if c < uint32(columns):
                run, place = c // uint32(columns // 4), c % uint32(columns // 4) * uint32(16)
                source = (uint64(step) * uint64(RUNS) + uint64(run)) * uint64(n_rows) * uint64(4)
                copy16(at + uint32(scales_of_w) + c * uint32(16), dw + source + uint64(place))

    @inlined
    def multiply(at: Any, sums: Any) -> None:
        """Add the products of one stage to the sums of a thread."""
        lane, warp = uint32(cuda.threadIdx.x) & uint32(31), uint32(cuda.threadIdx.x) >> uint32(5)
        g, t = lane >> uint32(2), lane & uint32(3)
        wm, wn = (
            warp // uint32(warps_across) * uint32(warp_rows),
            warp % uint32(warps_across) * uint32(warp_columns),
        )
        row_x, half_x = wm + (lane & uint32(15)), lane >> uint32(4)
        row_w = wn + ((lane >> uint32(4)) << uint32(3)) + (lane & uint32(7))
        half_w = (lane >> uint32(3)) & uint32(1)
        a, b = cuda.local.array(count_a, int32), cuda.local.array(count_b, int32)
        da, db = cuda.local.array(count_da, float32), cuda.local.array(count_b, float32)
        for run in range(RUNS):
            for i in range(down):
                v = load_matrices(at + swizzled(row_x + uint32(16 * i), uint32(2 * run) + half_x))
                a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3] = v[0], v[1], v[2], v[3]
                place = at + uint32(scales_of_x) + (uint32(run * rows + 16 * i) + wm + g) * uint32(4)
                da[2 * i], da[2 * i + 1] = take_float(place), take_float(place + uint32(32))
            for j in range(across // 2):
                v = load_matrices(
                    at + uint32(of_weights) + swizzled(row_w + uint32(16 * j), uint32(2 * run) + half_w)
                )
                b[4 * j], b[4 * j + 1], b[4 * j + 2], b[4 * j + 3] = v[0], v[1], v[2], v[3]
            for j in range(across):
                place = uint32(run * columns + 8 * j) + wn + t * uint32(2)
                v = take_pair(at + uint32(scales_of_w) + place * uint32(4))
                db[2 * j], db[2 * j + 1] = v[0], v[1]
            for i in range(down):
                for j in range(across):
                    d = mma(a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], b[2 * j], b[2 * j + 1], start)
                    o = 4 * (i * across + j)
                    sums[o] = scaled(d[0], da[2 * i], db[2 * j], sums[o])
                    sums[o + 1] = scaled(d[1], da[2 * i], db[2 * j + 1], sums[o + 1])
                    sums[o + 2] = scaled(d[2], da[2 * i + 1], db[2 * j], sums[o + 2])
                    sums[o + 3] = scaled(d[3], da[2 * i + 1], db[2 * j + 1], sums[o + 3])

    @inlined
    def accumulate(
        sums: Any, m0: Any, n0: Any, x: Any, dx: Any, w: Any, dw: Any,
        first: Any, last: Any, k: Any, m_rows: Any, n_rows: Any,
    ) -> None:  # fmt: skip
        """Add steps ``first`` … ``last - 1`` of a tile to the sums."""
        of_x, of_w = x + uint64(m0) * uint64(k), w + uint64(n0) * uint64(k)
        of_dx, of_dw = dx + uint64(m0) * uint64(4), dw + uint64(n0) * uint64(4)
        for s in range(stages - 1):
            if first + uint32(s) < last:
                at = base() + uint32(s * stage)
                fetch(at, of_x, of_dx, of_w, of_dw, first + uint32(s), k, m_rows, n_rows)
            commit()
        here, free = uint32(0), uint32((stages - 1) * stage)
        for step in range(first, last):
            wait()
            cuda.syncthreads()
            ahead = uint32(step) + uint32(stages - 1)
            if ahead < last:
                fetch(base() + free, of_x, of_dx, of_w, of_dw, ahead, k, m_rows, n_rows)
            commit()
            multiply(base() + here, sums)
            free = here
            here = uint32(0) if here == uint32((stages - 1) * stage) else here + uint32(stage)
        wait_all()
        cuda.syncthreads()

    wait_all = ptx.wait_for_all_but(0)

    @inlined
    def store(sums: Any, y: Any, m0: Any, n0: Any, m: Any, n: Any) -> None:
        """Write a tile, or what of it lies within [m, n]."""
        lane, warp = uint32(cuda.threadIdx.x) & uint32(31), uint32(cuda.threadIdx.x) >> uint32(5)
        row = m0 + warp // uint32(warps_across) * uint32(warp_rows) + (lane >> uint32(2))
        column = n0 + warp % uint32(warps_across) * uint32(warp_columns) + (lane & uint32(3)) * uint32(2)
        for i in range(down):
            for half in range(2):
                r = row + uint32(16 * i + 8 * half)
                if r < m:
                    for j in range(across):
                        c = column + uint32(8 * j)
                        at = y + (uint64(r) * uint64(n) + uint64(c)) * uint64(4)
                        o = 4 * (i * across + j) + 2 * half
                        if c + uint32(1) < n and at & uint64(7) == uint64(0):
                            ptx.store_pair(at, sums[o], sums[o + 1])
                        else:
                            if c < n:
                                ptx.store_float(at, sums[o])
                            if c + uint32(1) < n:
                                ptx.store_float(at + uint64(4), sums[o + 1])

    return Tools(accumulate, store)
