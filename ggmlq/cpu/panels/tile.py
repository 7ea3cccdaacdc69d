"""A register tile: one panel of weights times a few rows of activations, along all of K.

Everything stays in registers: for each run of 32 weights the integer sums start from −zero · Σq
(a constant inside the codes), take eight dot products of four, become floats, and are scaled by
the weights and by the activations. A format with offsets adds −offset · Σ activations.

A row of activations is a sequence of records: 32 codes, the scale (float32), for each group
start − zero · Σq (int32) and, where there are offsets, −scale · Σq (float32). The rows of a tile are a
batch: the first record of each, then the second of each …, so that one address leads to all of a run.
With an address a row, LLVM makes of them a chain of additions as long as the dot products.

Floors per 16 rows of weights, one row of activations and run, all on the same ports: 8 dot products,
one multiplication and one fused one; one more with offsets, one more with groups of 16. Under a
scale of 256 weights: 8 dot products and two fused multiplications, one more with offsets.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from ...formats.packing import RUN
from ..machine.simd import F32, FLOATS, I32, I64
from ..machine.target import Target
from ..machine.numba_names import cgutils, intrinsic
from .layout import FLOAT, NEARER, ROWS, SUPER, PanelLayout, record_bytes
from .read import Panel, Place

ADDRESSES = ("panel", "records", "out", "out_bytes", "runs", "far")
FEW = 2  # rows of activations that the memory may be too slow for
LINE = 64  # bytes that it gives at a time


@cache
def tile(layout: PanelLayout, rows: int, target: Target) -> Any:
    """An intrinsic that takes ADDRESSES as integers and writes float32 [rows, 16]."""

    @intrinsic
    def multiply(typing: Any, panel: Any, records: Any, out: Any, out_bytes: Any, runs: Any, far: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            Tile(builder, layout, rows, target, dict(zip(ADDRESSES, args, strict=True))).emit()
            return context.get_dummy_value()

        return types.void(*[types.intp] * len(ADDRESSES)), emit

    return multiply


class Tile(Panel):
    """Emits the product of one panel with a few rows."""

    def __init__(
        self, builder: Any, layout: PanelLayout, rows: int, target: Target, at: dict[str, Any]
    ) -> None:
        super().__init__(builder, layout, target)
        self.rows, self.at = range(rows), at

    def emit(self) -> None:
        b = self.b
        sums = self._zeros()
        if self.layout.nested:
            with cgutils.for_range(b, b.udiv(self.at["runs"], I64(SUPER)), intp=I64) as loop:
                self._super(loop.index, sums)
        else:
            with cgutils.for_range(b, self.at["runs"], intp=I64) as loop:
                self._run(loop.index, sums)
        for r, total in enumerate(sums):
            self.simd.store(b.load(total), self._result(r))

    def _result(self, row: int) -> Any:
        """Address of 16 results of a row of activations."""
        return self.b.add(self.at["out"], self.b.mul(self.at["out_bytes"], I64(row)))

    def _zeros(self) -> list[Any]:
        """Sums of floats, one vector a row."""
        return [cgutils.alloca_once_value(self.b, ir.Constant(FLOATS, None)) for _ in self.rows]

    def _add(self, total: Any, a: Any, b: Any) -> None:
        self.b.store(self.simd.fma(a, b, self.b.load(total)), total)

    def _run(self, run: Any, sums: list[Any]) -> None:
        """Floats: (Σ scale · dot) · scale of the activations."""
        b, layout, simd = self.b, self.layout, self.simd
        here = self.run_at(self.at["panel"], run)
        self._fetch(here)
        x = [self._record(run, r) for r in self.rows]
        scaled: list[Any] = []
        for group in range(layout.groups):
            dots = self._dots(group, here, x)
            scale, offset = self.scale(here, group)
            for r, dot in enumerate(dots):
                whole = self._whole(dot)
                if group:
                    scaled[r] = simd.fma(whole, scale, scaled[r])
                else:
                    scaled.append(b.fmul(whole, scale))
            if layout.offset:
                for r, total in enumerate(sums):
                    self._add(total, offset, self._sum(x[r], group))
        for r, total in enumerate(sums):
            self._add(total, scaled[r], self._splat(x[r], RUN, F32))

    def _whole(self, dot: Any) -> Any:
        """Sums of integers as floats."""
        if not self.layout.floats:
            return self.b.sitofp(dot, FLOATS)
        return self.b.fsub(self.b.bitcast(dot, FLOATS), ir.Constant(FLOATS, [FLOAT] * ROWS))

    def _super(self, index: Any, sums: list[Any]) -> None:
        """Eight runs with integer scales, then the scale above them: fewer products of floats.

        Sums of integers begin with the bits of 1.5 · 2**23, so that they are floats without being
        converted: this plus the dot product. One fused step takes it off and scales. Scales times dots
        stay below 2**24, so that all is exact.
        """
        b, layout = self.b, self.layout
        inner, first = self._zeros(), b.mul(index, I64(SUPER))
        self._clear(inner)
        with cgutils.for_range(b, I64(SUPER), intp=I64) as loop:
            run = b.add(first, loop.index)
            here = self.run_at(self.at["panel"], run)
            self._fetch(here)
            x = [self._record(run, r) for r in self.rows]
            scaled: list[Any] = []
            for group in range(layout.groups):
                dots = self._dots(group, here, x)
                scale = b.sitofp(self.integers(here, group)[0], FLOATS)
                less = b.fmul(scale, ir.Constant(FLOATS, [-FLOAT] * ROWS))
                products = [self.simd.fma(b.bitcast(dot, FLOATS), scale, less) for dot in dots]
                scaled = [b.fadd(*pair) for pair in zip(scaled, products, strict=True)] if group else products
            for r, total in enumerate(inner):
                self._add(total, scaled[r], self._splat(x[r], RUN, F32))
        here = self.run_at(self.at["panel"], first)
        d, dmin = self.above(here)
        for total, by_d in zip(sums, inner, strict=True):
            self._add(total, b.load(by_d), d)
        if layout.offset:
            self._offsets(first, dmin, sums)

    def _offsets(self, first: Any, dmin: Any, sums: list[Any]) -> None:
        """What the minima of eight runs add: by itself, so that registers hold the sums of more rows."""
        b, offsets = self.b, self._zeros()
        self._clear(offsets)
        with cgutils.for_range(b, I64(SUPER), intp=I64) as loop:
            run = b.add(first, loop.index)
            here = self.run_at(self.at["panel"], run)
            x = [self._record(run, r) for r in self.rows]
            for group in range(self.layout.groups):
                minimum = b.sitofp(self.integers(here, group)[1], FLOATS)
                for r, total in enumerate(offsets):
                    self._add(total, minimum, self._sum(x[r], group))
        for total, by_dmin in zip(sums, offsets, strict=True):
            self._add(total, b.load(by_dmin), dmin)

    def _clear(self, sums: list[Any]) -> None:
        for total in sums:
            self.b.store(ir.Constant(FLOATS, None), total)

    def _fetch(self, here: Place) -> None:
        """Ask for the bytes of a run that lies ``far`` ahead, unless that is 0, and once more when near it.

        The second cache can wait for many more lines than the first.
        """
        if len(self.rows) > FEW:
            return
        b, far = self.b, self.at["far"]
        with b.if_then(b.icmp_unsigned("!=", far, I64(0)), likely=False):
            for cache, ahead in ((2, far), (1, b.udiv(far, I64(NEARER)))):
                place = b.add(here.run, ahead)
                for line in range(0, self.layout.run_bytes, LINE):
                    self.simd.fetch(b.add(place, I64(line)), cache)

    def _dots(self, group: int, here: Place, x: list[Any]) -> list[Any]:
        """Integer sums of a group, for every row."""
        each = 8 // self.layout.groups
        fours = range(group * each, (group + 1) * each)
        dots = [self._splat(record, RUN + 4 + 4 * group, I32) for record in x]
        for j in sorted(fours, key=lambda j: (j % 4, j)):  # both nibbles of a vector together
            weights = self.simd.operand(self.codes(here, j))
            for r, record in enumerate(x):
                four = self.simd.load(self.b.add(record, I64(4 * j)), I32)
                dots[r] = self.simd.dot(dots[r], weights, four)
        return dots

    def _sum(self, record: Any, group: int) -> Any:
        """What the offset of a group is multiplied with."""
        return self._splat(record, RUN + 4 + 4 * (self.layout.groups + group), F32)

    def _record(self, run: Any, row: int) -> Any:
        """Address of a run of a row of activations."""
        size = record_bytes(self.layout)
        runs = self.b.add(self.at["records"], self.b.mul(run, I64(len(self.rows) * size)))
        return self.b.add(runs, I64(row * size))

    def _splat(self, record: Any, at: int, kind: Any) -> Any:
        return self.simd.splat(self.simd.load(self.b.add(record, I64(at)), kind))
