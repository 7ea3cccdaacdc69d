"""The register tile of panels: one panel of weights times a few rows of activations, along all of K.

Everything stays in registers: for each run of 32 weights the integer sums start from −zero · Σq
(a constant inside the codes), take eight dot products of four, become floats, and are scaled by
the weights and by the activations. A format with offsets adds −offset · Σ activations.

A row of activations has for each run 32 codes, the scale (float32), for each group start − zero · Σq (int32)
and, where there are offsets, −scale · Σq (float32). The rows of a tile are a batch: the first run of each,
then the second of each …, so that one address leads to all of a run. With an address a row, LLVM makes of
them a chain of additions as long as the dot products.

Floors per 16 rows of weights, one row of activations and run, all on the same ports: 8 dot products,
one multiplication and one fused one; one more with offsets, one more with groups of 16. Under a
scale of 256 weights: 8 dot products and two fused multiplications, one more with offsets.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir

from ...formats.packing import RUN
from ..machine.numba_names import cgutils
from ..machine.register_tile import RegisterTile
from ..machine.simd import BYTES, F16, F32, FLOATS, I8, I16, I32, I64, INTS, Simd, vec
from ..machine.target import Target
from .layout import FLOAT, NEARER, ROWS, SUPER, PanelLayout, x_run_bytes

ARGUMENTS = ("panel", "x", "out", "out_pitch", "runs", "ahead")
FEW = 2  # rows of activations that the memory may be too slow for
LINE = 64  # bytes that it gives at a time


@cache
def tile(layout: PanelLayout, rows: int, target: Target) -> Any:
    """An intrinsic that takes ARGUMENTS and writes float32 [rows, 16]."""
    return Tile.intrinsic(ARGUMENTS, layout, rows, target)


class Tile(RegisterTile):
    """Emits the register tile: a step along K is a run, or the eight runs under a scale of 256 weights."""

    def __init__(
        self, builder: Any, layout: PanelLayout, rows: int, target: Target, words: dict[str, Any]
    ) -> None:
        self.panel, self.layout = Panel(builder, layout, target), layout
        super().__init__(self.panel.simd, rows, 1, words)

    def steps(self) -> Any:
        runs = self.at["runs"]
        return self.b.udiv(runs, I64(SUPER)) if self.layout.nested else runs

    def multiply(self, step: Any, totals: list[Any]) -> None:
        if self.layout.nested:
            self._super(step, totals)
        else:
            self._run(step, totals)

    def _run(self, run: Any, totals: list[Any]) -> None:
        """Floats: (Σ scale · dot) · scale of the activations."""
        b, layout, simd = self.b, self.layout, self.simd
        here = self.panel.run_at(self.at["panel"], run)
        self._fetch(here)
        x = [self.x_run(run, r) for r in self.rows]
        scaled: list[Any] = []
        for group in range(layout.groups):
            dots = self._dots(group, here, x)
            scale, offset = self.panel.scale(here, group)
            for r, dot in enumerate(dots):
                whole = self._whole(dot)
                if group:
                    scaled[r] = simd.fma(whole, scale, scaled[r])
                else:
                    scaled.append(b.fmul(whole, scale))
            if layout.offset:
                for r, total in enumerate(totals):
                    self.add(total, offset, self._sum(x[r], group))
        for r, total in enumerate(totals):
            self.add(total, scaled[r], self._splat(x[r], RUN, F32))

    def _whole(self, dot: Any) -> Any:
        """Sums of integers as floats."""
        if not self.layout.floats:
            return self.b.sitofp(dot, FLOATS)
        return self.b.fsub(self.b.bitcast(dot, FLOATS), ir.Constant(FLOATS, [FLOAT] * ROWS))

    def _super(self, index: Any, totals: list[Any]) -> None:
        """Eight runs with integer scales, then the scale above them: fewer products of floats.

        Sums of integers begin with the bits of 1.5 · 2**23, so that they are floats without being
        converted: this plus the dot product. One fused step takes it off and scales. Scales times dots
        stay below 2**24, so that all is exact.
        """
        b, layout = self.b, self.layout
        inner, first = self.zeros(), b.mul(index, I64(SUPER))
        with cgutils.for_range(b, I64(SUPER), intp=I64) as loop:
            run = b.add(first, loop.index)
            here = self.panel.run_at(self.at["panel"], run)
            self._fetch(here)
            x = [self.x_run(run, r) for r in self.rows]
            scaled: list[Any] = []
            for group in range(layout.groups):
                dots = self._dots(group, here, x)
                scale = b.sitofp(self.panel.integers(here, group)[0], FLOATS)
                less = b.fmul(scale, ir.Constant(FLOATS, [-FLOAT] * ROWS))
                products = [self.simd.fma(b.bitcast(dot, FLOATS), scale, less) for dot in dots]
                scaled = [b.fadd(*pair) for pair in zip(scaled, products, strict=True)] if group else products
            for r, total in enumerate(inner):
                self.add(total, scaled[r], self._splat(x[r], RUN, F32))
        here = self.panel.run_at(self.at["panel"], first)
        d, dmin = self.panel.above(here)
        for total, by_d in zip(totals, inner, strict=True):
            self.add(total, b.load(by_d), d)
        if layout.offset:
            self._offsets(first, dmin, totals)

    def _offsets(self, first: Any, dmin: Any, totals: list[Any]) -> None:
        """Add the minima of eight runs: by themselves, so that registers hold the sums of more rows."""
        b, offsets = self.b, self.zeros()
        with cgutils.for_range(b, I64(SUPER), intp=I64) as loop:
            run = b.add(first, loop.index)
            here = self.panel.run_at(self.at["panel"], run)
            x = [self.x_run(run, r) for r in self.rows]
            for group in range(self.layout.groups):
                minimum = b.sitofp(self.panel.integers(here, group)[1], FLOATS)
                for r, total in enumerate(offsets):
                    self.add(total, minimum, self._sum(x[r], group))
        for total, by_dmin in zip(totals, offsets, strict=True):
            self.add(total, b.load(by_dmin), dmin)

    def _fetch(self, here: Place) -> None:
        """Ask for the bytes of a run that lies ``ahead``, unless that is 0, and once more when near it.

        The second cache can wait for many more lines than the first.
        """
        if len(self.rows) > FEW:
            return
        b, ahead = self.b, self.at["ahead"]
        with b.if_then(b.icmp_unsigned("!=", ahead, I64(0)), likely=False):
            for cache, distance in ((2, ahead), (1, b.udiv(ahead, I64(NEARER)))):
                place = b.add(here.run, distance)
                for line in range(0, self.layout.run_bytes, LINE):
                    self.simd.fetch(b.add(place, I64(line)), cache)

    def _dots(self, group: int, here: Place, x: list[Any]) -> list[Any]:
        """Integer sums of a group, for every row."""
        count = 8 // self.layout.groups
        fours = range(group * count, (group + 1) * count)
        dots = [self._splat(row, RUN + 4 + 4 * group, I32) for row in x]
        for j in sorted(fours, key=lambda j: (j % 4, j)):  # both nibbles of a vector together
            weights = self.simd.operand(self.panel.codes(here, j))
            for r, row in enumerate(x):
                four = self.simd.load(self.b.add(row, I64(4 * j)), I32)
                dots[r] = self.simd.dot(dots[r], weights, four)
        return dots

    def _sum(self, x: Any, group: int) -> Any:
        """The factor of a group's offset."""
        return self._splat(x, RUN + 4 + 4 * (self.layout.groups + group), F32)

    def x_run(self, run: Any, row: int) -> Any:
        """The address of a run of a row of activations."""
        size = x_run_bytes(self.layout)
        runs = self.b.add(self.at["x"], self.b.mul(run, I64(len(self.rows) * size)))
        return self.b.add(runs, I64(row * size))

    def _splat(self, x: Any, at: int, kind: Any) -> Any:
        return self.simd.splat(self.simd.load(self.b.add(x, I64(at)), kind))


# --- The reader of a panel as LLVM code: codes and scales as vectors for 16 rows, however they are stored


class Place(NamedTuple):
    """Addresses of a run and of the scales above it."""

    run: Any
    above: Any


class Panel:
    """Emits the code that reads a run."""

    def __init__(self, builder: Any, layout: PanelLayout, target: Target) -> None:
        self.b = builder
        self.simd = Simd(builder, target)
        self.layout, self.target = layout, target

    def run_at(self, panel: Any, run: Any) -> Place:
        """The addresses of a run of a panel and of the scales above it."""
        b, layout = self.b, self.layout
        here = b.add(panel, b.mul(run, I64(layout.run_bytes)))
        if not layout.nested:
            return Place(here, here)
        index = b.lshr(run, I64(SUPER.bit_length() - 1))
        above = b.add(panel, b.mul(index, I64(layout.head + SUPER * layout.run_bytes)))
        return Place(b.add(b.add(here, b.mul(index, I64(layout.head))), I64(layout.head)), above)

    def codes(self, here: Place, j: int) -> Any:
        """Codes 4 j … 4 j + 3 of a run in 16 rows, as the dot product takes them."""
        layout, simd, b = self.layout, self.simd, self.b
        low, codes = 0, None
        for at, width in zip(layout.planes_at, layout.planes, strict=True):
            places = {8: (j, 0), 4: (j % 4, j // 4 * 4), 2: (j // 4, j % 4 * 2), 1: (0, j)}
            vector, bit = places[width]
            packed = simd.load(b.add(here.run, I64(at + 64 * vector)), BYTES)
            bits = packed if width == 8 else simd.field(packed, bit, width, low)
            codes = bits if codes is None else b.or_(codes, bits)
            low += width
        if layout.table:
            return simd.lookup(tuple(v + 128 * self.target.unsigned for v in layout.table), codes)
        if layout.zero and not self.target.unsigned:
            return simd.minus(codes, layout.zero)
        return codes

    def scale(self, here: Place, group: int) -> tuple[Any, Any]:
        """Scale and offset (or None) of a group of a run, 16 rows each."""
        layout, b = self.layout, self.b
        if not layout.nested:
            at = layout.scales // layout.groups * group
            scale = self._floats(b.add(here.run, I64(at)))
            offset = self._floats(b.add(here.run, I64(layout.scales + at))) if layout.offset else None
            return scale, offset
        scale, minimum = self.integers(here, group)
        d, dmin = self.above(here)
        product = b.fmul(d, b.sitofp(scale, FLOATS))
        return product, b.fmul(dmin, b.sitofp(minimum, FLOATS)) if layout.offset else None

    def above(self, here: Place) -> tuple[Any, Any]:
        """The scale of scales, and of minima (or None)."""
        d = self._half_floats(here.above)
        if self.layout.unit != 1:
            d = self.b.fmul(d, ir.Constant(FLOATS, [self.layout.unit] * ROWS))
        if not self.layout.offset:
            return d, None
        return d, self._half_floats(self.b.add(here.above, I64(2 * ROWS)))

    def _floats(self, address: Any) -> Any:
        """16 scales as they are stored."""
        if self.layout.scale == "f32":
            return self.simd.load(address, FLOATS)
        if self.layout.scale == "f16":
            return self._half_floats(address)
        upper = self.b.zext(self.simd.load(address, vec(I16, ROWS)), INTS)
        return self.b.bitcast(self.b.shl(upper, ir.Constant(INTS, [16] * ROWS)), FLOATS)

    def _half_floats(self, address: Any) -> Any:
        return self.b.fpext(self.simd.load(address, vec(F16, ROWS)), FLOATS)

    def integers(self, here: Place, group: int) -> tuple[Any, Any]:
        """Integer scales of a group under a scale of scales, and minima (or None), as int32."""
        b, layout = self.b, self.layout
        address = b.add(here.run, I64(ROWS * group))
        stored = self.simd.load(address, vec(I8, ROWS))
        if layout.scale == "i4":
            both = b.zext(stored, INTS)
            return b.and_(both, ir.Constant(INTS, [15] * ROWS)), b.lshr(both, ir.Constant(INTS, [4] * ROWS))
        if not layout.offset:
            return b.sext(stored, INTS), None
        minima = self.simd.load(b.add(address, I64(ROWS * layout.groups)), vec(I8, ROWS))
        return b.sext(stored, INTS), b.sext(minima, INTS)
