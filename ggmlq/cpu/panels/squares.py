"""The register tile of panels by arm64's matrix instruction (i8mm): two rows of weights times two of x.

``smmla`` adds eight products to each of four sums, twice as many as a dot product of as many bytes. Its
operands are two rows of eight codes: those of the weights are two vectors of a panel, zipped; those of the
activations lie eight bytes of a row at a time already. All else is ``tile.py``, with the same bits.

Floors for 16 rows of weights, four of activations and a run: 64 matrix instructions and 32 zips, where 128
dot products stand otherwise.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from ...formats.packing import RUN
from ..machine.arguments import reader
from ..machine.jit import inner, jit
from ..machine.memory import floats_at
from ..machine.simd import I8, I32, I64, INTS, vec
from ..machine.target import Target
from .layout import ROWS, PanelLayout, batch
from .operands import Operands
from .read import Place
from .tile import ARGUMENTS, Tile, tile

operands = reader(Operands)
MOST = 4  # rows of activations at once: the sums of more leave no registers for weights
SIDE = 2  # rows of a square
WORDS, PAIR, CODES = vec(I32, 4), vec(I64, 2), vec(I8, 16)  # 16 bytes: four fours of codes, or two eights
SQUARE = "llvm.aarch64.neon.smmla.v4i32.v16i8"


class SquareTile(Tile):
    """Emits the tile of an even number of rows of activations."""

    def _dots(self, group: int, here: Place, x: list[Any]) -> list[Any]:
        """Integer sums of a group, for every row."""
        count, couples = 8 // self.layout.groups, range(0, len(x), SIDE)
        squares = [[ir.Constant(WORDS, [0] * 4)] * (ROWS // SIDE) for _ in couples]
        for j in sorted(range(group * count, (group + 1) * count, 2), key=lambda j: (j % 4, j)):
            fours = [self.b.bitcast(self.panel.codes(here, i), INTS) for i in (j, j + 1)]
            weights = self._zipped(*fours)
            for i, first in enumerate(couples):
                theirs = self._eights(x[first : first + SIDE], j)
                squares[i] = [self.square(*case, theirs) for case in zip(squares[i], weights, strict=True)]
        return [
            self.b.add(dots, self._splat(row, RUN + 4 + 4 * group, I32))
            for row, dots in zip(x, [dots for sums in squares for dots in self._by_rows(sums)], strict=True)
        ]

    def _zipped(self, low: Any, high: Any) -> list[Any]:
        """Eight codes of two rows in each vector, from four codes of 16 rows and the next four."""
        lanes = ([i, ROWS + i, i + 1, ROWS + i + 1] for i in range(0, ROWS, SIDE))
        return [self.b.shuffle_vector(low, high, ir.Constant(WORDS, places)) for places in lanes]

    def _eights(self, rows: list[Any], j: int) -> Any:
        """Codes 4 j … 4 j + 7 of two rows of activations."""
        both = ir.Constant(PAIR, ir.Undefined)
        for i, row in enumerate(rows):
            both = self.b.insert_element(both, self.simd.load(self.b.add(row, I64(4 * j)), I64), I32(i))
        return self.b.bitcast(both, WORDS)

    def _by_rows(self, squares: list[Any]) -> list[Any]:
        """Sums of 16 rows of weights for each of two rows of activations; in squares weights come first."""
        sums = self.simd.join(squares)
        lanes = ([SIDE * i + r for i in range(ROWS)] for r in range(SIDE))
        nothing = ir.Constant(sums.type, ir.Undefined)
        return [self.b.shuffle_vector(sums, nothing, ir.Constant(INTS, places)) for places in lanes]

    def square(self, sums: Any, ours: Any, theirs: Any) -> Any:
        """Sums [2, 2] plus the products of two rows of weights with two of activations."""
        codes = (self.b.bitcast(operand, CODES) for operand in (ours, theirs))
        return self.simd.call(SQUARE, WORDS, sums, *codes)


@cache
def direct(layout: PanelLayout, target: Target, kind: type[SquareTile] = SquareTile) -> Any:
    """Compiled: panels ``first`` … ``stop`` times all activations, in batches of at most ``MOST`` rows."""
    by_four, by_two = (kind.intrinsic(ARGUMENTS, layout, rows, target) for rows in (MOST, SIDE))
    by_one, together, most = tile(layout, 1, target), inner(batch), MOST

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        m, n, runs = fields.m, fields.n, fields.runs
        out, edge = floats_at(fields.out, m, n), np.empty((most, ROWS), np.float32)
        for panel in range(first, stop):
            weights, column = fields.weights + panel * fields.weight_bytes, panel * ROWS
            whole = column + ROWS <= n
            line = 4 * n if whole else 4 * ROWS
            row = 0
            while row < m:
                rows = together(m - row, most)
                to = fields.out + 4 * (row * n + column) if whole else edge.ctypes.data
                x = fields.x_rows + row * fields.row_bytes
                if rows == most:
                    by_four(weights, x, to, line, runs, 0)
                elif rows > 1:
                    by_two(weights, x, to, line, runs, 0)
                else:
                    by_one(weights, x, to, line, runs, 0)
                if not whole:
                    for r in range(rows):
                        for i in range(n - column):
                            out[row + r, column + i] = edge[r, i]
                row += rows

    return jit(multiply)
