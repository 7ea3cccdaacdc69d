"""The reader of a panel as LLVM code: codes and scales as vectors for 16 rows, however they are stored."""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir

from ..machine.simd import BYTES, F16, FLOATS, I8, I16, I64, INTS, Simd, vec
from ..machine.target import Target
from .layout import ROWS, SUPER, PanelLayout


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
