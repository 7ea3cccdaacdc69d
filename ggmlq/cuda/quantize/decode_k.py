"""``dequantize`` of q2_K … q6_K on the GPU: codes are handled by words, four in one instruction.

A block has two halves of 128 weights, a half four runs of 32. Codes lie in planes of 1, 2 or 4 bits: rows of
32 bytes, of which byte j serves column j of two, four or eight runs. A thread takes neighbouring columns
of all four runs of a half, so each word that it loads has codes of all of them, and what it stores lies
beside what its neighbours store. Bytes of codes become floats without a conversion: a byte under the
exponent of 2**23 is a float, of which 2**23 and the format's zero are taken off again, exactly.

Blocks of 84, 110 and 210 bytes begin anywhere, and so may those of a slice: a word is made of the two aligned
ones around it, and none is read that has no byte of the block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...formats import BlockFormat, q2_k, q3_k, q4_k, q5_k, q6_k
from ..intrinsics import bf16x2, codes, dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import KINDS, storing
from ..intrinsics.lane import address
from ..intrinsics.language import cuda, float32, uint32, uint64

RUNS, COLUMNS = 4, 32  # of a half, and of a run
RAISED, UNDER = 2.0**23, np.uint32(0x4B000000)  # a byte in place of its lowest byte adds the byte's value
NIBBLES, PAIRS, SIX = np.uint32(0x0F0F0F0F), np.uint32(0x03030303), np.uint32(0x3F3F3F3F)


class Plane(NamedTuple):
    """Some bits of all codes, at an address of the block."""

    at: int
    bits: int
    crossed: bool = (
        False  # the nibbles of a byte belong to runs 0 and 2, 1 and 3, in place of 0 and 1, 2 and 3
    )


class Layout(NamedTuple):
    """The places of a block's codes and scales."""

    planes: tuple[Plane, ...]  # the lowest bits first
    scales: Any  # device function (block, half, column): words of four scales and of four minima
    d: int  # its offset in the block; that of dmin is two more


# --- words ------------------------------------------------------------------------------------


def loader(count: int) -> Any:
    """The device function that loads ``count`` words from an address of a block on."""
    load4, permute = codes.load4, bf16x2.permute

    @inlined
    def load(block: Any, at: Any, words: Any) -> None:
        first, last, picks = block
        first, last = first + uint64(at), last + uint64(at)
        low = load4(first)
        for i in range(count):
            high = load4(last + uint64(4 * i)) if i == count - 1 else load4(first + uint64(4 * i + 4))
            words[i] = permute(low, high, picks)
            low = high

    return load


def plane_taker(plane: Plane, count: int, place: int) -> Any:
    """The device function that puts a plane's bits of four runs, ``count`` words of each, from a bit on."""
    at, bits, crossed = plane
    rows, load = max(1, bits // 2), loader(count)
    each = RUNS // rows  # runs of a row
    mask = np.uint32(0x01010101 * ((1 << bits) - 1))

    @inlined
    def take(block: Any, half: Any, column: Any, out: Any) -> None:
        words = cuda.local.array(count, uint32)
        first = column if bits == 1 else half * uint32(COLUMNS * rows) + column
        for row in range(rows):
            load(block, uint32(first + uint32(at + COLUMNS * row)), words)
            for w in range(count):
                word = words[w]
                if bits == 1:
                    word = word >> (half * uint32(RUNS))
                for i in range(each):
                    run = row + rows * i if crossed else each * row + i
                    part = uint32(word >> uint32(bits * i)) & mask
                    out[run * count + w] |= part << uint32(place)

    return take


def six_bits(at: int) -> Any:
    """The device function for the scales and minima of q4_K and q5_K, one a run."""
    load = loader(3)

    @inlined
    def scales(block: Any, half: Any, column: Any) -> Any:
        w = cuda.local.array(3, uint32)
        load(block, uint32(at), w)
        if half == uint32(0):
            return w[0] & SIX, w[1] & SIX
        high, low = w[0] >> uint32(2) & (SIX ^ NIBBLES), w[1] >> uint32(2) & (SIX ^ NIBBLES)
        return w[2] & NIBBLES | high, w[2] >> uint32(4) & NIBBLES | low

    return scales


def sixteen_scales(at: int, flipped: int) -> Any:
    """The device function for the bytes of q2_K and q6_K, two a run; the higher nibbles are minima."""
    load, permute, flip = loader(2), bf16x2.permute, np.uint32(flipped)
    mask = np.uint32(0xFFFFFFFF) if flipped else NIBBLES

    @inlined
    def scales(block: Any, half: Any, column: Any) -> Any:
        w = cuda.local.array(2, uint32)
        load(block, uint32(half * uint32(8) + uint32(at)), w)
        bits = permute(w[0], w[1], uint32(0x6420) + (column >> uint32(4)) * uint32(0x1111)) ^ flip
        return bits & mask, bits >> uint32(4) & NIBBLES

    return scales


def three_parts(at: int) -> Any:
    """The device function for the scales of q3_K, two a run: a nibble and two bits."""
    load, permute = loader(3), bf16x2.permute

    @inlined
    def scales(block: Any, half: Any, column: Any) -> Any:
        w = cuda.local.array(3, uint32)
        load(block, uint32(at), w)
        bits = half * uint32(4)
        first = w[0] >> bits & NIBBLES | (w[2] >> bits & PAIRS) << uint32(4)
        second = w[1] >> bits & NIBBLES | (w[2] >> uint32(bits + uint32(2)) & PAIRS) << uint32(4)
        return permute(first, second, uint32(0x6420) + (column >> uint32(4)) * uint32(0x1111)), uint32(0)

    return scales


LAYOUTS = {
    "q2_K": Layout((Plane(q2_k.QS, 2),), sixteen_scales(q2_k.SCALES, 0), q2_k.D),
    "q3_K": Layout((Plane(q3_k.QS, 2), Plane(q3_k.HMASK, 1)), three_parts(q3_k.SCALES), q3_k.D),
    "q4_K": Layout((Plane(q4_k.QS, 4),), six_bits(q4_k.SCALES), q4_k.D),
    "q5_K": Layout((Plane(q5_k.QS, 4), Plane(q5_k.QH, 1)), six_bits(q5_k.SCALES), q5_k.D),
    "q6_K": Layout(
        (Plane(q6_k.QL, 4, True), Plane(q6_k.QH, 2)), sixteen_scales(q6_k.SCALES, 0x80808080), q6_k.D
    ),
}


# --- values -----------------------------------------------------------------------------------


def halves_taker(layout: Layout, has_offset: bool) -> Any:
    """The device function for d and dmin; without offsets a pair of d, which may end the block."""
    load, load1, half_values, d = loader(1), codes.load1, codes.half_values, layout.d

    @inlined
    def take(block: Any, at: Any) -> Any:
        if has_offset:
            words = cuda.local.array(1, uint32)
            load(block, uint32(d), words)
            return half_values(words[0])
        return half_values(load1(at + uint64(d)) | load1(at + uint64(d + 1)) << uint32(8))

    return take


def floater(zero: int) -> Any:
    """The device function for byte i of a word as a float, less the zero."""
    permute, float_of, sub, raised = bf16x2.permute, ptx.float_of, ptx.sub, np.float32(RAISED + zero)

    @inlined
    def float_of_byte(word: Any, i: Any) -> Any:
        return sub(float_of(permute(word, UNDER, uint32(0x7440 + i))), raised)

    return float_of_byte


def thread_values(kind: str) -> int:
    """Values of a thread."""
    return RUNS * 16 // KINDS[kind]


def threads_of_block(fmt: BlockFormat, kind: str) -> int:
    """Threads that decode a block together."""
    return fmt.block_size // thread_values(kind)


def part_decoder(fmt: BlockFormat, kind: str) -> Any:
    """The device function ``decode(blocks, b, part, out, to)``: a part of block b, to block ``to`` of out."""
    layout, has_offset = LAYOUTS[fmt.name], fmt.has_offset
    each = 16 // KINDS[kind]  # values of a store
    count = each // 4  # words of codes of a run
    in_all, threads_of_half = RUNS * count, COLUMNS // each  # words of a thread, threads of a half
    takers = tuple(
        plane_taker(plane, count, sum(before.bits for before in layout.planes[:i]))
        for i, plane in enumerate(layout.planes)
    )
    take_low, take_high, several = takers[0], takers[-1], len(takers) > 1
    take_halves, scales = halves_taker(layout, has_offset), layout.scales
    code_of, scale_of, low_of = floater(fmt.zero), floater(fmt.scales.zero), floater(0)
    size, length = fmt.block_size, fmt.dtype.itemsize
    store, mul, sub = storing(kind), ptx.mul, ptx.sub

    @inlined
    def decode(blocks: Any, b: Any, part: Any, out: Any, to: Any) -> None:
        half, column = part // uint32(threads_of_half), part % uint32(threads_of_half) * uint32(each)
        at = address(blocks, b, length, 0, 1)
        astray = uint32(at) & uint32(3)
        picks = uint32(0x3210) + astray * uint32(0x1111)
        block = (at - uint64(astray), (at + uint64(3)) & uint64(0xFFFFFFFFFFFFFFFC), picks)
        words = cuda.local.array(in_all, uint32)
        for i in range(in_all):
            words[i] = uint32(0)
        take_low(block, half, column, words)
        if several:
            take_high(block, half, column, words)
        all_scales, all_lows = scales(block, half, column)
        d, dmin = take_halves(block, at)
        place = address(out, to, size, half * uint32(size // 2) + column, 16 // each)
        v = cuda.local.array(each, float32)
        for run in range(RUNS):
            scale = mul(d, scale_of(all_scales, run))
            offset = mul(dmin, low_of(all_lows, run))
            for i in range(each):
                v[i] = mul(scale, code_of(words[run * count + i // 4], i % 4))
                if has_offset:
                    v[i] = sub(v[i], offset)
            store(place + uint64(run * COLUMNS * 16 // each), v, 0)

    return decode


def decoder(fmt: BlockFormat, kind: str, threads: int) -> Any:
    """The kernel's function for one format and kind of values; ``threads``: of a block of threads."""
    decode_part, parts, take_turn = (
        part_decoder(fmt, kind),
        threads_of_block(fmt, kind),
        dependent_launch.take_turn,
    )

    def decode(
        blocks: Any,  # uint8 [count, bytes of a block]
        out: Any,  # values of the kind [count, block size]
        blocks_in_all: Any,
    ) -> None:
        take_turn()
        index = uint32(cuda.blockIdx.x) * uint32(threads) + uint32(cuda.threadIdx.x)
        b = index // uint32(parts)
        if b < blocks_in_all:
            decode_part(blocks, b, index % uint32(parts), out, b)

    return decode
