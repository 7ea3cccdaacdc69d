"""Kernels that decode 8-bit floats to bfloat16: in rows, and sixteen rows side by side for a tile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from ...codes import CODES, MiniFloat
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner, jit
from ..machine.memory import floats_at, reader
from ..machine.numba_names import cgutils
from ..machine.simd import BYTES, I8, I32, I64, Simd, load_some, vec
from ..machine.target import Target
from .float_layout import APART, ROWS, STEP, Decoding

arguments_of = reader(Decoding)


@inner
def runs_of(fields: Any) -> Any:
    """A table with a row for each run: first column, number of columns, bytes from the first scale to its.

    Runs behind the end of K have no columns.
    """
    table = np.empty((fields.groups * fields.runs, 3), np.int64)
    for run in range(len(table)):
        group = run // fields.runs
        left = min(group * fields.group + run % fields.runs * fields.run, fields.k)
        table[run, 0] = left
        table[run, 1] = max(min(left + fields.run, (group + 1) * fields.group, fields.k) - left, 0)
        table[run, 2] = min(left, fields.k - 1) // fields.c * fields.scales_step
    return table


@cache
def row_decoder(name: str, target: Target) -> Any:
    """Compiled: decode rows ``start`` … ``stop`` to bfloat16, and write the scales of their runs."""
    decode = _decoder(name, target)

    def decode_rows(arguments: int, start: int, stop: int) -> None:
        fields = arguments_of(arguments)
        runs, steps = runs_of(fields), fields.width // STEP
        scales = floats_at(fields.by_run, stop, len(runs))
        for row in range(start, stop):
            codes, values = fields.codes + row * fields.pitch, fields.values + row * fields.values_pitch
            band = fields.scales + row // fields.r * fields.scales_pitch
            for run in range(len(runs)):
                decode(codes + runs[run, 0], runs[run, 1], steps, values + 2 * run * fields.width)
                scales[row, run] = floats_at(band + runs[run, 2], 1, 1)[0, 0]

    return jit(decode_rows)


def _decoder(name: str, target: Target) -> Any:
    """An intrinsic that decodes a run of a row: (address of codes, their number, steps, result)."""
    code = CODES[name]
    assert isinstance(code, MiniFloat)
    return intrinsic_of(lambda builder, *words: _emit(Simd(builder, target), code, *words), 4)


def _emit(simd: Simd, code: MiniFloat, codes: Any, count: Any, steps: Any, to: Any) -> None:
    b = simd.builder
    with cgutils.for_range(b, steps, intp=I64) as loop:
        at = b.mul(loop.index, I64(STEP))
        stored = load_some(simd, b.add(codes, at), PART, b.sub(count, at))
        wide = simd.join([stored, NONE, NONE, NONE])
        both = halves(simd, wide, code)
        numbers = simd.join([simd.part(interleave(simd, both, 1, half), 0, STEP) for half in (False, True)])
        simd.store(numbers, b.add(to, b.mul(at, I64(2))))


# --- The decoder of 8-bit floats to bfloat16: 128 entries for each of the two bytes; the sign is copied ---
#
# An instruction looks 64 codes up in 128 bytes, so that both halves and the sign are three instructions for
# any code of 8 bits: NaN, infinities and subnormal numbers are entries as all others.

LOOKUP = "llvm.x86.avx512.vpermi2var.qi.512"
SIGN = 0x80


def tables(code: MiniFloat) -> tuple[list[int], list[int]]:
    """Lower and upper bytes of the bfloat16 of each code without a sign."""
    bits = code.table[:128].view(np.uint32) >> 16
    return (bits & 0xFF).tolist(), (bits >> 8).tolist()


def halves(simd: Simd, codes: Any, code: MiniFloat) -> list[Any]:
    """The lower and the upper bytes of 64 codes decoded to bfloat16, in two vectors."""
    b, looked_up = simd.builder, []
    for table in tables(code):
        entries = [ir.Constant(BYTES, table[i : i + 64]) for i in (0, 64)]
        looked_up.append(simd.call(LOOKUP, BYTES, entries[0], codes, entries[1]))
    low, high = looked_up
    return [low, b.or_(high, b.and_(codes, ir.Constant(BYTES, [SIGN] * 64)))]


def interleave(simd: Simd, two: Sequence[Any], width: int, upper: bool) -> Any:
    """Two vectors in turns of ``width`` bytes: in each 16 bytes the lower or the upper eight of both."""
    a, b = two
    n, lanes = a.type.count, []
    for lane in range(0, n, 16):
        for i in range(lane + 8 * upper, lane + 8 * upper + 8, width):
            lanes += [*range(i, i + width), *range(n + i, n + i + width)]
    return simd.builder.shuffle_vector(a, b, ir.Constant(vec(I32, n), lanes))


# --- Sixteen rows of 8-bit floats decoded and laid side by side for a tile: a vector is two columns of
# all rows
#
# Some columns of the rows are first copied together: rows of weights often lie a power of two apart, where
# the first cache has one place for all of them. Then come 64 columns at a time; a load brings those of one
# row. Quarters of vectors are exchanged until each has sixteen columns of four rows, then words of two
# codes, and pairs of these, are interleaved. Now a quarter holds two columns of its four rows in the first
# half and two more in the second; decoding makes two bytes of each code, and interleaving these makes two
# vectors of it.
#
# Floor for 1024 codes: 32 + 64 exchanges, 32 look-ups, 16 signs and 32 stores of two clocks each, 130
# clocks, and 40 for the copy. With M rows of activations their dot products take 32 · M.

PART = vec(I8, STEP)
NONE = ir.Constant(PART, None)
MANY = 64  # columns of a vector
VECTORS = STEP // 2  # that a step becomes


@cache
def transposer(name: str, target: Target) -> Any:
    """An intrinsic: (first row, bytes to the next, number of the last, columns, steps, room, result).

    Rows behind the last repeat it, and steps behind the last column are zeros.
    """
    code = CODES[name]
    assert isinstance(code, MiniFloat)

    def emit(
        builder: Any, rows: Any, pitch: Any, last: Any, columns: Any, steps: Any, room: Any, to: Any
    ) -> None:
        simd = Simd(builder, target)
        _copy(simd, rows, pitch, last, columns, steps, room)
        _transpose(simd, code, steps, room, to)

    return intrinsic_of(emit, 7)


def _copy(simd: Simd, rows: Any, pitch: Any, last: Any, columns: Any, steps: Any, room: Any) -> None:
    """Copy columns of sixteen rows to rows that lie APART."""
    b = simd.builder
    lines = b.udiv(columns, I64(MANY))
    done = b.mul(lines, I64(MANY // STEP))
    with cgutils.for_range(b, I64(ROWS), intp=I64) as row:
        behind = b.icmp_signed(">", row.index, last)
        source = b.add(rows, b.mul(pitch, b.select(behind, last, row.index)))
        target = b.add(room, b.mul(row.index, I64(APART)))
        with cgutils.for_range(b, lines, intp=I64) as loop:
            at = b.mul(loop.index, I64(MANY))
            simd.store(simd.load(b.add(source, at), BYTES), b.add(target, at))
        with cgutils.for_range(b, b.sub(steps, done), intp=I64) as loop:
            at = b.mul(b.add(done, loop.index), I64(STEP))
            simd.store(load_some(simd, b.add(source, at), PART, b.sub(columns, at)), b.add(target, at))


def _transpose(simd: Simd, code: MiniFloat, steps: Any, room: Any, to: Any) -> None:
    b = simd.builder

    def load(at: Any, kind: Any, first: int) -> list[Any]:
        return [simd.load(b.add(at, I64(APART * r)), kind) for r in range(first, ROWS, 4)]

    def keep(step: Any, quarters: list[Any]) -> None:
        here = b.add(to, b.mul(step, I64(64 * VECTORS)))
        for i, vector in enumerate(pairs(simd, code, quarters)):
            simd.store(vector, b.add(here, I64(64 * i)))

    lines = b.udiv(steps, I64(MANY // STEP))
    with cgutils.for_range(b, lines, intp=I64) as loop:
        at = b.add(room, b.mul(loop.index, I64(MANY)))
        exchanged = [quarters(simd, load(at, BYTES, i)) for i in range(4)]
        for i in range(4):
            keep(b.add(b.mul(loop.index, I64(4)), I64(i)), [parts[i] for parts in exchanged])
    done = b.mul(lines, I64(MANY // STEP))
    with cgutils.for_range(b, b.sub(steps, done), intp=I64) as loop:
        step = b.add(done, loop.index)
        at = b.add(room, b.mul(step, I64(STEP)))
        keep(step, [simd.join(load(at, PART, i)) for i in range(4)])


def quarters(simd: Simd, rows: list[Any]) -> list[Any]:
    """Four vectors transposed by quarters: the first quarters of all in one, the second in another, …"""

    def exchange(a: Any, b: Any, *which: int) -> Any:
        places = [16 * quarter + i for quarter in which for i in range(16)]
        return simd.builder.shuffle_vector(a, b, ir.Constant(vec(I32, MANY), places))

    transposed = []
    for two in ((0, 1, 4, 5), (2, 3, 6, 7)):
        left, right = (exchange(*rows[i : i + 2], *two) for i in (0, 2))
        transposed += [exchange(left, right, *other) for other in ((0, 2, 4, 6), (1, 3, 5, 7))]
    return transposed


def pairs(simd: Simd, code: MiniFloat, rows: list[Any]) -> list[Any]:
    """Decoded vectors of two columns; ``rows``: 16 columns of rows 0, 4, 8 and 12, of 1, 5, 9 and 13, …"""
    vectors = []
    for upper in (False, True):
        words = [interleave(simd, rows[i : i + 2], 2, upper) for i in (0, 2)]
        for later in (False, True):
            both = halves(simd, interleave(simd, words, 4, later), code)
            vectors += [interleave(simd, both, 1, half) for half in (False, True)]
    return vectors
