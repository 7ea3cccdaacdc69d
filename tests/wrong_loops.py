"""The loops of wrong_kernels.py: weights unpacked byte by byte and multiplied, with one fault or none.

They stay in one file, for Numba's cache looks at the file of the function that is called: a change to what
that calls in another is not seen.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

# Faults inside the loops; everything else happens to y, x or the bytes around them.
INSIDE = (
    "correct", "nibble-order", "offset-missing", "offset-twice", "offset-sign", "sum-missing", "min-ignored",
    "sum-not-scaled", "high-bits", "sub-scale-order", "sub-scale-unpack", "scale-neighbour",
    "scale-f16-overflow", "activation-rounding", "int8-saturation", "f16-accumulation", "k-tail-dropped",
    "sum-of-codes-vs-floats", "nibbles-exchanged", "sum-order", "sum-carried", "scale-rounding",
)  # fmt: skip
NUMBER = {name: i for i, name in enumerate(INSIDE)}
(
    CORRECT, NIBBLE_ORDER, OFFSET_MISSING, OFFSET_TWICE, OFFSET_SIGN, SUM_MISSING, MIN_IGNORED,
    SUM_NOT_SCALED, HIGH_BITS, SUB_ORDER, SUB_UNPACK, NEIGHBOUR,
    OVERFLOW, ROUNDING, SATURATION, HALF_SUMS, K_TAIL,
    OTHER_SUM, HALVES, SUM_ORDER, CARRIED, SCALE_ROUNDING,
) = range(len(INSIDE))  # fmt: skip


@njit(cache=True)
def half(v):
    """A float rounded to half: eleven bits, to even (Numba has no float16 on CPUs)."""
    if v == 0 or not np.isfinite(v):
        return np.float32(v)
    _, exponent = math.frexp(v)
    step = math.ldexp(1.0, max(exponent - 11, -24))
    rounded = np.rint(v / step) * step
    if abs(rounded) > 65504:
        return np.float32(np.inf) if v > 0 else np.float32(-np.inf)
    return np.float32(rounded)


@njit(cache=True)
def nibble(b, at, i, fault, variant):
    """Element i of 32 in 16 bytes."""
    if fault == NIBBLE_ORDER:
        i = (i % 2) * 16 + i // 2  # interleaved
    elif fault == HALVES:
        i = (i + 16) % 32
    return (b[at + i % 16] >> (4 * (i // 16))) & 15


@njit(cache=True)
def fifth(b, at, i, fault, variant):
    """Bit i of the four bytes of q5_0 and q5_1."""
    if fault == HIGH_BITS:
        if variant % 4 == 0:
            return 0
        if variant % 4 == 1:
            i = i % 16
        elif variant % 4 == 2:
            i = (i + 16) % 32
        else:
            i = i // 8 * 8 + 7 - i % 8
    return (b[at + i // 8] >> (i % 8)) & 1


@njit(cache=True)
def simple(fmt, b, at, i, fault, variant):
    """Stored code of element i of a block of 32."""
    if fmt == 4:
        v = int(b[at + 2 + i])
        return v - 256 if v > 127 else v
    if fmt == 0:
        return nibble(b, at + 2, i, fault, variant)
    if fmt == 1:
        return nibble(b, at + 4, i, fault, variant)
    if fmt == 2:
        return nibble(b, at + 6, i, fault, variant) | fifth(b, at + 2, i, fault, variant) << 4
    return nibble(b, at + 8, i, fault, variant) | fifth(b, at + 4, i, fault, variant) << 4


@njit(cache=True)
def code_q4_k(b, at, i, fault, variant):
    """Stored code of element i of q4_K."""
    chunk, r = i // 64, i % 64
    if fault == NIBBLE_ORDER:
        r = (r % 2) * 32 + r // 2
    elif fault == HALVES:
        r = (r + 32) % 64
    return (b[at + 16 + chunk * 32 + r % 32] >> (4 * (r // 32))) & 15


@njit(cache=True)
def code_q6_k(b, at, i, fault, variant):
    """Stored code of element i of q6_K."""
    h, r = i // 128, i % 128
    j = r
    if fault == NIBBLE_ORDER:
        j = (r % 2) * 64 + r // 2
    elif fault == HALVES:
        j = (r + 64) % 128
    low = (b[at + h * 64 + j % 64] >> (4 * (j // 64))) & 15
    shift = r // 32 * 2
    if fault == HIGH_BITS:
        if variant % 3 == 0:
            return low
        shift = 6 - shift if variant % 3 == 1 else 0
    return low | ((b[at + 128 + h * 32 + r % 32] >> shift) & 3) << 4


@njit(cache=True)
def code_q3_k(b, at, i, fault, variant):
    """Stored code of element i of q3_K."""
    h, r = i // 128, i % 128
    low = (b[at + 32 + h * 32 + r % 32] >> (r // 32 * 2)) & 3
    bit = i // 32
    if fault == NIBBLE_ORDER:
        low = (b[at + 32 + h * 32 + r // 4] >> (r % 4 * 2)) & 3
    if fault == HIGH_BITS:
        if variant % 3 == 0:
            return low
        bit = 7 - bit if variant % 3 == 1 else bit
    third = (b[at + i % 32] >> bit) & 1
    if fault == HIGH_BITS and variant % 3 == 2:
        third = 1 - third
    return low | third << 2


@njit(cache=True)
def six_bits(b, at, j, minimum, fault, variant):
    """Scale or minimum j of 8 in the twelve bytes of q4_K."""
    if fault == SUB_ORDER:
        j = 7 - j if variant % 3 == 0 else (j ^ 1 if variant % 3 == 1 else (j % 4) * 2 + j // 4)
    if j < 4:
        return b[at + j + (4 if minimum else 0)] & 63
    low = b[at + j + 4]
    low = low >> 4 if minimum else low & 15
    top = b[at + j] if minimum else b[at + j - 4]
    if fault == SUB_UNPACK:
        if variant % 4 == 0:
            return low
        if variant % 4 == 1:
            top = b[at + j - 4] if minimum else b[at + j]
        elif variant % 4 == 2:
            return low | (top >> 6) << 2
        else:
            return b[at + j + (4 if minimum else 0)] & 63
    return low | (top >> 6) << 4


@njit(cache=True)
def scale_q3_k(b, at, g, fault, variant):
    """Scale g of 16 in the twelve bytes of q3_K, with its 32 taken off."""
    if fault == SUB_ORDER:
        g = 15 - g if variant % 2 == 0 else g ^ 1
    low = (b[at + g % 8] >> (4 * (g // 8))) & 15
    k = g % 4
    shift = g // 4 * 2
    if fault == SUB_UNPACK:
        if variant % 2 == 0:
            return int(low) - 32
        shift = 6 - shift
    return int(low | ((b[at + 8 + k] >> shift) & 3) << 4) - 32


@njit(cache=True)
def unpack(fmt, b, halves, n, blocks, size, fault, variant, stored, scale, offset):
    """One row of weights: stored codes, scales, offsets (what is taken off after scale·code)."""
    per = stored.shape[0] // blocks
    groups = scale.shape[0] // blocks
    for block in range(blocks):
        at = (n * blocks + block) * size
        own = n * blocks + block
        if fault == NEIGHBOUR:
            own += 1 if variant % 2 else -1
            last = (n + 1) * blocks - 1
            if variant // 2 % 2:  # stays in the row
                own = min(max(own, n * blocks), last)
            own = own % (halves.shape[0])
        for i in range(per):
            if fmt == 5:
                stored[block * per + i] = code_q3_k(b, at, i, fault, variant)
            elif fmt == 6:
                stored[block * per + i] = code_q4_k(b, at, i, fault, variant)
            elif fmt == 7:
                stored[block * per + i] = code_q6_k(b, at, i, fault, variant)
            else:
                stored[block * per + i] = simple(fmt, b, at, i, fault, variant)
        for g in range(groups):
            d, m = halves[own, 0], halves[own, 1]
            to = block * groups + g
            if fmt == 5:
                scale[to], offset[to] = d * scale_q3_k(b, at + 96, g, fault, variant), 0
            elif fmt == 6:
                scale[to] = d * six_bits(b, at + 4, g, False, fault, variant)
                offset[to] = m * six_bits(b, at + 4, g, True, fault, variant)
            elif fmt == 7:
                where = 15 - g if fault == SUB_ORDER and variant % 3 == 0 else g
                if fault == SUB_ORDER and variant % 3 == 1:
                    where = g // 8 * 8 + (g % 8) // 2 + (g % 2) * 4
                s = int(b[at + 192 + where])
                scale[to], offset[to] = d * (s - 256 if s > 127 else s), 0
            else:
                scale[to] = d
                offset[to] = -m if fmt in (1, 3) else 0


@njit(cache=True)
def sums_of(codes, x, start, group):
    """Sizes of the codes and of the floats."""
    own, floats = 0, np.float32(0)
    for i in range(start, start + group):
        own += codes[i]
        floats += x[i]
    return own, floats


@njit(cache=True)
def dot(codes, stored, start, length, added, fault, variant):
    """Σ code·(stored + added) over a run, in integers of 32 bits, or of 16 where they saturate."""
    total = 0
    if fault != SATURATION:
        for i in range(start, start + length):
            total += codes[i] * (stored[i] + added)
        return total
    step = 2 if variant % 2 == 0 else 4
    for i in range(start, start + length, step):
        part = 0
        for j in range(i, i + step):
            part += codes[j] * (stored[j] + added)
        total += min(max(part, -32768), 32767)
    return total


@njit(cache=True)
def taken_off(zero, convention, group, fault):
    """The constant added to each code, and the one that is taken off through the block sum."""
    if fault in (OFFSET_MISSING, SCALE_ROUNDING, CARRIED):
        return 0 if fault == OFFSET_MISSING else -zero, 0
    if fault == OFFSET_SIGN:
        return zero, 0
    through_sum = zero if (convention == 1 and group == 32) or fault == SUM_NOT_SCALED else 0
    added = 0 if through_sum else -zero
    return added - zero if fault == OFFSET_TWICE else added, through_sum


@njit(cache=True)
def multiply(codes, d, unrounded, x, run, stored, scale, offset, group, zero, convention, order, fault,
             variant, dropped, terms):  # fmt: skip
    """One element of y: block terms into ``terms``; returns how many there are."""
    count = 0
    carried = np.float32(0)
    k = codes.shape[0]
    for g in range(k // group):
        start = g * group
        if fault == K_TAIL and start >= k - dropped:
            break
        dx = d[start // run]
        added, through_sum = taken_off(zero, convention, group, fault)
        extra = 0
        if fault == SATURATION:
            extra = 128 + (0 if added else -zero)
            added += extra
        main = scale[g]
        if fault == SUB_ORDER and variant % 3 == 2 and group == 16 and zero == 32:
            main = scale[g // 16 * 16 + (g % 16) // 8 * 4 + g % 8]  # the constant keeps its own scales
            added, through_sum = 0, zero
        if fault == SCALE_ROUNDING:
            main = half(main * dx) / dx if dx != 0 else main
        own, floats = sums_of(codes, x, start, group)
        met = sums_of(codes, x, start // 256 * 256 + start % 128, group)  # groups 4 to 7 meet sums of 0 to 3
        whole = np.float32(dot(codes, stored, start, group, added, fault, variant) - extra * own)
        other = fault == OTHER_SUM
        if (convention == 1) != other:
            s = half(met[1] if fault == SUM_ORDER else floats) if group == 32 else np.float32(own) * dx
        else:
            taken = met[0] if fault == SUM_ORDER else own
            s = half(unrounded[start // run] * taken) if group == 32 and run == 32 else np.float32(taken) * dx
        if fault == SUM_NOT_SCALED:
            s = np.float32(own)
        if fault in (SUM_MISSING, MIN_IGNORED):
            off = np.float32(0)
        else:
            off = offset[g]
            if fault == OFFSET_SIGN:
                off = -off
        carried = whole + carried if fault == CARRIED else whole
        terms[count] = main * dx * carried
        constant = np.float32(through_sum) * scale[g] + off
        if constant != 0:  # formats without a constant keep no sum, which may be infinite
            terms[count] -= constant * s
        count += 1
    return count


@njit(cache=True)
def total(terms, count, order, fault):
    """The terms added up: in order, or in four lanes that meet at the end."""
    if fault == HALF_SUMS:
        half_sum = np.float32(0)
        for i in range(count):
            half_sum = half(half_sum + terms[i])
        return half_sum
    if order == 0:
        result = np.float32(0)
        for i in range(count):
            result += terms[i]
        return result
    lanes = np.zeros(4, np.float32)
    for i in range(count - 1, -1, -1):
        lanes[i % 4] += terms[i]
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])


@njit(cache=True)
def product(fmt, raw, halves, n_rows, blocks, size, group, zero, codes, d, unrounded, x, run, convention,
            order, fault, variant, dropped):  # fmt: skip
    """Y [M, N]."""
    m, k = codes.shape
    y = np.zeros((m, n_rows), np.float32)
    stored = np.zeros(k, np.int32)
    scale, offset = np.zeros(k // group, np.float32), np.zeros(k // group, np.float32)
    terms = np.zeros(k // group, np.float32)
    for n in range(n_rows):
        unpack(fmt, raw, halves, n, blocks, size, fault, variant, stored, scale, offset)
        for i in range(m):
            count = multiply(codes[i], d[i], unrounded[i], x[i], run, stored, scale, offset, group, zero,
                             convention, order, fault, variant, dropped, terms)  # fmt: skip
            y[i, n] = total(terms, count, order, fault)
    return y
