"""With few rows of activations, decode 8-bit floats in registers and multiply them there.

Changed: codes never become floats in memory. Sixteen of a row of weights are decoded and meet the same
sixteen columns of up to four rows of activations; at the end of a group of K the sums meet both scales.

Why it helps: the memory carries one byte a weight, where decoded ones are four bytes written and four read,
and a product of a matrix with one vector waits for nothing else.

Limited by decoding, about seven instructions for sixteen weights. With more rows a BLAS wins (r1_dequant).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ...codes import MiniFloat
from ...ladder import register
from ...problems import ScaledLinear
from ...scaled import Matrix, ScaledArray
from ...threads import share
from ..decode_scaled import floats_of
from ..machine.jit import jit
from ..machine.simd import F32, FLOATS, I8, I64, vec
from ..machine.target import Target, target
from ..machine.words import cgutils, intrinsic
from ..quantize_scaled.vectors import LANES, Vectors, walk

ROWS = 4  # of activations at a time
MOST = 8  # where decoding everything first costs as much
CHAINS = 4  # sums under way


def refuses(problem: ScaledLinear) -> str | None:
    if problem.integer:
        return "it multiplies 8-bit floats"
    if problem.m > MOST:
        return f"it decodes the weights anew for every {ROWS} rows: {MOST} at most"
    return None


@register(__name__, __doc__, arithmetic="codes", accumulate="float32", refuses=refuses)
def launch(x: ScaledArray, w: ScaledArray, out: Any) -> None:
    a, b = x.matrix(), w.matrix()
    group = max(1, min(a.over.c, b.over.c))
    starts = np.arange(0, a.over.columns, group)
    values, theirs = a.code.decode(a.codes), np.ascontiguousarray(b.scales[:, starts // b.over.c])
    mine = a.scales[np.arange(a.over.rows) // a.over.r][:, starts // a.over.c]
    for start in range(0, len(values), ROWS):
        rows = slice(start, start + ROWS)
        _multiply(
            b, np.ascontiguousarray(values[rows]), np.ascontiguousarray(mine[rows]), theirs, group, out[rows]
        )


def _multiply(b: Matrix, x: Any, mine: Any, theirs: Any, group: int, out: Any) -> None:
    """A few rows, by all threads."""
    work, lines = kernel(b.code, len(x), target()), (b.codes.ctypes.data, b.codes.strides[0])
    r = b.over.r
    share(lambda first, stop: work(lines, x, mine, theirs, group, r, out, first, stop), b.over.rows, 16)


@cache
def kernel(code: MiniFloat, rows: int, kind: Target) -> Any:
    """Compiled: rows ``first`` … ``stop`` of weights times a few rows of activations."""
    add = _segment(code, rows, kind)

    def multiply(
        lines: Any, x: Any, mine: Any, theirs: Any, group: int, high: int, out: Any, first: int, stop: int
    ) -> None:
        k, pitch = x.shape[1], 4 * x.shape[1]
        scales, sums = np.empty(rows, np.float32), np.empty((rows, LANES), np.float32)
        for n in range(first, stop):
            sums[:] = 0
            line, band, start = lines[0] + n * lines[1], theirs[n // high], 0
            for g in range(len(band)):
                for r in range(rows):
                    scales[r] = mine[r, g] * band[g]
                count = min(group, k - start)
                add(
                    line + start,
                    x.ctypes.data + 4 * start,
                    pitch,
                    count,
                    scales.ctypes.data,
                    sums.ctypes.data,
                )
                start += group
            for r in range(rows):
                total = np.float32(0)
                for i in range(LANES):
                    total += sums[r, i]
                out[r, n] = total

    return jit(multiply)


def _segment(code: MiniFloat, rows: int, kind: Target) -> Any:
    """An intrinsic: adds to vectors of sums those of ``count`` products, times a scale a row."""

    @intrinsic
    def add(typing: Any, line: Any, x: Any, pitch: Any, count: Any, scales: Any, sums: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _emit(Vectors(builder, kind, "float32"), code, rows, *args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), emit

    return add


def _emit(
    v: Vectors, code: MiniFloat, rows: int, line: Any, x: Any, pitch: Any, count: Any, scales: Any, sums: Any
) -> None:
    b, chains = v.builder, CHAINS // min(rows, CHAINS)
    none = ir.Constant(FLOATS, None)
    parts = [[cgutils.alloca_once_value(b, none) for _ in range(chains)] for _ in range(rows)]
    for part in (one for row in parts for one in row):
        b.store(none, part)

    def body(index: Any, left: Any, i: int) -> None:
        stored = v.some(b.add(line, index), vec(I8, LANES), left)
        weights = floats_of(v, stored, code)
        for r, row in enumerate(parts):
            at = b.add(b.add(x, b.mul(pitch, I64(r))), b.mul(index, I64(4)))
            mine = v.some(at, FLOATS, left)
            part = row[i % chains]
            b.store(v.fma(weights, mine, b.load(part)), part)

    walk(b, count, body, 4)
    for r, row in enumerate(parts):
        total = b.load(row[0])
        for other in row[1:]:
            total = b.fadd(total, b.load(other))
        scale, at = v.load(b.add(scales, I64(4 * r)), F32), b.add(sums, I64(4 * LANES * r))
        v.store(v.fma(total, v.splat(scale), v.load(at, FLOATS)), at)
