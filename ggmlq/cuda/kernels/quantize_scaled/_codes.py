"""Device functions that make the codes of quotients, and a tile's scale and zero point from its extremes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....codes import CODES, Code, Integer, MiniFloat
from ...intrinsics import codes8, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.language import cuda, float32, int32, uint32, uint64

# Division by a scale with two instructions an element, and the same codes as IEEE division gives.
#
# A scale serves many elements, so its inverse is computed once, as a sum h + l of two floats, h rounded down.
# The quotient is then fma(x, h, x l), within 2**-21 units in the last place of what x / s is before it is
# rounded. So it is either the float32 that division gives or, where x / s lies that close to the middle of
# two floats, the other one of the two. That changes a code only if one of the two is a boundary between
# codes, a number b of few bits (5 for e4m3, 8 or 9 for integers of 8 bits).
#
# Such a case, with the significands of x, s, b as integers X, S, B 2**(24 - bits) of 24 bits, means
#
#     X 2**k = S (2 B 2**(24 - bits) ± 1) + n          k >= 24,  |n| <= 2 S 2**-21 <= 16
#
# (below a power of two with 4 for 2, and half the unit). The bracket is the middle beside b, in halves of a
# last place; n is how far X 2**k is from S times it. X 2**k and 2 B 2**(24 - bits) are multiples of
# 2**(25 - bits), so S and -+n agree in their last 25 - bits bits.
# Scales within 64 of a multiple of 2**(25 - bits) are few, powers of two among them; for these, and for
# scales that are no normal number between 2**-100 and 2**100, it is a division. l is never below zero, which
# keeps the sign of x = -0, and never 0 where it is used, which would make NaN of infinities.
#
# Quotients below 2**-100, where x l may lose bits, are far below half of any code's smallest number. A scale
# e8m0 is a power of two, so its inverse is one too and a single product is the quotient, always.

NEAR = 64  # units in the last place
MIN_SAFE_SCALE, SAFE_SPAN = 27 << 23, 200 << 23  # bits of 2**-100; how far those of 2**100 are from them


def boundary_bits(code: Code, zeros: bool) -> int:
    """Significant bits of the boundaries between codes, at most; ``zeros``: the codes have a zero point."""
    if isinstance(code, MiniFloat):
        return code.mantissa + 2
    reach = code.max - code.min if zeros else max(code.max, -code.min)
    return int(2 * reach + 1).bit_length()


@inlined
def is_nan(v: Any) -> Any:
    return uint32(ptx.bits_of(v) & 0x7FFFFFFF) > 0x7F800000


@inlined
def inverse(s: Any) -> Any:
    """1 / s as h + l, l positive or +0."""
    h = ptx.reciprocal(s)
    if ptx.fma(-s, h, float32(1)) < float32(0):
        h = ptx.float_of(uint32(ptx.bits_of(h) - 1))
    return h, ptx.mul(ptx.fma(-s, h, float32(1)), h)


def is_safe(code: Code, zeros: bool) -> Any:
    """The device function that says if h + l serves a scale; None if too few scales would pass."""
    free = 25 - boundary_bits(code, zeros)
    if 1 << free < 16 * NEAR:
        return None
    mask = uint32((1 << free) - 1)

    @inlined
    def safe(s: Any) -> Any:
        bits = ptx.bits_of(s)
        low = uint32(uint32(bits + NEAR) & mask)
        return low > 2 * NEAR and uint32(bits - MIN_SAFE_SCALE) < SAFE_SPAN

    return safe


class Divider(NamedTuple):
    """Two device functions: one prepares a scale, the other divides elements by it.

    ``known = prepare(s)``, once a scale; then ``divide(v, s, known)`` divides ``count`` elements in place.
    """

    prepare: Any
    divide: Any


def divider(code: Code, zeros: bool, scale: str, count: int) -> Divider:
    """The divider for elements that become ``code``: by scales of type ``scale``, ``count`` at a time."""
    if scale == "e8m0":
        return _by_power(count)
    safe = is_safe(code, zeros)
    if safe is None:
        return _truly(count)

    @inlined
    def prepare(s: Any) -> Any:
        h, low = inverse(s)
        return safe(s), h, low

    @inlined
    def divide(v: Any, s: Any, known: Any) -> None:
        if known[0]:
            h, low = known[1], known[2]
            for i in range(count):
                v[i] = ptx.fma(v[i], h, ptx.mul(v[i], low))
        else:
            for i in range(count):
                v[i] = ptx.div(v[i], s)

    return Divider(prepare, divide)


def _truly(count: int) -> Divider:
    @inlined
    def prepare(s: Any) -> Any:
        return False, s, s

    @inlined
    def divide(v: Any, s: Any, known: Any) -> None:
        for i in range(count):
            v[i] = ptx.div(v[i], s)

    return Divider(prepare, divide)


def _by_power(count: int) -> Divider:
    @inlined
    def prepare(s: Any) -> Any:
        return True, inverse_of_power(s), s

    @inlined
    def divide(v: Any, s: Any, known: Any) -> None:
        for i in range(count):
            v[i] = ptx.mul(v[i], known[1])

    return Divider(prepare, divide)


@inlined
def inverse_of_power(s: Any) -> Any:
    """1 / s of a power of two from 2**-127 to 2**127; NaN of NaN."""
    field = uint32(ptx.bits_of(s) >> 23)
    bits = uint32(254 - field) << 23
    if field == 254:
        bits = uint32(0x00400000)
    if is_nan(s):
        bits = uint32(0x7FC00000)
    return ptx.float_of(uint32(bits))


NATIVE = (8, 9)  # the lowest capability with conversions to floats of 8 bits
WORDS = {"e4m3": codes8.four_e4m3, "e5m2": codes8.four_e5m2}
FAR = 1 << 20  # beyond what any zero point can bring back


# The first parameters of kernels between floats and codes: two matrices, the scales and the zero points of
# their tiles. Of what is read, the address, and from row to row elements (of floats) or bytes (of codes);
# the address of what is written, and the columns of both; then of scales and of zero points an address, the
# bytes to the one below, and to the next in a row.
MATRIX_PARAMETERS = uint64, uint64, uint64, uint32, *(uint64,) * 6
PIECE_THREADS = 256  # of a block whose threads convert a piece each


def piece_placer(length: int) -> Any:
    """The device function for the row and the first column of a thread's piece of ``length`` columns.

    2**``shift`` threads of a block are on one row. ``first``: the first level of blocks of a launch.
    """

    @inlined
    def place_piece(shift: Any, first: Any) -> Any:
        thread = uint32(cuda.threadIdx.x)
        across = uint32(thread & uint32(uint32(1 << shift) - 1))
        column = uint32(uint32(uint32(cuda.blockIdx.x) << shift) + across) * length
        level = uint32(uint32(cuda.blockIdx.y) + first)
        row = uint32(uint32(level * uint32(PIECE_THREADS >> shift)) + uint32(thread >> shift))
        return row, column

    return place_piece


class Conversion(NamedTuple):
    """The conversion that a kernel is compiled for: a rule without its numbers."""

    code: str
    scale: str  # "float32" or "e8m0"
    rounding: str
    zeros: bool
    native: bool  # with instructions for floats of 8 bits

    @property
    def least(self) -> tuple[int, int]:
        """The lowest capability that has it."""
        return NATIVE if self.native else (7, 5)

    @property
    def size(self) -> int:
        """Bytes of a code."""
        return CODES[self.code].dtype.itemsize

    def __str__(self) -> str:
        marks = (self.rounding, *("zeros",) * self.zeros, *("native",) * self.native)
        return f"{self.code} by {self.scale} {' '.join(marks)}"


# --- codes --------------------------------------------------------------------------------------


def to_code(conversion: Conversion) -> Any:
    """The device function ``one(v, zero)``: the code of a quotient in the low bits of a word."""
    code = CODES[conversion.code]
    return _float_code(code) if isinstance(code, MiniFloat) else _integer_code(code, conversion)


def _float_code(code: MiniFloat) -> Any:
    cut, largest, nan = 23 - code.mantissa, code.largest, code.nan
    half, shift = (1 << cut - 1) - 1, 127 - code.bias << code.mantissa
    least = 128 - code.bias << 23  # bits of the smallest normal number
    magic = np.float32(2.0 ** (24 - code.bias - code.mantissa))  # its last place is one unit of small codes
    magic_bits = int(magic.view(np.uint32))

    @inlined
    def one(v: Any, zero: Any) -> Any:
        bits = ptx.bits_of(v)
        a = uint32(bits & 0x7FFFFFFF)
        code_bits = uint32(uint32(a + half + uint32(uint32(a >> cut) & 1)) >> cut)
        code_bits = uint32(code_bits - shift)
        if a < least:
            code_bits = uint32(ptx.bits_of(ptx.add(ptx.float_of(a), magic)) - magic_bits)
        code_bits = min(code_bits, uint32(largest))
        if a > 0x7F800000:
            code_bits = uint32(nan)
        return uint32(code_bits | uint32(uint32(bits >> 24) & 0x80))

    return one


def _integer_code(code: Any, conversion: Conversion) -> Any:
    low, high, has_zero = int(code.min), int(code.max), conversion.zeros
    nearest = rounding_to_int(conversion.rounding)

    @inlined
    def one(v: Any, zero: Any) -> Any:
        q = nearest(v)
        if has_zero:
            q = int32(min(max(q, int32(-FAR)), int32(FAR)) + zero)
        return uint32(min(max(q, int32(low)), int32(high)))

    return one


def rounding_to_int(rounding: str) -> Any:
    """The device function that rounds to an int32, which saturates; NaN is 0."""
    if rounding == "half_even":
        return ptx.nearest_even

    @inlined
    def half_away(v: Any) -> Any:
        # the float below a half: added to one it stays below, to anything larger it rounds as a half does
        below = uint32(uint32(ptx.bits_of(v) & 0x80000000) | 0x3EFFFFFF)
        return ptx.truncated(ptx.add(v, ptx.float_of(below)))

    return half_away


def to_word(conversion: Conversion) -> Any:
    """The device function ``word(v, i, zero)``: the codes of v[i], v[i + 1], … that fill a word."""
    if conversion.native:
        four = WORDS[conversion.code]

        @inlined
        def native(v: Any, i: Any, zero: Any) -> Any:
            return four(v[i], v[i + 1], v[i + 2], v[i + 3])

        return native
    one, low_bytes, low_halves = to_code(conversion), ptx.low_bytes, ptx.low_halves
    if conversion.size == 2:

        @inlined
        def two(v: Any, i: Any, zero: Any) -> Any:
            return low_halves(one(v[i], zero), one(v[i + 1], zero))

        return two

    @inlined
    def four_bytes(v: Any, i: Any, zero: Any) -> Any:
        front = low_bytes(one(v[i], zero), one(v[i + 1], zero))
        return low_halves(front, low_bytes(one(v[i + 2], zero), one(v[i + 3], zero)))

    return four_bytes


def storing(conversion: Conversion, length: int) -> Any:
    """The device function ``store(at, v, i, zero)``: codes of v[i] … v[i + length - 1] to an address."""
    word, per = to_word(conversion), 4 // conversion.size
    if length == 1:
        single, store_one = to_code(conversion), ptx.store1 if conversion.size == 1 else ptx.store2

        @inlined
        def store_single(at: Any, v: Any, i: Any, zero: Any) -> None:
            store_one(at, single(v[i], zero))

        return store_single
    count = length // per

    @inlined
    def store(at: Any, v: Any, i: Any, zero: Any) -> None:
        words = cuda.local.array(count, uint32)
        for w in range(count):  # a loop, so that Numba writes a word's codes out once
            words[w] = word(v, i + w * per, zero)
        if count == 1:
            ptx.store4(at, words[0])
        elif count == 2:
            ptx.store8(at, words[0], words[1])
        else:
            ptx.store16(at, words[0], words[1], words[2], words[3])

    return store


# --- scales -------------------------------------------------------------------------------------


def keeps_nan_of(conversion: Conversion) -> bool:
    """True where the code has no NaN, so that one makes its tile's scale NaN."""
    return CODES[conversion.code].kind == "integer"


def scaler(conversion: Conversion) -> Any:
    """The device function ``scale(high, low, eps)`` of a tile: the scale's value, as it will be read.

    ``high`` is the largest value, ``low`` the magnitude of the least; without zero points ``high`` is
    the largest magnitude. Of a NaN the scale is that of the host, 0x7FC00000.
    """
    code, has_zero, power = CODES[conversion.code], conversion.zeros, conversion.scale == "e8m0"
    steps, keeps_nan = float32(code.max - (code.min if conversion.zeros else 0)), keeps_nan_of(conversion)

    @inlined
    def scale(high: Any, low: Any, eps: Any) -> Any:
        span = ptx.add(high, low) if has_zero else high
        s = ptx.div(ptx.larger(span, eps), steps)
        if keeps_nan and is_nan(span):
            s = ptx.float_of(uint32(0x7FC00000))
        if power:
            s = value_of_power(rounded_up(s))
        return s

    return scale


@inlined
def rounded_up(s: Any) -> Any:
    """A scale, never negative, as e8m0."""
    bits = ptx.bits_of(s)
    field = uint32(uint32(bits + 0x7FFFFF) >> 23)
    field = min(max(field, uint32(1)), uint32(254))
    if bits >= 0x7F800000:
        field = uint32(0xFF)
    return field


@inlined
def value_of_power(field: Any) -> Any:
    """The float32 of e8m0."""
    bits = uint32(field << 23)
    if field == 0:
        bits = uint32(0x00400000)
    if field == 0xFF:
        bits = uint32(0x7FC00000)
    return ptx.float_of(bits)


def scale_storing(conversion: Conversion) -> Any:
    """The device function that stores a scale in its type."""
    if conversion.scale == "float32":
        return ptx.store_float

    @inlined
    def store(at: Any, s: Any) -> None:
        field = uint32(ptx.bits_of(s) >> 23)
        ptx.store1(at, 0xFF if is_nan(s) else field)  # computed ones are never 2**-127

    return store


def scale_loading(conversion: Conversion) -> Any:
    """The device function that loads a scale as float32."""
    if conversion.scale == "float32":
        return ptx.load_float

    @inlined
    def load(at: Any) -> Any:
        return value_of_power(ptx.load1(at))

    return load


def zero_of(conversion: Conversion) -> Any:
    """The device function ``zero(low, s)``: the code that 0.0 has; ``low`` as in :func:`scaler`."""
    code = CODES[conversion.code]
    nearest = rounding_to_int(conversion.rounding)
    least, most = int(code.min), int(code.max)
    start = float32(least)

    @inlined
    def zero(low: Any, s: Any) -> Any:
        if not has_zero_points:
            return int32(0)
        z = nearest(ptx.add(start, ptx.div(low, s)))
        return int32(min(max(z, int32(least)), int32(most)))

    has_zero_points = conversion.zeros and isinstance(code, Integer)
    return zero
