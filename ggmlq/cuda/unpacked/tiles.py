"""Feeding the tensor cores: tiles of planes through a ring of stages in shared memory.

A block of threads makes a tile of outputs. It walks along the columns, 128 codes (four runs of 32) a
step. Copies into shared memory run past the registers (cp.async) and ahead: while one stage is
multiplied, the next ones are in flight, with one barrier a step. Within a stage the operands of
one run are brought into registers while the run before is multiplied.

    stage    codes of activations [rows, 128 bytes] · codes of weights [columns, 128 bytes]
             · scales of activations [4, rows] · scales of weights [4, columns]

A row of a stage is eight chunks of 16 bytes, and chunk c of row r lies at place c ^ (r % 8): so
neither the copies, which go along rows, nor ldmatrix, which goes down columns, meets a bank twice.
Scales of activations lie in the order of ``activations.int8.place_of_row``: a thread's four in one load.

What a warp does with four int32 sums is the rung's own: it passes ``start`` (what the sums begin
with) and ``scaled`` (how sums, two scales and what was added up so far become what is added up).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ..intrinsics import codes8, ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import four_into, g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..rings.ring import offset_advancer

STEP, RUNS = 128, 4  # columns of a stage, and runs of 32 in it


@dataclass(frozen=True)
class IntTile:
    """Outputs of a block and of a warp, and stages in flight."""

    rows: int = 128  # of activations
    columns: int = 128  # rows of weights: columns of outputs
    warp_rows: int = 64
    warp_columns: int = 32
    stages: int = 4
    blocks: int = 1  # that should fit on a multiprocessor together

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}, warps {self.warp_rows}x{self.warp_columns}, {self.stages} stages"

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
    def parts(self) -> tuple[int, int, int]:
        """Where in a stage the weights, the activations' scales and the weights' scales begin."""
        of_weights = self.rows * STEP
        scales = of_weights + self.columns * STEP
        return of_weights, scales, scales + RUNS * self.rows * 4

    @property
    def sums(self) -> int:
        """Outputs of a thread."""
        return self.warp_rows * self.warp_columns // 32

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles of ``mma`` in a warp's outputs."""
        return self.warp_rows // 16, self.warp_columns // 8


@inlined
def place_of_warp(rows: Any, columns: Any, across: Any) -> Any:
    """The first row and column of a warp's outputs in its tile."""
    warp, _ = warp_and_lane()
    return warp // uint32(across) * uint32(rows), warp % uint32(across) * uint32(columns)


@cache
def fetcher(shape: IntTile) -> Any:
    """The device function that starts the copies of one stage."""
    threads, rows, columns = shape.threads, shape.rows, shape.columns
    of_weights, scales_of_x, scales_of_w = shape.parts
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
            copy16(to + uint32(of_weights + p * apart * STEP), w + along + uint64(p * apart) * uint64(k))
        first = uint64(step) * uint64(4 * RUNS)
        scales(at + uint32(scales_of_x), dx + first * uint64(m_rows), m_rows, rows)
        scales(at + uint32(scales_of_w), dw + first * uint64(n_rows), n_rows, columns)

    return fetch


@cache
def loader(shape: IntTile) -> Any:
    """The device function that brings a run's operands and scales from a stage into registers."""
    (down, across), (rows, columns) = shape.grid, (shape.rows, shape.columns)
    of_weights, scales_of_x, scales_of_w = shape.parts
    load_matrices, take_floats, take_pair = ptx.load_matrices, ptx.take_floats, ptx.take_pair

    @inlined
    def load(at: Any, wm: Any, wn: Any, run: Any, a: Any, b: Any, da: Any, db: Any) -> None:
        (_, lane), chunk = warp_and_lane(), uint32(2 * run)
        g, t = g_and_t(lane)
        row = lane & uint32(15)
        place = (((lane >> uint32(4)) + chunk) ^ (row & uint32(7))) << uint32(4)
        of_a = at + (wm + row) * uint32(STEP) + place
        for i in range(down):
            four_into(a, 4 * i, load_matrices(of_a + uint32(16 * STEP * i)))
        row = (lane >> uint32(4) << uint32(3)) + (lane & uint32(7))
        place = (((lane >> uint32(3) & uint32(1)) + chunk) ^ (row & uint32(7))) << uint32(4)
        of_b = at + uint32(of_weights) + (wn + row) * uint32(STEP) + place
        for j in range(across // 2):
            four_into(b, 4 * j, load_matrices(of_b + uint32(16 * STEP * j)))
        of_da = at + uint32(scales_of_x) + (uint32(run * rows) + wm + g * uint32(4)) * uint32(4)
        for i in range(down // 2):
            four_into(da, 4 * i, take_floats(of_da + uint32(128 * i)))
        of_db = at + uint32(scales_of_w) + (uint32(run * columns) + wn + t * uint32(2)) * uint32(4)
        for j in range(across):
            p = take_pair(of_db + uint32(32 * j))
            db[2 * j], db[2 * j + 1] = p[0], p[1]

    return load


@cache
def multiplier(shape: IntTile, start: Any, scaled: Any) -> Any:
    """The device function that multiplies one stage: four runs, each loaded one ahead."""
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
        of_x, of_w = address(x, m0, k, 0, 1), address(w, n0, k, 0, 1)
        of_dx, of_dw = dx + uint64(m0) * uint64(4), dw + uint64(n0) * uint64(4)
        wm, wn = place_of_warp(warp_rows, warp_columns, warps_across)
        to, here = uint32(0), uint32(0)
        cuda.syncthreads()  # all are done with the tile before
        for step in range(first, last + uint32(ahead)):
            ready = step >= first + uint32(ahead)
            if ready:
                wait()
                cuda.syncthreads()  # the stage is there for all, and all are done with the one to fill
            if step < last:
                fetch(base() + to, of_x, of_dx, of_w, of_dw, step, k, m_rows, n_rows)
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
    """Four neighbours from ``place`` on, or those of them that come before ``end``."""
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
    """The device function that writes a tile, or what of it lies within [m, n]."""
    down, across = shape.grid
    store_pair, store_float = ptx.store_pair, ptx.store_float
    warp_rows, warp_columns = shape.warp_rows, shape.warp_columns
    warps_across = shape.columns // shape.warp_columns

    @inlined
    def store(sums: Any, y: Any, m0: Any, n0: Any, m: Any, n: Any) -> None:
        _, lane = warp_and_lane()
        g, t = g_and_t(lane)
        wm, wn = place_of_warp(warp_rows, warp_columns, warps_across)
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
