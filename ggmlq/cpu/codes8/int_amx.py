"""Products of 8-bit integers on Intel's matrix unit, from the panels of ``int_multiply.py``, with int32 sums.

Four neighbours of 16 rows are a row of a tile already, so a panel is a row of tiles and nothing has to be
decoded. The sums are exact; zero points and scales are applied at the end of K as in ``int_product.py``, with
the same results to the last bit.

Floors for 32 rows of weights, 32 of activations and 64 columns: four products, 64 clocks.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from ..amx.instructions import LINE, SUMS, instructions
from ..amx.multiply import CodeOperands
from ..amx.unit import PITCH, TILE
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import jit
from ..machine.memory import floats_at, reader
from ..machine.simd import F32, FLOATS, I32, INTS, Simd
from ..machine.target import AVX512
from .int_layout import ROWS, Form

operands = reader(CodeOperands)
PAGE = 4096
ADDRESSES = ("sums", "w_scales", "w_zeros", "w_sums", "x_scale", "x_zero", "x_sum", "to")


@cache
def multiplier(form: Form, unit: Any) -> Any:
    """Compiled: pairs of panels ``first`` … ``stop`` times all blocks; ``unit``: a kind of ``Unit``."""
    begin, end, no_sums, load_sums, store_sums, step, _ = instructions(unit, "dot_codes")
    room, finish = unit.ROOM + PAGE - 1 & -PAGE, finisher(form)

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        steps, blocks, n = fields.steps, fields.blocks, fields.n
        memory = np.empty(room + SUMS * (1 + blocks * min(fields.near, stop - first)) + PAGE, np.uint8)
        row = np.empty(ROWS, np.float32)
        unit_at = memory.ctypes.data + PAGE - 1 & -PAGE
        edge = unit_at + room
        out = floats_at(fields.out, fields.m, n)
        begin(unit_at)
        for near in range(first, stop, fields.near):
            for start in range(0, steps, fields.chunk):
                last = min(start + fields.chunk, steps)
                for pair in range(near, min(near + fields.near, stop)):
                    left = fields.panels + 2 * pair * fields.panel_bytes
                    right = fields.panels + min(2 * pair + 1, fields.panel_count - 1) * fields.panel_bytes
                    for block in range(blocks):
                        sums = edge + SUMS * (1 + (pair - near) * blocks + block)
                        if start == 0:
                            no_sums(unit_at)
                        else:
                            load_sums(unit_at, sums)
                        x = fields.tiles + 2 * TILE * (start * blocks + block * (last - start))
                        for s in range(start, last):
                            step(unit_at, x + 2 * TILE * (s - start), left + TILE * s, right + TILE * s)
                        if last < steps:
                            store_sums(unit_at, sums, LINE, 2 * TILE)
                            continue
                        store_sums(unit_at, edge, LINE, 2 * TILE)
                        top = 2 * ROWS * block
                        for r in range(min(2 * ROWS, fields.m - top)):
                            for half in range(2):
                                panel = 2 * pair + half
                                column, over = panel * ROWS, 4 * (top + r)
                                whole = column + ROWS <= n
                                to = fields.out + 4 * ((top + r) * n + column) if whole else row.ctypes.data
                                if column < n:
                                    finish(
                                        edge + LINE * r + PITCH * half,
                                        fields.w_scales + 64 * panel,
                                        fields.w_zeros + 64 * panel,
                                        fields.w_sums + 64 * panel,
                                        fields.x_scales + over,
                                        fields.x_zeros + over,
                                        fields.x_sums + over,
                                        to,
                                    )
                                if not whole:
                                    for i in range(n - column):
                                        out[top + r, column + i] = row[i]
        end(unit_at)
        memory[0] = 0  # an array lives until its last mention

    return jit(multiply)


@cache
def finisher(form: Form) -> Any:
    """An intrinsic that takes ADDRESSES: 16 sums of a row to floats, as ``int_product.py`` does it."""

    def emit(builder: Any, *addresses: Any) -> None:
        _finish(Simd(builder, AVX512), form, dict(zip(ADDRESSES, addresses, strict=True)))

    return intrinsic_of(emit, len(ADDRESSES))


def _finish(simd: Simd, form: Form, at: dict[str, Any]) -> None:
    b = simd.builder
    sums, x_sum = simd.load(at["sums"], INTS), simd.splat(simd.load(at["x_sum"], I32))
    less = b.mul(simd.load(at["w_zeros"], INTS), x_sum) if form.w_zeros else b.neg(x_sum)
    sums = b.sub(sums, less)
    if form.x_zeros:
        zero = simd.splat(simd.load(at["x_zero"], I32))
        sums = b.sub(sums, b.mul(zero, simd.load(at["w_sums"], INTS)))
    scale = b.fmul(simd.load(at["w_scales"], FLOATS), simd.splat(simd.load(at["x_scale"], F32)))
    simd.store(simd.fma(b.sitofp(sums, FLOATS), scale, ir.Constant(FLOATS, None)), at["to"])
