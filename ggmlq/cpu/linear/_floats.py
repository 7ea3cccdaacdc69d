"""The kernel of rung ``cpu:floats``: weights that are floats, widened in registers, times activations.

A tile is a few rows of both, along all of K, with a vector of sums for each pair of rows, so that each loaded
number is multiplied several times. Each sum takes its products in the order of the columns, sixteen apart,
whatever else is in the tile. ``r8_floats.py`` says why it helps.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir

from ..machine.intrinsics import intrinsic_of
from ..machine.jit import jit
from ..machine.memory import reader
from ..machine.numba_names import cgutils
from ..machine.simd import FLOATS, I64, total_of
from ..machine.target import Target
from ..quantize_scaled.driver import LANES
from ..quantize_scaled.vectors import Vectors
from .r8_floats import BAND, Floats

KINDS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
WIDE = 8  # vector registers from which a tile has up to four rows of activations, else two
# Rows of weights of a tile, by those of activations; eight come faster from memory than two or four.
LINES, FEW = {1: 8, 2: 8, 3: 8, 4: 4}, {1: 2, 2: 2}


operands = reader(Floats)


@cache
def sweep(name: str, kind: Target) -> Any:
    """Compiled: rows ``first`` … ``stop`` of weights (of type ``name``) times all activations."""
    wide = kind.registers > WIDE
    one, two, three, four = (_band(name, rows, kind) for rows in (1, 2, 3, 4))

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        m, pitch, row_bytes, out_bytes = fields.m, fields.pitch, 4 * fields.k, 4 * fields.n
        for top in range(first, stop, BAND):
            count, row = min(BAND, stop - top), 0
            while row < m:
                w, x, to = (
                    fields.weights + top * pitch,
                    fields.x + row * row_bytes,
                    fields.out + row * out_bytes,
                )
                these = (w, pitch, x, row_bytes, fields.k, to + 4 * top, out_bytes, count)
                if wide and m - row >= 4:
                    four(*these)
                    row += 4
                elif wide and m - row == 3:
                    three(*these)
                    row += 3
                elif m - row >= 2:
                    two(*these)
                    row += 2
                else:
                    one(*these)
                    row += 1

    return jit(multiply)


def _band(name: str, rows: int, kind: Target) -> Any:
    """Compiled: ``rows`` rows of activations times ``count`` rows of weights."""
    lines = LINES[rows] if kind.registers > WIDE else FEW.get(rows, 1)
    together, alone = _tile(name, rows, lines, kind), _tile(name, rows, 1, kind)

    def multiply(
        w: int, pitch: int, x: int, x_pitch: int, k: int, to: int, to_pitch: int, count: int
    ) -> None:
        line = 0
        while line + lines <= count:
            together(w + line * pitch, pitch, x, x_pitch, k, to + 4 * line, to_pitch)
            line += lines
        while line < count:
            alone(w + line * pitch, pitch, x, x_pitch, k, to + 4 * line, to_pitch)
            line += 1

    return jit(multiply)


def _tile(name: str, rows: int, lines: int, kind: Target) -> Any:
    """An intrinsic: rows of activations times rows of weights, to float32 [rows, lines]."""
    return intrinsic_of(lambda b, *words: _emit(Vectors(b, kind, KINDS[name]), rows, lines, *words), 7)


def _emit(
    v: Vectors,
    rows: int,
    lines: int,
    w: Any,
    w_pitch: Any,
    x: Any,
    x_pitch: Any,
    k: Any,
    to: Any,
    to_pitch: Any,
) -> None:
    b, none = v.builder, ir.Constant(FLOATS, None)
    sums = [[cgutils.alloca_once_value(b, none) for _ in range(lines)] for _ in range(rows)]
    for one in (one for row in sums for one in row):
        b.store(none, one)
    w_rows = [v.apart(b.add(w, b.mul(w_pitch, I64(i)))) for i in range(lines)]
    x_rows = [v.apart(b.add(x, b.mul(x_pitch, I64(r)))) for r in range(rows)]

    def add(index: Any, left: Any) -> None:
        weights = [v.floats(b.add(line, b.mul(index, I64(v.width))), left) for line in w_rows]
        for row, totals in zip(x_rows, sums, strict=True):
            values = v.load_some(b.add(row, b.mul(index, I64(4))), FLOATS, left)
            for part, total in zip(weights, totals, strict=True):
                b.store(v.fma(part, values, b.load(total)), total)

    whole = b.udiv(k, I64(LANES))
    with cgutils.for_range(b, whole, intp=I64) as loop:
        add(b.mul(loop.index, I64(LANES)), None)
    done = b.mul(whole, I64(LANES))
    left = b.sub(k, done)
    with b.if_then(b.icmp_unsigned("!=", left, I64(0)), likely=False):
        add(done, left)
    for r, totals in enumerate(sums):
        place = b.add(to, b.mul(to_pitch, I64(r)))
        for i, total in enumerate(totals):
            v.store(total_of(b, b.load(total)), b.add(place, I64(4 * i)))
