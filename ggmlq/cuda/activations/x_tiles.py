"""Activations as panels of bfloat16: what one copy brings to shared memory is there as ``wgmma`` wants it.

    panels   [steps of 64 columns][rows, filled up][128 bytes]

Chunk c of 16 bytes of a row r lies at c ^ (r % 8): so any number of neighbouring rows of a panel, from a
multiple of 8 on, is one piece of memory, and a tile of shared memory as it is. Columns have the order of
cuda:wgmma (floats.py). Columns beyond K are zeros; rows beyond M are whatever was there, for sums of their
own that nobody reads.
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
from .floats import aligned_floats, sixteen_loader
from .sixteen import kind_of

THREADS, STEP, EACH = 256, 64, 16  # of a block; columns of a panel; columns of a thread
CROWD = 5  # blocks of a multiprocessor, from which on it makes no difference where they are


@cache
def pairer() -> Any:
    """The device function by which two lanes swap chunks of a row.

    Before, lanes 2 i and 2 i + 1 hold its chunks 0, 1 and 2, 3; afterwards 0, 2 and 1, 3: so both write
    neighbouring chunks at one time, 32 bytes, of which memory takes half no faster than all. All lanes of a
    warp call it; those of a pair have one row, and ``own`` counts on from one to the next.
    """
    from_neighbour = votes.from_neighbour

    @inlined
    def pair(own: Any, a: Any, b: Any) -> None:
        odd = uint32(own & uint32(1)) != uint32(0)
        for t in range(4):
            found = from_neighbour(a[t] if odd else b[t])
            a[t], b[t] = found if odd else a[t], b[t] if odd else found

    return pair


@cache
def placer() -> Any:
    """The device function that puts two chunks of a row, as ``pairer`` leaves them, into their panel."""
    store16 = ptx.store16

    @inlined
    def place(panels: Any, own: Any, height: Any, row: Any, a: Any, b: Any) -> None:
        step, swap = uint32(own >> uint32(2)), uint32(row & uint32(7))
        chunk = uint32(uint32(uint32(own & uint32(2)) << uint32(1)) | uint32(own & uint32(1)))
        to = address(panels, step, height, row, 2 * STEP)
        store16(to + uint64(uint32(chunk ^ swap) << uint32(4)), a[0], a[1], a[2], a[3])
        chunk = uint32(chunk | uint32(2))
        store16(to + uint64(uint32(chunk ^ swap) << uint32(4)), b[0], b[1], b[2], b[3])

    return place


@family([("float32",), ("float16",), ("bfloat16",)])
def panel_maker(kind: str) -> Kernel:
    """Floats to panels, 16 columns a thread; and so many words of zeros, for who comes next."""
    load, pair, place, store4 = sixteen_loader(kind), pairer(), placer(), ptx.store4
    take_turn, size = dependent_launch.take_turn, KINDS[kind]

    def make(
        x: Any,  # of the kind [m, k]
        panels: Any,
        zeros: Any, count: Any,  # uint32 [count]
        m: Any, k: Any, sixteens: Any, height: Any,  # sixteens: of a row, whole panels
    ) -> None:  # fmt: skip
        take_turn()
        i = uint32(uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        if i < count:
            store4(zeros + uint64(i) * uint64(4), uint32(0))
        row = uint32(i // sixteens)
        own = uint32(i - uint32(row * sixteens))
        a, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        for t in range(4):
            a[t] = b[t] = uint32(0)
        column = uint32(own * uint32(EACH))
        if row < m and column < k:
            load(address(x, row, k, column, size), a, b)
        pair(own, a, b)
        if row < m:
            place(panels, own, height, row, a, b)

    return Kernel(
        f"{kind} to panels of bfloat16", make, *(uint64,) * 3, *(uint32,) * 5, threads=THREADS,
        least=LEAST["bfloat16"], early=True, limits_blocks=True,
    )  # fmt: skip


def as_read(x: Any) -> tuple[Any, str]:
    """Rows as panels are made of them, and which floats these are."""
    kind = kind_of(x)
    return (x, kind) if kind else (aligned_floats(x), "float32")


def panels_of(
    x: Any, steps: int, rows: int, zeros: Any, first: int | None = None, along: int | None = None,
    evenly: bool = False,
) -> Any:  # fmt: skip
    """Rows of floats, a multiple of 16 long, as panels, whole tiles of ``rows``; ``zeros`` become such.

    ``first``, ``along``: only so many rows and steps; the others are whatever was there. ``evenly``: blocks
    of the kernel before leave no room for these, which would crowd where there are none of them.
    """
    x, kind = as_read(x)
    m, k = x.shape
    height = -(-m // rows) * rows
    panels = device.cupy().empty((steps, height, STEP), np.uint16)
    m, sixteens = min(m, first or m), min(steps, along or steps) * STEP // EACH
    grid = -(-max(m * sixteens, zeros.size) // THREADS)
    make, sizes = panel_maker(kind), (m, k, sixteens, height)
    each = -(-grid // device.multiprocessors())
    most = each if evenly and each < CROWD else 0
    make((grid,), (THREADS,), x, panels, zeros, zeros.size, *sizes, max_blocks=most)
    return panels
