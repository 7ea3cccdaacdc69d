"""The extremes of numbers in a row, by which the quantizer chooses scales, as LLVM code, sixteen at a time.

For the largest magnitude, numbers are compared as they are stored: bits without a sign are ordered as the
numbers are, and 16 bits need not be widened first. NaN has the largest bits of all, so it shows in the
result. Either it is passed over, and only then are numbers compared as floats; or it is the result
(``keeps_nan``, for integer codes, which have no NaN). Where the smallest and the largest number are needed,
numbers are compared as floats, and with ``keeps_nan`` the bits besides.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from ..machine.numba_names import cgutils, intrinsic
from ..machine.simd import F32, I32, I64, vec
from ..machine.target import Target
from .operands import LANES
from .vectors import Vectors, vector_loop

INFINITE = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}
NAN = float("nan")
UNROLLED = 4  # extremes that do not wait for one another


@cache
def extremes(kind: str, both: bool, keeps_nan: bool, target: Target) -> Any:
    """An intrinsic: (address, count, low, high) to the extremes of numbers in a row and of those so far.

    Without ``both`` the second is the largest magnitude and the first stays. With ``keeps_nan`` the second is
    NaN where any number is, or was.
    """

    @intrinsic
    def extreme(typing: Any, address: Any, count: Any, low: Any, high: Any) -> Any:
        pair: Any = types.UniTuple(types.float32, 2)  # type: ignore[no-untyped-call]

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            result = _extremes(Vectors(builder, target, kind), both, keeps_nan, *args)
            return context.make_tuple(builder, pair, result)

        return pair(types.int64, types.int64, types.float32, types.float32), emit

    return extreme


def _extremes(
    v: Vectors, both: bool, keeps_nan: bool, address: Any, count: Any, low: Any, high: Any
) -> list[Any]:
    b = v.builder
    if both:
        low, high = _by_numbers(v, True, address, count, low, high)
        if keeps_nan:
            most = _by_bits(v, address, count)
            number = b.icmp_unsigned("<=", most, ir.Constant(most.type, INFINITE[v.kind]))
            high = b.select(number, high, F32(NAN))
        return [low, high]
    result = cgutils.alloca_once_value(b, high)
    most = _by_bits(v, address, count)
    one = vec(most.type, 1)
    infinite = ir.Constant(most.type, INFINITE[v.kind])
    with b.if_else(b.icmp_unsigned("<=", most, infinite)) as (usual, other):
        with usual:
            largest = v.as_floats(b.insert_element(ir.Constant(one, None), most, I32(0)))
            largest = b.extract_element(largest, I32(0))
            b.store(b.select(b.fcmp_ordered(">", largest, high), largest, high), result)
        with other:  # NaN
            most = F32(NAN) if keeps_nan else _by_numbers(v, False, address, count, low, high)[1]
            b.store(most, result)
    return [low, b.load(result)]


def _by_bits(v: Vectors, address: Any, count: Any) -> Any:
    """The largest bits of all numbers without their signs: those of the largest magnitude, or of NaN."""
    b, kind = v.builder, vec(ir.IntType(8 * v.width), LANES)
    rest = ir.Constant(kind, [(1 << 8 * v.width - 1) - 1] * LANES)
    most = [cgutils.alloca_once_value(b, ir.Constant(kind, None)) for _ in range(UNROLLED)]

    def larger(x: Any, y: Any) -> Any:
        return b.select(b.icmp_unsigned(">", x, y), x, y)

    def body(index: Any, left: Any, i: int) -> None:
        stored = v.load_some(b.add(address, b.mul(index, I64(v.width))), v.stored, left)
        b.store(larger(b.and_(b.bitcast(stored, kind), rest), b.load(most[i])), most[i])

    vector_loop(b, count, body, UNROLLED)
    values = [b.load(part) for part in most]
    while len(values) > 1:
        values = [larger(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
    return _one(v, values[0], larger)


def _by_numbers(v: Vectors, both: bool, address: Any, count: Any, low: Any, high: Any) -> list[Any]:
    """The extremes compared as floats, NaN passed over."""
    b = v.builder
    highs = [cgutils.alloca_once_value(b, v.splat(high)) for _ in range(UNROLLED)]
    lows = [cgutils.alloca_once_value(b, v.splat(low)) for _ in range(UNROLLED if both else 1)]

    def body(index: Any, left: Any, i: int) -> None:
        x = v.floats(b.add(address, b.mul(index, I64(v.width))), left)
        if both:
            b.store(v.smaller(x, b.load(lows[i])), lows[i])
        b.store(v.larger(x if both else v.size(x), b.load(highs[i])), highs[i])

    vector_loop(b, count, body, UNROLLED)
    ends = []
    for better, parts in ((v.smaller, lows), (v.larger, highs)):
        values = [b.load(part) for part in parts]
        while len(values) > 1:
            values = [better(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
        ends.append(values[0])
    return [
        _one(v, ends[0], v.smaller) if both else low,
        _one(v, ends[1], v.larger),
    ]


def _one(v: Vectors, values: Any, better: Any) -> Any:
    """The best of sixteen lanes."""
    for half in (8, 4, 2, 1):
        values = better(v.part(values, half, half), v.part(values, 0, half))
    return v.builder.extract_element(values, I32(0))
