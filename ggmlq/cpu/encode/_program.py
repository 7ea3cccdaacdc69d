"""The words of ``ggmlq/formats/_program.py``, meaning registers: a name here is compiled for that name there.

A tile is a contiguous array [places, 16] of float32 or bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from ..lanes import Lanes, convert, narrow, recast, some, splat, widen
from ..lanes.kind import address, emitted, vector
from ..machine.jit import inner

LANES = 16  # of float32: one register of AVX-512
F32, I32, U16 = types.float32, types.int32, types.uint16
FLOAT, INT, EIGHT = (Lanes(of, LANES) for of in (F32, I32, types.uint8))

__all__ = [
    "LANES", "absolute", "clamp", "floats", "from_half", "get", "nearest", "part",
    "pick", "put", "rank", "real", "root", "runs", "small", "some", "to_half", "where", "zeros",
]  # fmt: skip


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


@inner
def real(codes: Any) -> Any:
    return convert(codes, F32)


@inner
def clamp(codes: Any, low: Any, high: Any) -> Any:
    raised = where(codes > low, codes, low)
    return where(raised < high, raised, high)


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
