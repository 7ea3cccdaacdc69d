"""Parts of the GPU's encoders of blocks of 32: which thread reads what, and values of a whole block.

Four threads serve a block. Thread ``part`` holds eight values: four neighbours from 4 part on and
the four that are 16 further, whose codes share bytes with theirs in formats of nibbles. So a
thread makes whole bytes alone; shuffles compute the values of the whole block, as its largest magnitude.
"""

from __future__ import annotations

from typing import Any

from ...driver.launch import Kernel, array
from ...intrinsics import ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.codes8 import four_bytes, size_of
from ...intrinsics.lane import ALL_LANES
from ...intrinsics.language import cuda, float32, int32, int64, types, uint32, uint64

RUN, LANES, VALUES, THREADS = 32, 4, 8, 256


def block_kernel(name: str, encode: Any, size: int) -> Kernel:
    """A kernel around ``encode(v, part, at, live)``, which returns the scale's bits.

    ``v``: the eight values of a thread. ``at`` is the address of the block, ``live`` is false for
    threads behind the last block: they take part in shuffles and must not store. ``unfit`` is set
    if a value or the half is not finite.
    """
    load_floats, set_bits = ptx.load_floats, ptx.set_bits

    def kernel(x: Any, raw: Any, unfit: Any, blocks: Any) -> None:
        thread = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        part, b = uint32(thread & LANES - 1), uint32(thread >> 2)
        live = b < blocks
        if not live:  # it has the last block's values: the others of its warp need it in their shuffles
            b = blocks - 1
        v = cuda.local.array(VALUES, float32)
        source = x + b * 128 + uint64(part) * 16
        for half in range(2):
            four = load_floats(source + uint64(64 * half))
            i = 4 * half
            v[i], v[i + 1], v[i + 2], v[i + 3] = four[0], four[1], four[2], four[3]
        scale = encode(v, part, raw + b * size, live)
        if finite(v) != float32(0) or uint32(scale & 0x7C00) == 0x7C00:
            set_bits(unfit, uint32(1))  # an atomic: blocks of threads meet in one word

    parameters = (uint64, uint64, uint64, uint32)
    return Kernel(name, kernel, *parameters, threads=THREADS)


# --- eight values, then all 32 ------------------------------------------------------------------


@inlined
def finite(v: Any) -> Any:
    """0 if all are finite, else NaN: zero times an infinity is one too."""
    zero = float32(0)
    for i in range(VALUES):
        zero = ptx.fma(v[i], float32(0), zero)
    return zero


@inlined
def largest_size(v: Any) -> Any:
    """The largest magnitude of a block; NaN if there is one."""
    largest = abs(v[0])
    for i in range(1, VALUES):
        largest = ptx.larger(largest, abs(v[i]))
    size = ptx.bits_of(largest)
    if finite(v) != float32(0):  # the maximum of floats passes over NaN
        for i in range(VALUES):
            size = max(size, size_of(v[i]))
    for step in (2, 1):
        size = max(size, uint32(cuda.shfl_xor_sync(ALL_LANES, int32(size), step)))
    return ptx.float_of(size)


def reduction(choose: Any) -> Any:
    """The device function for the value of a block that ``choose`` takes: the smallest, or the largest.

    Of zeros with different signs it is any.
    """

    @inlined
    def reduced(v: Any) -> Any:
        value = v[0]
        for i in range(1, VALUES):
            value = choose(value, v[i])
        for step in (2, 1):
            value = choose(value, cuda.shfl_xor_sync(ALL_LANES, value, step))
        return value

    return reduced


smallest, highest = reduction(ptx.smaller), reduction(ptx.larger)


@inlined
def with_sign_of_first(value: Any, v: Any, part: Any) -> Any:
    """A magnitude of the block with the sign of the first value that has it.

    Few blocks need it, so only the threads of one block take part in its shuffles.
    """
    size = size_of(value)
    first = uint32(255)  # twice the place, and the sign
    for i in range(VALUES):
        at = uint32(part * 8) + uint32(2 * (i & 3) + 8 * (i & 4))
        this = uint32(at | ptx.bits_of(v[i]) >> 31)
        first = min(first, this if size_of(v[i]) == size else 255)
    block = 15 << uint32(uint32(cuda.laneid) & 28)
    for step in (2, 1):
        first = min(first, uint32(cuda.shfl_xor_sync(block, int32(first), step)))
    return ptx.float_of(uint32(size | first << 31))


@inlined
def extreme(v: Any, part: Any) -> Any:
    """The value of largest magnitude; of equals the first."""
    low, high = smallest(v), highest(v)
    peak = high if high > -low else low
    if high == -low:
        peak = with_sign_of_first(high, v, part)
    return peak


@inlined
def lowest(v: Any, part: Any) -> Any:
    """The smallest value; of zeros with different signs the first."""
    low = smallest(v)
    if low == float32(0):
        low = with_sign_of_first(low, v, part)
    return low


@inlined
def sum_of_codes(q: Any) -> Any:
    """The sum of the 32 codes of a block."""
    total = int32(0)
    for i in range(VALUES):
        total = int32(total + q[i])
    for step in (2, 1):
        total = int32(total + cuda.shfl_xor_sync(ALL_LANES, total, step))
    return total


@inlined
def sum_of_values(v: Any) -> Any:
    """The sum of the 32 floats, in the order of a warp with one each: from half way across inward."""
    sums = cuda.local.array(4, float32)
    for i in range(4):
        sums[i] = ptx.add(v[i], v[i + 4])
        for step in (2, 1):
            sums[i] = ptx.add(sums[i], cuda.shfl_xor_sync(ALL_LANES, sums[i], step))
    return ptx.add(ptx.add(sums[0], sums[2]), ptx.add(sums[1], sums[3]))


# --- rounding, as compiled C does on x86-64 ---------------------------------------------------


@inlined
def inverse(d: Any) -> Any:
    """1 / d, or 0 where it is infinite: that of 0, and of d so tiny that it overflows.

    Where it overflows C converts infinities and NaN to integers, which makes all low bits zero.
    """
    per = ptx.reciprocal(d)
    return per if abs(per) < float32(float("inf")) else float32(0)


@inlined
def half_away(v: Any) -> Any:
    """To nearest, halves away from zero: the float below a half is added with the sign of v."""
    below_half = uint32(ptx.bits_of(v) & 0x80000000) | 0x3EFFFFFF
    return ptx.truncated(ptx.add(v, ptx.float_of(uint32(below_half))))


# --- storing ----------------------------------------------------------------------------------


@inlined
def two_words(q: Any) -> Any:
    """Eight codes as bytes: of the four neighbours, and of those 16 further."""
    return four_bytes(q[0], q[1], q[2], q[3]), four_bytes(q[4], q[5], q[6], q[7])


@inlined
def store_word(at: Any, word: Any) -> None:
    """Four bytes at an even address."""
    ptx.store2(at, word)
    ptx.store2(at + 2, word >> 16)


@inlined
def nibbles(low: Any, high: Any) -> Any:
    """A word of four bytes from two with codes in the low nibbles."""
    mask = uint32(0x0F0F0F0F)
    return uint32(uint32(low & mask) | uint32(high & mask) << 4)


@inlined
def fifth_bits(low: Any, high: Any, part: Any) -> Any:
    """Bit 4 of each of the 32 codes of a block, as a word of bits."""
    # a product moves bits 0, 8, 16 and 24 next to each other, from bit 24 on; none of its bits meet
    mask, gather = uint32(0x01010101), uint32(0x01020408)
    first = uint32(uint32(uint32(low >> 4) & mask) * gather) >> 24
    other = uint32(uint32(uint32(high >> 4) & mask) * gather) >> 24
    bits = uint32(uint32(first & 15) | uint32(other & 15) << 16)
    bits = uint32(bits << uint32(part * 4))
    for step in (2, 1):
        bits = uint32(bits | uint32(cuda.shfl_xor_sync(ALL_LANES, int32(bits), step)))
    return bits


# Floats of each kind in kernels that treat rows: their bits to float32 and back.

KIND_OF = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}  # of numbers without blocks
SCALARS = tuple(KIND_OF)
STEP = 4  # numbers of a row that a thread has
IDS = array(int64, 1)


def loading(kind: str) -> Any:
    """The device function that gives number ``i`` of an array of floats of a kind as float32."""
    half, float_of = ptx.half_value, ptx.float_of

    @inlined
    def plain(x: Any, i: Any) -> Any:
        return float_of(x[i])

    @inlined
    def halves(x: Any, i: Any) -> Any:
        return half(uint32(x[i]))

    @inlined
    def bfloats(x: Any, i: Any) -> Any:
        return float_of(uint32(uint32(x[i]) << 16))

    return {"float32": plain, "float16": halves, "bfloat16": bfloats}[kind]


def bits_in(kind: str) -> Any:
    """The device function that gives the bits of a kind for a float32, rounded to nearest even."""
    bits_of, half_bits, shift = ptx.bits_of, ptx.half_bits, uint32(16)

    @inlined
    def plain(value: Any) -> Any:
        return bits_of(value)

    @inlined
    def halves(value: Any) -> Any:
        return half_bits(value)

    @inlined
    def bfloats(value: Any) -> Any:
        bits = bits_of(value)  # in integers: as the host rounds, on cards without the instruction too
        rounded = uint32(bits + 0x7FFF + uint32(uint32(bits >> shift) & 1)) >> shift
        is_nan = uint32(bits & 0x7FFFFFFF) > 0x7F800000
        return uint32(uint32(bits >> shift) | 64) if is_nan else uint32(rounded)

    return {"float32": plain, "float16": halves, "bfloat16": bfloats}[kind]


def words_of(kind: str) -> Any:
    """The type of an array parameter with the bits of floats of a kind."""
    return array(uint32 if kind == "float32" else types.uint16, 1)
