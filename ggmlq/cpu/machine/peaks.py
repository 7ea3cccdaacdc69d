"""The kernels that measure a CPU's own rates: reads of memory, and products in registers.

``roofs/floors.py`` times them: no kernel of a product can be faster than they are.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from .intrinsics import intrinsic_of
from .jit import jit
from .memory import reader, words_at
from .numba_names import cgutils
from .simd import BYTES, FLOATS, I32, I64, INTS, Simd
from .target import Target

LINE = 64  # bytes
NEAR = 4096  # bytes of operands, which the first cache holds
TILES = {32: (6, 4), 8: (2, 2), 4: (1, 2)}  # by registers: vectors of weights, activations beside them


class Region(NamedTuple):
    """The arguments: lines of memory or operands in the first cache, and the rounds of each index."""

    memory: int
    rounds: int
    result: int


@cache
def memory_reader() -> Any:
    """Compiled: the lines ``first`` … ``stop`` of a region, folded into one number."""
    region = reader(Region)

    def read(arguments: int, first: int, stop: int) -> None:
        fields = region(arguments)
        words = words_at(fields.memory, 8 * stop)
        total = 0
        for i in range(8 * first, 8 * stop):
            total ^= words[np.uint64(i)]  # unsigned: an index that may count from the end is no vector code
        if total == 1:  # a value that nobody knows beforehand, so that no read is left out
            words_at(fields.result, 1)[0] = total

    return jit(read)


@cache
def multiplier(target: Target, floats: bool) -> Any:
    """Compiled: ``rounds`` steps an index on a register tile, with operands from the first cache."""
    region = reader(Region)
    step = intrinsic_of(lambda builder, *words: _emit(builder, target, floats, *words), 3)

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = region(arguments)
        for _ in range(first, stop):
            step(fields.memory, fields.rounds, fields.result)

    return jit(multiply)


def _emit(builder: Any, target: Target, floats: bool, memory: Any, rounds: Any, result: Any) -> None:
    """A loop that multiplies vectors of weights with activations and adds to sums in registers."""
    simd, kind = Simd(builder, target), FLOATS if floats else INTS
    wide, deep = TILES[target.registers]
    zeros = ir.Constant(kind, None)
    sums = [[cgutils.alloca_once_value(builder, zeros) for _ in range(deep)] for _ in range(wide)]
    with cgutils.for_range(builder, rounds, intp=I64) as loop:
        at = builder.add(memory, builder.mul(builder.and_(loop.index, I64(3)), I64(1024)))
        weights = [simd.load(builder.add(at, I64(LINE * i)), kind if floats else BYTES) for i in range(wide)]
        weights = weights if floats else [simd.operand(codes) for codes in weights]
        for j in range(deep):
            x = simd.load(builder.add(at, I64(LINE * wide + 4 * j)), kind.element if floats else I32)
            for i in range(wide):
                total = builder.load(sums[i][j])
                if floats:
                    total = simd.fma(simd.splat(x), weights[i], total)
                else:
                    total = simd.dot(total, weights[i], x)
                builder.store(total, sums[i][j])
    for i in range(wide):
        for j in range(deep):
            simd.store(builder.load(sums[i][j]), builder.add(result, I64(LINE * (i * deep + j))))


def products(target: Target, floats: bool) -> int:
    """The products of one step of :func:`multiplier`."""
    wide, deep = TILES[target.registers]
    return wide * deep * 16 * (1 if floats else 4)
