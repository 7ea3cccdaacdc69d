"""The matrix unit of Intel's CPUs in plain vector code: whole kernels run on CPUs that have none.

Tiles lie in memory behind the shapes. A dot product adds pairs in the order of the instruction: even and odd
columns apart, then both, then to the sum. Denormal numbers are not flushed to zero here.
Sums of codes are exact.
"""

from __future__ import annotations

from llvmlite import ir

from ggmlq.cpu.amx.unit import CLOSE, PITCH, SHAPES, TILE, TILES, Unit
from ggmlq.cpu.machine.numba_names import cgutils
from ggmlq.cpu.machine.simd import FLOATS, I32, I64, INTS


class Emulated(Unit):
    """It, in memory."""

    ROOM = 2 * SHAPES + TILES * TILE

    def begin(self):
        """Nothing to tell."""

    def end(self):
        """Nothing to give back."""

    def zero(self, tile):
        for r in range(16):
            self.simd.store(ir.Constant(INTS, None), self._row(tile, I64(r)))

    def load(self, tile, address, pitch=CLOSE, passing=False):
        with cgutils.for_range(self.b, I64(16), intp=I64) as loop:
            at = self.b.add(address, self.b.mul(pitch, loop.index))
            self.simd.store(self.simd.load(at, INTS), self._row(tile, loop.index))

    def store(self, tile, address, pitch):
        with cgutils.for_range(self.b, I64(16), intp=I64) as loop:
            at = self.b.add(address, self.b.mul(pitch, loop.index))
            self.simd.store(self.simd.load(self._row(tile, loop.index), INTS), at)

    def dot(self, sums, rows, columns):
        b, simd = self.b, self.simd
        with cgutils.for_range(b, I64(16), intp=I64) as loop:
            halves = [cgutils.alloca_once_value(b, ir.Constant(FLOATS, None)) for _ in range(2)]
            for total in halves:
                b.store(ir.Constant(FLOATS, None), total)
            with cgutils.for_range(b, I64(16), intp=I64) as inner:
                at = b.add(self._row(rows, loop.index), b.mul(inner.index, I64(4)))
                x, w = simd.splat(simd.load(at, I32)), simd.load(self._row(columns, inner.index), INTS)
                for total, of_x, of_w in zip(halves, self._pair(x), self._pair(w), strict=True):
                    b.store(simd.fma(of_x, of_w, b.load(total)), total)
            place = self._row(sums, loop.index)
            both = b.fadd(*[b.load(total) for total in halves])
            simd.store(b.fadd(simd.load(place, FLOATS), both), place)

    def dot_codes(self, sums, rows, columns):
        b, simd = self.b, self.simd
        with cgutils.for_range(b, I64(16), intp=I64) as loop:
            place = self._row(sums, loop.index)
            total = cgutils.alloca_once_value(b, ir.Constant(INTS, None))
            b.store(simd.load(place, INTS), total)
            with cgutils.for_range(b, I64(16), intp=I64) as inner:
                at = b.add(self._row(rows, loop.index), b.mul(inner.index, I64(4)))
                x, w = simd.splat(simd.load(at, I32)), simd.load(self._row(columns, inner.index), INTS)
                for i in range(4):
                    signed = b.ashr(b.shl(x, _all(24 - 8 * i)), _all(24))
                    unsigned = b.and_(b.lshr(w, _all(8 * i)), _all(255))
                    b.store(b.add(b.load(total), b.mul(signed, unsigned)), total)
            simd.store(b.load(total), place)

    def _pair(self, words):
        """The lower and the upper bfloat16 of each lane, as float32."""
        b = self.b
        upper = b.and_(words, _all(0xFFFF0000))
        return [b.bitcast(v, FLOATS) for v in (b.shl(words, _all(16)), upper)]

    def _row(self, tile, row):
        return self.b.add(self.here, self.b.add(I64(2 * SHAPES + TILE * tile), self.b.mul(row, I64(PITCH))))


def _all(number):
    return ir.Constant(INTS, [number] * 16)
