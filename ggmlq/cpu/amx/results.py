"""The way of sums to the result, rounded to its numbers: from the unit, or row by row from memory.

Where sums wait in memory, a row of the result is written at once for all pairs of panels that are near. Tiles
that the unit stores itself go to 16 rows, each in another page.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner
from ..machine.memory import bytes_at
from ..machine.numba_names import cgutils
from ..machine.simd import F16, FLOATS, I32, I64, INTS, Simd, vec
from ..machine.target import AVX512
from ..panels.layout import ROWS
from .instructions import LINE, SUMS
from .operands import NUMBERS
from .unit import PITCH, TILE, bfloats

WIDE = 2 * ROWS  # rows and columns of sums
LARGE = 1 << 20  # numbers of a result that no second cache holds
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
    """Compiled: write the sums in memory, of pairs of panels ``first`` … ``stop``, to the result.

    A large result of float32 passes by all caches, which need not read what is overwritten; ``line`` is the
    address of a row of these pairs, where it is put together.
    """
    put_line, copy = line_putter(), intrinsic_of(_copy, 2)
    pass_by, passed = intrinsic_of(_pass_by, 3), intrinsic_of(_fence, 0)

    def gather(fields: Any, first: int, stop: int, sums: int, line: int) -> None:
        n, columns = fields.n, WIDE * (stop - first)
        large = not fields.number and fields.m * n > LARGE and WIDE * stop <= n
        for row in range(fields.m):
            source = sums + SUMS * (row // WIDE) + LINE * (row % WIDE)
            for pair in range(first, stop):
                if large:
                    copy(source, line + LINE * (pair - first))
                else:
                    put_line(fields, row, WIDE * pair, source)
                source += SUMS * fields.blocks
            if large:
                pass_by(line, fields.out + 4 * (row * n + WIDE * first), columns)
        if large:
            passed()

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


def _pass_by(builder: Any, source: Any, to: Any, count: Any) -> None:
    """``count`` float32 from one address to another, whole lines of these past the caches."""
    simd, b = Simd(builder, AVX512), builder
    before = b.lshr(b.and_(b.neg(to), I64(PITCH - 1)), I64(2))  # numbers up to the first whole line
    before = b.select(b.icmp_unsigned("<", before, count), before, count)
    _some(simd, source, to, before)
    rest = b.sub(count, before)
    source, to = (b.add(address, b.shl(before, I64(2))) for address in (source, to))
    past = builder.module.add_metadata([I32(1)])
    with cgutils.for_range(b, b.lshr(rest, I64(4)), intp=I64) as loop:
        at = b.shl(loop.index, I64(6))
        pointer = b.inttoptr(b.add(to, at), FLOATS.as_pointer())
        b.store(simd.load(b.add(source, at), FLOATS), pointer, align=PITCH).set_metadata("nontemporal", past)
    done = b.shl(b.lshr(rest, I64(4)), I64(6))
    _some(simd, b.add(source, done), b.add(to, done), b.and_(rest, I64(ROWS - 1)))


def _some(simd: Simd, source: Any, to: Any, count: Any) -> None:
    """Copy fewer than 16 float32."""
    lanes = ir.Constant(vec(I64, ROWS), [*range(ROWS)])
    inside = simd.builder.icmp_unsigned("<", lanes, simd.splat(count))
    pointer = simd.builder.inttoptr(to, FLOATS.as_pointer())
    nothing = ir.VoidType()
    simd.call("llvm.masked.store.v16f32.p0", nothing, simd.load(source, FLOATS), pointer, I32(4), inside)


def _fence(builder: Any) -> None:
    """Other threads see what went past the caches before all that this thread stores later."""
    Simd(builder, AVX512).call("llvm.x86.sse.sfence", ir.VoidType())
