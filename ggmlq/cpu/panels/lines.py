"""The kernel that multiplies rows of weights one at a time, from the file's bytes: for few activations.

64 neighbours of a row are a vector already, so nothing has to be moved across rows: up to 4096 weights
are unpacked into the first cache and multiplied from there. Activations are copied to *stretches*: for
64 of them the codes and 16 int32, the first value of the sum in each lane. Their scales stand apart, one
for each scale of the weights.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ...formats import BlockFormat
from ...formats.packing import RUN
from ..machine.jit import jit
from ..machine.memory import bytes_at, floats_at, reader
from ..machine.numba_names import cgutils, intrinsic
from ..machine.simd import BYTES, F32, FLOATS, I32, I64, INTS, Simd, total_of, vec
from ..machine.target import Target
from ..unpack import unpacker
from .layout import LANE, Operands, unpacked, x_run_bytes

operands = reader(Operands)
STRETCH = 2 * LANE  # bytes of the activations for one
CHAINS = 4  # sums that do not wait for each other
CHUNK = 4096  # weights of a row unpacked at a time


@cache
def by_lines(fmt: BlockFormat, target: Target) -> Any:
    """Compiled: rows ``first`` … ``stop`` of blocks times all activations."""
    unpack, dot = unpacker(fmt), _dot(fmt.group, target)
    stretched = stretcher(fmt, target)
    size, nbytes, group = fmt.block_size, fmt.dtype.itemsize, fmt.group
    blocks = CHUNK // size

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        raw = bytes_at(fields.weights, fields.weight_rows, fields.weight_bytes)
        x_rows = bytes_at(fields.x_rows, fields.m, fields.row_bytes)
        out = floats_at(fields.out, fields.m, fields.n)
        x, above = stretched(x_rows, fields.runs)
        pitch = fields.runs * RUN // LANE * STRETCH
        memory = np.empty(CHUNK + LANE, np.int8)
        codes = memory[-memory.ctypes.data & LANE - 1 :][:CHUNK]  # vectors within lines of the cache
        scales = np.empty(CHUNK // group, np.float32)
        none = np.empty(0, np.float32)
        codes_at, scales_at = codes.ctypes.data, scales.ctypes.data
        sums = np.empty(fields.m, np.float32)
        for row in range(first, stop):
            sums[:] = 0
            for start in range(0, raw.shape[1], blocks * nbytes):
                stretch = raw[row, start : start + blocks * nbytes]
                unpack(stretch, codes, scales, none)
                weights, at = len(stretch) // nbytes * size, start // nbytes * size
                for m in range(fields.m):
                    here = x.ctypes.data + m * pitch + at // LANE * STRETCH
                    over = above.ctypes.data + 4 * (m * above.shape[1] + at // group)
                    sums[m] += dot(codes_at, scales_at, here, over, weights // LANE)
            for m in range(fields.m):
                out[m, row] = sums[m]

    return jit(multiply)


@cache
def stretcher(fmt: BlockFormat, target: Target) -> Any:
    """Compiled: rows of codes to stretches uint8 [M * bytes] and scales float32 [M, groups]."""
    layout = unpacked(fmt, target)
    size, zero, groups = x_run_bytes(layout), layout.zero, RUN // fmt.group

    def stretched(x_rows: Any, runs: int) -> Any:
        pitch = runs * RUN // LANE * STRETCH
        memory = np.empty(len(x_rows) * pitch + LANE, np.uint8)
        x = memory[-memory.ctypes.data & LANE - 1 :][: len(x_rows) * pitch]
        scales = np.empty((len(x_rows), runs * groups), np.float32)
        for m in range(len(x_rows)):
            words = x[m * pitch : (m + 1) * pitch].view(np.int32)
            source, codes = x_rows[m].view(np.int32), x_rows[m].view(np.int8)
            bits = scales[m].view(np.int32)
            for run in range(runs):
                at, to = run * size // 4, run // 2 * STRETCH // 4 + run % 2 * 8
                bits[run * groups : (run + 1) * groups] = source[at + 8]
                for i in range(8):
                    words[to + i] = source[at + i]
                    four = 4 * (at + i)
                    total = codes[four] + codes[four + 1] + codes[four + 2] + codes[four + 3]
                    words[to + 16 + i] = -zero * total
        return x, scales

    return jit(stretched)


def _dot(group: int, target: Target) -> Any:
    """An intrinsic that sums ``count`` products of 64 codes with a stretch to one float."""

    @intrinsic
    def dot(typing: Any, codes: Any, scales: Any, x: Any, above: Any, count: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return _emit(Simd(builder, target), group, *args)

        return types.float32(*[types.int64] * 5), emit

    return dot


def _emit(simd: Simd, group: int, codes: Any, scales: Any, x: Any, above: Any, count: Any) -> Any:
    """The sum of all products; the place of a vector alone decides which of the partial sums it goes to."""
    b = simd.builder
    totals = [cgutils.alloca_once_value(b, ir.Constant(FLOATS, None)) for _ in range(CHAINS)]
    for total in totals:
        b.store(ir.Constant(FLOATS, None), total)
    with cgutils.for_range(b, b.udiv(count, I64(CHAINS)), intp=I64) as loop:
        for i, total in enumerate(totals):
            _add(simd, group, codes, scales, x, above, b.add(b.mul(loop.index, I64(CHAINS)), I64(i)), total)
    with cgutils.for_range(b, b.urem(count, I64(CHAINS)), intp=I64) as loop:
        i = b.add(b.sub(count, b.urem(count, I64(CHAINS))), loop.index)
        _add(simd, group, codes, scales, x, above, i, totals[0])
    low, high = (b.fadd(b.load(totals[i]), b.load(totals[i + 1])) for i in (0, 2))
    return total_of(b, b.fadd(low, high))


def _add(simd: Simd, group: int, codes: Any, scales: Any, x: Any, above: Any, i: Any, total: Any) -> None:
    """Products of the 64 weights from the i-th lane on, added to a sum."""
    b = simd.builder
    flip = ir.Constant(BYTES, [128 if simd.target.unsigned else 0] * 64)
    groups = LANE // group
    lanes = ir.Constant(vec(I32, 16), [i * groups // 16 for i in range(16)])
    weights = simd.load(b.add(codes, b.mul(i, I64(LANE))), BYTES)
    here = b.add(x, b.mul(i, I64(STRETCH)))
    start = simd.load(b.add(here, I64(LANE)), INTS)
    sums = simd.dot_vector(start, b.xor(weights, flip), simd.load(here, BYTES))
    factors = b.fmul(
        *[simd.load(b.add(at, b.mul(i, I64(4 * groups))), vec(F32, groups)) for at in (scales, above)]
    )
    scale = b.shuffle_vector(factors, ir.Constant(factors.type, ir.Undefined), lanes)
    b.store(simd.fma(b.sitofp(sums, FLOATS), scale, b.load(total)), total)
