"""LLVM's type bfloat, for instructions on bfloat16: llvmlite has no name for it."""

from __future__ import annotations

from llvmlite import ir

from .simd import vec


class Bfloat(ir.Type):  # type: ignore[misc]
    """LLVM's type of a bfloat16, the upper half of a float32."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bfloat)

    def __hash__(self) -> int:
        return hash(Bfloat)


BFLOATS = vec(Bfloat(), 32)
