"""The sum of a vector's lanes, in one order for all kernels that end with one."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .simd import I32, vec


def total_of(b: Any, vector: Any) -> Any:
    """The sum of all lanes: of pairs, then of pairs of pairs …"""
    n = vector.type.count
    while n > 1:
        n //= 2
        empty = ir.Constant(vector.type, ir.Undefined)
        low, high = (ir.Constant(vec(I32, n), list(range(at, at + n))) for at in (0, n))
        vector = b.fadd(b.shuffle_vector(vector, empty, low), b.shuffle_vector(vector, empty, high))
    return b.extract_element(vector, I32(0))
