"""What the encoders of blocks of 32 share: who reads what, and how a block agrees on something.

Eight threads serve a block. Thread ``part`` holds the four neighbours from 4 part on, so that a
warp reads 512 bytes in a row; what the whole block must know goes round by shuffles.
"""

from __future__ import annotations

from typing import Any

from .. import ptx
from ..atoms import inlined
from ..language import cuda, float32, int32, uint32, uint64
from ..launch import Kernel

RUN, THREADS, EVERYONE = 32, 256, 0xFFFFFFFF
NOT_FINITE = 0x7F800000  # the exponent of NaN and infinity


def block_kernel(name: str, encode: Any, size: int) -> Kernel:
    """A kernel around ``encode(v0, v1, v2, v3, part, at, live)``, which returns the scale's bits.

    ``at`` is the address of the block, ``live`` is false for threads behind the last block: they
    take part in shuffles and must not store. ``unfit`` is set if a value or the half is not finite.
    """
    load_floats, set_bits = ptx.load_floats, ptx.set_bits

    def kernel(x: Any, raw: Any, unfit: Any, blocks: Any) -> None:
        thread = uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x)
        part, b = thread & uint32(7), thread >> uint32(3)
        live = b < blocks
        if not live:
            b = uint32(blocks) - uint32(1)
        v0, v1, v2, v3 = load_floats(x + uint64(b) * uint64(128) + uint64(part) * uint64(16))
        scale = encode(v0, v1, v2, v3, part, raw + uint64(b) * uint64(size), live)
        largest = max(size_of(v0), size_of(v1), size_of(v2), size_of(v3))
        if largest >= uint32(NOT_FINITE) or scale & uint32(0x7C00) == uint32(0x7C00):
            set_bits(unfit, uint32(1))

    parameters = (uint64, uint64, uint64, uint32)
    return Kernel(name, kernel, *parameters, threads=THREADS)


# --- four neighbours, then all 32 -------------------------------------------------------------


@inlined
def size_of(value: Any) -> Any:
    """The bits without the sign: they are ordered as magnitudes, NaN above all."""
    return uint32(ptx.bits_of(value) & uint32(0x7FFFFFFF))  # narrowed: uint32 & uint32 is uint64 to Numba


@inlined
def largest_size(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    """The largest magnitude of a block; NaN if there is one."""
    size = max(size_of(v0), size_of(v1), size_of(v2), size_of(v3))
    for step in (4, 2, 1):
        size = max(size, uint32(cuda.shfl_xor_sync(EVERYONE, int32(size), step)))
    return ptx.float_of(size)


@inlined
def sum_of_codes(q0: Any, q1: Any, q2: Any, q3: Any) -> Any:
    """The sum of the 32 codes of a block."""
    total = int32(int32(q0 + q1) + int32(q2 + q3))
    for step in (4, 2, 1):
        total = int32(total + cuda.shfl_xor_sync(EVERYONE, total, step))
    return total


@inlined
def sum_of_values(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    """The sum of the 32 floats, in the order of a warp with one each: from half way across inward."""
    for step in (4, 2, 1):
        v0 = ptx.add(v0, cuda.shfl_xor_sync(EVERYONE, v0, step))
        v1 = ptx.add(v1, cuda.shfl_xor_sync(EVERYONE, v1, step))
        v2 = ptx.add(v2, cuda.shfl_xor_sync(EVERYONE, v2, step))
        v3 = ptx.add(v3, cuda.shfl_xor_sync(EVERYONE, v3, step))
    return ptx.add(ptx.add(v0, v2), ptx.add(v1, v3))


@inlined
def with_sign_of_first(size: Any, v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    """A magnitude of the block with the sign of the first value that has it."""
    own = v3
    own = v2 if size_of(v2) == size else own
    own = v1 if size_of(v1) == size else own
    own = v0 if size_of(v0) == size else own
    has = uint32(cuda.ballot_sync(EVERYONE, size_of(own) == size))
    minus = uint32(cuda.ballot_sync(EVERYONE, ptx.bits_of(own) > uint32(0x7FFFFFFF)))
    others = uint32(cuda.laneid) & uint32(24)  # lanes of blocks before this one
    has = uint32(has >> others) & uint32(255)
    first = uint32(has & (~has + uint32(1)))
    sign = uint32(0x80000000) if uint32(minus >> others) & first else uint32(0)
    return ptx.float_of(uint32(size | sign))


@inlined
def extreme(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    """The value of largest magnitude; of equals the first."""
    return with_sign_of_first(size_of(largest_size(v0, v1, v2, v3)), v0, v1, v2, v3)


@inlined
def lowest(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    """The smallest value; of zeros with different signs the first."""
    low = min(v0, v1, v2, v3)
    for step in (4, 2, 1):
        low = min(low, cuda.shfl_xor_sync(EVERYONE, low, step))
    zero = with_sign_of_first(uint32(0), v0, v1, v2, v3)
    return zero if low == float32(0) else low


@inlined
def highest(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    """The largest value."""
    high = max(v0, v1, v2, v3)
    for step in (4, 2, 1):
        high = max(high, cuda.shfl_xor_sync(EVERYONE, high, step))
    return high


# --- rounding, as compiled C does on x86-64 ---------------------------------------------------
# Both outcomes are computed and one is chosen: an instruction in a branch would stay in a branch.


@inlined
def inverse(d: Any) -> Any:
    """1 / d, or 0 where d is 0."""
    result = ptx.div(float32(1), d)
    return result if d != float32(0) else float32(0)


@inlined
def truncate(v: Any) -> Any:
    """Towards zero; NaN and what is out of range become the lowest integer."""
    result = ptx.truncated(v)
    return result if abs(v) < float32(2147483648.0) else int32(-0x80000000)


@inlined
def half_away(v: Any) -> Any:
    """To nearest, halves away from zero: the float below a half is added with the sign of v."""
    below_half = (ptx.bits_of(v) & uint32(0x80000000)) | uint32(0x3EFFFFFF)
    return truncate(ptx.add(v, ptx.float_of(below_half)))


# --- storing ----------------------------------------------------------------------------------


@inlined
def four_bytes(q0: Any, q1: Any, q2: Any, q3: Any) -> Any:
    """The low bytes of four integers as a word."""
    low = uint32(q0) & uint32(255) | (uint32(q1) & uint32(255)) << uint32(8)
    return low | (uint32(q2) & uint32(255)) << uint32(16) | uint32(q3) << uint32(24)


@inlined
def store_word(at: Any, word: Any) -> None:
    """Four bytes at an even address."""
    ptx.store2(at, word & uint32(0xFFFF))
    ptx.store2(at + uint64(2), word >> uint32(16))


@inlined
def store_nibbles(at: Any, word: Any, part: Any, live: Any, aligned: Any) -> None:
    """16 bytes from eight words of codes: threads 0 to 3 add the codes 16 further in the high nibbles."""
    high = uint32(cuda.shfl_xor_sync(EVERYONE, int32(word), 4))
    mask = uint32(0x0F0F0F0F)
    if live and part < uint32(4):
        both = (word & mask) | (high & mask) << uint32(4)
        if aligned:
            store_word(at + uint64(part) * uint64(4), both)
        else:
            for i in range(4):
                ptx.store1(at + uint64(part) * uint64(4) + uint64(i), both >> uint32(8 * i))


@inlined
def store_fifth_bits(at: Any, word: Any, part: Any, live: Any) -> None:
    """Bit 4 of each of the 32 codes, as a word of bits."""
    nibble = (word >> uint32(4)) & uint32(0x01010101)
    own = (nibble | nibble >> uint32(7) | nibble >> uint32(14) | nibble >> uint32(21)) & uint32(15)
    bits = own << (part * uint32(4))
    for step in (4, 2, 1):
        bits |= uint32(cuda.shfl_xor_sync(EVERYONE, int32(bits), step))
    if live and part == uint32(0):
        store_word(at, bits)
