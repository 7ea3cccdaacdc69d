"""The walk of a product of slabs with rows, compiled: loops that keep both near."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.arguments import reader
from ..machine.jit import jit
from ..machine.memory import floats_at
from ..machine.target import Target
from .int_layout import FEW, ROWS, Form
from .int_operands import Operands
from .int_tile import tile

NEAR = 256 << 10  # bytes of slabs that meet the same few rows: the second cache holds both

operands = reader(Operands)


@cache
def sweep(form: Form, most: int, kind: Target) -> Any:
    """Compiled: slabs ``first`` … ``stop`` times all rows, ``most`` at once and of what is left ``few``.

    Where fewer are left, some before them are multiplied again, by the same thread.
    """
    few, pair = (FEW, 2) if most > FEW else (1, 1)
    by_most, by_few, alone = (
        tile(form, rows, slabs, kind) for rows, slabs in ((most, pair), (few, pair), (few, 1))
    )

    def multiply(arguments: int, first: int, stop: int) -> None:
        given = operands(arguments)
        edge, out = np.empty((few, ROWS), np.float32), floats_at(given.out, given.m, given.n)
        near = max(pair, NEAR // given.slab_bytes // pair * pair)
        of_chunks = given.groups * given.chunks
        for start in range(first, stop, near):
            row, end = 0, min(start + near, stop)
            while row < given.m:
                done = most if given.m - row >= most else few
                row = min(row, given.m - done)
                slab = start
                while slab < end:
                    together = slab + pair <= end and (slab + pair) * ROWS <= given.n
                    for part in range(row, row + done, done if together else few):
                        column = slab * ROWS
                        whole = column + ROWS <= given.n
                        these = (
                            given.slabs + slab * given.slab_bytes, given.slab_bytes,
                            given.w_scales + 64 * slab * given.groups,
                            given.w_zeros + 64 * slab * given.groups,
                            given.w_sums + 64 * slab * of_chunks,
                            given.x + part * given.x_pitch,
                            given.x_scales + 4 * part * given.groups,
                            given.x_zeros + 4 * part * given.groups,
                            given.x_sums + 4 * part * of_chunks, given.x_pitch,
                            given.out + 4 * (part * given.n + column) if whole else edge.ctypes.data,
                            4 * given.n if whole else 4 * ROWS,
                            given.groups, given.chunks, given.fours,
                        )  # fmt: skip
                        if not together:
                            alone(*these)
                        elif done == most:
                            by_most(*these)
                        else:
                            by_few(*these)
                        if not whole:
                            for r in range(few):
                                for i in range(given.n - column):
                                    out[part + r, column + i] = edge[r, i]
                    slab += pair if together else 1
                row += done

    return jit(multiply)
