"""The kernels that multiply panels with rows of activations: loops around the tile of ``tile.py``."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.arguments import reader
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at
from ..machine.target import Target
from .expand import expander
from .layout import ROWS, PanelLayout, batch, expanded
from .operands import Operands
from .tile import tile

operands = reader(Operands)
NEAR = 256 << 10  # bytes of panels that meet the same few rows of activations: the second cache holds both


@cache
def sweep(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Compiled: ``count`` panels times all rows of codes, in batches of at most ``rows``.

    ``several(panels address, bytes of a panel, count, x_rows uint8 [M, bytes], out float32 [M, N],
    first column, runs, bytes ahead)``
    """
    most, together = rows, inner(batch)
    by_most, by_eight, by_four, by_two, by_one = (
        tile(layout, min(n, rows), target) for n in (rows, 8, 4, 2, 1)
    )

    def several(
        panels: int, pitch: int, count: int, x_rows: Any, out: Any, column: int, runs: int, ahead: int
    ) -> None:
        m, n = out.shape
        edge = np.empty((most, ROWS), np.float32)  # a tile that reaches beyond the last column
        row = 0
        while row < m:
            done = together(m - row, most)
            x = x_rows.ctypes.data + row * x_rows.shape[1]
            for p in range(count):
                panel, first = panels + p * pitch, column + p * ROWS
                whole = first + ROWS <= n
                to = out.ctypes.data + 4 * (row * n + first) if whole else edge.ctypes.data
                line = 4 * n if whole else 4 * ROWS
                if done == most:
                    by_most(panel, x, to, line, runs, ahead)
                elif done == 8:
                    by_eight(panel, x, to, line, runs, ahead)
                elif done == 4:
                    by_four(panel, x, to, line, runs, ahead)
                elif done == 2:
                    by_two(panel, x, to, line, runs, ahead)
                else:
                    by_one(panel, x, to, line, runs, ahead)
                if not whole:  # loops: Numba compiles seconds of messages into a copy between slices
                    for r in range(done):
                        for i in range(n - first):
                            out[row + r, first + i] = edge[r, i]
            row += done

    return jit(several)


@cache
def direct(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Compiled: panels ``first`` … ``stop``, read as they are stored, times all activations."""
    several = sweep(layout, rows, target)

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        panels, panel_bytes = fields.weights, fields.weight_bytes
        x_rows = bytes_at(fields.x_rows, fields.m, fields.row_bytes)
        out = floats_at(fields.out, fields.m, fields.n)
        near = max(1, NEAR // panel_bytes)
        for panel in range(first, stop, near):
            count = min(near, stop - panel)
            first_panel = panels + panel * panel_bytes
            several(first_panel, panel_bytes, count, x_rows, out, panel * ROWS, fields.runs, fields.ahead)

    return jit(multiply)


@cache
def through_bytes(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Compiled: panels ``first`` … ``stop``, each expanded before it is multiplied."""
    wide = expanded(layout, target)
    expand = expander(layout, target)

    def fill(arguments: int, panel: int, memory: Any) -> None:
        fields = operands(arguments)
        expand(fields.weights + panel * fields.weight_bytes, memory.ctypes.data, fields.runs)

    return from_scratch(wide, rows, target, inner(fill))


def from_scratch(layout: PanelLayout, rows: int, target: Target, fill: Any) -> Any:
    """Compiled: panels ``first`` … ``stop``, made by ``fill(arguments, panel, memory)``, then multiplied."""
    several, run_bytes = sweep(layout, rows, target), layout.run_bytes

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        x_rows = bytes_at(fields.x_rows, fields.m, fields.row_bytes)
        out = floats_at(fields.out, fields.m, fields.n)
        pitch = fields.runs * run_bytes
        near = max(1, NEAR // pitch)
        scratch = np.empty(near * pitch + 64, np.uint8)
        skip = -scratch.ctypes.data & 63
        for panel in range(first, stop, near):
            count = min(near, stop - panel)
            for p in range(count):
                fill(arguments, panel + p, scratch[skip + p * pitch : skip + (p + 1) * pitch])
            # the address is asked for here: an array lives until its last mention
            several(scratch.ctypes.data + skip, pitch, count, x_rows, out, panel * ROWS, fields.runs, 0)

    return jit(multiply)
