"""llvmlite's names for types and values, as far as instructions use them, for numba-cuda-mlir.

Instructions name types when their file is imported, but a type of MLIR's lives in a context that is there
only while a kernel is lowered. So a ``Kind`` here is the recipe of a type, and mlir_builder.py makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from numba_cuda_mlir._mlir import ir as mlir
from numba_cuda_mlir._mlir.dialects import llvm


class Kind:
    """A type by its text, with the function that makes it in the context at hand."""

    def __init__(self, text: str, make: Callable[[], Any], element: Kind | None = None) -> None:
        self.text, self.make, self.element = text, make, element

    def __call__(self, value: Any) -> Constant:
        return Constant(self, value)

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kind) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


class Constant(NamedTuple):
    """A constant: a number of a kind, or the list of the constants of an array."""

    type: Kind
    value: Any


class InlineAsm(NamedTuple):
    """A piece of assembly with the kind of its results."""

    kind: Kind
    text: str
    constraints: str
    side_effect: bool


class GlobalVariable:
    """An array of a module; what is set before its first use holds for the whole module."""

    def __init__(self, module: Any, kind: Kind, name: str, addrspace: int = 0) -> None:
        self.kind, self.name, self.addrspace = kind, name, addrspace
        self.initializer: Constant | None = None
        self.linkage, self.global_constant, self.align = "external", False, 0
        module.globals[name] = self


def IntType(bits: int) -> Kind:
    """An integer; as in llvmlite it has no sign."""
    return Kind(f"i{bits}", lambda: mlir.IntegerType.get_signless(bits))


def FloatType() -> Kind:
    """A float of 32 bits."""
    return Kind("f32", mlir.F32Type.get)


def DoubleType() -> Kind:
    """A float of 64 bits."""
    return Kind("f64", mlir.F64Type.get)


def VoidType() -> Kind:
    """The kind of what has no result."""
    return Kind("void", lambda: None)


def LiteralStructType(kinds: Iterable[Kind]) -> Kind:
    """Several values together, as assembly with several results has them."""
    kinds = list(kinds)
    text = f"!llvm.struct<({', '.join(map(str, kinds))})>"
    return Kind(text, lambda: llvm.StructType.get_literal([kind.make() for kind in kinds]))


def ArrayType(element: Kind, count: int) -> Kind:
    """An array in memory."""
    text = f"!llvm.array<{count} x {element}>"
    return Kind(text, lambda: mlir.Type.parse(text), element)


def FunctionType(kind: Kind, operands: Iterable[Any]) -> Kind:
    """The kind of a function's result: assembly takes whatever it gets."""
    return kind
