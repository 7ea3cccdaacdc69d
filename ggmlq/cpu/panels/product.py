"""Panels times rows of activations: the loops around the register tile."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..jit import jit
from ..memory import bytes_at, floats_at, peek
from ..target import Target
from .expand import expanded, expander
from .layout import ROWS, Layout
from .tile import tile


@cache
def sweep(layout: Layout, rows: int, target: Target) -> Any:
    """Compiled: one panel times all records, ``rows`` of them at a time, into columns of out.

    ``one(panel address, records uint8 [M, bytes], out float32 [M, N], first column, runs)``
    """
    most, two, four = rows, min(rows, 2), min(rows, 4)
    by_most, by_four, by_two, by_one = (tile(layout, n, target) for n in (most, four, two, 1))

    def one(panel: int, records: Any, out: Any, column: int, runs: int) -> None:
        m, n = out.shape
        edge = np.empty((most, ROWS), np.float32)  # a tile that reaches beyond the last column
        whole = column + ROWS <= n
        row = 0
        while row < m:
            left = m - row
            to, pitch = out.ctypes.data + 4 * (row * n + column), 4 * n
            if not whole:
                to, pitch = edge.ctypes.data, 4 * ROWS
            x = records.ctypes.data + row * records.shape[1]
            if left >= most:
                by_most(panel, x, records.shape[1], to, pitch, runs)
                done = most
            elif left >= four:
                by_four(panel, x, records.shape[1], to, pitch, runs)
                done = four
            elif left >= two:
                by_two(panel, x, records.shape[1], to, pitch, runs)
                done = two
            else:
                by_one(panel, x, records.shape[1], to, pitch, runs)
                done = 1
            if not whole:
                out[row : row + done, column:] = edge[:done, : n - column]
            row += done

    return jit(one)


@cache
def direct(layout: Layout, rows: int, target: Target) -> Any:
    """Compiled: panels ``first`` … ``stop`` as they are kept. See ``multiply.py`` for the arguments."""
    one = sweep(layout, rows, target)

    def multiply(arguments: int, first: int, stop: int) -> None:
        panels, panel_bytes = peek(arguments, 0), peek(arguments, 2)
        records = bytes_at(peek(arguments, 3), peek(arguments, 4), peek(arguments, 5))
        out = floats_at(peek(arguments, 6), peek(arguments, 4), peek(arguments, 7))
        runs = peek(arguments, 8)
        for panel in range(first, stop):
            one(panels + panel * panel_bytes, records, out, panel * ROWS, runs)

    return jit(multiply)


@cache
def through_bytes(layout: Layout, rows: int, target: Target) -> Any:
    """Compiled: panels ``first`` … ``stop``, each expanded before it is multiplied."""
    wide = expanded(layout, target)
    one, expand = sweep(wide, rows, target), expander(layout, target)
    run_bytes = wide.run_bytes

    def multiply(arguments: int, first: int, stop: int) -> None:
        panels, panel_bytes = peek(arguments, 0), peek(arguments, 2)
        records = bytes_at(peek(arguments, 3), peek(arguments, 4), peek(arguments, 5))
        out = floats_at(peek(arguments, 6), peek(arguments, 4), peek(arguments, 7))
        runs = peek(arguments, 8)
        scratch = np.empty(runs * run_bytes + 64, np.uint8)
        buffer = scratch.ctypes.data + 63 & ~63
        for panel in range(first, stop):
            expand(panels + panel * panel_bytes, buffer, runs)
            one(buffer, records, out, panel * ROWS, runs)

    return jit(multiply)
