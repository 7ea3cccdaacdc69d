"""Stream-K: the work is cut into equal lengths, not into whole tiles.

Changed: the steps of all tiles form one row, and each multiprocessor takes an equal part of it: the
end of a tile, some whole ones, the beginning of another. Sums of parts go to a workspace and are
added in a fixed order by a second, small kernel. Tiles are lower where there are few rows of
activations. So a few rows keep all multiprocessors busy too.

Limited by memory for few rows: unpacked weights take 9 bits for a weight of 4. Where whole tiles fill the
card the second kernel only costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ....arrays.array import QuantArray
from ....dispatch.card import older_than, too_small_for
from ....dispatch.ladder import register
from ....dispatch.problems import Linear
from ....formats import BlockFormat
from ...driver import device
from ...driver.launch import Kernel, family
from ...intrinsics import ptx, tensor_cores
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import address, four_into, g_and_t, store_four, warp_and_lane, warp_origin
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from ...layouts.unpacked import activations, compensate, padded, unpacked_weights
from ...layouts.unpacked import refuses as refuses_unpacked

STEP, RUNS = 128, 4  # columns of a stage, and runs of 32 in it
MIN_CAPABILITY = (8, 0)  # the first capability with cp.async and this ``mma``
START = int32(0x4B400000)  # of the integer sum of a run: the bits of a float, 1.5 * 2**23
MAGIC = float32(12582912)  # the same bits as a float


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


LOW = IntTile(32, 128, 32, 16, blocks=2)  # for few rows: half of a taller tile would be wasted
SHAPE = IntTile(64, 128, 64, 32, stages=4, blocks=2)  # of the rungs below
MAX_UNITS = (1 << 32) - 1  # they are counted in 32 bits
THREADS = 256  # of a block that adds partial sums

mma = tensor_cores.integer_mma("s8", "s8")  # [16, 32] codes times [32, 8], with int32 sums

# Who computes what: a *unit* is one step, 128 columns of K, of one tile. Units are numbered tile by tile, and
# block c of ``count`` takes units c · units // count and on, up to those of the next block:
#
#     tiles      |    tile 0     |    tile 1     |    tile 2     |          here 4 steps each, 5 blocks
#     units      | 0   1   2   3 | 4   5   6   7 | 8   9  10  11 |
#     blocks     |   0   |   1   |     2     |   3   |     4     |          each 2 or 3 of 12 units
#
# A tile that a block has whole is stored. Of any other tile it stores what it has into its own place of the
# workspace: slot 2 c + 1 for a tile that it begins, 2 c for one that began with others. So no two blocks
# write to the same memory, and the second kernel adds the parts of a tile in the order of the blocks: the
# result has the same bits in every run, whoever was first.
#
# Within a tile all is as in the rung below: a ring of stages that cp.async fills, warps that multiply by
# ``mma``. Here there are two shapes of tiles, so the device functions are made for a shape.
#
#     stage    codes of x [rows, 128 bytes] | codes of w [columns, 128 bytes] | scales of x [4, rows]
#              | of w [4, columns];     chunk c of row r at place c ^ (r % 8), so that no banks meet


@inlined
def scaled(dot: Any, x_scale: Any, w_scale: Any, total: Any) -> Any:
    """The total with a run's sum added, times both scales: the bits are a float already, MAGIC + sum."""
    return ptx.fma(ptx.fma(ptx.float_of_int_bits(dot), w_scale, -MAGIC * w_scale), x_scale, total)


# --- copies: from memory into a stage ------------------------------------------------------------


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
            if c < count:
                run, place = c // (count // 4), c % (count // 4)
                along = uint64(run * length) + uint64(place * 4)
                copy16(at + c * 16, source + along * 4)

    @inlined
    def fetch(at: Any, x: Any, dx: Any, w: Any, dw: Any, step: Any, k: Any, m_rows: Any, n_rows: Any) -> None:
        row, chunk = uint32(cuda.threadIdx.x) >> 3, uint32(cuda.threadIdx.x) & 7
        to = at + row * STEP + ((chunk ^ (row & 7)) << 4)
        along = address(step * STEP, row, k, chunk * 16, 1)
        # Rows of later passes are a multiple of eight further, so their places are exchanged alike.
        for p in range(passes_x):
            copy16(to + uint32(p * apart * STEP), x + along + uint64(p * apart) * k)
        for p in range(passes_w):
            copy16(to + uint32(weights_at + p * apart * STEP), w + along + uint64(p * apart) * k)
        first = step * (4 * RUNS)
        scales(at + scales_of_x, dx + first * m_rows, m_rows, rows)
        scales(at + scales_of_w, dw + first * n_rows, n_rows, columns)

    return fetch


# --- products: from a stage into registers, and on to the tensor cores ----------------------------


@cache
def loader(shape: IntTile) -> Any:
    """The device function that brings a run's operands and scales from a stage into registers."""
    (down, across), (rows, columns) = shape.grid, (shape.rows, shape.columns)
    weights_at, scales_of_x, scales_of_w = shape.offsets
    load_matrices, take_floats, take_pair = tensor_cores.load_matrices, ptx.take_floats, ptx.take_pair

    @inlined
    def load(at: Any, wm: Any, wn: Any, run: Any, a: Any, b: Any, da: Any, db: Any) -> None:
        (_, lane), chunk = warp_and_lane(), uint32(2 * run)
        g, t = g_and_t(lane)
        # Lane 8 i + r names row r of matrix i. Of x: rows 0 … 7 and 8 … 15 of the first 16 codes of the run,
        # then of the other 16. Of w: two tiles of 8 columns, each the first 16 codes and the other 16.
        row = lane & 15
        place = (((lane >> 4) + chunk) ^ (row & 7)) << 4
        a_at = at + (wm + row) * STEP + place
        for i in range(down):
            four_into(a, 4 * i, load_matrices(a_at + uint32(16 * STEP * i)))
        row = (lane >> 4 << 3) + (lane & 7)
        place = (((lane >> 3 & 1) + chunk) ^ (row & 7)) << 4
        b_at = at + weights_at + (wn + row) * STEP + place
        for j in range(across // 2):
            four_into(b, 4 * j, load_matrices(b_at + uint32(16 * STEP * j)))
        # Rows g, g + 8, g + 16, g + 24 lie side by side (unpacked.place_of_row): one load for a lane's four.
        da_at = at + scales_of_x + (uint32(run * rows) + wm + g * 4) * 4
        for i in range(down // 2):
            four_into(da, 4 * i, take_floats(da_at + uint32(128 * i)))
        db_at = at + scales_of_w + (uint32(run * columns) + wn + t * 2) * 4
        for j in range(across):
            p = take_pair(db_at + uint32(32 * j))
            db[2 * j], db[2 * j + 1] = p[0], p[1]

    return load


@cache
def multiplier(shape: IntTile) -> Any:
    """The device function that multiplies one stage: four runs, each loaded one run ahead."""
    down, across = shape.grid
    count_a, count_b, count_da = 4 * down, 2 * across, 2 * down
    load = loader(shape)

    @inlined
    def multiply(at: Any, wm: Any, wn: Any, sums: Any) -> None:
        a, b = cuda.local.array(count_a, int32), cuda.local.array(count_b, int32)
        da, db = cuda.local.array(count_da, float32), cuda.local.array(count_b, float32)
        next_a, next_b = cuda.local.array(count_a, int32), cuda.local.array(count_b, int32)
        next_da, next_db = cuda.local.array(count_da, float32), cuda.local.array(count_b, float32)
        load(at, wm, wn, 0, next_a, next_b, next_da, next_db)
        for run in range(RUNS):
            # What was loaded ahead is this run's now, and its registers take the run after it.
            for i in range(count_a):
                a[i] = next_a[i]
            for i in range(count_b):
                b[i], db[i] = next_b[i], next_db[i]
            for i in range(count_da):
                da[i] = next_da[i]
            # The last run loads itself again, which nothing reads.
            load(at, wm, wn, min(run + 1, RUNS - 1), next_a, next_b, next_da, next_db)
            for i in range(down):
                for j in range(across):
                    r, c, o = 4 * i, 2 * j, 4 * (i * across + j)
                    d = mma(a[r], a[r + 1], a[r + 2], a[r + 3], b[c], b[c + 1], START, START, START, START)
                    sums[o] = scaled(d[0], da[2 * i], db[2 * j], sums[o])
                    sums[o + 1] = scaled(d[1], da[2 * i], db[2 * j + 1], sums[o + 1])
                    sums[o + 2] = scaled(d[2], da[2 * i + 1], db[2 * j], sums[o + 2])
                    sums[o + 3] = scaled(d[3], da[2 * i + 1], db[2 * j + 1], sums[o + 3])

    return multiply


# --- a tile, or a part of its steps -----------------------------------------------------------------


@cache
def accumulator(shape: IntTile) -> Any:
    """The device function that adds steps ``first`` … ``last - 1`` of a tile to a thread's sums."""
    stages, stage = shape.stages, shape.stage
    ahead, last_stage = stages - 1, (stages - 1) * stage
    fetch, multiply = fetcher(shape), multiplier(shape)
    base, commit, wait = ptx.shared_base, ptx.commit, ptx.wait_for_all_but(stages - 2)

    @inlined
    def accumulate(
        sums: Any, m0: Any, n0: Any, x: Any, dx: Any, w: Any, dw: Any,
        first: Any, last: Any, k: Any, m_rows: Any, n_rows: Any,
    ) -> None:  # fmt: skip
        x_at, w_at = address(x, m0, k, 0, 1), address(w, n0, k, 0, 1)
        dx_at, dw_at = dx + m0 * 4, dw + n0 * 4
        wm, wn = warp_origin(warp_rows, warp_columns, warps_across)
        to, here = uint32(0), uint32(0)
        cuda.syncthreads()  # no warp reads the previous tile any more
        for step in range(first, last + ahead):
            # The first steps only copy, the last ones only multiply; between them each does both.
            ready = step >= first + ahead
            if ready:
                wait()  # this thread's copies of the oldest stage have arrived
                cuda.syncthreads()  # the stage has arrived for all; no warp reads the one to fill
            if step < last:
                fetch(base() + to, x_at, dx_at, w_at, dw_at, step, k, m_rows, n_rows)
            commit()  # also where nothing was copied: ``wait`` counts groups, one a step
            to = 0 if to == last_stage else uint32(to + stage)
            if ready:
                multiply(base() + here, wm, wn, sums)
                here = 0 if here == last_stage else uint32(here + stage)

    warp_rows, warp_columns = shape.warp_rows, shape.warp_columns
    warps_across = shape.columns // shape.warp_columns
    return accumulate


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
        row, column = m0 + wm + g, n0 + wn + t * 2
        for i in range(2 * down):
            r = row + uint32(8 * i)
            if r < m:
                for j in range(across):
                    c = column + uint32(8 * j)
                    at = address(y, r, n, c, 4)
                    o = 4 * (i // 2 * across + j) + 2 * (i % 2)
                    # Rows of an odd length begin at odd places: a pair must lie at a multiple of 8 bytes.
                    if c + 1 < n and at & 7 == 0:
                        store_pair(at, sums[o], sums[o + 1])
                    else:
                        if c < n:
                            store_float(at, sums[o])
                        if c + 1 < n:
                            store_float(at + 4, sums[o + 1])

    return store


# --- the kernel: a block walks along its units ------------------------------------------------------


@family((shape,) for shape in (LOW, SHAPE))
def kernel(shape: IntTile) -> Kernel:
    """The kernel: block c of ``count`` begins at unit c * units // count; a unit is one step of a tile."""
    accumulate, store = accumulator(shape), storer(shape)
    rows, columns, sums_each = shape.rows, shape.columns, shape.sums

    def streamk(
        x: Any,  # int8 [m_rows, k]
        dx: Any,  # float32 [k / 32, m_rows], in the order of unpacked.place_of_row
        w: Any,  # int8 [n_rows, k]
        dw: Any,  # float32 [k / 32, n_rows]
        y: Any,  # float32 [m, n]
        partials: Any,  # float32 [2 * blocks, rows, columns]: of a block's first and last tile
        m: Any, n: Any, k: Any, m_rows: Any, n_rows: Any, units: Any,
    ) -> None:  # fmt: skip
        c, count = uint64(cuda.blockIdx.x), uint64(cuda.gridDim.x)
        steps, across = k // STEP, (n + (columns - 1)) // columns
        # Products in 64 bits: a number of units alone may fill 32.
        unit, end = uint32(c * units // count), uint32((c + 1) * units // count)
        sums = cuda.local.array(sums_each, float32)
        while unit < end:
            # The rest of this tile, or of the block's units if they end sooner.
            tile = unit // steps
            first = unit - tile * steps
            last = min(steps, first + (end - unit))
            m0, n0 = tile // across * rows, tile % across * columns
            for i in range(sums_each):
                sums[i] = float32(0)
            accumulate(sums, m0, n0, x, dx, w, dw, first, last, k, m_rows, n_rows)
            # A part of a tile goes to the workspace as a matrix of its own, so the same store serves both.
            to, height, width = y, m, n
            if last - first < steps:
                slot = c * 2 + uint64(first == 0)
                to, height, width = (
                    partials + slot * (rows * columns * 4),
                    uint32(rows),
                    uint32(columns),
                )
                m0, n0 = uint32(0), uint32(0)
            store(sums, to, m0, n0, height, width)
            unit += last - first

    parameters = (uint64,) * 6 + (uint32,) * 6
    sizes: dict[str, Any] = {"threads": shape.threads, "blocks": shape.blocks, "shared": shape.shared}
    return Kernel(f"streamk, {shape}", streamk, *parameters, least=MIN_CAPABILITY, **sizes)


# --- the second kernel: parts of tiles, added up -----------------------------------------------------

# Who adds what: block (tile, i) of 256 threads has 1024 neighbours of a tile's outputs, a thread four. The
# parts of a tile lie at the same place of as many matrices:
#
#     block first        slot 2 c + 1    steps  0 … i          it began the tile
#     block first + 1    slot 2 c        steps  i + 1 … j      +      all of its units are within the tile
#     block last         slot 2 c        steps  j + 1 … end    +      then it went on to the next tile
#
# Block c has units from c · units // count on. Turned round, unit u belongs to block
# ((u + 1) · count - 1) // units: so two divisions find the first and the last one, and no list is needed.


@family((shape,) for shape in (LOW, SHAPE))
def adder(shape: IntTile) -> Kernel:
    """The kernel that adds the partial sums of tiles that several blocks computed, four outputs a thread."""
    rows, columns = shape.rows, shape.columns
    load_floats = ptx.load_floats

    def add(
        y: Any,  # float32 [m, n]
        partials: Any,  # float32 [2 * count, rows, columns]
        m: Any, n: Any, steps: Any, units: Any, count: Any,
    ) -> None:  # fmt: skip
        tile, across = uint64(cuda.blockIdx.x), (n + (columns - 1)) // columns
        first = ((tile * steps + 1) * count - 1) // units
        last = ((tile + 1) * steps * count - 1) // units
        if first == last:  # one block had all of it, and stored it
            return
        at = (uint32(cuda.blockIdx.y) * THREADS + uint32(cuda.threadIdx.x)) * 4
        # In the order of the blocks, one after the other: floats in another order would be other sums.
        a = b = c = d = float32(0)
        for block in range(first, last + 1):
            slot = block * 2 + uint64(block == first)
            v = load_floats(address(partials, slot, rows * columns, at, 4))
            a, b, c, d = a + v[0], b + v[1], c + v[2], d + v[3]
        row = uint32(tile // across) * rows + at // columns
        column = uint32(tile % across) * columns + at % columns
        if row < m:  # tiles at the edge stick out of y; columns are looked at one by one
            store_four(address(y, row, n, column, 4), column, n, a, b, c, d)

    parameters = (uint64,) * 2 + (uint32,) * 5
    return Kernel(f"add partial sums of {rows}x{columns}", add, *parameters, threads=THREADS)


def refuses(problem: Linear) -> str | None:
    if reason := refuses_unpacked(problem):
        return reason
    assert isinstance(problem.format, BlockFormat)
    if problem.format.group % 32:
        return "takes groups of whole runs of 32, one instruction each"
    if reason := older_than(problem.card, MIN_CAPABILITY) or too_small_for(problem.card, SHAPE.shared):
        return reason
    dtype = problem.format.dtype
    if any(dtype[name] == np.float32 for name in dtype.names or ()):
        return "takes scales made of halves, not of float32"
    if work(problem.m, problem.n, padded(problem.k))[2] > MAX_UNITS:
        return f"counts up to {MAX_UNITS} steps of tiles"
    return None


def work(m: int, n: int, k: int) -> tuple[IntTile, int, int]:
    """The tile for m rows, the number of tiles, and all their steps; ``k``: of the unpacked weights."""
    shape = LOW if m <= LOW.rows else SHAPE
    tiles = -(-m // shape.rows) * -(-n // shape.columns)
    return shape, tiles, tiles * (k // STEP)


@register(__name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    w = unpacked_weights(q)
    a = activations(x, w.run, for_mma=True)
    (m, n), k = out.shape, w.codes.shape[1]
    shape, tiles, units = work(m, n, k)
    if not units:
        out.fill(0)
        return
    # As many blocks as run together: all begin at once and end at once.
    count = min(device.multiprocessors() * device.resident_blocks(shape.blocks, shape.shared), units)
    partials = device.cupy().empty((2 * count, shape.rows, shape.columns), np.float32)
    sizes = (m, n, k, len(a.codes), len(w.codes), units)
    kernel(shape)((count,), (shape.threads,), a.codes, a.scale, w.codes, w.scale, out, partials, *sizes)
    grid = (tiles, shape.rows * shape.columns // (4 * THREADS))
    adder(shape)(grid, (THREADS,), out, partials, m, n, k // STEP, units, count)
    compensate(out, a, w)
