"""The vector steps of the quantizer as LLVM code: sixteen floats are widened, divided by a scale, encoded.

The results have the bits of ``codes/scaling.py`` and of a code's ``encode``; three things are done in another
way, because that is quicker:

*Dividing.* With r = 1/s rounded, q = x·r is nearly x / s; the remainder x - q·s is exact in a fused
operation, and two such corrections give the very float that a division does (Markstein's theorem), in
five instructions of half a cycle instead of one of ten. That holds away from the ends of float32's range. So
scales beyond 2**±80, negative ones and those that are not finite are divided by, and x is clipped to 2**20
scales before: further out every code is saturated.

*Rounding a float to a few bits of mantissa.* Added to 2**(23 - bits) times the power of two in it, a number
is rounded to just these bits, ties to even, and the last bits of the sum are the mantissa. The power
is held at that of the smallest normal number, so that subnormal codes need nothing else. A carry runs
into the exponent, where it belongs.

*Saturating.* What is larger than the largest number is made that before rounding: a float that is still
rounded to it lies beyond it as well.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from ...codes import Code, Integer, MiniFloat
from ..lanes import widened
from ..machine.intrinsics import intrinsic_of
from ..machine.numba_names import cgutils, intrinsic
from ..machine.simd import F32, FLOATS, I1, I8, I16, I32, I64, INTS, Simd, first_lanes, vec
from ..machine.simd import load_some as some_lanes
from ..machine.target import Target
from .driver import LANES, WIDTH

ROUND = 12582912.0  # 1.5 · 2**23: adding it leaves the nearest integer in the last bits, ties to even
ROUND_BITS = 0x4B400000
SIGN, REST = -0x80000000, 0x7FFFFFFF
FAR = 2.0**20  # scales: beyond the range of every code
SANE = 2.0**-80, 2.0**80  # scales whose quotients can be corrected


class Vectors(Simd):
    """Emits the steps of a quantizer."""

    def __init__(self, builder: Any, target: Target, kind: str) -> None:
        super().__init__(builder, target)
        self.kind, self.width = kind, WIDTH[kind]

    def floats(self, address: Any, count: Any = None) -> Any:
        """Sixteen numbers as float32, or the first ``count`` of them, the others 0."""
        return self.as_floats(self.load_some(address, self.stored, count))

    @property
    def stored(self) -> Any:
        """The type of sixteen numbers in memory."""
        return FLOATS if self.width == 4 else vec(I16, LANES)

    def as_floats(self, read: Any) -> Any:
        """Numbers as they are stored, in a vector of any length, as float32."""
        b, count = self.builder, read.type.count
        if self.kind == "float32":
            return b.bitcast(read, vec(F32, count))
        if self.kind == "float16":
            return widened(b, read)
        wide = vec(I32, count)
        return b.bitcast(b.shl(b.zext(read, wide), ir.Constant(wide, [16] * count)), vec(F32, count))

    def load_some(self, address: Any, kind: Any, count: Any = None) -> Any:
        """Numbers as they are stored, or the first ``count`` of them, the others 0."""
        return some_lanes(self, address, kind, count)

    def store_some(self, codes: Any, address: Any, count: Any = None) -> None:
        """Codes to memory, all or the first ``count``."""
        if count is None:
            self.store(codes, address)
            return
        kind = codes.type.element
        pointer = self.builder.inttoptr(address, codes.type.as_pointer())
        name = f"llvm.masked.store.v16{'f32' if kind == F32 else f'i{kind.width}'}.p0"
        self.call(name, ir.VoidType(), codes, pointer, I32(1), first_lanes(self, count, LANES))

    def soon(self, address: Any) -> None:
        """Begin to bring a line of memory into the second cache."""
        pointer = self.builder.inttoptr(address, I8.as_pointer())
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, I32(0), I32(2), I32(1))

    # --- numbers ------------------------------------------------------------------------

    def size(self, x: Any) -> Any:
        """The magnitudes of floats."""
        return self.builder.bitcast(self.builder.and_(self.builder.bitcast(x, INTS), ints(REST)), FLOATS)

    def larger(self, x: Any, most: Any) -> Any:
        """The larger of each two numbers; NaN in x is passed over."""
        return self.builder.select(self.builder.fcmp_ordered(">", x, most), x, most)

    def smaller(self, x: Any, least: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered("<", x, least), x, least)

    def within(self, x: Any, limit: Any) -> Any:
        """X between -limit and limit; NaN as it is."""
        b = self.builder
        x = b.select(b.fcmp_ordered(">", x, limit), limit, x)
        least = b.fneg(limit)
        return b.select(b.fcmp_ordered("<", x, least), least, x)

    def quotient(self, x: Any, s: Any, r: Any, limit: Any) -> Any:
        """X / s, correctly rounded; r is 1 / s, and limit 2**20 · s, or None where x is in range."""
        b = self.builder
        if limit is not None:
            x = self.within(x, limit)
        less = b.fneg(s)
        q = b.fmul(x, r)
        for _ in range(2):
            q = self.fma(self.fma(q, less, x), r, q)
        return q

    def encoded(self, v: Any, x: Any, z: Any, code: Code, rounding: str, inside: bool) -> Any:
        """Codes of v = x / s, where the sign of x counts; z is added to integers, if it is not None.

        ``inside``: no number rounds to a code beyond the range.
        """
        if isinstance(code, MiniFloat):
            return self.builder.trunc(self._minifloat(v, x, code, inside), vec(I8, LANES))
        assert isinstance(code, Integer)
        whole = self._integer(v, z, code, rounding, inside)
        return self.builder.trunc(whole, vec(ir.IntType(code.bits), LANES))

    def _minifloat(self, v: Any, x: Any, code: MiniFloat, inside: bool) -> Any:
        b = self.builder
        largest = ints(int(code.table.view("u4")[code.largest]))
        a = b.and_(b.bitcast(v, INTS), ints(REST))
        if not inside:
            a = b.select(b.icmp_signed("<", a, largest), a, largest)
        lowest = ints(128 - code.bias << 23)
        power = b.and_(b.select(b.icmp_signed(">", a, lowest), a, lowest), ints(0x7F800000))
        unit = b.add(power, ints(23 - code.mantissa << 23))
        total = b.fadd(b.bitcast(a, FLOATS), b.bitcast(unit, FLOATS))
        units = b.sub(b.bitcast(total, INTS), unit)
        field = b.lshr(power, ints(23 - code.mantissa))
        bits = b.sub(b.add(units, field), ints(128 - code.bias << code.mantissa))
        bits = b.select(b.fcmp_unordered("uno", v, v), ints(code.nan), bits)
        sign = b.and_(b.lshr(b.bitcast(x, INTS), ints(24)), ints(0x80))
        return b.or_(bits, sign)

    def _integer(self, v: Any, z: Any, code: Integer, rounding: str, inside: bool) -> Any:
        b = self.builder
        nan = b.fcmp_unordered("uno", v, v)
        v = v if inside else self.within(v, ir.Constant(FLOATS, [FAR] * LANES))
        if rounding == "half_even":
            total = b.fadd(v, ir.Constant(FLOATS, [ROUND] * LANES))
            whole = b.sub(b.bitcast(total, INTS), ints(ROUND_BITS))
        else:
            v = b.select(nan, ir.Constant(FLOATS, None), v)
            whole = b.fptosi(v, INTS)
            rest = self.size(b.fsub(v, b.sitofp(whole, FLOATS)))
            away = b.zext(b.fcmp_ordered(">=", rest, ir.Constant(FLOATS, [0.5] * LANES)), INTS)
            below = b.icmp_signed("<", b.bitcast(v, INTS), ints(0))
            whole = b.add(whole, b.select(below, b.neg(away), away))
        whole = b.select(nan, ints(0), whole)  # NaN becomes the code of 0.0
        if z is not None:
            whole = b.add(whole, z)
        least, most = ints(int(code.min)), ints(int(code.max))
        if inside and z is None and code.min < 0:
            return whole
        whole = b.select(b.icmp_signed(">", whole, most), most, whole)
        return b.select(b.icmp_signed("<", whole, least), least, whole)


def ints(value: int) -> ir.Constant:
    """An integer in all of 16 lanes."""
    return ir.Constant(INTS, [value] * LANES)


def vector_loop(b: Any, count: Any, body: Any, step: int = 1) -> None:
    """Emit ``body(first number, numbers left or None for sixteen, i)`` along ``count`` numbers."""
    whole = b.udiv(count, I64(LANES * step))
    with cgutils.for_range(b, whole, intp=I64) as loop:
        for i in range(step):
            body(b.add(b.mul(loop.index, I64(LANES * step)), I64(LANES * i)), None, i)
    done = b.mul(whole, I64(LANES * step))
    if step > 1:
        more = b.udiv(b.sub(count, done), I64(LANES))
        with cgutils.for_range(b, more, intp=I64) as loop:
            body(b.add(done, b.mul(loop.index, I64(LANES))), None, 0)
        done = b.add(done, b.mul(more, I64(LANES)))
    left = b.sub(count, done)
    with b.if_then(b.icmp_signed(">", left, I64(0))):
        body(done, left, 0)


@cache
def row_encoder(kind: str, code: Code, rounding: str, zeros: bool, inside: bool, target: Target) -> Any:
    """An intrinsic that encodes numbers in a row: their address, that of the codes, count, scale, zero point.

    ``ahead``: bytes from each number to one that is read soon; it is prefetched here, where memory would be
    idle otherwise. ``inside``: scales come from these very numbers.
    """

    def emit(builder: Any, *values: Any) -> None:
        _encode(Vectors(builder, target, kind), code, rounding, zeros, inside, *values)

    return intrinsic_of(emit, 3, types.float32, types.int32, types.int64)


def _encode(
    v: Vectors, code: Code, rounding: str, zeros: bool, inside: bool,
    source: Any, to: Any, count: Any, s: Any, z: Any, ahead: Any,
) -> None:  # fmt: skip
    b, nbytes = v.builder, code.bits // 8
    scale, zero = v.splat(s), v.splat(z) if zeros else None
    inverse = v.splat(b.fdiv(F32(1.0), s))
    limit = None if inside else v.splat(b.fmul(s, F32(FAR)))

    def loop(divided: Any, inside: bool) -> None:
        def body(index: Any, left: Any, i: int) -> None:
            at = b.add(source, b.mul(index, I64(v.width)))
            if left is None and (v.width == 4 or not i):  # once a line
                v.soon(b.add(at, ahead))
            x = v.floats(at, left)
            q, signed = divided(x)
            codes = v.encoded(q, signed, zero, code, rounding, inside)
            v.store_some(codes, b.add(to, b.mul(index, I64(nbytes))), left)

        vector_loop(b, count, body, 2)

    def plainly(x: Any) -> Any:
        q = b.fdiv(x, scale)
        return q, q

    sane = b.and_(b.fcmp_ordered(">=", s, F32(SANE[0])), b.fcmp_ordered("<=", s, F32(SANE[1])))
    with b.if_else(sane if v.target.fma else I1(0)) as (usual, other):
        with usual:
            loop(lambda x: (v.quotient(x, scale, inverse, limit), x), inside)
        with other:
            loop(plainly, False)


# --- The extremes of numbers in a row, by which the quantizer chooses scales, as LLVM code, sixteen at a
# time
#
# For the largest magnitude, numbers are compared as they are stored: bits without a sign are ordered as the
# numbers are, and 16 bits need not be widened first. NaN has the largest bits of all, so it shows in the
# result. Either it is passed over, and only then are numbers compared as floats; or it is the result
# (``keeps_nan``, for integer codes, which have no NaN). Where the smallest and the largest number are
# needed, numbers are compared as floats, and with ``keeps_nan`` the bits besides.

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
