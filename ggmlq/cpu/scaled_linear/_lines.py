"""The kernel of this ladder's ``cpu:lines``: 8-bit floats, decoded in registers, times a few rows of float32.

``r4_lines.py`` says why it helps.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from ...codes import CODES, MiniFloat
from ..decode_scaled.kernels import divided, power
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import jit
from ..machine.memory import floats_at, reader
from ..machine.numba_names import cgutils
from ..machine.simd import F32, FLOATS, I8, I32, I64, vec
from ..machine.target import Target
from ..panels.layout import NEARER
from ..quantize_scaled.driver import LANES
from ..quantize_scaled.vectors import Vectors, vector_loop
from .r4_lines import Lines

CHAINS = 4  # sums under way
NEAR = 16 << 10  # bytes of activations that the first cache holds beside weights
BAND = 16  # rows of weights that meet them, before the next of these
MANY = 64  # codes in one round of the inner loop
REPEATED = [i % LANES for i in range(MANY)]

operands = reader(Lines)


@cache
def lines(name: str, rows: int, kind: Target) -> Any:
    """Compiled: rows ``first`` … ``stop`` of weights times ``rows`` rows of activations."""
    code = CODES[name]
    assert isinstance(code, MiniFloat)
    add = _segment(code, rows, kind)

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        k, group = fields.k, fields.group
        x_tiles, w_tiles = -(-k // fields.x_c), -(-k // fields.w_c)
        x_scales = floats_at(fields.x_scales, (fields.x_first + rows - 1) // fields.x_r + 1, x_tiles)
        out = floats_at(fields.out, rows, fields.n)
        groups = -(-k // group)
        x_tile, w_tile = np.empty(groups, np.int64), np.empty(groups, np.int64)
        x_row = (fields.x_first + np.arange(rows)) // fields.x_r
        for g in range(groups):
            x_tile[g], w_tile[g] = g * group // fields.x_c, g * group // fields.w_c
        near = max(1, NEAR // (4 * rows * group))  # groups of activations that the first cache holds
        scales, sums = np.empty(rows, np.float32), np.empty((BAND, rows, LANES), np.float32)
        for top in range(first, stop, BAND):
            sums[:] = 0
            for start in range(0, groups, near):
                for n in range(top, min(top + BAND, stop)):
                    w_scales = floats_at(fields.w_scales + 4 * w_tiles * (n // fields.w_r), 1, w_tiles)[0]
                    line = fields.codes + n * fields.pitch
                    for g in range(start, min(start + near, groups)):
                        left, step = g * group, w_scales[w_tile[g]]
                        for r in range(rows):
                            scales[r] = x_scales[x_row[r], x_tile[g]] * step
                        add(
                            line + left, fields.x + 4 * left, 4 * k, min(group, k - left),
                            scales.ctypes.data, sums[n - top].ctypes.data, fields.ahead,
                        )  # fmt: skip
            for n in range(top, min(top + BAND, stop)):
                for r in range(rows):
                    total = np.float32(0)
                    for i in range(LANES):
                        total += sums[n - top, r, i]
                    out[r, n] = total

    return jit(multiply)


def _segment(code: MiniFloat, rows: int, kind: Target) -> Any:
    """An intrinsic that adds to vectors of sums those of ``count`` products, times a scale a row."""
    return intrinsic_of(
        lambda builder, *words: _emit(Vectors(builder, kind, "float32"), code, rows, *words), 7
    )


def _emit(
    v: Vectors, code: MiniFloat, rows: int,
    line: Any, x: Any, pitch: Any, count: Any, scales: Any, sums: Any, ahead: Any,
) -> None:  # fmt: skip
    b, chains = v.builder, CHAINS // min(rows, CHAINS)
    none = ir.Constant(FLOATS, None)
    parts = [[cgutils.alloca_once_value(b, none) for _ in range(chains)] for _ in range(rows)]
    for part in (one for row in parts for one in row):
        b.store(none, part)
    nans = Nans(b, code)

    def add(weights: Any, index: Any, left: Any, chain: int) -> None:
        for r, row in enumerate(parts):
            at = b.add(b.add(x, b.mul(pitch, I64(r))), b.mul(index, I64(4)))
            part = row[chain % chains]
            b.store(v.fma(weights, v.load_some(at, FLOATS, left), b.load(part)), part)

    whole = b.udiv(count, I64(MANY))
    with cgutils.for_range(b, whole, intp=I64) as loop:
        first = b.mul(loop.index, I64(MANY))
        with b.if_then(b.icmp_unsigned("!=", ahead, I64(0)), likely=False):
            for cache, distance in ((2, ahead), (1, b.udiv(ahead, I64(NEARER)))):  # as panels/tile.py does
                v.fetch(b.add(b.add(line, first), distance), cache)
        nans.look(v.load(b.add(line, first), vec(I8, MANY)))
        for i in range(MANY // LANES):
            index = b.add(first, I64(LANES * i))
            add(divided(v, v.load(b.add(line, index), vec(I8, LANES)), code), index, None, i)
    done = b.mul(whole, I64(MANY))

    def rest(index: Any, left: Any, i: int) -> None:
        at = b.add(done, index)
        stored = v.load_some(b.add(line, at), vec(I8, LANES), left)
        nans.look(b.shuffle_vector(stored, vec(I8, LANES)(None), ir.Constant(vec(I32, MANY), REPEATED)))
        add(divided(v, stored, code), at, left, 0)

    vector_loop(b, b.sub(count, done), rest)
    larger = ir.Constant(FLOATS, [power(code)] * LANES)
    for r, row in enumerate(parts):
        total = b.load(row[0])
        for other in row[1:]:
            total = b.fadd(total, b.load(other))
        total = nans.or_nan(b.fmul(total, larger))
        scale, at = v.load(b.add(scales, I64(4 * r)), F32), b.add(sums, I64(4 * LANES * r))
        v.store(v.fma(total, v.splat(scale), v.load(at, FLOATS)), at)


class Nans:
    """A test for NaN among codes whose halves are numbers: it is evaluated once a segment."""

    def __init__(self, builder: Any, code: MiniFloat) -> None:
        self.b, self.needed = builder, power(code) != 1
        self.kind = vec(I8, MANY)
        self.least = cgutils.alloca_once(
            builder, self.kind
        )  # 0 where all bits but the sign of a code were set
        builder.store(self._all(0xFF), self.least)

    def look(self, codes: Any) -> None:
        """Look for NaN among 64 codes."""
        b = self.b
        if self.needed:
            unset, before = b.and_(b.not_(codes), self._all(0x7F)), b.load(self.least)
            b.store(b.select(b.icmp_unsigned("<", unset, before), unset, before), self.least)

    def or_nan(self, total: Any) -> Any:
        """A sum, or NaN in all lanes if a code was NaN."""
        if not self.needed:
            return total
        b = self.b
        lanes = b.bitcast(b.icmp_unsigned("==", b.load(self.least), self._all(0)), ir.IntType(MANY))
        none = b.icmp_unsigned("==", lanes, ir.Constant(lanes.type, 0))
        return b.select(none, total, ir.Constant(FLOATS, [float("nan")] * LANES))

    def _all(self, value: int) -> ir.Constant:
        return ir.Constant(self.kind, [value] * MANY)
