"""Packing: the blocks of 16 rows become a row of fragments, in the order in which tensor cores take them.

A fragment holds 16 rows × 64 columns in one piece of contiguous memory:

    codes    planes of bits, the highest last; each holds the codes that lane 4 g + t of a warp has of rows
             g and g + 8, side by side, lane after lane
    halves   [g][d, then m (dmin)][blocks][row g, row g + 8], as they are in the file
    bytes    [g][row g, row g + 8][sub-scales of the runs, then those of the offsets]

So a warp fetches a fragment with wide loads, and every lane finds its operands. Where the halves and bytes
of a g take 4, 8 or 16 bytes they lie together, and one load takes both. Codes are those of the format, 2 to
6 bits (8 for q8_0); a format with few different codes stores indices into a table. Halves of a block of
more than 64 weights are repeated in each of its fragments. A format's ``scales`` say which bytes there are
and what they mean: so scales are exact in float32, and the blocks can be restored (to_blocks.py).

A lane serves columns 16 s + 4 t … + 3 of each step s. Register r of the step's operand holds row
g + 8 (r % 2), columns 4 t + 2 (r // 2) and the next. mma does not care which column is which as long as both
operands agree; this order lets four floats of the activations lie together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...formats import BLOCK_FORMATS, BlockFormat
from ..driver.device import cupy
from ..driver.launch import RECORDING, Kernel, array, family
from ..driver.recorded import part
from ..intrinsics import ptx
from ..intrinsics.atoms import Table, atoms, inlined, verb
from ..intrinsics.lane import address, g_and_t
from ..intrinsics.language import cuda, int64, uint8, uint32, uint64
from .layout import ROWS, STEP, PackedLayout, half_addresses, layout_of, stored_codes

THREADS = 128
LONGEST = 1 << 23  # columns of a row: a grid has 65535 rows of blocks


@dataclass(frozen=True)
class PackedWeights:
    """The packed weights of an array, those of all its experts one after the other."""

    fragments: Any  # uint8 [fragment rows, steps, bytes of a fragment]
    layout: PackedLayout


# --- the kernel --------------------------------------------------------------------------------


@inlined
def place_fp4(u: Any, r: Any) -> Any:
    """Sign and magnitude of code r of a half word, where codes.py expects them."""
    sign, magnitude = u >> 3, u & 7
    if r < 3:
        return (sign << 15 | magnitude << 6) >> uint32(3 * r)
    return sign << 14 | (magnitude & 1) << 13 | magnitude >> 1 << 10


@cache
def code_placer(layout: PackedLayout) -> Any:
    """The device function that puts the stored code of step s, register r, place e into a lane's words."""
    low, high, table, fp4 = layout.low, layout.high, bool(layout.levels), layout.fp4

    @inlined
    def place(words: Any, s: Any, r: Any, e: Any, u: Any) -> None:
        if low == 8:
            words[2 * s + r // 2] |= u << uint32(r % 2 * 8 + 16 * e)
        elif fp4:
            words[s] |= place_fp4(u, r) << uint32(16 * e)
        elif table:
            words[s] |= u << uint32(4 * (2 * r + e))
        elif low == 4:
            words[s] |= (u & 15) << uint32(4 * r + 16 * e)
        else:
            words[s // 2] |= (u & 3) << uint32(2 * (s % 2 * 4 + r) + 16 * e)
        if high == 2:
            words[low + s // 2] |= (u >> low) << uint32(2 * (s % 2 * 4 + r) + 16 * e)
        elif high == 1:
            words[low] |= (u >> low) << uint32(4 * s + r + 16 * e)

    return place


@cache
def stored_index(fmt: BlockFormat) -> Any:
    """The device function for the stored form of element i of a block."""
    if fmt.index is not None:
        return verb(fmt.index)
    code, table = atoms(fmt).code, Table(stored_codes(layout_of(fmt)))

    @inlined
    def index(block: Any, i: Any) -> Any:
        return table[int64(code(block, i)) & int64(255)]

    return index


@cache
def half_reader(fmt: BlockFormat) -> Any:
    """The device function for the bits of half h of a block."""
    if fmt.scales.d is not None:
        d = verb(fmt.scales.d)

        @inlined
        def computed(block: Any, h: Any) -> Any:
            return uint32(d(block))

        return computed
    first, *more = half_addresses(fmt) or [0]
    apart = more[0] - first if more else 0

    @inlined
    def half(block: Any, h: Any) -> Any:
        at = int64(first) + int64(h) * int64(apart)
        return uint32(block[at]) | uint32(block[at + 1]) << 8

    return half


@cache
def sub_reader(fmt: BlockFormat) -> Any:
    """The device function for a byte of run g of a block: of its scale (``which`` 0) or of its offset (1)."""
    sub = verb(fmt.scales.sub or _nothing)
    low = verb(fmt.scales.low or _nothing)

    @inlined
    def byte(block: Any, g: Any, which: Any) -> Any:
        return uint32(low(block, g) if which else sub(block, g))

    return byte


def _nothing(block: Any, g: int) -> int:
    return np.int64(0)  # type: ignore[return-value]


@family((fmt,) for fmt in BLOCK_FORMATS)
def pack_kernel(fmt: BlockFormat) -> Kernel:
    """The kernel that packs blocks: a thread makes a lane's share of one fragment, 32 codes and some of the
    scales.
    """
    layout = layout_of(fmt)
    size, count, low, high = fmt.block_size, layout.bits, layout.low, layout.high
    high_at, fragment_bytes, place = layout.high_at, layout.fragment_bytes, code_placer(layout)
    element = stored_index(fmt)
    put_scales, store4 = scale_writer(fmt), ptx.store4

    @inlined
    def pack_step(blocks: Any, words: Any, s: Any, fragment_row: Any, step: Any, g: Any, t: Any) -> None:
        rows, columns = uint32(blocks.shape[0]), uint32(blocks.shape[1] * size)
        for r in range(4):
            row = fragment_row * ROWS + g + uint32(r % 2 * 8)
            for e in range(2):
                column = step * STEP + uint32(16 * s + r // 2 * 2 + e) + t * 4
                u = uint32(0)
                if row < rows and column < columns:
                    u = uint32(element(blocks[row, column // size], int64(column % size)))
                place(words, s, r, e, u)

    def pack(
        blocks: Any,  # uint8 [rows, blocks of a row, bytes of a block]
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        steps: Any,
    ) -> None:
        index = uint32(cuda.blockIdx.y) * THREADS + uint32(cuda.threadIdx.x)
        lane, step, fragment_row = index & 31, index >> 5, uint32(cuda.blockIdx.x)
        if step >= steps:
            return
        g, t = g_and_t(lane)
        words = cuda.local.array(count, uint32)
        for i in range(count):
            words[i] = uint32(0)
        pack_step(blocks, words, 0, fragment_row, step, g, t)  # a loop over steps would not be unrolled
        pack_step(blocks, words, 1, fragment_row, step, g, t)
        pack_step(blocks, words, 2, fragment_row, step, g, t)
        pack_step(blocks, words, 3, fragment_row, step, g, t)
        to = address(fragments, fragment_row, steps, step, fragment_bytes)
        for i in range(low):
            at = i // 4 * 512 + i % 4 * 4 if low == 8 else 4 * i
            store4(to + uint64(at) + uint64(lane * uint32(min(16, 4 * low))), words[i])
        for i in range(high):
            store4(to + uint64(high_at + 4 * i) + uint64(lane * (4 * high)), words[low + i])
        put_scales(blocks, to, fragment_row, step, g, t)

    parameters = (array(uint8, 3), uint64, uint32)
    return Kernel(f"packed weights of {fmt.name}", pack, *parameters, threads=THREADS)


def scale_writer(fmt: BlockFormat) -> Any:
    """The device function that writes halves and bytes of rows g and g + 8, each fourth word by lane t."""
    layout, half, byte = layout_of(fmt), half_reader(fmt), sub_reader(fmt)
    size, group, run, runs = fmt.block_size, fmt.group, layout.run, layout.runs
    count, row_bytes, words = layout.blocks, max(1, layout.subs * runs), layout.half_words + layout.sub_words
    half_words, halves_at, half_stride = layout.half_words, layout.halves_at, layout.half_stride
    subs_at, sub_stride, store4 = layout.subs_at, layout.sub_stride, ptx.store4

    @inlined
    def half_word(blocks: Any, i: Any, first: Any, step: Any) -> Any:
        column = step * STEP + i % count * size
        word = uint32(0)
        for side in range(2):
            row = first + uint32(8 * side)
            if row < uint32(blocks.shape[0]) and column < uint32(blocks.shape[1] * size):
                bits = half(blocks[row, column // size], i // count)
                word |= bits << uint32(16 * side)
        return word

    @inlined
    def sub_word(blocks: Any, i: Any, first: Any, step: Any) -> Any:
        word = uint32(0)
        for b in range(4):
            at = i * 4 + uint32(b)
            row, byte_of_row = first + at // row_bytes * 8, at % row_bytes
            column = step * STEP + byte_of_row % runs * run
            if row < uint32(blocks.shape[0]) and column < uint32(blocks.shape[1] * size):
                block, g = blocks[row, column // size], int64(column % size) // group
                word |= byte(block, g, byte_of_row // runs) << uint32(8 * b)
        return word

    @inlined
    def put(blocks: Any, to: Any, fragment_row: Any, step: Any, g: Any, t: Any) -> None:
        first = fragment_row * ROWS + g
        for i in range(t, uint32(words), uint32(4)):
            if i < half_words:
                place, word = halves_at + g * half_stride, half_word(blocks, i, first, step)
                store4(to + uint64(place + i * 4), word)
            else:
                j = i - half_words
                place, word = subs_at + g * sub_stride, sub_word(blocks, j, first, step)
                store4(to + uint64(place + j * 4), word)

    return put


def packed_weights(q: QuantArray) -> PackedWeights:
    """The packed weights of an array [N, K] or [E, N, K] on its device, packed once and kept with it."""
    weights: PackedWeights = q.prepared(pack_weights)
    return weights if RECORDING.launches is None else replace(weights, fragments=part(q, fragments_of))


def fragments_of(q: QuantArray) -> Any:
    """The fragments of an array's packed weights."""
    return q.prepared(pack_weights).fragments


def pack_weights(q: QuantArray) -> PackedWeights:
    """The packed weights of an array, packed now."""
    fmt, (*experts, n, k) = q.format, q.shape
    assert isinstance(fmt, BlockFormat)
    layout, e = layout_of(fmt), math.prod(experts)
    count, steps = 8 * -(-n // (8 * ROWS)), 2 * -(-k // (2 * STEP))  # in multiples that kernels take
    fragments = cupy().empty((e * count, steps, layout.fragment_bytes), np.uint8)
    blocks = q.raw.reshape(e, n, k // fmt.block_size, fmt.dtype.itemsize)
    grid = (count, -(-32 * steps // THREADS))
    for i in range(e):
        pack_kernel(fmt)(grid, (THREADS,), blocks[i], fragments[i * count : (i + 1) * count], steps)
    return PackedWeights(fragments, layout)
