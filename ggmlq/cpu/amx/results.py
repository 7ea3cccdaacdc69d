"""The way of sums to the result, rounded to its numbers: from the unit, or row by row from memory.

Where sums wait in memory, a row of the result is written at once for all pairs of panels that are near. Tiles
that the unit stores itself go to 16 rows, each in another page.
"""

from __future__ import annotations

from typing import Any

from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner
from ..machine.memory import bytes_at
from ..machine.simd import F16, FLOATS, I64, INTS, Simd, vec
from ..machine.target import AVX512
from ..panels.layout import ROWS
from .instructions import LINE, SUMS
from .operands import NUMBERS
from .unit import PITCH, TILE, bfloats

WIDE = 2 * ROWS  # rows and columns of sums
HALVES, BFLOATS = NUMBERS.index("float16"), NUMBERS.index("bfloat16")


def line_putter() -> Any:
    """Compiled: write a row of sums, 32 of a row and a column on, to the result."""
    copy, to_halves, to_bfloats = (intrinsic_of(emit, 2) for emit in (_copy, _to_halves, _to_bfloats))

    def put_line(fields: Any, row: int, column: int, line: int) -> None:
        columns, width = min(WIDE, fields.n - column), 2 if fields.number else 4
        to = fields.out + width * (row * fields.n + column)
        rounded = to if columns == WIDE else line
        if fields.number == HALVES:
            to_halves(line, rounded)
        elif fields.number == BFLOATS:
            to_bfloats(line, rounded)
        elif columns == WIDE:
            copy(line, to)
        if columns < WIDE:
            source, target = bytes_at(line, 1, width * columns), bytes_at(to, 1, width * columns)
            for i in range(width * columns):  # from array to array Numba would allocate
                target[0, i] = source[0, i]

    return inner(put_line)


def putter(store_sums: Any) -> Any:
    """Compiled: write the sums in the unit, of a block and a pair of panels, to the result."""
    put_line = line_putter()

    def put(unit_at: int, fields: Any, row: int, column: int, edge: int) -> None:
        n, rows = fields.n, min(WIDE, fields.m - row)
        if rows == WIDE and column + WIDE <= n and not fields.number:
            store_sums(unit_at, fields.out + 4 * (row * n + column), 4 * n, 4 * ROWS * n)
            return
        store_sums(unit_at, edge, LINE, 2 * TILE)
        for r in range(rows):
            put_line(fields, row + r, column, edge + LINE * r)

    return inner(put)


def gatherer() -> Any:
    """Compiled: write the sums in memory, of pairs of panels ``first`` … ``stop``, to the result."""
    put_line = line_putter()

    def gather(fields: Any, first: int, stop: int, sums: int) -> None:
        for row in range(fields.m):
            line = sums + SUMS * (row // WIDE) + LINE * (row % WIDE)
            for pair in range(first, stop):
                put_line(fields, row, WIDE * pair, line + SUMS * fields.blocks * (pair - first))

    return inner(gather)


def _copy(builder: Any, source: Any, to: Any) -> None:
    """32 float32 from one address to another."""
    simd = Simd(builder, AVX512)
    for i in range(2):
        simd.store(simd.load(builder.add(source, I64(PITCH * i)), INTS), builder.add(to, I64(PITCH * i)))


def _to_halves(builder: Any, source: Any, to: Any) -> None:
    """32 float32 at an address to 32 float16 at another."""
    simd = Simd(builder, AVX512)
    parts = [simd.load(builder.add(source, I64(PITCH * i)), FLOATS) for i in range(2)]
    for i, part in enumerate(parts):
        simd.store(builder.fptrunc(part, vec(F16, ROWS)), builder.add(to, I64(PITCH // 2 * i)))


def _to_bfloats(builder: Any, source: Any, to: Any) -> None:
    """32 float32 at an address to 32 bfloat16 at another."""
    simd = Simd(builder, AVX512)
    simd.store(bfloats(simd, *(simd.load(builder.add(source, I64(PITCH * i)), FLOATS) for i in range(2))), to)
