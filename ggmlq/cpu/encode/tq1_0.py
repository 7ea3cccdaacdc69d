"""The encoder of tq1_0: five (or four) runs of values are the digits of one number in base 3."""

from __future__ import annotations

from typing import Any

from numba import types

from ...formats.tq1_0 import DTYPE, QH, QS, D
from ..lanes import convert, load, part, splat, store
from ..machine.jit import inner, jit
from ._simple import encoder, inverse, put_half
from ._ternary import scale, trits

SIZE = DTYPE.itemsize
U8, U32 = types.uint8, types.uint32


@inner
def fraction(number: Any) -> Any:
    """(256 * number + 242) // 243 as bytes: the quotient by a product, exact for what occurs."""
    return convert((number * 256 + 242) * 69043 >> 24, U8)


@inner
def digits(x: Any, k: Any) -> Any:
    return convert(trits(x, k), U32)


@jit
def kernel(values: Any, blocks: Any) -> None:
    for b in range(len(values) // 256):
        at, x = b * SIZE, b * 256
        d = scale(values, x)
        put_half(blocks, at + D, d)
        k = inverse(d)
        wide, narrow = splat(U32(0), U32, 32), splat(U32(0), U32, 16)
        rest = digits(load(values, x + 240, 16), k)
        for n in range(5):
            wide = wide * 3 + digits(load(values, x + n * 32, 32), k)
            narrow = narrow * 3 + digits(load(values, x + 160 + n * 16, 16), k)
        last = part(rest, 0, 4) * 27 + part(rest, 4, 4) * 9 + part(rest, 8, 4) * 3 + part(rest, 12, 4)
        store(blocks, at + QS, fraction(wide))
        store(blocks, at + QS + 32, fraction(narrow))
        store(blocks, at + QH, fraction(last * 3))  # four digits: the place of the fifth stays empty


encode = encoder(kernel)
