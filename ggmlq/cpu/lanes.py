"""Small vectors inside compiled code: ``load``, arithmetic, ``store``, for whatever SIMD there is.

LLVM does not turn the short loops over a block into vector instructions: it would have to prove
that reading the block and writing the codes do not overlap. So a kernel says it with vectors of a
fixed length. They are plain LLVM vectors, not instructions of one CPU: LLVM splits and lowers them
for SSE, AVX2, AVX-512 or NEON.

A vector supports the usual operators with another of its kind or with a number, which
takes its kind: arithmetic, bits (``>>`` fills with zeros in unsigned kinds), and comparisons, which
give a mask. Floats are never contracted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, lower_cast, register_model

from .machine.features import compiled_for

INDEX = ir.IntType(32)


class Lanes(types.Type):
    """n numbers of one type, side by side; of booleans they are a mask."""

    def __init__(self, of: Any, n: int) -> None:
        self.of, self.n = of, n
        self.bitwidth = n * (1 if isinstance(of, types.Boolean) else of.bitwidth)
        super().__init__(f"Lanes({of} x {n})")


def element(of: Any) -> ir.Type:
    """LLVM's type of a number."""
    if isinstance(of, types.Boolean):
        return ir.IntType(1)
    if isinstance(of, types.Float):
        return ir.FloatType() if of.bitwidth == 32 else ir.DoubleType()
    return ir.IntType(of.bitwidth)


def order(numbers: Iterable[int]) -> ir.Constant:
    """The last operand of a shuffle: for each lane the number of the lane that it takes."""
    listed = list(numbers)
    return ir.Constant(ir.VectorType(INDEX, len(listed)), listed)


def vector(kind: Lanes) -> ir.VectorType:
    """LLVM's type of lanes."""
    return ir.VectorType(element(kind.of), kind.n)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, vector(kind))  # type: ignore[no-untyped-call]


def plain(kind: Any) -> Any:
    """The type of a constant without its value."""
    return types.unliteral(kind)  # type: ignore[no-untyped-call]


def splatted(builder: Any, value: Any, n: int) -> Any:
    """A vector of LLVM code that holds a number n times."""
    kind = ir.VectorType(value.type, n)
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, value, INDEX(0))
    return builder.shuffle_vector(first, nothing, order([0] * n))


def emitted(function: Callable[..., Any]) -> Any:
    """An intrinsic of compiled code, from the function that writes its LLVM code; constants are literals."""
    return intrinsic(prefer_literal=True)(function)


def address(context: Any, builder: Any, kind: Any, array: Any, at: Any, to: ir.Type) -> Any:
    """Pointer to an element of an array, as a pointer to another type."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), to.as_pointer())


# --- Lanes and numbers from arrays and back, and look-ups in tables -------------------------------

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


# --- Arithmetic and comparisons of lanes, also beside a plain number, which takes their type ------
#
# They are LLVM's own vector operations. Products and sums are never contracted. A comparison gives a
# mask: lanes of booleans.

Names = dict[Callable[..., Any], str]
FLOAT: Names = {
    operator.add: "fadd", operator.sub: "fsub", operator.mul: "fmul", operator.truediv: "fdiv",
    operator.neg: "fneg",
}  # fmt: skip
MASK: Names = {
    operator.and_: "and_", operator.or_: "or_", operator.xor: "xor", operator.invert: "not_",
}  # fmt: skip
INTEGER: Names = {
    **MASK, operator.lshift: "shl", operator.rshift: "lshr", operator.add: "add",
    operator.sub: "sub", operator.mul: "mul", operator.neg: "neg",
}  # fmt: skip
COMPARISONS: Names = {
    operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">=", operator.eq: "==", operator.ne: "!=",
}  # fmt: skip


def _name(op: Callable[..., Any], of: Any) -> str:
    """LLVM's name of an operator on numbers of a type; empty where there is none."""
    if isinstance(of, types.Float):
        return FLOAT.get(op, "")
    if isinstance(of, types.Boolean):
        return MASK.get(op, "")
    return "ashr" if op is operator.rshift and of.signed else INTEGER.get(op, "")


@lower_cast(types.Number, Lanes)  # type: ignore[no-untyped-call]
@lower_cast(types.Boolean, Lanes)  # type: ignore[no-untyped-call]
def _from_number(context: Any, builder: Any, source: Any, target: Lanes, value: Any) -> Any:
    return splatted(builder, context.cast(builder, value, plain(source), target.of), target.n)


def _define(op: Callable[..., Any]) -> None:
    @infer_global(op)  # type: ignore[no-untyped-call]
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            kinds = {arg for arg in args if isinstance(arg, Lanes)}
            if len(kinds) != 1 or not all(isinstance(arg, Lanes | types.Number) for arg in args):
                return None
            kind = kinds.pop()
            if op in COMPARISONS:
                return signature(Lanes(types.boolean, kind.n), kind, kind)  # type: ignore[no-untyped-call]
            return signature(kind, *[kind] * len(args)) if _name(op, kind.of) else None  # type: ignore[no-untyped-call]

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        of = sig.args[0].of
        if op not in COMPARISONS:
            return getattr(builder, _name(op, of))(*args)
        if not isinstance(of, types.Float):
            compare = builder.icmp_signed if of.signed else builder.icmp_unsigned
        else:
            compare = builder.fcmp_unordered if op is operator.ne else builder.fcmp_ordered
        return compare(COMPARISONS[op], *args)

    for arity in (1, 2):
        lower_builtin(op, *[Lanes] * arity)(lower)  # type: ignore[no-untyped-call]


for _op in FLOAT | INTEGER | COMPARISONS:
    _define(_op)


# --- Lanes from other lanes or numbers: rearranged, repeated, converted, their bits taken as another type ---


@emitted
def interleave(typingctx: Any, a: Any, b: Any, run: Any) -> Any:
    """Runs of lanes from two vectors in turn; a run of all lanes joins them."""
    kind, step = Lanes(a.of, 2 * a.n), run.literal_value
    picked = order(i // (2 * step) * step + i % step + i // step % 2 * a.n for i in range(kind.n))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.shuffle_vector(args[0], args[1], picked)

    return kind(a, a, run), codegen


@emitted
def part(typingctx: Any, lanes: Any, start: Any, n: Any) -> Any:
    """The ``n`` lanes of a vector from ``start`` on, both constants."""
    kind, first = Lanes(lanes.of, n.literal_value), start.literal_value
    picked = order(range(first, first + kind.n))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.shuffle_vector(args[0], ir.Constant(args[0].type, ir.Undefined), picked)

    return kind(lanes, start, n), codegen


@emitted
def ramp(typingctx: Any, kind: Any, n: Any, step: Any) -> Any:
    """0, step, 2 * step, … as lanes."""
    lanes = Lanes(kind.dtype, n.literal_value)
    numbers = ir.Constant(vector(lanes), [i * step.literal_value for i in range(lanes.n)])

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return numbers

    return lanes(kind, n, step), codegen


@emitted
def splat(typingctx: Any, number: Any, kind: Any, n: Any) -> Any:
    """A number n times, as lanes of a type."""
    lanes = Lanes(kind.dtype, n.literal_value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return splatted(builder, args[0], lanes.n)

    return lanes(lanes.of, kind, n), codegen


@emitted
def recast(typingctx: Any, bits: Any, kind: Any) -> Any:
    """The bits of lanes, or of an integer, as lanes of another type; one lane is a number."""
    of = kind.dtype
    new = Lanes(of, bits.bitwidth // of.bitwidth) if bits.bitwidth > of.bitwidth else of

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], vector(new) if isinstance(new, Lanes) else element(new))

    return new(plain(bits), kind), codegen


@emitted
def convert(typingctx: Any, lanes: Any, kind: Any) -> Any:
    """Numbers as lanes of another type; floats become integers towards zero, a mask 1 and 0."""
    old, new = lanes.of, Lanes(kind.dtype, lanes.n)
    if isinstance(old, types.Boolean):
        name = "zext"
    elif isinstance(old, types.Float):
        name = "fpext" if isinstance(new.of, types.Float) else "fptosi"
    elif isinstance(new.of, types.Float):
        name = "sitofp" if old.signed else "uitofp"
    elif new.of.bitwidth > old.bitwidth:
        name = "sext" if old.signed else "zext"
    else:
        name = "trunc" if new.of.bitwidth < old.bitwidth else "bitcast"

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, name)(args[0], vector(new))

    return new(lanes, kind), codegen


# --- Choices lane by lane: by a mask, or by the bits of an integer, the lowest for the first lane ---


def _mask(builder: Any, bits: Any) -> Any:
    if isinstance(bits.type, ir.IntType):
        return builder.bitcast(bits, ir.VectorType(ir.IntType(1), bits.type.width))
    return bits


@emitted
def either(typingctx: Any, bits: Any, yes: Any, no: Any, kind: Any) -> Any:
    """For each lane of a mask one of two numbers, as lanes of a type."""
    lanes = Lanes(kind.dtype, bits.n if isinstance(bits, Lanes) else bits.bitwidth)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        numbers = (splatted(builder, value, lanes.n) for value in args[1:3])
        return builder.select(_mask(builder, args[0]), *numbers)

    return lanes(plain(bits), lanes.of, lanes.of, kind), codegen


@emitted
def chosen(typingctx: Any, bits: Any, yes: Any, no: Any) -> Any:
    """For each lane of a mask a lane of one of two vectors, or a number instead of one of them."""
    kind = yes if isinstance(yes, Lanes) else no

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(_mask(builder, args[0]), args[1], args[2])

    return kind(plain(bits), kind, kind), codegen


@emitted
def negated(typingctx: Any, lanes: Any, minus: Any) -> Any:
    """Lanes, negated where a mask is set."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(_mask(builder, args[1]), builder.neg(args[0]), args[0])

    return lanes(lanes, minus), codegen


@emitted
def first(typingctx: Any, mask: Any) -> Any:
    """The number of the first lane that is set in a mask; at least one has to be."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], ir.IntType(mask.n))
        return builder.zext(builder.cttz(bits, ir.IntType(1)(1)), ir.IntType(64))

    return types.intp(mask), codegen


@emitted
def some(typingctx: Any, mask: Any) -> Any:
    """True if a mask has any lane set."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], ir.IntType(mask.n))
        return builder.icmp_unsigned("!=", bits, bits.type(0))

    return types.boolean(mask), codegen


@emitted
def clipped(typingctx: Any, floats: Any) -> Any:
    """Floats with -2**31 for NaN and all that an int32 cannot hold."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        low, high = (ir.Constant(args[0].type, [limit] * floats.n) for limit in (-(2.0**31), 2.0**31))
        above = builder.fcmp_ordered(">=", args[0], low)
        inside = builder.and_(above, builder.fcmp_ordered("<", args[0], high))
        return builder.select(inside, args[0], low)

    return floats(floats), codegen


# --- One number from many lanes -------------------------------------------------------------------


def _reduced(operation: str, kind: Lanes, builder: Any, lanes: Any) -> Any:
    of = vector(kind)
    name = f"llvm.vector.reduce.{operation}.v{kind.n}i{kind.of.bitwidth}"
    declared = builder.module.globals.get(name)
    function = declared or ir.Function(builder.module, ir.FunctionType(of.element, [of]), name)
    return builder.call(function, [lanes])


@emitted
def total(typingctx: Any, lanes: Any) -> Any:
    """The sum of integers."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _reduced("add", lanes, builder, args[0])

    return lanes.of(lanes), codegen


@emitted
def most(typingctx: Any, lanes: Any) -> Any:
    """The largest of integers."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _reduced("smax" if lanes.of.signed else "umax", lanes, builder, args[0])

    return lanes.of(lanes), codegen


# --- Halves inside compiled code: Numba has no float16 on the CPU, and not every CPU converts it ---
#
# Without the instruction LLVM would call a library function that may not be there, so then the bits
# are moved by hand.

I16, I32, F16, F32 = ir.IntType(16), ir.IntType(32), ir.HalfType(), ir.FloatType()


def native() -> bool:
    """True if the CPU converts halves."""
    return bool({"f16c", "neon"} & compiled_for())


def _like(of: ir.Type, value: Any) -> ir.Type:
    """A type with as many lanes as a value."""
    return ir.VectorType(of, value.type.count) if isinstance(value.type, ir.VectorType) else of


def _all(kind: ir.Type, value: Any) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def widened(builder: Any, bits: Any) -> Any:
    """16 bits of a half, or lanes of them, to float32: exact, subnormals included.

    Exponent and mantissa moved into place are the float divided by 2**112.
    """
    ints, floats = _like(I32, bits), _like(F32, bits)
    if native():
        return builder.fpext(builder.bitcast(bits, _like(F16, bits)), floats)
    wide = builder.zext(bits, ints)
    shifted = builder.shl(builder.and_(wide, _all(ints, 0x7FFF)), _all(ints, 13))
    value = builder.fmul(builder.bitcast(shifted, floats), _all(floats, 2.0**112))
    too_large = builder.fcmp_ordered(">=", value, _all(floats, 65536.0))
    exponent = builder.select(too_large, _all(ints, 0x7F800000), _all(ints, 0))
    sign = builder.shl(builder.and_(wide, _all(ints, 0x8000)), _all(ints, 16))
    return builder.bitcast(builder.or_(builder.or_(builder.bitcast(value, ints), exponent), sign), floats)


def narrowed(builder: Any, value: Any) -> Any:
    """Float32, or lanes of it, to the 16 bits of the nearest half, ties to even; a NaN stays one.

    By hand, one of three results is selected: adding 0.5 leaves the bits of a subnormal half; moving the
    exponent and rounding as an integer gives a normal one, or infinity by carry; the third: larger ones.
    """
    ints, words = _like(I32, value), _like(I16, value)
    if native():
        return builder.bitcast(builder.fptrunc(value, _like(F16, value)), words)
    bits = builder.bitcast(value, ints)
    magnitude = builder.and_(bits, _all(ints, 0x7FFFFFFF))
    positive = builder.bitcast(magnitude, value.type)
    tiny = builder.bitcast(builder.fadd(positive, _all(value.type, 0.5)), ints)
    tiny = builder.sub(tiny, _all(ints, 0x3F000000))
    odd = builder.and_(builder.lshr(magnitude, _all(ints, 13)), _all(ints, 1))
    rounded = builder.add(builder.add(magnitude, _all(ints, 0xC8000FFF)), odd)
    is_nan = builder.icmp_unsigned(">", magnitude, _all(ints, 0x7F800000))
    beyond = builder.select(is_nan, _all(ints, 0x7E00), _all(ints, 0x7C00))
    is_tiny = builder.icmp_unsigned("<", magnitude, _all(ints, 0x38800000))
    result = builder.select(is_tiny, tiny, builder.lshr(rounded, _all(ints, 13)))
    result = builder.select(builder.icmp_unsigned(">=", magnitude, _all(ints, 0x47800000)), beyond, result)
    sign = builder.and_(builder.lshr(bits, _all(ints, 16)), _all(ints, 0x8000))
    return builder.trunc(builder.or_(result, sign), words)


@emitted
def half(typingctx: Any, array: Any, at: Any) -> Any:
    """The half that starts at an element of a byte array, as float32."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = address(context, builder, sig.args[0], args[0], args[1], I16)
        return widened(builder, builder.load(place, align=1))

    return types.float32(array, types.intp), codegen


@emitted
def widen(typingctx: Any, bits: Any) -> Any:
    """The 16 bits of a half, or lanes of them, as float32."""
    floats = Lanes(types.float32, bits.n) if isinstance(bits, Lanes) else types.float32

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return widened(builder, args[0])

    return floats(bits), codegen


@emitted
def narrow(typingctx: Any, floats: Any) -> Any:
    """Float32, or lanes of it, as the 16 bits of the nearest half."""
    words = Lanes(types.uint16, floats.n) if isinstance(floats, Lanes) else types.uint16

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return narrowed(builder, args[0])

    return words(floats), codegen


@emitted
def store_floats(typingctx: Any, array: Any, at: Any, floats: Any) -> Any:
    """Write lanes of float32 to an array of float32, of float64, or of halves as uint16."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = vector(Lanes(array.dtype, floats.n))
        if array.dtype == types.uint16:
            value = narrowed(builder, args[2])
        else:
            value = builder.fpext(args[2], to) if array.dtype == types.float64 else args[2]
        builder.store(value, address(context, builder, sig.args[0], args[0], args[1], to), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, floats), codegen


# --- Look-ups in code books without a load for each row: tables held in vector registers ----------
#
# A row of eight small codes with four levels, or of four with sixteen, takes 16 bits. Shuffles across two
# registers look 32 rows up among 64 at a time, a tree of choices takes the right 64, and another shuffle
# turns each field of bits into its level.

WORD = ir.IntType(16)
WORDS, BYTES = ir.VectorType(WORD, 32), ir.VectorType(ir.IntType(8), 64)
PAIR = 64  # entries that one shuffle chooses from


def shuffles_words() -> bool:
    """True if the CPU has the three shuffles."""
    return {"avx512f", "avx512bw", "avx512vbmi"} <= compiled_for()


def _call(builder: Any, name: str, kind: ir.Type, *args: Any) -> Any:
    declared = builder.module.globals.get(name)
    function = declared or ir.Function(builder.module, ir.FunctionType(kind, [a.type for a in args]), name)
    return builder.call(function, args)


@emitted
def pick(typingctx: Any, table: Any, length: Any, indices: Any) -> Any:
    """table[i] for 32 lanes i of 16 bits; the table is one of 16 bits, its length a constant power of two."""
    count = length.literal_value

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def entries(at: int) -> Any:
            place = address(context, builder, sig.args[0], args[0], LONG(at), WORDS)
            return builder.load(place, align=1)

        rows = [
            _call(builder, "llvm.x86.avx512.vpermi2var.hi.512", WORDS, entries(at), args[2], entries(at + 32))
            for at in range(0, count, PAIR)
        ]
        bit = PAIR
        while len(rows) > 1:
            bits = builder.and_(args[2], ir.Constant(WORDS, [bit] * 32))
            mask = builder.icmp_unsigned("!=", bits, ir.Constant(WORDS, None))
            rows = [builder.select(mask, b, a) for a, b in zip(rows[::2], rows[1::2], strict=True)]
            bit *= 2
        return rows[0]

    return indices(table, length, indices), codegen


@emitted
def levels(typingctx: Any, table: Any, words: Any) -> Any:
    """64 bytes for the fields of 8 or of 16 words; the table has 64 bytes and goes by a field's six bits.

    Fields narrower than six bits are followed by others, so their entries repeat.
    """
    count = 64 // words.n  # fields of a word
    width = 16 // count
    fields = [field // count * count * 8 + field % count * width for field in range(8)]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = builder.zext(args[1], ir.VectorType(ir.IntType(count * 8), words.n))
        at, bits = ir.Constant(BYTES, fields * 8), builder.bitcast(wide, BYTES)
        moved = _call(builder, "llvm.x86.avx512.pmultishift.qb.512", BYTES, at, bits)
        place = address(context, builder, sig.args[0], args[0], LONG(0), BYTES)
        entries = builder.load(place, align=1)
        return _call(builder, "llvm.x86.avx512.permvar.qi.512", BYTES, entries, moved)

    return Lanes(types.uint8, 64)(table, words), codegen
