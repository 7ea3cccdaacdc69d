"""Loads at the tail of a row, as LLVM code: the lanes behind the last number do not touch memory."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .simd import F32, I32, Simd


def first_lanes(simd: Simd, count: Any, lanes: int) -> Any:
    """A mask of the first ``count`` of ``lanes`` lanes."""
    number = simd.splat(simd.builder.trunc(count, I32), lanes)
    return simd.builder.icmp_signed("<", ir.Constant(number.type, list(range(lanes))), number)


def load_some(simd: Simd, address: Any, kind: ir.VectorType, count: Any = None) -> Any:
    """A vector of numbers from memory, or the first ``count`` of them, the others 0."""
    if count is None:
        return simd.load(address, kind)
    bits = "f32" if kind.element == F32 else f"i{kind.element.width}"
    name = f"llvm.masked.load.v{kind.count}{bits}.p0"
    pointer = simd.builder.inttoptr(address, kind.as_pointer())
    return simd.call(
        name, kind, pointer, I32(1), first_lanes(simd, count, kind.count), ir.Constant(kind, None)
    )
