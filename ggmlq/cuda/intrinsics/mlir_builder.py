"""llvmlite's builder, as far as instructions use it, on the dialects of numba-cuda-mlir.

An instruction's ``emit`` writes code by a builder and a context. For numba-cuda both are llvmlite's and
Numba's own; here are others with the same verbs, so that ``emit`` stays as it is.

LLVM must not copy an instruction of a whole warp into two branches, nor move it under a condition. llvmlite
says so with the attribute ``convergent``, which MLIR's inline assembly does not have: it is left out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numba_cuda_mlir._mlir import ir as mlir
from numba_cuda_mlir._mlir.dialects import arith, llvm, scf
from numba_cuda_mlir.lowering_utilities import convert
from numba_cuda_mlir.numba_cuda import types

from .mlir_ir import Constant, FloatType, GlobalVariable, InlineAsm, IntType, Kind

AT_RUN_TIME = -(1 << 31)  # an index of llvm.getelementptr that is no constant
FMA = "fma.rn.f32 $0, $1, $2, $3;"  # LLVM 7, which makes PTX below sm_100, gets no llvm.intr.fma
DTYPES = {"i8": np.int8, "i32": np.int32, "f32": np.float32}  # of tables, by their kind
WIDTHS = {kind: kind.bitwidth for kind in (*types.signed_domain, *types.unsigned_domain)}
GLOBALS: WeakKeyDictionary[Any, dict[str, GlobalVariable]] = WeakKeyDictionary()  # by function at work


def as_value(value: Any) -> Any:
    """A value of MLIR's; a constant becomes one where it is used."""
    if not isinstance(value, Constant):
        return value
    kind, number = value.type.make(), value.value
    if isinstance(kind, mlir.IntegerType):
        number -= (number >> (kind.width - 1)) << kind.width if number > 0 else 0  # as a signed one
        return arith.constant(result=kind, value=mlir.IntegerAttr.get(kind, number))
    return arith.constant(result=kind, value=mlir.FloatAttr.get(kind, float(number)))


def converted(value: Any, kind: Any, want: Any) -> Any:
    """A value of one of Numba's types as one of another; a tuple's one by one."""
    if isinstance(want, types.BaseTuple):
        return tuple(converted(*each) for each in zip(value, kind, want, strict=True))
    if want in WIDTHS:
        target = mlir.IntegerType.get_signless(WIDTHS[want])
    else:
        target = {types.float32: mlir.F32Type, types.float64: mlir.F64Type}[want].get()
    if isinstance(value, int | float):
        return as_value(Constant(Kind(str(target), lambda: target), value))
    if isinstance(value.type, mlir.IndexType):
        value = arith.index_cast(mlir.IntegerType.get_signless(64), value)
    if value.type == target:
        return value
    if not (isinstance(target, mlir.IntegerType) and isinstance(value.type, mlir.IntegerType)):
        return convert(value, target)
    if target.width < value.type.width:
        return arith.trunci(target, value)
    is_signed = value.type.width > 1 and getattr(types.unliteral(kind), "signed", True)
    return (arith.extsi if is_signed else arith.extui)(target, value)


class Context:
    """Numba's target context, as far as instructions use it."""

    def make_tuple(self, builder: Builder, kind: Any, parts: Sequence[Any]) -> tuple[Any, ...]:
        """A tuple: numba-cuda-mlir has its parts one by one."""
        return tuple(map(as_value, parts))

    def get_dummy_value(self) -> None:
        """The result of an instruction without one."""

    def cast(self, builder: Builder, value: Any, kind: Any, want: Any) -> Any:
        """The value of one of Numba's types as one of another."""
        return converted(value, kind, want)


class Builder:
    """llvmlite's builder, at the place where numba-cuda-mlir lowers a call."""

    def __init__(self, lowering: Any) -> None:
        self.module = Module(lowering)
        self._branch: Any = None

    def call(self, assembly: InlineAsm, operands: Sequence[Any], attrs: Sequence[str] = ()) -> Any:
        """The results of inline assembly."""
        values, effect = [as_value(operand) for operand in operands], assembly.side_effect
        kind = assembly.kind.make()
        return llvm.inline_asm(kind, values, assembly.text, assembly.constraints, has_side_effects=effect)

    def extract_value(self, value: Any, i: int) -> Any:
        """A part of a tuple, or of assembly's results."""
        if isinstance(value, tuple | list):
            return value[i]
        kind = llvm.StructType(value.type).body[i]
        return llvm.extractvalue(kind, value, mlir.DenseI64ArrayAttr.get([i]))

    # --- arithmetic -----------------------------------------------------------------------

    def add(self, a: Any, b: Any) -> Any:
        """A sum of integers."""
        return arith.addi(as_value(a), as_value(b))

    def sub(self, a: Any, b: Any) -> Any:
        """A difference of integers."""
        return arith.subi(as_value(a), as_value(b))

    def mul(self, a: Any, b: Any) -> Any:
        """A product of integers."""
        return arith.muli(as_value(a), as_value(b))

    def fmul(self, a: Any, b: Any) -> Any:
        """A product of floats."""
        return arith.mulf(as_value(a), as_value(b))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """The sum of a product and a float, rounded once."""
        return self.call(InlineAsm(FloatType(), FMA, "=f,f,f,f", side_effect=False), [a, b, c])

    def zext(self, value: Any, kind: Kind) -> Any:
        """An integer without a sign in more bits."""
        return arith.extui(kind.make(), as_value(value))

    def sitofp(self, value: Any, kind: Kind) -> Any:
        """An integer as a float."""
        return arith.sitofp(kind.make(), as_value(value))

    def icmp_unsigned(self, operator: str, a: Any, b: Any) -> Any:
        """A comparison of integers without a sign."""
        return arith.cmpi(
            {"<": arith.CmpIPredicate.ult, "==": arith.CmpIPredicate.eq}[operator], as_value(a), as_value(b)
        )

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        """One of two values."""
        return arith.select(condition, as_value(a), as_value(b))

    # --- memory ---------------------------------------------------------------------------

    def ptrtoint(self, memory: GlobalVariable, kind: Kind) -> Any:
        """The address of an array of the module, as an integer."""
        return llvm.ptrtoint(kind.make(), self.module.address(memory))

    def gep(self, memory: GlobalVariable, places: Sequence[Any]) -> tuple[Any, Kind]:
        """The place of an element in an array of the module, and its kind; the first of ``places`` is 0."""
        assert memory.kind.element is not None
        pointer, index = llvm.PointerType.get(memory.addrspace), mlir.DenseI32ArrayAttr.get([AT_RUN_TIME])
        element, base = memory.kind.element.make(), self.module.address(memory)
        return llvm.getelementptr(
            pointer, base, [as_value(places[1])], index, element, None
        ), memory.kind.element

    def load(self, place: tuple[Any, Kind]) -> Any:
        """The element at a place that ``gep`` returned."""
        return llvm.load(place[1].make(), place[0])

    # --- branches: a switch whose cases all go on behind it --------------------------------

    def append_basic_block(self, name: str) -> Block:
        """A block to be filled: of a case, or what follows the switch."""
        return Block()

    def switch(self, number: Any, default: Block) -> Switch:
        """A switch; MLIR gets a condition for each case."""
        return Switch(number)

    def position_at_end(self, block: Block) -> None:
        """Go on in a case's block, which ``branch`` ends; what follows the switch needs no block."""
        if block.switch is not None:
            condition = self.icmp_unsigned("==", block.switch.number, IntType(32)(block.number))
            self._branch = mlir.InsertionPoint(scf.IfOp(condition).then_block)
            self._branch.__enter__()

    def branch(self, block: Block) -> None:
        """End the case's block."""
        scf.yield_([])
        self._branch.__exit__(None, None, None)


class Block:
    """A block of a switch's case; without a switch it is what follows."""

    switch: Switch | None = None
    number = 0


class Switch:
    """A switch on a number."""

    def __init__(self, number: Any) -> None:
        self.number = number

    def add_case(self, number: int, block: Block) -> None:
        """Enter a block for a number."""
        block.switch, block.number = self, number


class Module:
    """The module of the kernel at work, with its arrays by name."""

    def __init__(self, lowering: Any) -> None:
        self._block = lowering.mlir_gpu_module.regions[0].blocks[0]
        self.globals = GLOBALS.setdefault(lowering, {})

    def get_global(self, name: str) -> GlobalVariable:
        """An array of the module; KeyError if there is none."""
        return self.globals[name]

    def address(self, memory: GlobalVariable) -> Any:
        """The address of an array, which enters the module when it is first asked for."""
        there = (op for op in self._block if isinstance(op, llvm.GlobalOp))
        if not any(op.sym_name.value == memory.name for op in there):
            with mlir.InsertionPoint.at_block_begin(self._block):
                llvm.GlobalOp(
                    memory.kind.make(), memory.name, mlir.Attribute.parse(f"#llvm.linkage<{memory.linkage}>"),
                    addr_space=memory.addrspace, constant=memory.global_constant or None,
                    alignment=memory.align or None, value=_values(memory),
                )  # fmt: skip
        return llvm.mlir_addressof(llvm.PointerType.get(memory.addrspace), memory.name)


def _values(memory: GlobalVariable) -> Any:
    """The constants of an array; None where it has none."""
    if memory.initializer is None:
        return None
    assert memory.kind.element is not None
    element = memory.kind.element
    numbers = np.array([each.value for each in memory.initializer.value])
    if element == FloatType():
        return mlir.DenseElementsAttr.get(numbers.astype(np.float32))
    numbers = numbers.astype(np.int64).astype(DTYPES[str(element)])
    return mlir.DenseElementsAttr.get(numbers, type=element.make(), shape=[numbers.size], signless=True)
