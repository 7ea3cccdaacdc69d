"""The step from scores to weights on the matrix unit: powers of two, as tiles of bfloat16.

Where all columns are seen and scores are products times the scale alone, products are read twice: for the
largest, and for 2 ** (product · scale · log2 e - the largest's). AVX-512 splits off whole powers by itself,
so that seven instructions make 16 weights where ``exponent.py`` takes 28; the polynomial is off by 3e-6 at
most, bfloat16 by 4e-3. Other scores are computed by ``softmax.py`` first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ..amx.unit import bfloats
from ..lanes import chosen, emitted, load, splat, store
from ..machine.jit import inner
from ..machine.memory import floats_at
from ..machine.simd import FLOATS, I32, Simd
from ..machine.target import AVX512
from .exponent import exponential_of, largest, total
from .operands import LANES, LARGEST, SUM
from .softmax import NONE, biased, weights

F32 = types.float32
LOG2E = np.float32(1.4426950408889634)
# Of 2 ** r for r from 0 to 1, behind 1: the least relative error.
POLYNOMIAL = 0.6930448412895203, 0.2412802129983902, 0.052242472767829895, 0.013426684774458408
DOWN, AS_SET = I32(1 | 8), I32(4)  # round to the integer below, without a flag; the rounding that is set


@inner
def powers(
    f: Any, numbers: Any, row: Any, columns: int, seen: Any, head: int, query: int, batch: int, result: Any,
    more: int, to: int, apart: int,
) -> None:  # fmt: skip
    """Weights of a row of products, 32 bfloat16 at ``to`` and at each ``apart``; ``result``: see ``weights``.

    ``seen``: the first position that the query sees, the one behind the last, the first of the columns, and
    the query's place.
    """
    low, end, position, place = seen
    slope = np.float32(1) if f.mask else np.float32(0)
    if f.slopes:
        slope = floats_at(f.slopes, 1, head + 1)[0, head]
    factor = numbers[0] * LOG2E
    if slope or numbers[1] or factor <= 0 or low > position or end < position + columns:
        mask = 0
        if f.mask:
            mask = f.mask + batch * f.mask_batch + head * f.mask_head + query * f.mask_query
        top = biased(row, columns, position, low, end, place, numbers[0], numbers[1], slope, mask)
        factor = LOG2E
    else:
        top = _top(row, columns) * numbers[0]
    before = result[more + LARGEST]
    peak = top if top > before else before
    if peak == NONE:  # nothing is seen so far, unless it is NaN
        weights(row, columns, top, result, more)
        for i in range(0, columns, 2 * LANES):
            put(to, load(row, i, LANES), load(row, i + LANES, LANES))
            to += apart
        return
    if peak > before:
        shrink = exponential_of(before - peak)
        for i in range(0, more, LANES):
            store(result, i, load(result, i, LANES) * shrink)
        result[more + LARGEST] = peak
        result[more + SUM] *= shrink
    sums = splat(np.float32(0), F32, LANES)
    for i in range(0, columns, 2 * LANES):
        a = power(load(row, i, LANES), factor, -peak * LOG2E)
        b = power(load(row, i + LANES, LANES), factor, -peak * LOG2E)
        put(to, a, b)
        sums = sums + (a + b)
        to += apart
    result[more + SUM] += total(sums)


@inner
def _top(row: Any, columns: int) -> Any:
    """The largest of a row."""
    a, b = splat(NONE, F32, LANES), splat(NONE, F32, LANES)
    for i in range(0, columns, 2 * LANES):
        s, t = load(row, i, LANES), load(row, i + LANES, LANES)
        a, b = chosen(s > a, s, a), chosen(t > b, t, b)
    return largest(chosen(a > b, a, b))


@emitted
def power(typingctx: Any, lanes: Any, factor: Any, less: Any) -> Any:
    """2 ** (lanes · factor + less), 0 for minus infinity."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        simd = Simd(builder, AVX512)
        x, by, plus = args[0], simd.splat(args[1]), simd.splat(args[2])
        x = simd.fma(x, by, plus)
        every = ir.Constant(ir.IntType(16), -1)
        nothing = ir.Constant(FLOATS, None)
        r = simd.call("llvm.x86.avx512.mask.reduce.ps.512", FLOATS, x, DOWN, nothing, every, AS_SET)
        y = ir.Constant(FLOATS, [POLYNOMIAL[-1]] * LANES)
        for number in (*POLYNOMIAL[-2::-1], 1.0):
            y = simd.fma(y, r, ir.Constant(FLOATS, [number] * LANES))
        return simd.call("llvm.x86.avx512.mask.scalef.ps.512", FLOATS, y, x, nothing, every, AS_SET)

    return lanes(lanes, F32, F32), codegen


@emitted
def put(typingctx: Any, to: Any, low: Any, high: Any) -> Any:
    """Two vectors as 32 bfloat16 at an address."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        simd = Simd(builder, AVX512)
        simd.store(bfloats(simd, *args[1:]), args[0])
        return context.get_dummy_value()

    return types.void(types.int64, low, high), codegen
