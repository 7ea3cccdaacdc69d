"""The words of ``ggmlq/formats/_program.py`` for compiled encoders, with the same meanings in registers.

A tile is a contiguous array [places, 16] of float32 or bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import populate_array

from ..lanes import (
    Lanes,
    address,
    convert,
    emitted,
    gather,
    narrow,
    recast,
    some,
    splat,
    splatted,
    vector,
    widen,
)
from ..machine.jit import inner

LANES = 16  # of float32: one register of AVX-512
F32, I32, U16, U32 = types.float32, types.int32, types.uint16, types.uint32
LONG = ir.IntType(64)
FLOAT, INT, EIGHT = (Lanes(of, LANES) for of in (F32, I32, types.uint8))

__all__ = [
    "LANES", "absolute", "at_once", "bits", "clamp", "entry", "floats", "from_half", "get", "larger", "log2",
    "nearest", "part", "pick", "put", "rank", "real", "root", "small", "smaller", "some", "to_half", "where",
    "whole", "with_sign", "zeros",
]  # fmt: skip


def _room(kind: Lanes) -> Any:
    """A maker of tiles on the stack: memory from the heap takes as long as a block of a simple encoder."""

    @emitted
    def room(typingctx: Any, like: Any, places: Any) -> Any:
        tile, n = types.Array(kind.of, 2, "C"), places.literal_value

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            memory: Any = cgutils.alloca_once(builder, ir.ArrayType(vector(kind), n))  # type: ignore[no-untyped-call]
            memory.align = 64
            array, size = context.make_array(tile)(context, builder), kind.bitwidth // LANES // 8
            populate_array(  # type: ignore[no-untyped-call]
                array, builder.bitcast(memory, array.data.type), shape=[LONG(n), LONG(LANES)],
                strides=[LONG(LANES * size), LONG(size)], itemsize=LONG(size), meminfo=None,
            )  # fmt: skip
            return array._getvalue()

        return tile(like, places), codegen

    return room


floats, small = _room(FLOAT), _room(EIGHT)


@inner
def at_once(count: Any) -> Any:
    return range(count)


@inner
def part(tile: Any, run: Any, size: Any) -> Any:
    return tile[run * size : run * size + size]


def _row(context: Any, builder: Any, tile: Any, args: Any, kind: Lanes) -> Any:
    """The address of a row of a tile."""
    at = builder.mul(args[1], args[1].type(LANES))
    return address(context, builder, tile, args[0], at, vector(kind))


@emitted
def get(typingctx: Any, tile: Any, i: Any) -> Any:
    of_floats = tile.dtype == F32

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = _row(context, builder, tile, args, FLOAT if of_floats else EIGHT)
        row = builder.load(place, align=1)
        return row if of_floats else builder.zext(row, vector(INT))

    return (FLOAT if of_floats else INT)(tile, types.intp), codegen


@emitted
def put(typingctx: Any, tile: Any, i: Any, value: Any) -> Any:
    of_floats = tile.dtype == F32

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        row = args[2] if of_floats else builder.trunc(args[2], vector(EIGHT))
        place = _row(context, builder, tile, args, FLOAT if of_floats else EIGHT)
        builder.store(row, place, align=1)
        return context.get_dummy_value()

    return types.void(tile, types.intp, FLOAT if of_floats else INT), codegen


@inner
def zeros(like: Any) -> Any:
    return splat(np.float32(0), F32, LANES)


@emitted
def where(typingctx: Any, mask: Any, yes: Any, no: Any) -> Any:
    numbers = INT if isinstance(yes, types.Integer) else FLOAT
    kind = next((arg for arg in (yes, no) if isinstance(arg, Lanes)), numbers)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(*args)

    return kind(mask, kind, kind), codegen


def _library(name: str) -> Any:
    """A vector function that LLVM knows by name."""

    @emitted
    def function(typingctx: Any, v: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = ir.FunctionType(vector(FLOAT), [vector(FLOAT)])
            known = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32")  # type: ignore[no-untyped-call]
            return builder.call(known, args)

        return FLOAT(FLOAT), codegen

    return function


absolute = _library("fabs")
root = _library("sqrt")


@emitted
def with_sign(typingctx: Any, size: Any, v: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = [builder.bitcast(arg, vector(INT)) for arg in (splatted(builder, args[0], LANES), args[1])]
        sign = builder.and_(bits[1], ir.Constant(vector(INT), [-(1 << 31)] * LANES))
        return builder.bitcast(builder.or_(bits[0], sign), vector(FLOAT))

    return FLOAT(F32, FLOAT), codegen


@inner
def smaller(a: Any, b: Any) -> Any:
    return where(a < b, a, b)


@inner
def larger(a: Any, b: Any) -> Any:
    return where(a > b, a, b)


@inner
def real(codes: Any) -> Any:
    return convert(codes, F32)


@inner
def clamp(codes: Any, low: Any, high: Any) -> Any:
    return smaller(larger(codes, low), high)


@inner
def whole(v: Any) -> Any:
    return convert(v, I32)


@inner
def bits(v: Any) -> Any:
    return recast(v, I32)


@emitted
def log2(typingctx: Any, v: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        doubles = ir.VectorType(ir.DoubleType(), LANES)
        kind, name = ir.FunctionType(doubles, [doubles]), f"llvm.log2.v{LANES}f64"
        known = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
        return builder.fptrunc(builder.call(known, [builder.fpext(args[0], doubles)]), vector(FLOAT))

    return FLOAT(FLOAT), codegen


@inner
def entry(table: Any, at: Any) -> Any:
    return gather(table, convert(at, U32))


@inner
def nearest(v: Any) -> Any:
    return (recast(v + np.float32(12582912), I32) & 0x7FFFFF) - 0x400000


@inner
def rank(v: Any, edges: Any) -> Any:
    code = where(v < edges[0], 0, 1)
    for i in range(1, len(edges)):
        code = code + where(v < edges[i], 0, 1)
    return code


@inner
def pick(v: Any, edges: Any, values: Any) -> Any:
    """A look-up without memory: the differences of the values below, summed; exact in small integers."""
    value = where(v < edges[0], values[0], values[1])
    for i in range(1, len(edges)):
        value = value + where(v < edges[i], np.float32(0), values[i + 1] - values[i])
    return value


@inner
def to_half(v: Any) -> Any:
    return convert(narrow(v), I32)


@inner
def from_half(bits: Any) -> Any:
    return widen(convert(bits, U16))
