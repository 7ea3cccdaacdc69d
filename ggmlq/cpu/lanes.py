"""Small vectors inside compiled code: ``load``, arithmetic, ``store``, for whatever SIMD there is.

LLVM does not turn the short loops over a block into vector instructions: it would have to prove
that reading the block and writing the codes do not overlap. So a kernel says it with vectors of a
fixed length. They are plain LLVM vectors, not instructions of one CPU: LLVM splits and lowers them
for SSE, AVX2, AVX-512 or NEON.

A vector supports ``& | ^ << >> + - *`` with another of its kind or with a scalar, which is
converted to its kind. ``>>`` fills with zeros in unsigned kinds. Floats are never contracted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import PrimitiveModel
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model


class Lanes(types.Type):  # type: ignore[misc]
    """n numbers of one type, side by side."""

    def __init__(self, of: types.Number, n: int) -> None:
        self.of, self.n = of, n
        super().__init__(f"Lanes({of} x {n})")


def _element(of: types.Number) -> ir.Type:
    if isinstance(of, types.Float):
        return ir.FloatType() if of.bitwidth == 32 else ir.DoubleType()
    return ir.IntType(of.bitwidth)


def _vector(kind: Lanes) -> ir.VectorType:
    return ir.VectorType(_element(kind.of), kind.n)


@register_model(Lanes)
class _LanesModel(PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, _vector(kind))


# --- arithmetic -----------------------------------------------------------------------------

INTEGER = {
    operator.and_: "and_", operator.or_: "or_", operator.xor: "xor", operator.lshift: "shl",
    operator.rshift: "lshr", operator.add: "add", operator.sub: "sub", operator.mul: "mul",
}  # fmt: skip
FLOAT = {operator.add: "fadd", operator.sub: "fsub", operator.mul: "fmul"}


def _splat(builder: Any, value: Any, n: int) -> Any:
    kind = ir.VectorType(value.type, n)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), n), None)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)


def _define(op: Callable[..., Any]) -> None:
    @infer_global(op)
    class _Typing(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) != 2 or not isinstance(args[0], Lanes):
                return None
            left, right = args
            if right == left:
                return signature(left, left, left)
            return signature(left, left, left.of) if isinstance(right, types.Number) else None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = sig.args[0]
        right = args[1] if sig.args[1] == kind else _splat(builder, args[1], kind.n)
        if isinstance(kind.of, types.Float):
            return getattr(builder, FLOAT[op])(args[0], right)
        name = "ashr" if op is operator.rshift and kind.of.signed else INTEGER[op]
        return getattr(builder, name)(args[0], right)

    lower_builtin(op, Lanes, Lanes)(lower)
    lower_builtin(op, Lanes, types.Number)(lower)


for _op in INTEGER:
    _define(_op)


# --- memory ---------------------------------------------------------------------------------


def address(context: Any, builder: Any, kind: Any, array: Any, at: Any, to: ir.Type) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), to.as_pointer())


@intrinsic(prefer_literal=True)
def load(typingctx: Any, array: Any, at: Any, n: Any) -> Any:
    """n neighbouring elements of an array, n a constant."""
    kind = Lanes(array.dtype, n.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = address(context, builder, sig.args[0], args[0], args[1], _vector(kind))
        return builder.load(place, align=1)

    return kind(array, types.intp, n), codegen


@intrinsic(prefer_literal=True)
def store(typingctx: Any, array: Any, at: Any, lanes: Any) -> Any:
    """Write lanes to neighbouring elements of an array of their type."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = address(context, builder, sig.args[0], args[0], args[1], _vector(sig.args[2]))
        builder.store(args[2], place, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), codegen


@intrinsic(prefer_literal=True)
def word(typingctx: Any, array: Any, at: Any, kind: Any) -> Any:
    """The little-endian number of a type that starts at an element of a byte array."""
    of = kind.dtype

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = address(context, builder, sig.args[0], args[0], args[1], _element(of))
        return builder.load(place, align=1)

    return of(array, types.intp, kind), codegen


# --- shapes and kinds -----------------------------------------------------------------------


def _order(numbers: Iterable[int]) -> ir.Constant:
    order = list(numbers)
    return ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order)


@intrinsic(prefer_literal=True)
def interleave(typingctx: Any, a: Any, b: Any, run: Any) -> Any:
    """Runs of lanes from two vectors in turn; a run of all lanes joins them."""
    kind, step = Lanes(a.of, 2 * a.n), run.literal_value
    order = _order(i // (2 * step) * step + i % step + i // step % 2 * a.n for i in range(kind.n))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.shuffle_vector(args[0], args[1], order)

    return kind(a, a, run), codegen


@intrinsic(prefer_literal=True)
def part(typingctx: Any, lanes: Any, start: Any, n: Any) -> Any:
    """n lanes from a place on, both constants."""
    kind, first = Lanes(lanes.of, n.literal_value), start.literal_value
    order = _order(range(first, first + kind.n))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.shuffle_vector(args[0], ir.Constant(args[0].type, ir.Undefined), order)

    return kind(lanes, start, n), codegen


@intrinsic(prefer_literal=True)
def ramp(typingctx: Any, kind: Any, n: Any, step: Any) -> Any:
    """0, step, 2 * step, … as lanes."""
    lanes = Lanes(kind.dtype, n.literal_value)
    numbers = ir.Constant(_vector(lanes), [i * step.literal_value for i in range(lanes.n)])

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return numbers

    return lanes(kind, n, step), codegen


@intrinsic(prefer_literal=True)
def splat(typingctx: Any, number: Any, kind: Any, n: Any) -> Any:
    """A number n times, as lanes of a type."""
    lanes = Lanes(kind.dtype, n.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _splat(builder, args[0], lanes.n)

    return lanes(lanes.of, kind, n), codegen


@intrinsic(prefer_literal=True)
def recast(typingctx: Any, bits: Any, kind: Any) -> Any:
    """The bits of lanes, or of an integer, as lanes of another type; one lane is a number."""
    of = kind.dtype
    width = bits.of.bitwidth * bits.n if isinstance(bits, Lanes) else bits.bitwidth
    new = Lanes(of, width // of.bitwidth) if width > of.bitwidth else of

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _vector(new) if isinstance(new, Lanes) else _element(new))

    return new(types.unliteral(bits), kind), codegen


@intrinsic(prefer_literal=True)
def convert(typingctx: Any, lanes: Any, kind: Any) -> Any:
    """The same numbers as lanes of another type: widened, narrowed or turned into floats."""
    old, new = lanes.of, Lanes(kind.dtype, lanes.n)
    if isinstance(old, types.Float):
        name = "fpext" if new.of.bitwidth > old.bitwidth else "bitcast"
    elif isinstance(new.of, types.Float):
        name = "sitofp" if old.signed else "uitofp"
    elif new.of.bitwidth > old.bitwidth:
        name = "sext" if old.signed else "zext"
    else:
        name = "trunc" if new.of.bitwidth < old.bitwidth else "bitcast"

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, name)(args[0], _vector(new))

    return new(lanes, kind), codegen


# --- choices --------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def either(typingctx: Any, bits: Any, yes: Any, no: Any, kind: Any) -> Any:
    """For each bit of an integer, the lowest first, one of two numbers, as lanes of a type."""
    lanes = Lanes(kind.dtype, bits.bitwidth)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        mask = builder.bitcast(args[0], ir.VectorType(ir.IntType(1), lanes.n))
        return builder.select(mask, *(_splat(builder, value, lanes.n) for value in args[1:3]))

    return lanes(types.unliteral(bits), lanes.of, lanes.of, kind), codegen


@intrinsic(prefer_literal=True)
def negated(typingctx: Any, lanes: Any, minus: Any) -> Any:
    """Lanes with a minus wherever the bit of their number is set in an integer."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        mask = builder.bitcast(args[1], ir.VectorType(ir.IntType(1), lanes.n))
        return builder.select(mask, builder.neg(args[0]), args[0])

    return lanes(lanes, minus), codegen


@intrinsic(prefer_literal=True)
def above(typingctx: Any, lanes: Any, limit: Any) -> Any:
    """1 where a lane is greater than a number, else 0."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        compare = builder.icmp_signed if lanes.of.signed else builder.icmp_unsigned
        return builder.zext(compare(">", args[0], _splat(builder, args[1], lanes.n)), args[0].type)

    return lanes(lanes, lanes.of), codegen


@intrinsic(prefer_literal=True)
def gather(typingctx: Any, table: Any, indices: Any) -> Any:
    """table[i] for each lane i, unsigned and below the length of the table."""
    kind = Lanes(table.dtype, indices.n)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        out = ir.Constant(_vector(kind), ir.Undefined)
        for i in range(kind.n):
            number = ir.IntType(32)(i)
            index = builder.zext(builder.extract_element(args[1], number), ir.IntType(64))
            out = builder.insert_element(out, builder.load(builder.gep(data, [index])), number)
        return out

    return kind(table, indices), codegen


@intrinsic(prefer_literal=True)
def lookup(typingctx: Any, table: Any, indices: Any) -> Any:
    """Entries of a table of 16 bytes for lanes below 16, in the form that LLVM knows as a shuffle."""
    kind = Lanes(table.dtype, indices.n)
    sixteen = ir.VectorType(ir.IntType(8), 16)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        levels = builder.load(builder.bitcast(data, sixteen.as_pointer()), align=1)
        out = ir.Constant(_vector(kind), ir.Undefined)
        for i in range(kind.n):
            number = ir.IntType(32)(i)
            index = builder.extract_element(args[1], number)
            out = builder.insert_element(out, builder.extract_element(levels, index), number)
        return out

    return kind(table, indices), codegen


@intrinsic(prefer_literal=True)
def spans(typingctx: Any, array: Any, at: Any, group: Any, lanes: Any) -> Any:
    """For lanes in groups of one number each, from an element of an array on: that many lanes."""
    kind = Lanes(array.dtype, lanes.n)
    size = min(group.literal_value, lanes.n)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        first = builder.gep(data, [args[1]])
        numbers = [builder.load(builder.gep(first, [ir.IntType(64)(g)])) for g in range(lanes.n // size)]
        out = _splat(builder, numbers[0], lanes.n)
        for g, number in enumerate(numbers[1:], 1):
            order = _order(i if i < g * size else lanes.n for i in range(lanes.n))
            out = builder.shuffle_vector(out, _splat(builder, number, lanes.n), order)
        return out

    return kind(array, types.intp, group, lanes), codegen
