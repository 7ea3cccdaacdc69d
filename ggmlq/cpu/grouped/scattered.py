"""The register tile of panels for rows of activations that lie anywhere: addresses come from a table.

Rows of an expert are those of the tokens that use it, and results go back to these. Nothing has to be
copied together: eight addresses stay in registers beside the sums.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.jit import jit
from ..machine.memory import floats_at, words_at
from ..machine.simd import I64
from ..machine.target import Target
from ..panels.layout import ROWS, PanelLayout, x_run_bytes
from ..panels.tile import Tile

FEWER = (1, 2, 3, 4)  # rows of the tiles for what is left: an expert often has few
ARGUMENTS = ("panel", "rows", "outs", "column", "runs", "ahead")


@cache
def scattered_tile(layout: PanelLayout, rows: int, target: Target) -> Any:
    """An intrinsic that takes ARGUMENTS, tables of addresses among them, and writes 16 floats a row."""
    return Scattered.intrinsic(ARGUMENTS, layout, rows, target)


class Scattered(Tile):
    """Emits the product of one panel with a few rows, wherever they are."""

    def __init__(
        self, builder: Any, layout: PanelLayout, rows: int, target: Target, words: dict[str, Any]
    ) -> None:
        super().__init__(builder, layout, rows, target, words)
        self.starts = [self._entry("rows", r) for r in self.rows]
        self.results = [builder.add(self._entry("outs", r), words["column"]) for r in self.rows]

    def _entry(self, table: str, row: int) -> Any:
        return self.simd.load(self.b.add(self.at[table], I64(8 * row)), I64)

    def x_run(self, run: Any, row: int) -> Any:
        return self.b.add(self.starts[row], self.b.mul(run, I64(x_run_bytes(self.layout))))

    def result(self, panel: int, row: int) -> Any:
        return self.results[row]


@cache
def scattered_sweep(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Compiled: ``count`` panels times ``m`` rows, ``rows`` of them at a time.

    ``several(panels address, bytes of a panel, count, rows and outs: addresses of tables, m, first column,
    n, runs, ahead)``
    """
    one, two, three, four, most = (scattered_tile(layout, min(n, rows), target) for n in (*FEWER, rows))
    at_once = rows
    fewer = len(FEWER)

    def several(
        panels: int,
        pitch: int,
        count: int,
        rows: int,
        outs: int,
        m: int,
        column: int,
        n: int,
        runs: int,
        ahead: int,
    ) -> None:
        edge = np.empty((at_once, ROWS), np.float32)  # a tile that reaches beyond the last column
        edges = np.empty(at_once, np.int64)
        for r in range(at_once):
            edges[r] = edge.ctypes.data + 4 * ROWS * r
        row = 0
        while row < m:
            done = at_once if m - row >= at_once else min(m - row, fewer)
            for p in range(count):
                panel, first = panels + p * pitch, column + p * ROWS
                whole = first + ROWS <= n
                x, to = rows + 8 * row, outs + 8 * row if whole else edges.ctypes.data
                by = 4 * first if whole else 0
                if done == at_once:
                    most(panel, x, to, by, runs, ahead)
                elif done == 4:
                    four(panel, x, to, by, runs, ahead)
                elif done == 3:
                    three(panel, x, to, by, runs, ahead)
                elif done == 2:
                    two(panel, x, to, by, runs, ahead)
                else:
                    one(panel, x, to, by, runs, ahead)
                if not whole:
                    for r in range(done):
                        line = floats_at(words_at(outs, m)[row + r], 1, n)[0]
                        for i in range(n - first):  # see product.py: no copy between slices
                            line[first + i] = edge[r, i]
            row += done

    return jit(several)
