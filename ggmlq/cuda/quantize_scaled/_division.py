"""Division by a scale with two instructions an element, and the same codes as IEEE division gives.

A scale serves many elements, so its inverse is computed once, as a sum h + l of two floats, h rounded
down. The quotient is then fma(x, h, x l), within 2**-21 units in the last place of what x / s is before
it is rounded. So it is either the float32 that division gives or, where x / s lies that close to the
middle of two floats, the other one of the two. That changes a code only if one of the two is a boundary
between codes, a number b of few bits (5 for e4m3, 8 or 9 for integers of 8 bits).

Such a case, with the significands of x, s, b as integers X, S, B 2**(24 - bits) of 24 bits, means

    X 2**k = S (2 B 2**(24 - bits) ± 1) + n          k >= 24,  |n| <= 2 S 2**-21 <= 16

(below a power of two with 4 for 2, and half the unit), so S and -+n agree in their last 25 - bits bits.
Scales within 64 of a multiple of 2**(25 - bits) are few, powers of two among them; for these, and for
scales that are no normal number between 2**-100 and 2**100, it is a division. l is never below zero, which
keeps the sign of x = -0, and never 0 where it is used, which would make NaN of infinities.

Quotients below 2**-100, where x l may lose bits, are far below half of any code's smallest number.
A scale e8m0 is a power of two, so its inverse is one too and a single product is the quotient, always.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...codes import Code, MiniFloat
from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import float32, uint32

NEAR = 64  # units in the last place
LEAST, SPAN = 27 << 23, 200 << 23  # bits of 2**-100, and how far those of 2**100 are from them


def boundary_bits(code: Code, zeros: bool) -> int:
    """Significant bits of the boundaries between codes, at most; ``zeros``: the codes have a zero point."""
    if isinstance(code, MiniFloat):
        return code.mantissa + 2
    reach = code.max - code.min if zeros else max(code.max, -code.min)
    return int(2 * reach + 1).bit_length()


@inlined
def is_nan(v: Any) -> Any:
    return uint32(ptx.bits_of(v) & uint32(0x7FFFFFFF)) > uint32(0x7F800000)


@inlined
def inverse(s: Any) -> Any:
    """1 / s as h + l, l positive or +0."""
    h = ptx.reciprocal(s)
    if ptx.fma(-s, h, float32(1)) < float32(0):
        h = ptx.float_of(uint32(ptx.bits_of(h) - uint32(1)))
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
        low = uint32(uint32(bits + uint32(NEAR)) & mask)
        return low > uint32(2 * NEAR) and uint32(bits - uint32(LEAST)) < uint32(SPAN)

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
    field = uint32(ptx.bits_of(s) >> uint32(23))
    bits = uint32(uint32(254) - field) << uint32(23)
    if field == uint32(254):
        bits = uint32(0x00400000)
    if is_nan(s):
        bits = uint32(0x7FC00000)
    return ptx.float_of(uint32(bits))
