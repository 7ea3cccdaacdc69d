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

from ..intrinsics import dependent_launch, ptx, votes
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import KINDS, LEAST
from ..intrinsics.language import cuda, uint32, uint64
from ..machine import device
from ..machine.launch import Kernel, family
from ..machine.recorded import between
from .floats import aligned_floats, sixteen_loader
from .sixteen import kind_of

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
    from_neighbour = votes.from_neighbour

    @inlined
    def pair(sixteen: Any, a: Any, b: Any) -> None:
        odd = uint32(sixteen & uint32(1)) != uint32(0)
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
        step, swap = uint32(sixteen >> uint32(2)), uint32(row & uint32(7))
        chunk = uint32(uint32(uint32(sixteen & uint32(2)) << uint32(1)) | uint32(sixteen & uint32(1)))
        to = address(x_tiles, step, height, row, 2 * STEP)
        store16(to + uint64(uint32(chunk ^ swap) << uint32(4)), a[0], a[1], a[2], a[3])
        chunk = uint32(chunk | uint32(2))
        store16(to + uint64(uint32(chunk ^ swap) << uint32(4)), b[0], b[1], b[2], b[3])

    return place


@family([("float32",), ("float16",), ("bfloat16",)])
def x_tile_kernel(kind: str) -> Kernel:
    """The kernel that makes x_tiles of floats, 16 columns a thread; it also clears ``count`` words."""
    load, pair, place, store4 = sixteen_loader(kind), chunk_swapper(), chunk_placer(), ptx.store4
    take_turn, size = dependent_launch.take_turn, KINDS[kind]

    def make(
        x: Any,  # of the kind [m, k]
        x_tiles: Any,
        zeros: Any, count: Any,  # uint32 [count]
        m: Any, k: Any, sixteens: Any, height: Any,  # sixteens: of a row, in whole x_tiles
    ) -> None:  # fmt: skip
        take_turn()
        i = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        if i < count:
            store4(zeros + uint64(i) * uint64(4), uint32(0))
        row = uint32(i // sixteens)
        sixteen = uint32(i - uint32(row * sixteens))
        a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        for t in range(4):
            a[t] = b[t] = uint32(0)
        column = uint32(sixteen * uint32(THREAD_COLUMNS))
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
    x, kind = readable_rows(x)
    m, k = x.shape
    height = -(-m // rows) * rows
    x_tiles = between((steps, height, STEP), np.uint16)
    m, sixteens = min(m, first or m), min(steps, along or steps) * STEP // THREAD_COLUMNS
    grid = -(-max(m * sixteens, zeros.size) // THREADS)
    make, sizes = x_tile_kernel(kind), (m, k, sixteens, height)
    blocks_each = -(-grid // device.multiprocessors())
    most = blocks_each if evenly and blocks_each < CROWD else 0
    make((grid,), (THREADS,), x, x_tiles, zeros, zeros.size, *sizes, max_blocks=most)
    return x_tiles


def cleared(zeros: Any) -> None:
    """Clear words in a launch of its own, where no kernel before the product makes x_tiles."""
    make, grid = x_tile_kernel("bfloat16"), (-(-zeros.size // THREADS),)
    make(grid, (THREADS,), zeros, zeros, zeros, zeros.size, 0, STEP, STEP // THREAD_COLUMNS, 0)
