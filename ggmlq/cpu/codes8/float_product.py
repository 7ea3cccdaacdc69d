"""Kernel of products of 8-bit floats: loops over portions that the second cache holds, and the tile.

A portion is some panels along some runs of K. It lies in the second cache, and in the first a tile's rows
of activations along the same runs. Totals wait in the result between portions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from ..machine.jit import inner, jit
from ..machine.memory import floats_at, reader
from ..machine.numba_names import cgutils
from ..machine.register_tile import RegisterTile
from ..machine.simd import BFLOATS, FLOATS, I32, I64, Simd
from ..machine.target import Target
from .float_decode import runs_of, transposer
from .float_layout import APART, FEW, LINE, MOST, ROWS, STEP, Operands

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


# --- The register tile of 8-bit floats: one or two panels of bfloat16 times a few rows, along some runs
# of K
#
# The sums of a run stay in registers from its first column to its last. Then comes one fused multiplication
# with the product of both scales into totals, which come from the result and go back there at the end.
#
# Floors per 16 rows of weights and one row of activations: K / 2 dot products, nothing else that counts. A
# CPU begins one in a clock, which takes six. Two panels and twelve rows are 24 sums, with a load of
# activations for two dot products and one of weights for twelve; at the end of a run there is for each sum
# a total to load, to add to and to store, 64 bytes in two clocks.

ARGUMENTS = (
    "w", "w_pitch", "w_scales", "w_scales_pitch", "x", "x_pitch", "x_scales", "x_scales_pitch",
    "out", "out_pitch", "runs", "steps", "begun", "count",
)  # fmt: skip
DOT = "llvm.x86.avx512bf16.dpbf16ps.512"


@cache
def tile(rows: int, panels: int, target: Target) -> Any:
    """An intrinsic that takes ARGUMENTS and adds to float32 [rows, 16 · panels].

    ``begun``: whether the result holds totals already; else they begin as zeros. In a tile of fewer rows than
    MOST, ``count`` rows exist, and the others repeat the last of these.
    """
    return Tile.intrinsic(ARGUMENTS, rows, panels, target)


class Tile(RegisterTile):
    """Emits the register tile: a step along K is a run."""

    def __init__(self, builder: Any, rows: int, panels: int, target: Target, words: dict[str, Any]) -> None:
        super().__init__(Simd(builder, target), rows, panels, words)
        self.results = {(p, r): self.b.add(self.row("out", r), I64(64 * p)) for p, r in self.cells}

    def begin(self) -> list[Any]:
        b, totals = self.b, self.variables()
        with b.if_else(b.icmp_unsigned("!=", self.at["begun"], I64(0))) as (again, new):
            with again:
                for cell, total in zip(self.cells, totals, strict=True):
                    b.store(self.simd.load(self.results[cell], FLOATS), total)
            with new:
                for total in totals:
                    b.store(ir.Constant(FLOATS, None), total)
        return totals

    def steps(self) -> Any:
        return self.at["runs"]

    def multiply(self, step: Any, totals: list[Any]) -> None:
        b, sums = self.b, self._run(step)
        by_run = b.mul(step, I64(64))

        def x_scales() -> Iterator[Any]:
            by_four = b.mul(step, I64(4))
            for r in self.rows:
                yield b.add(self.row("x_scales", r), by_four)

        w_scales = (b.add(self.place("w_scales", p), by_run) for p in self.panels)
        self.add_scaled(totals, sums, w_scales, x_scales())

    def result(self, panel: int, row: int) -> Any:
        return self.results[panel, row]

    def row(self, name: str, r: int) -> Any:
        """The address of a row of activations or of results, the last one again where there are no more."""
        if len(self.rows) == MOST:
            return self.place(name, r)
        b, row = self.b, I64(r)
        last = b.sub(self.at["count"], I64(1))
        row = b.select(b.icmp_signed("<", row, last), row, last)
        return b.add(self.at[name], b.mul(self.at[f"{name}_pitch"], row))

    def _run(self, run: Any) -> list[Any]:
        """The sums of a run."""
        b, at = self.b, self.at
        sums = self.zeros()
        first = b.mul(run, at["steps"])
        with cgutils.for_range(b, at["steps"], intp=I64) as loop:
            self._step(b.add(first, loop.index), sums)
        return [b.load(total) for total in sums]

    def _step(self, step: Any, sums: list[Any]) -> None:
        """Sixteen columns: eight pairs."""
        b, simd = self.b, self.simd
        near = [simd.apart(b.add(self.place("w", p), b.mul(step, I64(32 * STEP)))) for p in self.panels]
        behind = b.mul(step, I64(2 * STEP))
        if len(self.rows) == MOST:
            places = self.by_threes(lambda r: b.add(self.row("x", r), behind))
        else:
            places = [simd.apart(b.add(self.row("x", r), behind)) for r in self.rows]
        for j in range(STEP // 2):
            weights = [b.bitcast(simd.load(b.add(panel, I64(64 * j)), FLOATS), BFLOATS) for panel in near]
            pairs = [simd.load(b.add(place, I64(4 * j)), I32) for place in places]
            for (p, r), total in zip(self.cells, sums, strict=True):
                same = b.bitcast(simd.splat(pairs[r]), BFLOATS)
                b.store(simd.call(DOT, FLOATS, b.load(total), weights[p], same), total)
