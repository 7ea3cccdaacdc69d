"""The kernel of products of 8-bit integers: loops over panels and rows that keep both in the caches."""

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

NEAR = 256 << 10  # bytes of panels that meet the same few rows: the second cache holds both

operands = reader(Operands)


@cache
def sweep(form: Form, most: int, kind: Target) -> Any:
    """Compiled: panels ``first`` … ``stop`` times all rows, ``most`` at once, and the rest ``few`` at once.

    Where fewer are left, some before them are multiplied again, by the same thread.
    """
    few, pair = (FEW, 2) if most > FEW else (1, 1)
    by_most, by_few, alone = (
        tile(form, rows, panels, kind) for rows, panels in ((most, pair), (few, pair), (few, 1))
    )

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        edge, out = np.empty((few, ROWS), np.float32), floats_at(fields.out, fields.m, fields.n)
        near = max(pair, NEAR // fields.panel_bytes // pair * pair)
        chunks = fields.groups * fields.chunks
        for start in range(first, stop, near):
            row, end = 0, min(start + near, stop)
            while row < fields.m:
                done = most if fields.m - row >= most else few
                row = min(row, fields.m - done)
                panel = start
                while panel < end:
                    together = panel + pair <= end and (panel + pair) * ROWS <= fields.n
                    for top in range(row, row + done, done if together else few):
                        column = panel * ROWS
                        whole = column + ROWS <= fields.n
                        these = (
                            fields.panels + panel * fields.panel_bytes, fields.panel_bytes,
                            fields.w_scales + 64 * panel * fields.groups,
                            fields.w_zeros + 64 * panel * fields.groups,
                            fields.w_sums + 64 * panel * chunks,
                            fields.x + top * fields.x_pitch,
                            fields.x_scales + 4 * top * fields.groups,
                            fields.x_zeros + 4 * top * fields.groups,
                            fields.x_sums + 4 * top * chunks, fields.x_pitch,
                            fields.out + 4 * (top * fields.n + column) if whole else edge.ctypes.data,
                            4 * fields.n if whole else 4 * ROWS,
                            fields.groups, fields.chunks, fields.fours,
                        )  # fmt: skip
                        if not together:
                            alone(*these)
                        elif done == most:
                            by_most(*these)
                        else:
                            by_few(*these)
                        if not whole:
                            for r in range(few):
                                for i in range(fields.n - column):
                                    out[top + r, column + i] = edge[r, i]
                    panel += pair if together else 1
                row += done

    return jit(multiply)
