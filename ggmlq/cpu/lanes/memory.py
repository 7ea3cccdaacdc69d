"""Lanes and numbers from arrays and back, and look-ups in tables."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..target import features
from .kind import INDEX, Lanes, address, element, emitted, order, splatted, vector


@emitted
def load(typingctx: Any, array: Any, at: Any, n: Any) -> Any:
    """Neighbouring elements of an array, n a constant."""
    kind = Lanes(array.dtype, n.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = address(context, builder, sig.args[0], args[0], args[1], vector(kind))
        return builder.load(place, align=1)

    return kind(array, types.intp, n), codegen


@emitted
def store(typingctx: Any, array: Any, at: Any, lanes: Any) -> Any:
    """Write lanes to neighbouring elements of an array of their type."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = address(context, builder, sig.args[0], args[0], args[1], vector(sig.args[2]))
        builder.store(args[2], place, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), codegen


@emitted
def word(typingctx: Any, array: Any, at: Any, kind: Any) -> Any:
    """The little-endian number of a type that starts at an element of a byte array."""
    of = kind.dtype

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = address(context, builder, sig.args[0], args[0], args[1], element(of))
        return builder.load(place, align=1)

    return of(array, types.intp, kind), codegen


@emitted
def gather(typingctx: Any, table: Any, indices: Any) -> Any:
    """table[i] for each lane i, unsigned and below the length of the table."""
    kind = Lanes(table.dtype, indices.n)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        out = ir.Constant(vector(kind), ir.Undefined)
        for i in range(kind.n):
            number = INDEX(i)
            index = builder.zext(builder.extract_element(args[1], number), ir.IntType(64))
            out = builder.insert_element(out, builder.load(builder.gep(data, [index])), number)
        return out

    return kind(table, indices), codegen


# What looks bytes up in a table of 16: LLVM's name, the feature it needs.
SHUFFLES = {
    "llvm.x86.ssse3.pshuf.b.128": "ssse3",
    "llvm.aarch64.neon.tbl1.v16i8": "neon",
}


@emitted
def lookup(typingctx: Any, table: Any, indices: Any) -> Any:
    """Entries of a table of 16 bytes for 16 lanes of bytes below 16."""
    kind = Lanes(table.dtype, indices.n)
    bytes_ = vector(kind)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        levels = builder.load(builder.bitcast(data, bytes_.as_pointer()), align=1)
        for name, feature in SHUFFLES.items():
            if feature in features():
                kind_of = ir.FunctionType(bytes_, [bytes_, bytes_])
                known = builder.module.globals.get(name)
                function = known or ir.Function(builder.module, kind_of, name)
                return builder.call(function, [levels, args[1]])
        out = ir.Constant(bytes_, ir.Undefined)
        for i in range(kind.n):
            number = INDEX(i)
            entry = builder.extract_element(levels, builder.extract_element(args[1], number))
            out = builder.insert_element(out, entry, number)
        return out

    return kind(table, indices), codegen


@emitted
def spans(typingctx: Any, array: Any, at: Any, group: Any, lanes: Any) -> Any:
    """For lanes in groups of one number each, from an element of an array on: that many lanes."""
    kind = Lanes(array.dtype, lanes.n)
    size = min(group.literal_value, lanes.n)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        first = builder.gep(data, [args[1]])
        numbers = [builder.load(builder.gep(first, [ir.IntType(64)(g)])) for g in range(lanes.n // size)]
        out = splatted(builder, numbers[0], lanes.n)
        for g, number in enumerate(numbers[1:], 1):
            picked = order(i if i < g * size else lanes.n for i in range(lanes.n))
            out = builder.shuffle_vector(out, splatted(builder, number, lanes.n), picked)
        return out

    return kind(array, types.intp, group, lanes), codegen
