"""Unpacked tiles for tensor cores: copies through a ring of stages in shared memory, and int8 products.

A block of threads makes a tile of outputs. It walks along the columns, 128 codes (four runs of 32) a
step. Copies into shared memory go past the registers (cp.async) and ahead: while one stage is
multiplied, the next ones are in flight, with one barrier a step. Within a stage the operands of
one run are brought into registers while the run before is multiplied.

    stage    codes of activations [rows, 128 bytes] · codes of weights [columns, 128 bytes]
             · scales of activations [4, rows] · scales of weights [4, columns]

A row of a stage is eight chunks of 16 bytes, and chunk c of row r lies at place c ^ (r % 8): so
neither the copies, which go along rows, nor ldmatrix, which goes down columns, meets a bank twice.
Scales of activations lie in the order of ``activations.int8.place_of_row``: one load brings a thread's four.

A rung decides what a warp does with four int32 sums. It passes ``start``, the first value of a sum, and
``scaled``, which combines a sum, its two scales and the total so far into the new total.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ..intrinsics import codes8, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import address, four_into, g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from .mma_copies import offset_advancer

STEP, RUNS = 128, 4  # columns of a stage, and runs of 32 in it


@dataclass(frozen=True)
class IntTile:
    """The outputs of a block and of a warp, and the stages in flight."""

    rows: int = 128  # of activations
    columns: int = 128  # rows of weights: columns of outputs
    warp_rows: int = 64
    warp_columns: int = 32
    stages: int = 4
    blocks: int = 1  # that a multiprocessor should hold together

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}, warps {self.warp_rows}x{self.warp_columns}, {self.stages} stages"

    @property
    def threads(self) -> int:
        """Threads of a block."""
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
    def offsets(self) -> tuple[int, int, int]:
        """Offsets in a stage: of the weights, of the activations' scales, of the weights' scales."""
        weights_at = self.rows * STEP
        scales = weights_at + self.columns * STEP
        return weights_at, scales, scales + RUNS * self.rows * 4

    @property
    def sums(self) -> int:
        """Outputs of a thread."""
        return self.warp_rows * self.warp_columns // 32

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles of ``mma`` in a warp's outputs, down and across."""
        return self.warp_rows // 16, self.warp_columns // 8


@inlined
def warp_origin(rows: Any, columns: Any, across: Any) -> Any:
    """The first row and column of a warp's outputs in its tile."""
    warp, _ = warp_and_lane()
    return warp // uint32(across) * uint32(rows), warp % uint32(across) * uint32(columns)


@cache
def fetcher(shape: IntTile) -> Any:
    """The device function that starts the copies of one stage."""
    threads, rows, columns = shape.threads, shape.rows, shape.columns
    weights_at, scales_of_x, scales_of_w = shape.offsets
    passes_x, passes_w, apart = rows * 8 // threads, columns * 8 // threads, threads // 8
    copy16 = ptx.copy16

    @inlined
    def scales(at: Any, source: Any, length: Any, count: Any) -> None:
        for first in range(0, count, threads):
            c = uint32(cuda.threadIdx.x) + uint32(first)
            if c < uint32(count):
                run, place = c // uint32(count // 4), c % uint32(count // 4)
                along = uint64(run * length) + uint64(place * uint32(4))
                copy16(at + c * uint32(16), source + along * uint64(4))

    @inlined
    def fetch(at: Any, x: Any, dx: Any, w: Any, dw: Any, step: Any, k: Any, m_rows: Any, n_rows: Any) -> None:
        row, chunk = uint32(cuda.threadIdx.x) >> uint32(3), uint32(cuda.threadIdx.x) & uint32(7)
        to = at + row * uint32(STEP) + ((chunk ^ (row & uint32(7))) << uint32(4))
        along = address(uint64(step) * uint64(STEP), row, k, chunk * uint32(16), 1)
        for p in range(passes_x):
            copy16(to + uint32(p * apart * STEP), x + along + uint64(p * apart) * uint64(k))
        for p in range(passes_w):
            copy16(to + uint32(weights_at + p * apart * STEP), w + along + uint64(p * apart) * uint64(k))
        first = uint64(step) * uint64(4 * RUNS)
        scales(at + uint32(scales_of_x), dx + first * uint64(m_rows), m_rows, rows)
        scales(at + uint32(scales_of_w), dw + first * uint64(n_rows), n_rows, columns)

    return fetch


@cache
def loader(shape: IntTile) -> Any:
    """The device function that brings a run's operands and scales from a stage into registers."""
    (down, across), (rows, columns) = shape.grid, (shape.rows, shape.columns)
    weights_at, scales_of_x, scales_of_w = shape.offsets
    load_matrices, take_floats, take_pair = ptx.load_matrices, ptx.take_floats, ptx.take_pair

    @inlined
    def load(at: Any, wm: Any, wn: Any, run: Any, a: Any, b: Any, da: Any, db: Any) -> None:
        (_, lane), chunk = warp_and_lane(), uint32(2 * run)
        g, t = g_and_t(lane)
        row = lane & uint32(15)
        place = (((lane >> uint32(4)) + chunk) ^ (row & uint32(7))) << uint32(4)
        a_at = at + (wm + row) * uint32(STEP) + place
        for i in range(down):
            four_into(a, 4 * i, load_matrices(a_at + uint32(16 * STEP * i)))
        row = (lane >> uint32(4) << uint32(3)) + (lane & uint32(7))
        place = (((lane >> uint32(3) & uint32(1)) + chunk) ^ (row & uint32(7))) << uint32(4)
        b_at = at + uint32(weights_at) + (wn + row) * uint32(STEP) + place
        for j in range(across // 2):
            four_into(b, 4 * j, load_matrices(b_at + uint32(16 * STEP * j)))
        da_at = at + uint32(scales_of_x) + (uint32(run * rows) + wm + g * uint32(4)) * uint32(4)
        for i in range(down // 2):
            four_into(da, 4 * i, take_floats(da_at + uint32(128 * i)))
        db_at = at + uint32(scales_of_w) + (uint32(run * columns) + wn + t * uint32(2)) * uint32(4)
        for j in range(across):
            p = take_pair(db_at + uint32(32 * j))
            db[2 * j], db[2 * j + 1] = p[0], p[1]

    return load


@cache
def multiplier(shape: IntTile, start: Any, scaled: Any) -> Any:
    """The device function that multiplies one stage: four runs, each loaded one run ahead."""
    down, across = shape.grid
    count_a, count_b, count_da = 4 * down, 2 * across, 2 * down
    load, mma = loader(shape), codes8.integer_mma("s8", "s8")

    @inlined
    def multiply(at: Any, wm: Any, wn: Any, sums: Any) -> None:
        a, b = cuda.local.array(count_a, int32), cuda.local.array(count_b, int32)
        da, db = cuda.local.array(count_da, float32), cuda.local.array(count_b, float32)
        next_a, next_b = cuda.local.array(count_a, int32), cuda.local.array(count_b, int32)
        next_da, next_db = cuda.local.array(count_da, float32), cuda.local.array(count_b, float32)
        load(at, wm, wn, 0, next_a, next_b, next_da, next_db)
        for run in range(RUNS):
            for i in range(count_a):
                a[i] = next_a[i]
            for i in range(count_b):
                b[i], db[i] = next_b[i], next_db[i]
            for i in range(count_da):
                da[i] = next_da[i]
            load(at, wm, wn, min(run + 1, RUNS - 1), next_a, next_b, next_da, next_db)
            for i in range(down):
                for j in range(across):
                    r, c, o = 4 * i, 2 * j, 4 * (i * across + j)
                    d = mma(a[r], a[r + 1], a[r + 2], a[r + 3], b[c], b[c + 1], start, start, start, start)
                    sums[o] = scaled(d[0], da[2 * i], db[2 * j], sums[o])
                    sums[o + 1] = scaled(d[1], da[2 * i], db[2 * j + 1], sums[o + 1])
                    sums[o + 2] = scaled(d[2], da[2 * i + 1], db[2 * j], sums[o + 2])
                    sums[o + 3] = scaled(d[3], da[2 * i + 1], db[2 * j + 1], sums[o + 3])

    return multiply


@cache
def accumulator(shape: IntTile, start: Any, scaled: Any) -> Any:
    """The device function that adds steps ``first`` … ``last - 1`` of a tile to a thread's sums."""
    stages, stage = shape.stages, shape.stage
    ahead, after = stages - 1, offset_advancer(stages, stage)
    fetch, multiply = fetcher(shape), multiplier(shape, start, scaled)
    base, commit, wait = ptx.shared_base, ptx.commit, ptx.wait_for_all_but(stages - 2)

    @inlined
    def accumulate(
        sums: Any, m0: Any, n0: Any, x: Any, dx: Any, w: Any, dw: Any,
        first: Any, last: Any, k: Any, m_rows: Any, n_rows: Any,
    ) -> None:  # fmt: skip
        x_at, w_at = address(x, m0, k, 0, 1), address(w, n0, k, 0, 1)
        dx_at, dw_at = dx + uint64(m0) * uint64(4), dw + uint64(n0) * uint64(4)
        wm, wn = warp_origin(warp_rows, warp_columns, warps_across)
        to, here = uint32(0), uint32(0)
        cuda.syncthreads()  # no warp reads the previous tile any more
        for step in range(first, last + uint32(ahead)):
            ready = step >= first + uint32(ahead)
            if ready:
                wait()
                cuda.syncthreads()  # the stage has arrived for all; no warp reads the one to fill
            if step < last:
                fetch(base() + to, x_at, dx_at, w_at, dw_at, step, k, m_rows, n_rows)
            commit()
            to = after(to)
            if ready:
                multiply(base() + here, wm, wn, sums)
                here = after(here)

    warp_rows, warp_columns = shape.warp_rows, shape.warp_columns
    warps_across = shape.columns // shape.warp_columns
    return accumulate


@inlined
def store_four(at: Any, place: Any, end: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    """Store four neighbours from ``place`` on, or those of them that come before ``end``."""
    store_float = ptx.store_float
    if place < end:
        store_float(at, a)
    if place + uint32(1) < end:
        store_float(at + uint64(4), b)
    if place + uint32(2) < end:
        store_float(at + uint64(8), c)
    if place + uint32(3) < end:
        store_float(at + uint64(12), d)


@cache
def storer(shape: IntTile) -> Any:
    """The device function that writes a tile, or the part of it that lies within [m, n]."""
    down, across = shape.grid
    store_pair, store_float = ptx.store_pair, ptx.store_float
    warp_rows, warp_columns = shape.warp_rows, shape.warp_columns
    warps_across = shape.columns // shape.warp_columns

    @inlined
    def store(sums: Any, y: Any, m0: Any, n0: Any, m: Any, n: Any) -> None:
        _, lane = warp_and_lane()
        g, t = g_and_t(lane)
        wm, wn = warp_origin(warp_rows, warp_columns, warps_across)
        row, column = m0 + wm + g, n0 + wn + t * uint32(2)
        for i in range(2 * down):
            r = row + uint32(8 * i)
            if r < m:
                for j in range(across):
                    c = column + uint32(8 * j)
                    at = address(y, r, n, c, 4)
                    o = 4 * (i // 2 * across + j) + 2 * (i % 2)
                    if c + uint32(1) < n and at & uint64(7) == uint64(0):
                        store_pair(at, sums[o], sums[o + 1])
                    else:
                        if c < n:
                            store_float(at, sums[o])
                        if c + uint32(1) < n:
                            store_float(at + uint64(4), sums[o + 1])

    return store
