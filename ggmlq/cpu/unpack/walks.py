"""The vector code of each format: ``walk_<format>(row, put, out)`` goes through the blocks of a row.

It stores their scales in ``out[1]`` and their offsets in ``out[2]``, and hands codes to ``put(out, at,
codes)`` as vectors, after the scales that they need (``__init__.py`` says what ``put`` makes of them).
``f16`` and ``bf16`` hand on values, not codes; they have no scales. Where a format's fields lie in a block
says its file in ``ggmlq/formats``, by the names of the fields.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from ...formats import (
    iq1_m,
    iq1_s,
    iq2_s,
    iq2_xs,
    iq2_xxs,
    iq3_s,
    iq3_xxs,
    iq4_nl,
    iq4_xs,
    mxfp4,
    nvfp4,
    q1_0,
    q2_0,
    q2_k,
    q3_k,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
    q8_1,
    q8_k,
    tq1_0,
    tq2_0,
)
from ...formats._tables import FP4, IQ4
from ...formats.mxfp4 import POWER
from ...formats.nvfp4 import UE4M3
from ..lanes import (
    convert,
    deposit,
    either,
    gather,
    half,
    interleave,
    levels,
    load,
    lookup,
    negated,
    part,
    pick,
    ramp,
    recast,
    shuffles_words,
    splat,
    store,
    widen,
    word,
)
from ..machine.jit import inline, inner

I8, I32, U8, U16, U32, U64 = types.int8, types.int32, types.uint8, types.uint16, types.uint32, types.uint64
F32 = types.float32

# bytes of a block
Q1_0 = q1_0.DTYPE.itemsize
Q2_0 = q2_0.DTYPE.itemsize
Q4_0 = q4_0.DTYPE.itemsize
Q4_1 = q4_1.DTYPE.itemsize
Q5_0 = q5_0.DTYPE.itemsize
Q5_1 = q5_1.DTYPE.itemsize
Q8_0 = q8_0.DTYPE.itemsize
Q8_1 = q8_1.DTYPE.itemsize
TQ1_0 = tq1_0.DTYPE.itemsize
TQ2_0 = tq2_0.DTYPE.itemsize
MXFP4 = mxfp4.DTYPE.itemsize
NVFP4 = nvfp4.DTYPE.itemsize
Q2_K = q2_k.DTYPE.itemsize
Q3_K = q3_k.DTYPE.itemsize
Q4_K = q4_k.DTYPE.itemsize
Q5_K = q5_k.DTYPE.itemsize
Q6_K = q6_k.DTYPE.itemsize
Q8_K = q8_k.DTYPE.itemsize
IQ4_NL = iq4_nl.DTYPE.itemsize
IQ4_XS = iq4_xs.DTYPE.itemsize
IQ1_S = iq1_s.DTYPE.itemsize
IQ1_M = iq1_m.DTYPE.itemsize
IQ2_XXS = iq2_xxs.DTYPE.itemsize
IQ2_XS = iq2_xs.DTYPE.itemsize
IQ2_S = iq2_s.DTYPE.itemsize
IQ3_XXS = iq3_xxs.DTYPE.itemsize
IQ3_S = iq3_s.DTYPE.itemsize


@inner
def put_codes(out: Any, at: int, codes: Any) -> None:
    """The ``put`` of an unpacker."""
    store(out[0], at, recast(codes, I8))


@inner
def walk_f16(row: Any, put: Any, out: Any) -> None:
    """Halves widened, 32 at a time. Handed on are values, not codes; there are no scales."""
    n = len(row) // 2
    whole = n - n % 32
    for i in range(0, whole, 32):
        put(out, i, widen(recast(load(row, i * 2, 64), U16)))
    for i in range(whole, n):
        put(out, i, splat(widen(word(row, i * 2, U16)), F32, 1))


@inner
def walk_bf16(row: Any, put: Any, out: Any) -> None:
    """The upper 16 bits of floats, 32 at a time. Handed on are values, not codes; there are no scales."""
    n = len(row) // 2
    whole = n - n % 32
    for i in range(0, whole, 32):
        put(out, i, recast(convert(recast(load(row, i * 2, 64), U16), U32) << 16, F32))
    for i in range(whole, n):
        put(out, i, splat(recast(splat(word(row, i * 2, U16), U32, 1) << 16, F32), F32, 1))


@inner
def walk_q1_0(row: Any, put: Any, out: Any) -> None:
    """Each of 32 bits chooses between 1 and -1."""
    for b in range(len(row) // Q1_0):
        at = b * Q1_0
        out[1][b] = half(row, at + q1_0.D)
        for r in range(4):
            put(out, b * 128 + r * 32, either(word(row, at + q1_0.QS + r * 4, U32), 1, -1, I8))


@inner
def walk_q2_0(row: Any, put: Any, out: Any) -> None:
    """A byte's four codes, brought to the four bytes of a 32-bit lane by two shifts."""
    for b in range(len(row) // Q2_0):
        at = b * Q2_0
        out[1][b] = half(row, at + q2_0.D)
        for r in range(2):
            q = convert(load(row, at + q2_0.QS + r * 8, 8), U32)
            q = q | q << 6
            q = (q | q << 12) & 0x03030303
            put(out, b * 64 + r * 32, recast(q, U8) - 1)


@inner
def walk_q4_0(row: Any, put: Any, out: Any) -> None:
    """Both nibbles of 16 bytes, less 8."""
    for b in range(len(row) // Q4_0):
        at = b * Q4_0
        out[1][b] = half(row, at + q4_0.D)
        q = load(row, at + q4_0.QS, 16)
        put(out, b * 32, interleave(q & 15, q >> 4, 16) - 8)


@inner
def walk_q4_1(row: Any, put: Any, out: Any) -> None:
    """Both nibbles of 16 bytes."""
    for b in range(len(row) // Q4_1):
        at = b * Q4_1
        out[1][b] = half(row, at + q4_1.D)
        out[2][b] = -half(row, at + q4_1.M)
        q = load(row, at + q4_1.QS, 16)
        put(out, b * 32, interleave(q & 15, q >> 4, 16))


@inner
def walk_q5_0(row: Any, put: Any, out: Any) -> None:
    """Both nibbles of 16 bytes; the 32 fifth bits choose between adding 16 and not, then all less 16."""
    for b in range(len(row) // Q5_0):
        at = b * Q5_0
        out[1][b] = half(row, at + q5_0.D)
        q = load(row, at + q5_0.QS, 16)
        fifth = either(word(row, at + q5_0.QH, U32), 0, -16, U8)
        put(out, b * 32, interleave(q & 15, q >> 4, 16) + fifth)


@inner
def walk_q5_1(row: Any, put: Any, out: Any) -> None:
    """Both nibbles of 16 bytes; the 32 fifth bits choose between adding 16 and not."""
    for b in range(len(row) // Q5_1):
        at = b * Q5_1
        out[1][b] = half(row, at + q5_1.D)
        out[2][b] = -half(row, at + q5_1.M)
        q = load(row, at + q5_1.QS, 16)
        fifth = either(word(row, at + q5_1.QH, U32), 16, 0, U8)
        put(out, b * 32, interleave(q & 15, q >> 4, 16) | fifth)


@inner
def walk_q8_0(row: Any, put: Any, out: Any) -> None:
    """The bytes are the codes."""
    for b in range(len(row) // Q8_0):
        at = b * Q8_0
        out[1][b] = half(row, at + q8_0.D)
        put(out, b * 32, load(row, at + q8_0.QS, 32))


@inner
def walk_q8_1(row: Any, put: Any, out: Any) -> None:
    """The bytes are the codes."""
    for b in range(len(row) // Q8_1):
        at = b * Q8_1
        out[1][b] = half(row, at + q8_1.D)
        put(out, b * 32, load(row, at + q8_1.QS, 32))


@inner
def digits_tq1_0(fraction: Any) -> Any:
    """The leading base-3 digits of fractions of 256, less 1."""
    return convert(fraction > 85, U8) + convert(fraction > 170, U8) - 1


@inner
def run_tq1_0(put: Any, out: Any, to: int, fraction: Any, n: int, width: int) -> None:
    for _ in range(n):
        put(out, to, digits_tq1_0(fraction))
        fraction = fraction + fraction + fraction
        to += width


@inner
def walk_tq1_0(row: Any, put: Any, out: Any) -> None:
    """Base-3 digits without division: a digit is how many thirds of 256 the fraction exceeds.

    Multiplied by 3 in eight bits, the fraction drops its leading digit and brings up the next.
    """
    for b in range(len(row) // TQ1_0):
        at = b * TQ1_0
        out[1][b] = half(row, at + tq1_0.D)
        to = b * 256
        run_tq1_0(put, out, to, load(row, at + tq1_0.QS, 32), 5, 32)
        run_tq1_0(put, out, to + 160, load(row, at + tq1_0.QS + 32, 16), 5, 16)
        run_tq1_0(put, out, to + 240, load(row, at + tq1_0.QH, 4), 4, 4)


@inner
def walk_tq2_0(row: Any, put: Any, out: Any) -> None:
    """Four runs of 32 weights lie two bits apart in the same 32 bytes."""
    for b in range(len(row) // TQ2_0):
        at = b * TQ2_0
        out[1][b] = half(row, at + tq2_0.D)
        for h in range(2):
            q = load(row, at + tq2_0.QS + h * 32, 32)
            to = b * 256 + h * 128
            put(out, to, (q & 3) - 1)
            put(out, to + 32, (q >> 2 & 3) - 1)
            put(out, to + 64, (q >> 4 & 3) - 1)
            put(out, to + 96, (q >> 6) - 1)


@inner
def walk_mxfp4(row: Any, put: Any, out: Any) -> None:
    """Both nibbles of 16 bytes, looked up among 16 levels; the scale comes from a table too."""
    for b in range(len(row) // MXFP4):
        at = b * MXFP4
        out[1][b] = POWER[row[at + mxfp4.E]]
        q = load(row, at + mxfp4.QS, 16)
        put(out, b * 32, interleave(lookup(FP4, q & 15), lookup(FP4, q >> 4), 16))


@inner
def walk_nvfp4(row: Any, put: Any, out: Any) -> None:
    """Nibbles of 32 bytes, looked up among 16 levels, in turn eight low ones and eight high ones."""
    for b in range(len(row) // NVFP4):
        at = b * NVFP4
        store(out[1], b * 4, gather(UE4M3, load(row, at + nvfp4.D, 4)))
        for r in range(2):
            q = load(row, at + nvfp4.QS + r * 16, 16)
            low, high = lookup(FP4, q & 15), lookup(FP4, q >> 4)
            put(out, b * 64 + r * 32, interleave(low, high, 8))


@inner
def walk_q2_k(row: Any, put: Any, out: Any) -> None:
    """Four runs of 32 weights lie two bits apart in the same 32 bytes."""
    for b in range(len(row) // Q2_K):
        at = b * Q2_K
        scales = load(row, at + q2_k.SCALES, 16)
        store(out[1], b * 16, convert(scales & 15, F32) * half(row, at + q2_k.D))
        store(out[2], b * 16, convert(scales >> 4, F32) * half(row, at + q2_k.DMIN))
        for h in range(2):
            q = load(row, at + q2_k.QS + h * 32, 32)
            to = b * 256 + h * 128
            put(out, to, q & 3)
            put(out, to + 32, q >> 2 & 3)
            put(out, to + 64, q >> 4 & 3)
            put(out, to + 96, q >> 6)


@inner
def scales_q3_k(row: Any, at: int) -> Any:
    """The sixteen 6-bit numbers, less 32, as bytes."""
    low = load(row, at, 8)
    h = recast(word(row, at + 8, U32), U8)
    first, last = interleave(h & 3, h >> 2 & 3, 4), interleave(h >> 4 & 3, h >> 6, 4)
    return interleave(low & 15 | first << 4, low >> 4 | last << 4, 8) - 32


@inner
def walk_q3_k(row: Any, put: Any, out: Any) -> None:
    """Four runs of 32 weights lie two bits apart in the same 32 bytes, their third bits one apart."""
    for b in range(len(row) // Q3_K):
        at = b * Q3_K
        store(
            out[1],
            b * 16,
            convert(recast(scales_q3_k(row, at + q3_k.SCALES), I8), F32) * half(row, at + q3_k.D),
        )
        third = load(row, at + q3_k.HMASK, 32)
        for h in range(2):
            q = load(row, at + q3_k.QS + h * 32, 32)
            to = b * 256 + h * 128
            put(out, to, (q & 3 | third << 2 & 4) - 4)
            put(out, to + 32, (q >> 2 & 3 | third << 1 & 4) - 4)
            put(out, to + 64, (q >> 4 & 3 | third & 4) - 4)
            put(out, to + 96, (q >> 6 | third >> 1 & 4) - 4)
            third = third >> 4


@inner
def put_scales(row: Any, d: int, dmin: int, scales: int, out: Any, g: int) -> None:
    """The eight scales and offsets of a block, its fields at these addresses, from group g on."""
    a = recast(word(row, scales, U32), U8)
    b = recast(word(row, scales + 4, U32), U8)
    c = recast(word(row, scales + 8, U32), U8)
    sc = interleave(a & 63, c & 15 | a >> 6 << 4, 4)
    m = interleave(b & 63, c >> 4 | b >> 6 << 4, 4)
    store(out[1], g, convert(sc, F32) * half(row, d))
    store(out[2], g, convert(m, F32) * half(row, dmin))


@inner
def walk_q4_k(row: Any, put: Any, out: Any) -> None:
    """Both nibbles of 32 bytes, 64 weights at a time."""
    for b in range(len(row) // Q4_K):
        at = b * Q4_K
        put_scales(row, at + q4_k.D, at + q4_k.DMIN, at + q4_k.SCALES, out, b * 8)
        for r in range(4):
            q = load(row, at + q4_k.QS + r * 32, 32)
            put(out, b * 256 + r * 64, q & 15)
            put(out, b * 256 + r * 64 + 32, q >> 4)


@inner
def walk_q5_k(row: Any, put: Any, out: Any) -> None:
    """Both nibbles of 32 bytes, 64 weights at a time, with their fifth bits two apart in other bytes."""
    for b in range(len(row) // Q5_K):
        at = b * Q5_K
        put_scales(row, at + q5_k.D, at + q5_k.DMIN, at + q5_k.SCALES, out, b * 8)
        fifth = load(row, at + q5_k.QH, 32)
        for r in range(4):
            q = load(row, at + q5_k.QS + r * 32, 32)
            put(out, b * 256 + r * 64, q & 15 | fifth << 4 & 16)
            put(out, b * 256 + r * 64 + 32, q >> 4 | fifth << 3 & 16)
            fifth = fifth >> 2


@inner
def walk_q6_k(row: Any, put: Any, out: Any) -> None:
    """Low nibbles, then high nibbles of 64 bytes; their upper two bits two apart in 32 others."""
    for b in range(len(row) // Q6_K):
        at = b * Q6_K
        scales = convert(recast(load(row, at + q6_k.SCALES, 16), I8), F32)
        store(out[1], b * 16, scales * half(row, at + q6_k.D))
        for h in range(2):
            first = load(row, at + q6_k.QL + h * 64, 32)
            second = load(row, at + q6_k.QL + h * 64 + 32, 32)
            upper = load(row, at + q6_k.QH + h * 32, 32)
            to = b * 256 + h * 128
            put(out, to, (first & 15 | upper << 4 & 48) - 32)
            put(out, to + 32, (second & 15 | upper << 2 & 48) - 32)
            put(out, to + 64, (first >> 4 | upper & 48) - 32)
            put(out, to + 96, (second >> 4 | upper >> 2 & 48) - 32)


@inner
def walk_q8_k(row: Any, put: Any, out: Any) -> None:
    """The bytes are the codes; the scale is a float already."""
    for b in range(len(row) // Q8_K):
        at = b * Q8_K
        out[1][b] = word(row, at + q8_k.D, F32)
        for r in range(8):
            put(out, b * 256 + r * 32, load(row, at + q8_k.QS + r * 32, 32))


@inner
def walk_iq4_nl(row: Any, put: Any, out: Any) -> None:
    """Both nibbles of 16 bytes, looked up among 16 levels."""
    for b in range(len(row) // IQ4_NL):
        at = b * IQ4_NL
        out[1][b] = half(row, at + iq4_nl.D)
        q = load(row, at + iq4_nl.QS, 16)
        put(out, b * 32, interleave(lookup(IQ4, q & 15), lookup(IQ4, q >> 4), 16))


@inner
def walk_iq4_xs(row: Any, put: Any, out: Any) -> None:
    """Both nibbles of 16 bytes, looked up among 16 levels; eight 6-bit scales from two fields."""
    for b in range(len(row) // IQ4_XS):
        at = b * IQ4_XS
        high = splat(word(row, at + iq4_xs.SCALES_H, U16), I32, 8) >> ramp(I32, 8, 2) & 3
        low = recast(word(row, at + iq4_xs.SCALES_L, U32), U8)
        ls = convert(interleave(low & 15, low >> 4, 1), I32) | high << 4
        store(out[1], b * 8, convert(ls - 32, F32) * half(row, at + iq4_xs.D))
        for r in range(8):
            q = load(row, at + iq4_xs.QS + r * 16, 16)
            put(out, b * 256 + r * 32, interleave(lookup(IQ4, q & 15), lookup(IQ4, q >> 4), 16))


# --- code books of the IQ formats: rows by index, and signs by index ---------------------------------

LARGEST = 512  # rows of a book that shuffles look up faster than loads do


def packed(book: NDArray[np.int8]) -> NDArray[Any]:
    """[rows, 8] or [rows, 4] codes as one integer a row."""
    return np.ascontiguousarray(book).view(f"<u{book.shape[1]}").reshape(-1)


def book(grid: NDArray[np.int8]) -> tuple[Any, Any]:
    """Two steps from 32 indices of rows, as lanes of 16 bits, to codes.

    ``find(indices)`` gives 32 lanes; ``codes(lanes)`` takes a part of them and gives its codes as bytes.
    Where rows are not looked up by shuffles, the first step does nothing and the second loads the rows.
    """
    if not shuffles_words() or len(grid) > LARGEST:
        rows = packed(grid)
        return inner(lambda indices: indices), inner(lambda indices: recast(gather(rows, indices), U8))
    entries, index = np.unique(grid, return_inverse=True)
    width, length = 16 // grid.shape[1], len(grid)
    shifts = np.arange(0, 16, width)
    words = (index.reshape(grid.shape) << shifts).sum(axis=1).astype(np.uint16)
    table = np.resize(np.resize(entries, 1 << width), 64).view(np.uint8)
    return inner(lambda indices: pick(words, length, indices)), inner(lambda rows: levels(table, rows))


@inline
def eights(codes: Any, rows: Any) -> Any:
    """The codes of 32 rows of eight, 64 in a vector."""
    a, b = codes(part(rows, 0, 8)), codes(part(rows, 8, 8))
    return a, b, codes(part(rows, 16, 8)), codes(part(rows, 24, 8))


@inline
def fours(codes: Any, rows: Any, more: Any) -> Any:
    """The codes of twice 32 rows of four, 64 in a vector."""
    a, b = codes(part(rows, 0, 16)), codes(part(rows, 16, 16))
    return a, b, codes(part(more, 0, 16)), codes(part(more, 16, 16))


@inline
def words_of(lanes: Any) -> Any:
    """Four lanes of 64 bits as words."""
    a, b = recast(part(lanes, 0, 1), U64), recast(part(lanes, 1, 1), U64)
    return a, b, recast(part(lanes, 2, 1), U64), recast(part(lanes, 3, 1), U64)


@inline
def words_at(row: Any, at: int) -> Any:
    """Four words of 64 bits from an address on."""
    return word(row, at, U64), word(row, at + 8, U64), word(row, at + 16, U64), word(row, at + 24, U64)


@inline
def put_signed(put: Any, out: Any, at: int, codes: Any, minus: Any) -> None:
    """Four vectors of 64 codes, each with a minus where its word has a bit."""
    for i in range(4):
        put(out, at + i * 64, negated(codes[i], minus[i]))


@inner
def with_parity(index: Any) -> Any:
    """Seven bits, in each byte of a 64-bit word or of lanes, and an eighth that makes them even.

    The folds let bits of the next byte in from above; they never come down to the lowest bit.
    """
    folded = index ^ index >> 4
    folded = folded ^ folded >> 2
    folded = folded ^ folded >> 1
    return index | (folded & 0x0101010101010101) << 7


@inner
def signs(words: Any) -> Any:
    """64 signs of the four sign indices in the lower 28 bits of each of two 32-bit words."""
    two = words & 0x00003FFF00003FFF | (words & 0x0FFFC0000FFFC000) << 2
    four = two & 0x007F007F007F007F | (two & 0x3F803F803F803F80) << 1
    return with_parity(four)


@inner
def signs_of(indices: Any) -> Any:
    """64 signs of eight sign indices in lanes of 16 bits."""
    return with_parity(recast(convert(indices, U8), types.uint64))


# --- formats with books -------------------------------------------------------------------------------


ROWS_IQ1_S = packed(iq1_s.GRID * np.int8(8))


@inner
def walk_iq1_s(row: Any, put: Any, out: Any) -> None:
    """A run of 32 weights at a time: four rows of the grid, times 8, and one eighth for all."""
    for b in range(len(row) // IQ1_S):
        at = b * IQ1_S
        s = convert(recast(load(row, at + iq1_s.QH, 16), U16) >> 12 & 7, F32)
        store(out[1], b * 8, (s * 2 + 1) * half(row, at + iq1_s.D) * 0.125)
        for r in range(8):
            qh = word(row, at + iq1_s.QH + r * 2, U16)
            low = deposit(word(row, at + iq1_s.QS + r * 4, U32), 8, 0, 16)
            rows = recast(low | deposit(qh, 3, 8, 16), U16)
            put(out, b * 256 + r * 32, recast(gather(ROWS_IQ1_S, rows), U8) + (1 - (qh >> 15) * 2))


ROWS_IQ1_M = packed(iq1_m.GRID * np.int8(8))


LOW = 0x07FF07FF07FF07FF  # eleven bits of four rows


@inner
def put_scales_iq1_m(row: Any, at: int, out: Any, g: int) -> None:
    """The 16 scales of the block whose four words of scales are at an address."""
    words = word(row, at, U64)
    d = words >> 12 & 0xF | words >> 24 & 0xF0 | words >> 36 & 0xF00 | words >> 48 & 0xF000
    for t in range(4):
        s = convert(splat(word(row, at + t * 2, U16), U32, 4) >> ramp(U32, 4, 3) & 7, F32)
        store(out[1], g + t * 4, (s * 2 + 1) * widen(U16(d)) * 0.125)


@inner
def walk_iq1_m(row: Any, put: Any, out: Any) -> None:
    """64 weights at a time: eight rows of the grid, times 8, each with its own eighth."""
    for b in range(len(row) // IQ1_M):
        at = b * IQ1_M
        put_scales_iq1_m(row, at + iq1_m.SCALES, out, b * 16)
        for r in range(4):
            qh, qs = word(row, at + iq1_m.QH + r * 4, U32), word(row, at + iq1_m.QS + r * 8, U64)
            four = deposit(qs, 8, 0, 16) | deposit(qh, 4, 8, 16)
            more = deposit(qs >> 32, 8, 0, 16) | deposit(qh >> 16, 4, 8, 16)
            first = gather(ROWS_IQ1_M, recast(four & LOW, U16))
            second = gather(ROWS_IQ1_M, recast(more & LOW, U16))
            # 0 or 1 to eight bytes of 1 or of -1
            bit = convert(splat(qh, U32, 8) >> ramp(U32, 8, 4) >> 3 & 1, U64)
            eighth = bit - 1 & 0xFEFEFEFEFEFEFEFE ^ 0xFFFFFFFFFFFFFFFF
            put(out, b * 256 + r * 64, recast(interleave(first, second, 4), U8) + recast(eighth, U8))


find_iq2_xxs, codes_iq2_xxs = book(iq2_xxs.GRID)


@inner
def walk_iq2_xxs(row: Any, put: Any, out: Any) -> None:
    """A block at a time: 32 rows of the grid and 256 signs."""
    for b in range(len(row) // IQ2_XXS):
        at = b * IQ2_XXS
        runs = recast(load(row, at + iq2_xxs.QS, 64), U64)
        words = convert(runs >> 32, U32)
        store(out[1], b * 8, (convert(words >> 28, F32) + 0.5) * half(row, at + iq2_xxs.D) * 0.25)
        rows = convert(recast(convert(runs, U32), U8), U16)
        put_signed(
            put, out, b * 256, eights(codes_iq2_xxs, find_iq2_xxs(rows)), words_of(signs(recast(words, U64)))
        )


find_iq2_xs, codes_iq2_xs = book(iq2_xs.GRID)


@inner
def walk_iq2_xs(row: Any, put: Any, out: Any) -> None:
    """A block at a time: 32 words of a row of the grid and a sign index."""
    for b in range(len(row) // IQ2_XS):
        at = b * IQ2_XS
        s = load(row, at + iq2_xs.SCALES, 8)
        scale = convert(interleave(s & 15, s >> 4, 1), F32)
        store(out[1], b * 16, (scale + 0.5) * half(row, at + iq2_xs.D) * 0.25)
        q = recast(load(row, at + iq2_xs.QS, 64), U16)
        put_signed(put, out, b * 256, eights(codes_iq2_xs, find_iq2_xs(q & 511)), words_of(signs_of(q >> 9)))


ROWS_IQ2_S = packed(iq2_s.GRID)


@inner
def walk_iq2_s(row: Any, put: Any, out: Any) -> None:
    """64 weights at a time: eight rows of the grid, their upper bits from a word, and 64 signs."""
    for b in range(len(row) // IQ2_S):
        at = b * IQ2_S
        s = load(row, at + iq2_s.SCALES, 8)
        scale = convert(interleave(s & 15, s >> 4, 1), F32)
        store(out[1], b * 16, (scale + 0.5) * half(row, at + iq2_s.D) * 0.25)
        for r in range(4):
            qh, qs = word(row, at + iq2_s.QH + r * 2, U16), word(row, at + iq2_s.QS + r * 8, U64)
            first = gather(ROWS_IQ2_S, recast(deposit(qs, 8, 0, 16) | deposit(qh, 2, 8, 16), U16))
            second = gather(ROWS_IQ2_S, recast(deposit(qs >> 32, 8, 0, 16) | deposit(qh >> 8, 2, 8, 16), U16))
            codes = recast(interleave(first, second, 4), U8)
            put(out, b * 256 + r * 64, negated(codes, word(row, at + iq2_s.QS + 32 + r * 8, U64)))


find_iq3_xxs, codes_iq3_xxs = book(iq3_xxs.GRID)


@inner
def walk_iq3_xxs(row: Any, put: Any, out: Any) -> None:
    """A block at a time: 64 rows of the grid and 256 signs."""
    for b in range(len(row) // IQ3_XXS):
        at = b * IQ3_XXS
        words = load(row, at + iq3_xxs.WORDS, 32)
        s = convert(recast(words, U32) >> 28, F32)
        store(out[1], b * 8, (s + 0.5) * half(row, at + iq3_xxs.D) * 0.5)
        first = find_iq3_xxs(convert(load(row, at + iq3_xxs.QS, 32), U16))
        second = find_iq3_xxs(convert(load(row, at + iq3_xxs.QS + 32, 32), U16))
        minus = words_of(signs(recast(words, U64)))
        put_signed(put, out, b * 256, fours(codes_iq3_xxs, first, second), minus)


find_iq3_s, codes_iq3_s = book(iq3_s.GRID)


@inner
def walk_iq3_s(row: Any, put: Any, out: Any) -> None:
    """A block at a time: 64 rows of the grid, their ninth bits from words, and 256 signs."""
    for b in range(len(row) // IQ3_S):
        at = b * IQ3_S
        s = recast(word(row, at + iq3_s.SCALES, U32), U8)
        scale = convert(interleave(s & 15, s >> 4, 1), F32)
        store(out[1], b * 8, (scale * 2 + 1) * half(row, at + iq3_s.D))
        ninth = either(word(row, at + iq3_s.QH, U32), 256, 0, U16)
        first = find_iq3_s(convert(load(row, at + iq3_s.QS, 32), U16) | ninth)
        ninth = either(word(row, at + iq3_s.QH + 4, U32), 256, 0, U16)
        second = find_iq3_s(convert(load(row, at + iq3_s.QS + 32, 32), U16) | ninth)
        put_signed(put, out, b * 256, fours(codes_iq3_s, first, second), words_at(row, at + iq3_s.SIGNS))
