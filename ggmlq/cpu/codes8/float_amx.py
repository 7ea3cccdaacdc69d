"""The kernel of products of 8-bit floats on Intel's matrix unit: decoded panels are its tiles as they stand.

A vector of a decoded panel is two columns of 16 rows, as a row of a tile is (``float_decode.py``). Some
pairs of panels are decoded along a chunk of K, a few hundred columns, into the second cache. Then each pair
passes to the first cache and meets all blocks of 32 rows of activations. The sums of a run, whose columns
share both scales, stay in the unit; then they are scaled and added to totals, which wait in the second cache.

Floors for 32 rows of weights, 32 of activations and a run of 128 columns: 16 products, 256 clocks; 64 sums to
store, 64 totals to load, to add to and to store, 128 clocks.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from ..amx.instructions import LINE, SUMS, instructions
from ..amx.unit import PITCH, TILE
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import jit
from ..machine.memory import floats_at, reader
from ..machine.numba_names import cgutils
from ..machine.simd import F32, FLOATS, I64, Simd
from ..machine.target import Target
from .float_decode import runs_of, transposer
from .float_layout import APART, ROWS, STEP, TileOperands
from .float_product import _scales

operands = reader(TileOperands)
PAGE = 4096
BLOCK = 2 * ROWS  # rows of activations, and of weights, that meet at a time
WIDE = 32  # columns of a tile


@cache
def multiplier(name: str, kind: Target, unit: Any) -> Any:
    """Compiled: pairs of panels ``first`` … ``stop`` of a code times all blocks."""
    transpose = transposer(name, kind)
    begin, end, no_sums, _, store_sums, step, _ = instructions(unit, "dot")
    start_totals, add_to_totals = (_adder(kind, begun) for begun in (False, True))
    room = unit.ROOM + PAGE - 1 & -PAGE

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        n, width, runs, blocks = fields.n, fields.width, runs_of(fields), fields.blocks
        near, deep = min(fields.near, stop - first), width // WIDE
        pitch, scales_pitch = 2 * ROWS * width * fields.together, 4 * ROWS * fields.together
        here = room + SUMS + 2 * near * (pitch + scales_pitch) + SUMS * blocks * near
        memory = np.empty(here + ROWS * APART + PAGE, np.uint8)
        unit_at = memory.ctypes.data + PAGE - 1 & -PAGE
        sums, portion = unit_at + room, unit_at + room + SUMS
        totals = portion + 2 * near * pitch
        scales = totals + SUMS * blocks * near
        lines = scales + 2 * near * scales_pitch
        begin(unit_at)
        for start in range(first, stop, near):
            last = min(start + near, stop)
            for run in range(0, len(runs), fields.together):
                count = min(fields.together, len(runs) - run)
                for side in range(2 * (last - start)):
                    panel = min(2 * start + side, (n - 1) // ROWS)
                    rows = fields.codes + panel * ROWS * fields.pitch
                    below = min(ROWS, n - panel * ROWS) - 1
                    for at in range(0, count * width, fields.span):
                        left, columns, _ = runs[run + at // width]
                        if fields.span > width:
                            columns = min(fields.span, fields.k - left)
                        steps = min(fields.span, count * width - at) // STEP
                        to = portion + side * pitch + 2 * ROWS * at
                        transpose(
                            rows + left, fields.pitch, below, min(columns, STEP * steps), steps, lines, to
                        )
                    _scales(fields, panel, runs[run : run + count], scales + side * scales_pitch)
                for pair in range(last - start):
                    w, w_scales = portion + 2 * pair * pitch, scales + 2 * pair * scales_pitch
                    for block in range(blocks):
                        total = totals + SUMS * (pair * blocks + block)
                        x = fields.tiles + 2 * TILE * deep * (run * blocks + block * count)
                        x_scales = fields.x_scales + 4 * (BLOCK * block * len(runs) + run)
                        for i in range(count):
                            no_sums(unit_at)
                            for s in range(i * deep, (i + 1) * deep):
                                step(unit_at, x + 2 * TILE * s, w + TILE * s, w + pitch + TILE * s)
                            store_sums(unit_at, sums, LINE, 2 * TILE)
                            of_w, of_x = w_scales + 4 * ROWS * i, x_scales + 4 * i
                            if run + i:
                                add_to_totals(sums, of_w, of_w + scales_pitch, of_x, 4 * len(runs), total)
                            else:
                                start_totals(sums, of_w, of_w + scales_pitch, of_x, 4 * len(runs), total)
            out = floats_at(fields.out, fields.m, n)
            for pair in range(last - start):
                column = BLOCK * (start + pair)
                for block in range(blocks):
                    values = floats_at(totals + SUMS * (pair * blocks + block), BLOCK, BLOCK)
                    for r in range(min(BLOCK, fields.m - BLOCK * block)):
                        for i in range(min(BLOCK, n - column)):
                            out[BLOCK * block + r, column + i] = values[r, i]
        end(unit_at)
        memory[0] = 0  # an array lives until its last mention

    return jit(multiply)


def _adder(target: Target, begun: bool) -> Any:
    """An intrinsic that adds scaled sums to totals [32, 32], or writes the first of them.

    It takes addresses: sums, scales of the left and of the right 16 columns, scales of the rows, the bytes
    from one of these to the next, totals.
    """

    def emit(builder: Any, sums: Any, left: Any, right: Any, rows: Any, pitch: Any, totals: Any) -> None:
        simd, b = Simd(builder, target), builder
        columns = [simd.load(at, FLOATS) for at in (left, right)]
        with cgutils.for_range(b, I64(BLOCK), intp=I64) as loop:
            row = simd.splat(simd.load(b.add(rows, b.mul(loop.index, pitch)), F32))
            for half, scales in enumerate(columns):
                at = b.add(b.mul(loop.index, I64(LINE)), I64(PITCH * half))
                total = simd.load(b.add(totals, at), FLOATS) if begun else ir.Constant(FLOATS, None)
                value = simd.fma(simd.load(b.add(sums, at), FLOATS), b.fmul(scales, row), total)
                simd.store(value, b.add(totals, at))

    return intrinsic_of(emit, 6)
