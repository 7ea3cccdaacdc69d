"""Lanes and numbers from arrays and back, and look-ups in tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types

from ..machine.features import compiled_for
from .kind import INDEX, Lanes, address, element, emitted, order, plain, splatted, vector

LONG = ir.IntType(64)


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
def deposit(typingctx: Any, bits: Any, width: Any, at: Any, step: Any) -> Any:
    """Fields of an integer, lowest first, moved apart: field i to bit ``at + i * step`` of 64 bits.

    A number that is to become an address stays out of vectors this way: moves out of them take long.
    """
    places = range(at.literal_value, 64, step.literal_value)
    field = (1 << width.literal_value) - 1

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = builder.zext(args[0], LONG)
        if "bmi2" in compiled_for():
            name, kind = "llvm.x86.bmi.pdep.64", ir.FunctionType(LONG, [LONG, LONG])
            function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            return builder.call(function, [wide, LONG(sum(field << place for place in places))])
        out = LONG(0)
        for i, place in enumerate(places):
            one = builder.and_(builder.lshr(wide, LONG(i * width.literal_value)), LONG(field))
            out = builder.or_(out, builder.shl(one, LONG(place)))
        return out

    return types.uint64(plain(bits), width, at, step), codegen


def _scalars(builder: Any, kind: Lanes, lanes: Any) -> Iterator[Any]:
    """Lanes one by one as 64-bit integers, taken from words of 64 bits: fewer moves than lane by lane."""
    width, n = kind.of.bitwidth, kind.n
    size = min(64, width * n)
    words = builder.bitcast(lanes, ir.VectorType(ir.IntType(size), width * n // size))
    for i in range(n):
        if i * width % size == 0:
            word = builder.zext(builder.extract_element(words, INDEX(i * width // size)), LONG)
        shifted = builder.lshr(word, LONG(i * width % size))
        yield builder.and_(shifted, LONG((1 << width) - 1))


@emitted
def gather(typingctx: Any, table: Any, indices: Any) -> Any:
    """table[i] for each lane i, unsigned and below the length of the table."""
    kind = Lanes(table.dtype, indices.n)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        out = ir.Constant(vector(kind), ir.Undefined)
        for i, index in enumerate(_scalars(builder, indices, args[1])):
            out = builder.insert_element(out, builder.load(builder.gep(data, [index])), INDEX(i))
        return out

    return kind(table, indices), codegen


# The instructions that look bytes up in a table of 16: LLVM's name, the feature that it needs.
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
            if feature in compiled_for():
                kind_of = ir.FunctionType(bytes_, [bytes_, bytes_])
                declared = builder.module.globals.get(name)
                function = declared or ir.Function(builder.module, kind_of, name)
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
    """As many lanes as ``lanes`` has: each ``group`` of them repeats a number of an array, from ``at`` on."""
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
