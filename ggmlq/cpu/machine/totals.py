"""Code of LLVM that sums the lanes of a vector of floats, in one order in all kernels."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .simd import I32, vec


def total_of(b: Any, vector: Any) -> Any:
    """The sum of all lanes, a power of two: the upper half is added to the lower until one is left."""
    n = vector.type.count
    while n > 1:
        n //= 2
        empty = ir.Constant(vector.type, ir.Undefined)
        low, high = (ir.Constant(vec(I32, n), list(range(at, at + n))) for at in (0, n))
        vector = b.fadd(b.shuffle_vector(vector, empty, low), b.shuffle_vector(vector, empty, high))
    return b.extract_element(vector, I32(0))
