"""The words of ``ggmlq/formats/_lanes.py``, meaning registers: a name here is compiled for that name there.

A tile is a contiguous array [places, 16] of float32 or bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..jit import inner
from ._vectors import BOOL, FLOAT, INT, LANES, Vector, constant, llvm


def _word(typing: Callable[..., Any]) -> Any:
    return intrinsic(typing)


EIGHT = ir.VectorType(ir.IntType(8), LANES)


@inner
def floats(like: Any, places: Any) -> Any:
    return np.empty((places, LANES), np.float32)


@inner
def small(like: Any, places: Any) -> Any:
    return np.empty((places, LANES), np.uint8)


@inner
def runs(count: Any) -> Any:
    return range(count)


@inner
def part(tile: Any, run: Any, size: Any) -> Any:
    return tile[run * size : run * size + size]


def _place(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """The address of a row of a tile."""
    tile = context.make_array(sig.args[0])(context, builder, args[0])
    at = builder.gep(tile.data, [builder.mul(args[1], args[1].type(LANES))])
    return builder.bitcast(at, (llvm(FLOAT) if _of_floats(sig.args[0]) else EIGHT).as_pointer())


def _of_floats(tile: Any) -> bool:
    return bool(tile.dtype == types.float32)


@_word
def get(typingctx: Any, tile: Any, i: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        row = builder.load(_place(context, builder, sig, args), align=4 if _of_floats(tile) else 1)
        return row if _of_floats(tile) else builder.zext(row, llvm(INT))

    return (FLOAT if _of_floats(tile) else INT)(tile, types.intp), codegen


@_word
def put(typingctx: Any, tile: Any, i: Any, vector: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        row = args[2] if _of_floats(tile) else builder.trunc(args[2], EIGHT)
        builder.store(row, _place(context, builder, sig, args), align=4 if _of_floats(tile) else 1)
        return context.get_dummy_value()

    return types.void(tile, types.intp, FLOAT if _of_floats(tile) else INT), codegen


@_word
def zero(typingctx: Any, like: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return constant(FLOAT, 0.0)

    return FLOAT(like), codegen


@_word
def where(typingctx: Any, mask: Any, yes: Any, no: Any) -> Any:
    numbers = INT if isinstance(yes, types.Integer) else FLOAT
    kind = next((arg for arg in (yes, no) if isinstance(arg, Vector)), numbers)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(*args)

    return kind(BOOL, kind, kind), codegen


@_word
def some(typingctx: Any, mask: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = builder.bitcast(args[0], ir.IntType(LANES))
        return builder.icmp_unsigned("!=", word, word.type(0))

    return types.boolean(BOOL), codegen


def _library(name: str) -> Any:
    """A vector function that LLVM knows by name."""

    def typed(typingctx: Any, v: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = ir.FunctionType(llvm(FLOAT), [llvm(FLOAT)])
            function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32")  # type: ignore[no-untyped-call]
            return builder.call(function, args)

        return FLOAT(FLOAT), codegen

    return _word(typed)


absolute = _library("fabs")
root = _library("sqrt")


@_word
def real(typingctx: Any, codes: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.sitofp(args[0], llvm(FLOAT))

    return FLOAT(INT), codegen


@_word
def bits_of(typingctx: Any, v: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], llvm(INT))

    return INT(FLOAT), codegen


@_word
def of_bits(typingctx: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], llvm(FLOAT))

    return FLOAT(INT), codegen


@inner
def clamp(codes: Any, low: Any, high: Any) -> Any:
    raised = where(codes > low, codes, low)
    return where(raised < high, raised, high)


@inner
def nearest(v: Any) -> Any:
    return (bits_of(v + np.float32(12582912)) & 0x7FFFFF) - 0x400000


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
    """In integers: not every CPU has the conversion. A half of sums moves subnormals into place."""
    bits = bits_of(v)
    size = bits & 0x7FFFFFFF
    normal = (size - 0x37FFF001 + (size >> 13 & 1)) >> 13
    subnormal = bits_of(of_bits(size) + np.float32(0.5)) - 0x3F000000
    rounded = where(size < 0x38800000, subnormal, normal)
    beyond = where(size > 0x7F800000, 0x7E00, 0x7C00)
    return where(size >= 0x47800000, beyond, rounded) | bits >> 16 & 0x8000


@inner
def from_half(bits: Any) -> Any:
    """Exponent and mantissa moved into place are the value divided by 2**112."""
    value = of_bits((bits & 0x7FFF) << 13) * np.float32(2.0**112)
    whole = bits_of(value) | where(value >= np.float32(65536), 0x7F800000, 0)
    return of_bits(whole | (bits & 0x8000) << 16)
