"""The kernel of products of 8-bit floats with many rows: it decodes a portion of weights for all activations.

A portion is some panels along some runs of K. It lies in the second cache, and in the first a tile's rows
of activations along the same runs. Totals wait in the result between portions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.arguments import reader
from ..machine.jit import inner, jit
from ..machine.memory import floats_at
from ..machine.target import Target
from .float_decode import runs_of
from .float_layout import APART, FEW, LINE, MOST, ROWS, STEP
from .float_operands import Operands
from .float_tile import tile
from .float_transpose import transposer

operands = reader(Operands)


@inner
def _scales(fields: Any, panel: int, runs: Any, to: int) -> None:
    """Scales of 16 rows, for some runs."""
    scales, bands = floats_at(to, len(runs), ROWS), np.empty(ROWS, np.int64)
    for r in range(ROWS):
        bands[r] = fields.scales + min(panel * ROWS + r, fields.n - 1) // fields.r * fields.scales_pitch
    for i in range(len(runs)):
        for r in range(ROWS):
            scales[i, r] = floats_at(bands[r] + runs[i, 2], 1, 1)[0, 0]


@cache
def sweep(name: str, kind: Target) -> Any:
    """Compiled: panels ``first`` … ``stop`` of weights of a code times all rows of activations."""
    transpose = transposer(name, kind)
    by_most, by_few, alone = tile(MOST, 2, kind), tile(FEW, 2, kind), tile(FEW, 1, kind)

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        m, n, width, runs = fields.m, fields.n, fields.width, runs_of(fields)
        pitch, scales_pitch = 2 * ROWS * width * fields.together, 4 * ROWS * fields.together
        near = min(fields.near, stop - first)
        memory = np.empty(near * (pitch + scales_pitch) + ROWS * APART + LINE, np.uint8)
        portion = memory.ctypes.data + LINE - 1 & -LINE
        scales = portion + near * pitch
        room = scales + near * scales_pitch
        edge, out = np.empty((FEW, ROWS), np.float32), floats_at(fields.out, m, n)
        x_pitch, x_scales_pitch = fields.x_pitch, 4 * len(runs)
        for start in range(first, stop, near):
            end = min(start + near, stop)
            for run in range(0, len(runs), fields.together):
                here = min(fields.together, len(runs) - run)
                for panel in range(start, end):
                    rows = fields.codes + panel * ROWS * fields.pitch
                    last = min(ROWS, n - panel * ROWS) - 1
                    for at in range(0, here * width, fields.span):
                        left, count, _ = runs[run + at // width]
                        if fields.span > width:
                            count = min(fields.span, fields.k - left)
                        steps = min(fields.span, here * width - at) // STEP
                        to = portion + (panel - start) * pitch + 2 * ROWS * at
                        transpose(rows + left, fields.pitch, last, min(count, STEP * steps), steps, room, to)
                    _scales(fields, panel, runs[run : run + here], scales + (panel - start) * scales_pitch)
                row = 0
                while row < m:
                    done = MOST if m - row >= MOST else min(FEW, m - row)
                    panel = start
                    while panel < end:
                        together = panel + 2 <= end and (panel + 2) * ROWS <= n
                        for top in range(row, row + done, done if together else FEW):
                            column = panel * ROWS
                            whole = column + ROWS <= n
                            count = min(FEW, row + done - top)
                            if run > 0 and not whole:
                                for r in range(count):
                                    for i in range(n - column):
                                        edge[r, i] = out[top + r, column + i]
                            these = (
                                portion + (panel - start) * pitch, pitch,
                                scales + (panel - start) * scales_pitch, scales_pitch,
                                fields.x + top * x_pitch + 2 * run * width, x_pitch,
                                fields.x_scales + top * x_scales_pitch + 4 * run, x_scales_pitch,
                                fields.out + 4 * (top * n + column) if whole else edge.ctypes.data,
                                4 * n if whole else 4 * ROWS, here, width // STEP, run, count,
                            )  # fmt: skip
                            if not together:
                                alone(*these)
                            elif done == MOST:
                                by_most(*these)
                            else:
                                by_few(*these)
                            if not whole:
                                for r in range(count):
                                    for i in range(n - column):
                                        out[top + r, column + i] = edge[r, i]
                        panel += 2 if together else 1
                    row += done
        memory[0] = 0  # an array lives until its last mention

    return jit(multiply)
