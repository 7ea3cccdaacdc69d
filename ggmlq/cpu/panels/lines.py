"""Rows of weights one at a time, from the file's bytes: for a few rows of activations.

64 neighbours of a row are a vector already, so nothing has to be moved across rows: a stretch is
unpacked into the first cache and multiplied from there. Activations are copied to *stretches*: for
64 of them the codes, then 16 float32 with the scale and 16 int32 with the start of each lane.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ...formats import BlockFormat
from ..jit import cgutils, intrinsic, jit
from ..memory import bytes_at, floats_at, peek
from ..simd import BYTES, F32, FLOATS, I32, I64, INTS, Simd, vec
from ..target import Target
from ..unpack import unpacker
from .layout import RUN, unpacked
from .tile import record_bytes

LANE = 64  # weights of a vector
STRETCH = LANE + 2 * 64  # bytes of the activations for one
CHUNK = 4096  # weights of a row unpacked at a time


@cache
def by_lines(fmt: BlockFormat, target: Target) -> Any:
    """Compiled: rows ``first`` … ``stop`` of blocks. Arguments as in ``multiply.py``."""
    spread, dot = unpacker(fmt), _dot(fmt.group, target)
    stretched = stretcher(fmt, target)
    size, nbytes, group = fmt.block_size, fmt.dtype.itemsize, fmt.group
    blocks = CHUNK // size

    def multiply(arguments: int, first: int, stop: int) -> None:
        raw = bytes_at(peek(arguments, 0), peek(arguments, 1), peek(arguments, 2))
        records = bytes_at(peek(arguments, 3), peek(arguments, 4), peek(arguments, 5))
        out = floats_at(peek(arguments, 6), peek(arguments, 4), peek(arguments, 7))
        x = stretched(records, peek(arguments, 8))
        codes = np.empty(CHUNK, np.int8)
        scales = np.empty(CHUNK // group, np.float32)
        none = np.empty(0, np.float32)
        sums = np.empty(len(x), np.float32)
        for row in range(first, stop):
            sums[:] = 0
            for start in range(0, raw.shape[1], blocks * nbytes):
                stretch = raw[row, start : start + blocks * nbytes]
                spread(stretch, codes, scales, none)
                count = len(stretch) // nbytes * size // LANE
                at = start // nbytes * size // LANE * STRETCH
                for m in range(len(x)):
                    sums[m] += dot(codes.ctypes.data, scales.ctypes.data, x[m].ctypes.data + at, count)
            for m in range(len(x)):
                out[m, row] = sums[m]

    return jit(multiply)


@cache
def stretcher(fmt: BlockFormat, target: Target) -> Any:
    """Compiled: records of activations to stretches uint8 [M, bytes]."""
    layout = unpacked(fmt, target)
    size, zero = record_bytes(layout), layout.zero

    def stretched(records: Any, runs: int) -> Any:
        x = np.empty((records.shape[0], runs * RUN // LANE * STRETCH), np.uint8)
        for m in range(len(x)):
            words, source, codes = x[m].view(np.int32), records[m].view(np.int32), records[m].view(np.int8)
            for run in range(runs):
                at, to = run * size // 4, run // 2 * STRETCH // 4 + run % 2 * 8
                for i in range(8):
                    words[to + i] = source[at + i]
                    words[to + 16 + i] = source[at + 8]  # the scale's bits
                    four = 4 * (at + i)
                    total = codes[four] + codes[four + 1] + codes[four + 2] + codes[four + 3]
                    words[to + 32 + i] = -zero * total
        return x

    return jit(stretched)


def _dot(group: int, target: Target) -> Any:
    """An intrinsic: 64 codes times a stretch, so many times, summed to one float."""

    @intrinsic
    def dot(typing: Any, codes: Any, scales: Any, x: Any, count: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return _emit(Simd(builder, target), group, *args)

        return types.float32(*[types.int64] * 4), emit

    return dot


def _emit(simd: Simd, group: int, codes: Any, scales: Any, x: Any, count: Any) -> Any:
    b = simd.builder
    total = cgutils.alloca_once_value(b, ir.Constant(FLOATS, None))
    flip = ir.Constant(BYTES, [128 if simd.target.unsigned else 0] * 64)
    groups = LANE // group
    lanes = ir.Constant(vec(I32, 16), [i * groups // 16 for i in range(16)])
    with cgutils.for_range(b, count, intp=I64) as loop:
        i = loop.index
        weights = simd.load(b.add(codes, b.mul(i, I64(LANE))), BYTES)
        here = b.add(x, b.mul(i, I64(STRETCH)))
        start = simd.load(b.add(here, I64(128)), INTS)
        sums = simd.dot_vector(start, b.xor(weights, flip), simd.load(here, BYTES))
        few = simd.load(b.add(scales, b.mul(i, I64(4 * groups))), vec(F32, groups))
        scale = b.shuffle_vector(few, ir.Constant(few.type, ir.Undefined), lanes)
        both = b.fmul(scale, simd.load(b.add(here, I64(LANE)), FLOATS))
        b.store(simd.fma(b.sitofp(sums, FLOATS), both, b.load(total)), total)
    return _sum(b, b.load(total))


def _sum(b: Any, vector: Any) -> Any:
    """The lanes in pairs, then pairs of pairs …"""
    n = vector.type.count
    while n > 1:
        n //= 2
        empty = ir.Constant(vector.type, ir.Undefined)
        low, high = (ir.Constant(vec(I32, n), list(range(at, at + n))) for at in (0, n))
        vector = b.fadd(b.shuffle_vector(vector, empty, low), b.shuffle_vector(vector, empty, high))
    return b.extract_element(vector, I32(0))
