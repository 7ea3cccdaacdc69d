"""A register tile: one or two panels of weights times a few rows of activations, along some runs of K.

The sums of a run stay in registers from its first column to its last. Then comes one fused multiplication
with the product of both scales into totals, which come from the result and go back there at the end.

Floors per 16 rows of weights and one row of activations: K / 2 dot products, nothing else that counts. A CPU
begins one in a clock, which takes six. Two panels and twelve rows are 24 sums, with a load of
activations for two dot products and one of weights for twelve; at the end of a run there is for each sum a
total to load, to add to and to store, 64 bytes in two clocks.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from ..machine.bfloats import BFLOATS
from ..machine.simd import F32, FLOATS, I32, I64, Simd
from ..machine.target import Target
from ..machine.numba_names import cgutils, intrinsic
from .float_layout import MOST, STEP

ADDRESSES = (
    "w", "w_pitch", "w_scales", "w_scales_pitch", "x", "x_pitch", "x_scales", "x_scales_pitch",
    "out", "out_pitch", "runs", "steps", "begun", "count",
)  # fmt: skip
DOT = "llvm.x86.avx512bf16.dpbf16ps.512"


@cache
def tile(rows: int, panels: int, target: Target) -> Any:
    """An intrinsic that takes ADDRESSES as integers and adds to float32 [rows, 16 · panels].

    ``begun``: whether totals are there; else they are zeros. Of a tile of fewer rows than MOST ``count`` are
    there, and the others are the last one again.
    """

    @intrinsic
    def multiply(
        typing: Any, w: Any, w_pitch: Any, w_scales: Any, w_scales_pitch: Any, x: Any, x_pitch: Any,
        x_scales: Any, x_scales_pitch: Any, out: Any, out_pitch: Any, runs: Any, steps: Any, begun: Any,
        count: Any,
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            Tile(builder, rows, panels, target, dict(zip(ADDRESSES, args, strict=True))).emit()
            return context.get_dummy_value()

        return types.void(*[types.int64] * len(ADDRESSES)), emit

    return multiply


class Tile:
    """Emits the product of some panels with a few rows."""

    def __init__(self, builder: Any, rows: int, panels: int, target: Target, at: dict[str, Any]) -> None:
        self.b, self.simd, self.at = builder, Simd(builder, target), at
        self.rows, self.panels = range(rows), range(panels)
        self.cells = [(s, r) for r in self.rows for s in self.panels]  # so that an activation is loaded once

    def emit(self) -> None:
        b, at, simd = self.b, self.at, self.simd
        totals, none = self._variables(), ir.Constant(FLOATS, None)
        places = [b.add(self._row("out", r), I64(64 * s)) for s, r in self.cells]
        with b.if_else(b.icmp_unsigned("!=", at["begun"], I64(0))) as (again, new):
            with again:
                for total, place in zip(totals, places, strict=True):
                    b.store(simd.load(place, FLOATS), total)
            with new:
                for total in totals:
                    b.store(none, total)
        with cgutils.for_range(b, at["runs"], intp=I64) as loop:
            sums = self._run(loop.index)
            by_run = b.mul(loop.index, I64(64))
            scales = [simd.load(b.add(self._panel("w_scales", s), by_run), FLOATS) for s in self.panels]
            over = b.mul(loop.index, I64(4))
            mine = [simd.splat(simd.load(b.add(self._row("x_scales", r), over), F32)) for r in self.rows]
            for (s, r), total, found in zip(self.cells, totals, sums, strict=True):
                b.store(simd.fma(found, b.fmul(scales[s], mine[r]), b.load(total)), total)
        for total, place in zip(totals, places, strict=True):
            simd.store(b.load(total), place)

    def _run(self, run: Any) -> list[Any]:
        """The sums of a run."""
        b, at = self.b, self.at
        sums = self._variables()
        for variable in sums:
            b.store(ir.Constant(FLOATS, None), variable)
        first = b.mul(run, at["steps"])
        with cgutils.for_range(b, at["steps"], intp=I64) as loop:
            self._step(b.add(first, loop.index), sums)
        return [b.load(one) for one in sums]

    def _step(self, step: Any, sums: list[Any]) -> None:
        """Sixteen columns: eight pairs."""
        b, simd = self.b, self.simd
        near = [simd.apart(b.add(self._panel("w", s), b.mul(step, I64(32 * STEP)))) for s in self.panels]
        behind = b.mul(step, I64(2 * STEP))
        if len(self.rows) == MOST:  # an address for three rows: a load adds once or twice the pitch
            pitch = simd.apart(self.at["x_pitch"])
            threes = [simd.apart(b.add(self._row("x", r), behind)) for r in self.rows[::3]]
            places = [b.add(threes[r // 3], b.mul(pitch, I64(r % 3))) for r in self.rows]
        else:
            places = [simd.apart(b.add(self._row("x", r), behind)) for r in self.rows]
        for j in range(STEP // 2):
            weights = [b.bitcast(simd.load(b.add(panel, I64(64 * j)), FLOATS), BFLOATS) for panel in near]
            pairs = [simd.load(b.add(place, I64(4 * j)), I32) for place in places]
            for (s, r), total in zip(self.cells, sums, strict=True):
                same = b.bitcast(simd.splat(pairs[r]), BFLOATS)
                b.store(simd.call(DOT, FLOATS, b.load(total), weights[s], same), total)

    def _variables(self) -> list[Any]:
        """A vector for each panel and row."""
        return [cgutils.alloca_once(self.b, FLOATS) for _ in self.cells]

    def _panel(self, name: str, s: int) -> Any:
        return self.b.add(self.at[name], self.b.mul(self.at[f"{name}_pitch"], I64(s)))

    def _row(self, name: str, r: int) -> Any:
        b, row = self.b, I64(r)
        if len(self.rows) < MOST:
            last = b.sub(self.at["count"], I64(1))
            row = b.select(b.icmp_signed("<", row, last), row, last)
        return b.add(self.at[name], b.mul(self.at[f"{name}_pitch"], row))
