"""The decoder of 8-bit floats to bfloat16: 128 entries for each of the two bytes; the sign is copied.

An instruction looks 64 codes up in 128 bytes, so that both halves and the sign are three instructions for
any code of 8 bits: NaN, infinities and subnormal numbers are entries as all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from ...codes import MiniFloat
from ..machine.simd import BYTES, I32, Simd, vec

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
