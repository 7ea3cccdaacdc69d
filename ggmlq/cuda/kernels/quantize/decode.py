"""``dequantize`` on the GPU: one kernel for all formats, through their atoms, except K types (decode.py).

A thread decodes the neighbours that fill one store of 16 bytes, so it needs one scale and one
offset. Product and difference are rounded one after the other, as in ggml: never fused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ....arrays.array import QuantArray
from ....errors import UnsupportedError
from ....formats import BLOCK_FORMATS, BlockFormat, q2_k, q3_k, q4_k, q5_k, q6_k
from ....formats.scalars import ScalarFormat
from ...driver.device import cupy
from ...driver.launch import Kernel, array, family
from ...intrinsics import codes8, hopper, ptx
from ...intrinsics.atoms import atoms, inlined
from ...intrinsics.floats import DTYPES, KINDS, LEAST, storing
from ...intrinsics.lane import address
from ...intrinsics.language import cuda, float32, int64, uint8, uint32, uint64
from ...layouts.floats import converted
from ._block import IDS, KIND_OF, SCALARS, STEP, THREADS, bits_in, loading, words_of

# ``dequantize`` of q2_K … q6_K on the GPU: codes are handled by words, four in one instruction.
#
# A block has two halves of 128 weights, a half four runs of 32. Codes lie in planes of 1, 2 or 4 bits: rows
# of 32 bytes, of which byte j serves column j of two, four or eight runs. A thread takes neighbouring columns
# of all four runs of a half, so each word that it loads has codes of all of them, and what it stores lies
# beside what its neighbours store. Bytes of codes become floats without a conversion: a byte under the
# exponent of 2**23 is a float, of which 2**23 and the format's zero are taken off again, exactly.
#
# Blocks of 84, 110 and 210 bytes begin anywhere, and so may those of a slice: a word is made of the two
# aligned ones around it, and none is read that has no byte of the block.

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
    load4, permute = ptx.load4, ptx.permute

    @inlined
    def load(block: Any, at: Any, words: Any) -> None:
        first, last, picks = block
        first, last = first + at, last + at
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
        first = column if bits == 1 else half * (COLUMNS * rows) + column
        for row in range(rows):
            load(block, uint32(first + uint32(at + COLUMNS * row)), words)
            for w in range(count):
                word = words[w]
                if bits == 1:
                    word = word >> (half * RUNS)
                for i in range(each):
                    run = row + rows * i if crossed else each * row + i
                    part = uint32(word >> uint32(bits * i)) & mask
                    out[run * count + w] |= part << place

    return take


def six_bits(at: int) -> Any:
    """The device function for the scales and minima of q4_K and q5_K, one a run."""
    load = loader(3)

    @inlined
    def scales(block: Any, half: Any, column: Any) -> Any:
        w = cuda.local.array(3, uint32)
        load(block, uint32(at), w)
        if half == 0:
            return w[0] & SIX, w[1] & SIX
        high, low = w[0] >> 2 & (SIX ^ NIBBLES), w[1] >> 2 & (SIX ^ NIBBLES)
        return w[2] & NIBBLES | high, w[2] >> 4 & NIBBLES | low

    return scales


def sixteen_scales(at: int, flipped: int) -> Any:
    """The device function for the bytes of q2_K and q6_K, two a run; the higher nibbles are minima."""
    load, permute, flip = loader(2), ptx.permute, np.uint32(flipped)
    mask = np.uint32(0xFFFFFFFF) if flipped else NIBBLES

    @inlined
    def scales(block: Any, half: Any, column: Any) -> Any:
        w = cuda.local.array(2, uint32)
        load(block, uint32(half * 8 + at), w)
        bits = permute(w[0], w[1], 0x6420 + (column >> 4) * 0x1111) ^ flip
        return bits & mask, bits >> 4 & NIBBLES

    return scales


def three_parts(at: int) -> Any:
    """The device function for the scales of q3_K, two a run: a nibble and two bits."""
    load, permute = loader(3), ptx.permute

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
    load, load1, half_values, d = loader(1), ptx.load1, codes8.half_values, layout.d

    @inlined
    def take(block: Any, at: Any) -> Any:
        if has_offset:
            words = cuda.local.array(1, uint32)
            load(block, uint32(d), words)
            return half_values(words[0])
        return half_values(load1(at + d) | load1(at + (d + 1)) << 8)

    return take


def floater(zero: int) -> Any:
    """The device function for byte i of a word as a float, less the zero."""
    permute, float_of, sub, raised = ptx.permute, ptx.float_of, ptx.sub, np.float32(RAISED + zero)

    @inlined
    def float_of_byte(word: Any, i: Any) -> Any:
        return sub(float_of(permute(word, UNDER, uint32(0x7440 + i))), raised)

    return float_of_byte


def thread_values(fmt: BlockFormat, kind: str) -> int:
    """Values of a thread: of each run of a K type, of two stores otherwise."""
    return (RUNS if fmt.name in LAYOUTS else 2) * 16 // KINDS[kind]


def threads_of_block(fmt: BlockFormat, kind: str) -> int:
    """Threads that decode a block together."""
    return fmt.block_size // thread_values(fmt, kind)


def k_part_decoder(fmt: BlockFormat, kind: str) -> Any:
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
        half, column = part // threads_of_half, part % threads_of_half * each
        at = address(blocks, b, length, 0, 1)
        astray = uint32(at) & 3
        picks = 0x3210 + astray * 0x1111
        block = (at - astray, (at + 3) & 0xFFFFFFFFFFFFFFFC, picks)
        words = cuda.local.array(in_all, uint32)
        for i in range(in_all):
            words[i] = uint32(0)
        take_low(block, half, column, words)
        if several:
            take_high(block, half, column, words)
        all_scales, all_lows = scales(block, half, column)
        d, dmin = take_halves(block, at)
        place = address(out, to, size, half * (size // 2) + column, 16 // each)
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


DECODE_THREADS = 256
BLOCKS = array(uint8, 2)  # [blocks, bytes of a block]


def values(fmt: BlockFormat) -> Any:
    """The device function ``value(block, i, scale, offset)`` of a format, rounded as in ggml."""
    code, has_offset = atoms(fmt).code, fmt.has_offset
    mul, sub = ptx.mul, ptx.sub

    @inlined
    def value(block: Any, i: Any, scale: Any, offset: Any) -> Any:
        product = mul(scale, float32(code(block, i)))
        if has_offset:
            product = sub(product, offset)
        return product

    return value


class _WatchedBlock:
    """A block of zeros that records the bytes that are read."""

    def __init__(self) -> None:
        self.read: set[int] = set()

    def __getitem__(self, at: int) -> np.uint8:
        self.read.add(at)
        return np.uint8(0)


def partner(fmt: BlockFormat) -> int:
    """The distance from element 0 to the next one whose code lies in the same bytes.

    The low nibble's partner is 16 further in q4_0 and 32 further in q4_K: the atoms tell. A format without
    one gets half a block, so that the stores of a warp lie side by side.
    """
    first = _WatchedBlock()
    fmt.code(first, 0)  # type: ignore[arg-type]
    for distance in (16, 32, 64, 128):
        other = _WatchedBlock()
        if 2 * distance <= fmt.block_size:
            fmt.code(other, distance)  # type: ignore[arg-type]
        if first.read & other.read:
            return distance
    return fmt.block_size // 2


def part_decoder(fmt: BlockFormat, kind: str) -> Any:
    """The device function ``decode(blocks, b, part, out, to)``: a thread's part of block b, to block ``to``.

    ``blocks``: an address for K types, otherwise an array [blocks, bytes of one].
    """
    if fmt.name in LAYOUTS:
        return k_part_decoder(fmt, kind)
    value, (_, scale, offset) = values(fmt), atoms(fmt)
    store_length = 16 // KINDS[kind]  # values of a store
    apart = partner(fmt)
    size, group, count = fmt.block_size, fmt.group, 2 * store_length
    store = storing(kind)

    @inlined
    def by_atoms(blocks: Any, b: Any, part: Any, out: Any, to: Any) -> None:
        block = blocks[b]
        pairs, within = part // (apart // store_length), part % (apart // store_length)
        start = pairs * (2 * apart) + within * store_length
        v = cuda.local.array(count, float32)
        for side in range(2):  # loops, so that a code book is in the code once
            i = int64(start) + side * apart
            s, o = scale(block, i // group), offset(block, i // group)
            for j in range(store_length):
                v[side * store_length + j] = value(block, i + j, s, o)
        at = address(out, to, size, start, 16 // store_length)
        store(at, v, 0)
        store(at + apart * 16 // store_length, v, store_length)

    return by_atoms


@family((fmt, kind) for fmt in BLOCK_FORMATS for kind in KINDS)
def decoder(fmt: BlockFormat, kind: str) -> Kernel:
    """The kernel for one format and one kind of values."""
    decode_part, parts = part_decoder(fmt, kind), threads_of_block(fmt, kind)

    def by_words(
        blocks: Any,  # address of the blocks
        out: Any,  # values of the kind [count, block size]
        count: Any,
    ) -> None:
        hopper.take_turn()
        index = uint32(cuda.blockIdx.x) * DECODE_THREADS + uint32(cuda.threadIdx.x)
        b = index // uint32(parts)
        if b < count:
            decode_part(blocks, b, index % uint32(parts), out, b)

    def by_atoms(
        blocks: Any,  # uint8 [blocks, bytes of one]
        out: Any,  # values of the kind [blocks, block size]
    ) -> None:
        hopper.take_turn()
        index = uint32(cuda.blockIdx.x) * DECODE_THREADS + uint32(cuda.threadIdx.x)
        b = index // parts
        if b < uint32(blocks.shape[0]):
            decode_part(blocks, b, index % parts, out, b)

    decode: Any = by_words if fmt.name in LAYOUTS else by_atoms
    parameters = (uint64, uint64, uint32) if fmt.name in LAYOUTS else (BLOCKS, uint64)
    name = f"dequantize {fmt.name} to {kind}"
    return Kernel(name, decode, *parameters, threads=DECODE_THREADS, least=LEAST[kind], early=True)


def dequantize(q: QuantArray, dtype: np.dtype[Any]) -> Any:
    """The values of an array on the current device."""
    if dtype.name == "bfloat16" and (isinstance(q.format, BlockFormat) or q.format.name == "bf16"):
        bits = decoded(q, "bfloat16")
        return (bits.copy() if q.format.name == "bf16" else bits).view(dtype).reshape(q.shape)
    if isinstance(q.format, ScalarFormat):
        stored = q.raw.reshape(-1).view(q.format.dtype).reshape(q.shape)
        if q.format.bfloat:
            stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return converted(stored, dtype)
    return converted(decoded(q, "float16" if dtype == np.float16 else "float32"), dtype)


def decoded(q: QuantArray, kind: str) -> Any:
    """The values of an array in a kind of floats; those of kind bfloat16 as uint16, their bits."""
    fmt = q.format
    if isinstance(fmt, ScalarFormat) and fmt.bfloat and kind == "bfloat16":
        return q.raw.view(DTYPES[kind])
    assert isinstance(fmt, BlockFormat)
    out = cupy().empty(q.shape, DTYPES[kind])
    decode(fmt, kind, q.raw.reshape(-1, fmt.dtype.itemsize), out)
    return out


def decode(fmt: BlockFormat, kind: str, blocks: Any, out: Any) -> None:
    """Decode blocks [count, bytes of one] into ``out``, values of a kind."""
    grid = -(-out.size // (thread_values(fmt, kind) * DECODE_THREADS))
    more = (len(blocks),) if fmt.name in LAYOUTS else ()
    decoder(fmt, kind)((grid,), (DECODE_THREADS,), blocks, out, *more)


# Rows taken from arrays on a GPU: blocks decoded as decode.py does, by ids; one kernel, of any format.


@family((fmt, kind) for fmt in BLOCK_FORMATS for kind in KINDS)
def block_taker(fmt: BlockFormat, kind: str) -> Kernel:
    """The kernel that decodes rows of blocks; rows of ids that no row has are NaN."""
    decode_part, parts, size = part_decoder(fmt, kind), threads_of_block(fmt, kind), fmt.block_size
    each, take_turn, store = 16 // KINDS[kind], hopper.take_turn, storing(kind)

    def kernel(
        blocks: Any,  # uint8 [blocks, bytes of one], or its address
        ids: Any,  # int64 [rows of the result]
        out: Any,  # floats [rows of the result · K]
        per_row: Any,  # blocks
        rows: Any,  # of q
    ) -> None:
        take_turn()
        index = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        b, part = index // parts, index % parts
        row = b // per_row
        if row < uint32(ids.shape[0]):
            at = ids[row]
            if at >= int64(0) and at < int64(rows):
                decode_part(blocks, uint32(at) * per_row + (b - row * per_row), part, out, b)
            else:
                v = cuda.local.array(each, float32)
                for i in range(each):
                    v[i] = float32(float("nan"))
                for i in range(size // (parts * each)):
                    store(
                        address(out, b, size, part * (size // parts) + uint32(i * each), 16 // each),
                        v,
                        0,
                    )

    blocks_kind = uint64 if fmt.name in LAYOUTS else BLOCKS
    facts: dict[str, Any] = {"threads": THREADS, "least": LEAST[kind], "early": True}
    return Kernel(f"take {fmt.name} as {kind}", kernel, blocks_kind, IDS, uint64, uint32, uint32, **facts)


@family((name, kind) for name in SCALARS for kind in KINDS)
def scalar_taker(name: str, kind: str) -> Kernel:
    """The kernel that converts rows of numbers without blocks to floats of a kind."""
    load, bits = loading(KIND_OF[name]), bits_in(kind)

    def kernel(
        raw: Any,  # bits of numbers [rows of q · K]
        ids: Any,  # int64 [rows of the result]
        out: Any,  # bits of floats [rows of the result · K]
        columns: Any,
        rows: Any,  # of q
    ) -> None:
        row = int64(cuda.blockIdx.x)
        at = ids[row]
        for step in range(STEP):
            column = int64(cuda.blockIdx.y) * int64(STEP * THREADS) + int64(step * THREADS)
            column += int64(cuda.threadIdx.x)
            if column < int64(columns):
                word = bits(float32(float("nan")))
                if at >= int64(0) and at < int64(rows):
                    word = bits(load(raw, at * int64(columns) + column))
                out[row * int64(columns) + column] = word

    parameters = (words_of(KIND_OF[name]), IDS, words_of(kind), uint64, uint64)
    return Kernel(f"take {name} as {kind}", kernel, *parameters, threads=THREADS, least=LEAST[kind])


def take(q: QuantArray, ids: Any, dtype: np.dtype[Any]) -> Any:
    """Rows ``ids`` of q as floats, on the current device."""
    kind = dtype.name if dtype.name in KINDS else "float32"
    out, fmt = cupy().empty((*ids.shape, *q.shape[1:]), DTYPES[kind]), q.format
    if out.size:
        columns, raw, ids, flat = out.size // ids.size, q.raw.reshape(-1), ids.reshape(-1), out.reshape(-1)
        if isinstance(fmt, BlockFormat):
            per_row, blocks = columns // fmt.block_size, raw.reshape(-1, fmt.dtype.itemsize)
            grid: tuple[int, ...] = (-(-len(ids) * per_row * threads_of_block(fmt, kind) // THREADS),)
            block_taker(fmt, kind)(grid, (THREADS,), blocks, ids, flat, per_row, len(q))
        elif fmt.name in SCALARS:
            grid = (len(ids), -(-columns // (STEP * THREADS)))
            stored = raw.view(np.uint32 if fmt.name == "f32" else np.uint16)
            words = flat.view(np.uint32 if kind == "float32" else np.uint16)
            scalar_taker(fmt.name, kind)(grid, (THREADS,), stored, ids, words, columns, len(q))
        else:
            raise UnsupportedError(
                f"take(q, ids) of {q!r}: on a GPU rows are taken from blocks, f32, f16 and bf16; use q[ids]"
            )
    return converted(out, dtype) if kind == "float32" else out.view(dtype)
