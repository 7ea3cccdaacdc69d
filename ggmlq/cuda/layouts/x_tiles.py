"""Activations as x_tiles of bfloat16: one copy brings them to shared memory as ``wgmma`` reads them.

    x_tiles  [steps of 64 columns][rows, filled up][128 bytes]

Chunk c of 16 bytes of a row r lies at c ^ (r % 8), which is the swizzle of ``wgmma``. So any number of
neighbouring rows of a step, from a multiple of 8 on, is one piece of memory, and a tile of shared memory as
it is. Columns have the order of floats.sixteen_loader. Columns beyond K are zeros. Rows beyond M hold
anything; their sums are never read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...base.slots import following, rows_of
from ..driver import device
from ..driver.launch import Kernel, family
from ..driver.recorded import across, between
from ..intrinsics import codes8, halves, hopper, ptx
from ..intrinsics import lane as lanes
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import KINDS, LEAST
from ..intrinsics.lane import ALL_LANES, address, warp_and_lane
from ..intrinsics.language import cuda, int32, uint32, uint64
from .floats import aligned_floats, four_loader, kind_of, sixteen_loader

# Activations as halves, each row times a power of two, so that sums of halves do not overflow.
#
#     halves   float16 [m, k]: the row's largest is below 2**top
#     factors  float32 [m, rounded up to whole tiles]: what a row's results are multiplied with
#
# A power of two changes no bit of a half but where one falls below the least normal one: 2**-14, that is
# 2**-(14 + top) of the row's largest. The largest of a row with infinity or NaN counts as 2**128.

HALF_THREADS, FOUR = 512, 4  # of a block, which serves a row; values of a thread at a time
BELOW, MOST = 253, 253  # the exponent's bits of 1 over the largest's power of two; the most that are taken
SIGN_OFF = 254  # exponent's bits of a power of two and of its inverse, together


@family((kind,) for kind in KINDS)
def half_row_kernel(kind: str) -> Kernel:
    """The kernel from floats of a kind to halves and factors: block (row)."""
    load, size, store8, store_float = four_loader(kind), KINDS[kind], ptx.store8, ptx.store_float
    size_of, mul, float_of, narrowed = codes8.size_of, ptx.mul, ptx.float_of, halves.narrowed
    take_turn, warps = hopper.take_turn, HALF_THREADS // 32

    def scale(
        x: Any,  # of the kind [m, k]
        rows: Any,  # float16 [m, k]
        factors: Any,  # float32 [m]
        k: Any, top: Any,
    ) -> None:  # fmt: skip
        take_turn()
        row, (warp, lane), largest = uint32(cuda.blockIdx.x), warp_and_lane(), uint32(0)
        column, apart = uint32(uint32(cuda.threadIdx.x) * FOUR), uint32(HALF_THREADS * FOUR)
        at = column
        while at < k:
            v = load(address(x, row, k, at, size))
            largest = max(largest, size_of(v[0]), size_of(v[1]), size_of(v[2]), size_of(v[3]))
            at = uint32(at + apart)
        for step in (16, 8, 4, 2, 1):
            largest = max(largest, uint32(cuda.shfl_xor_sync(ALL_LANES, int32(largest), step)))
        all_largest = cuda.shared.array(warps, uint32)
        if lane == 0:
            all_largest[warp] = largest
        cuda.syncthreads()
        for i in range(warps):
            largest = max(largest, all_largest[i])
        up = min(max(int32(top + int32(BELOW) - int32(largest >> 23)), int32(1)), int32(MOST))
        factor = float_of(uint32(uint32(up) << 23))
        at = column
        while at < k:
            v = load(address(x, row, k, at, size))
            low, high = (
                narrowed(mul(v[0], factor), mul(v[1], factor)),
                narrowed(mul(v[2], factor), mul(v[3], factor)),
            )
            store8(address(rows, row, k, at, 2), low, high)
            at = uint32(at + apart)
        if uint32(cuda.threadIdx.x) == 0:
            store_float(
                factors + uint64(row) * 4,
                float_of(uint32(uint32(int32(SIGN_OFF) - up) << 23)),
            )

    parameters = (uint64, uint64, uint64, uint32, int32)
    return Kernel(
        f"{kind} to halves times powers of two", scale, *parameters, threads=HALF_THREADS,
        least=LEAST["bfloat16"], early=True,
    )  # fmt: skip


def half_rows_of(x: Any, rows: int, top: int) -> tuple[Any, Any]:
    """Halves of rows of floats, below 2**top, and their factors, of whole tiles of ``rows``."""
    (x, kind), m, k = readable_rows(x), rows_of(x), x.shape[1]
    y, factors = between((m, k), np.float16), between((across(m, rows) * rows,), np.float32)
    half_row_kernel(kind)((m,), (HALF_THREADS,), x, y, factors, k, top)
    return y, factors


THREADS, STEP, THREAD_COLUMNS = 256, 64, 16  # of a block; columns of an x_tile; columns of a thread
CROWD = 5  # blocks of a multiprocessor, from which on it does not matter how they are spread


@cache
def chunk_swapper() -> Any:
    """The device function by which two lanes swap chunks of a row.

    Before, lanes 2 i and 2 i + 1 hold its chunks 0, 1 and 2, 3; afterwards 0, 2 and 1, 3. So both write
    neighbouring chunks at one time: memory takes 32 bytes as fast as 16. All lanes of a warp call it; the
    lanes of a pair have one row, and ``sixteen``, the number of a lane's 16 columns, counts on from one to
    the next.
    """
    from_neighbour = lanes.from_neighbour

    @inlined
    def pair(sixteen: Any, a: Any, b: Any) -> None:
        odd = uint32(sixteen & 1) != 0
        for t in range(4):
            other = from_neighbour(a[t] if odd else b[t])
            a[t], b[t] = other if odd else a[t], b[t] if odd else other

    return pair


@cache
def chunk_placer() -> Any:
    """The device function that stores two chunks of a row, after ``chunk_swapper``, into their x_tile."""
    store16 = ptx.store16

    @inlined
    def place(x_tiles: Any, sixteen: Any, height: Any, row: Any, a: Any, b: Any) -> None:
        step, swap = uint32(sixteen >> 2), uint32(row & 7)
        chunk = uint32(uint32(uint32(sixteen & 2) << 1) | uint32(sixteen & 1))
        to = address(x_tiles, step, height, row, 2 * STEP)
        store16(to + uint64(uint32(chunk ^ swap) << 4), a[0], a[1], a[2], a[3])
        chunk = uint32(chunk | 2)
        store16(to + uint64(uint32(chunk ^ swap) << 4), b[0], b[1], b[2], b[3])

    return place


@family([("float32",), ("float16",), ("bfloat16",)])
def x_tile_kernel(kind: str) -> Kernel:
    """The kernel that makes x_tiles of floats, 16 columns a thread; it also clears ``count`` words."""
    load, pair, place, store4 = sixteen_loader(kind), chunk_swapper(), chunk_placer(), ptx.store4
    take_turn, size = hopper.take_turn, KINDS[kind]

    def make(
        x: Any,  # of the kind [m, k]
        x_tiles: Any,
        zeros: Any, count: Any,  # uint32 [count]
        m: Any, k: Any, sixteens: Any, height: Any,  # sixteens: of a row, in whole x_tiles
    ) -> None:  # fmt: skip
        take_turn()
        i = uint32(uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x))
        if i < count:
            store4(zeros + uint64(i) * 4, uint32(0))
        row = uint32(i // sixteens)
        sixteen = uint32(i - uint32(row * sixteens))
        a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        for t in range(4):
            a[t] = b[t] = uint32(0)
        column = uint32(sixteen * THREAD_COLUMNS)
        if row < m and column < k:
            load(address(x, row, k, column, size), a, b)
        pair(sixteen, a, b)
        if row < m:
            place(x_tiles, sixteen, height, row, a, b)

    return Kernel(
        f"{kind} to x_tiles", make, *(uint64,) * 3, *(uint32,) * 5, threads=THREADS,
        least=LEAST["bfloat16"], early=True, limits_blocks=True,
    )  # fmt: skip


def readable_rows(x: Any) -> tuple[Any, str]:
    """Rows that x_tile_kernel can read, converted only if they must be, and their kind of floats."""
    kind = kind_of(x)
    return (x, kind) if kind else (aligned_floats(x), "float32")


def x_tiles_of(
    x: Any, steps: int, rows: int, zeros: Any, first: int | None = None, along: int | None = None,
    evenly: bool = False,
) -> Any:  # fmt: skip
    """The x_tiles of rows of floats, a multiple of 16 long, in whole tiles of ``rows``; clears ``zeros``.

    ``first``, ``along``: make only these rows and steps; the others hold anything. ``evenly``: spread the
    blocks evenly over the multiprocessors, where blocks of the kernel before could leave them room on a few
    alone.
    """
    (x, kind), m, k, count = readable_rows(x), rows_of(x), x.shape[1], zeros.size
    height = across(m, rows) * rows
    x_tiles = between((steps, height, STEP), np.uint16)
    sixteens = min(steps, along or steps) * STEP // THREAD_COLUMNS
    m = m if first is None else following(m, lambda m: min(m, first))
    grid = following(m, lambda m: -(-max(m * sixteens, count) // THREADS))
    multiprocessors = device.multiprocessors()

    def most_blocks(grid: int) -> int:
        blocks_each = -(-grid // multiprocessors)
        return blocks_each if blocks_each < CROWD else 0

    make, sizes, most = x_tile_kernel(kind), (m, k, sixteens, height), 0
    if evenly:
        most = following(grid, most_blocks)
    make((grid,), (THREADS,), x, x_tiles, zeros, count, *sizes, max_blocks=most)
    return x_tiles


def cleared(zeros: Any) -> None:
    """Clear words in a launch of its own, where no kernel before the product makes x_tiles."""
    make, grid = x_tile_kernel("bfloat16"), (-(-zeros.size // THREADS),)
    make(grid, (THREADS,), zeros, zeros, zeros, zeros.size, 0, STEP, STEP // THREAD_COLUMNS, 0)
