"""Weights as strips of 16 rows, in the order in which tensor cores take them.

A strip is a row of records, one for 64 columns, each a piece of contiguous memory:

    codes    planes of bits, highest last; each holds what lane 4 g + t of a warp needs of rows g
             and g + 8, side by side, lane after lane
    scales   halves [g][row g, row g + 8][scales of the runs, offsets of the runs]

So a warp fetches a record with wide loads and every lane has its operands. The codes are those of
the format, 2 to 6 bits (8 for q8_0); where a format has few different codes, indices into a table.

A lane serves columns 16 s + 4 t … + 3 of each step s: register r of the step's operand holds row
g + 8 (r % 2), columns 4 t + 2 (r // 2) and one more. mma does not care which column is which as
long as both operands agree, and so four floats of the activations lie together.

In formats with an offset the middle of the codes is taken off them, and the offset is what remains: it
is small then, and loses little when it is rounded.

Scales (and offsets) are halves times a power of two that a row has: so products of scales, which
K types have, are rounded to 11 bits; they never overflow, and vanish only below 2**-38 of their row's
largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..array import QuantArray
from ..formats import BlockFormat
from ..formats._tables import FP4
from . import ptx
from .atoms import atoms, inlined
from .dequantize import BLOCK_FORMATS
from .device import cupy
from .language import cuda, float32, int64, uint8, uint32, uint64
from .launch import Kernel, array, family
from .planes import run_of
from .tables import Table

ROWS, STEP = 16, 64  # of a record
THREADS = 128
LONGEST = 1 << 23  # columns: a grid has 65535 rows of blocks
LARGEST = 14  # the exponent that the largest scale of a row is brought to


@dataclass(frozen=True)
class Layout:
    """What a kernel must know of a format's records."""

    planes: tuple[int, ...]  # bits of a code in each, lowest first
    lowest: int  # the code that is stored as 0
    levels: tuple[int, ...]  # or: codes are stored as indices of these
    fp4: bool  # or: as the bits of a float of four
    run: int  # columns that share a scale
    has_offset: bool
    middle: int  # taken off each code, and what that changes off the offset

    @property
    def low(self) -> int:
        """Bits of the first plane."""
        return self.planes[0]

    @property
    def high(self) -> int:
        """Bits of the second plane; 0 if there is none."""
        return sum(self.planes[1:])

    @property
    def bits(self) -> int:
        """Of a code; as many words of codes a lane and record."""
        return sum(self.planes)

    @property
    def runs(self) -> int:
        """Of a record."""
        return STEP // self.run

    @property
    def scales(self) -> int:
        """Scales and offsets of a row in a record."""
        return self.runs * (1 + self.has_offset)

    @property
    def high_at(self) -> int:
        """Where in a record the second plane begins."""
        return 128 * self.low

    @property
    def scales_at(self) -> int:
        """Where in a record the scales begin."""
        return 128 * self.bits

    @property
    def record(self) -> int:
        """Bytes of a record."""
        return self.scales_at + 2 * ROWS * self.scales


PLANES = {1: (2,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2)}


@cache
def layout(fmt: BlockFormat) -> Layout:
    """How a format is kept: its codes are looked at, in blocks of any bytes."""
    raw = np.random.default_rng(0).integers(0, 256, (4096, fmt.dtype.itemsize), np.uint8)
    with np.errstate(all="ignore"):
        codes = np.unique(fmt.unpack(raw.view(fmt.dtype)[:, 0]).codes)
    lowest, span = int(codes[0]), int(codes[-1]) - int(codes[0]) + 1
    bits = (span - 1).bit_length()
    table = bits > 4 and len(codes) <= 16
    levels = tuple(int(code) for code in codes) if table else ()
    planes = (4,) if table else PLANES.get(bits, (8,))
    fp4 = table and {*map(abs, levels)} == {*FP4[:8].tolist()}
    middle = (int(codes[-1]) + 1) // 2 if fmt.has_offset else 0
    lowest = 0 if planes == (8,) else lowest
    return Layout(planes, lowest, levels, fp4, run_of(fmt), fmt.has_offset, middle)


@cache
def stored(kept: Layout) -> NDArray[np.uint8]:
    """What is stored for a code, by its byte."""
    code = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int64)
    found: NDArray[np.uint8]
    if kept.fp4:
        found = (np.searchsorted(FP4[:8], np.abs(code)).clip(0, 7) + 8 * (code < 0)).astype(np.uint8)
        return found
    if kept.levels:
        found = np.searchsorted(kept.levels, code).astype(np.uint8)
        return found
    found = ((code - kept.lowest) & 255).astype(np.uint8)
    return found


@dataclass(frozen=True)
class Strips:
    """An operand; see the head of the file."""

    records: Any  # uint8 [strips, steps, bytes of a record]
    factors: Any  # float32 [16 * strips], of two each
    layout: Layout


# --- making them ------------------------------------------------------------------------------


@cache
def rest(fmt: BlockFormat) -> Any:
    """The device function for what remains of an offset."""
    _, scale, offset = atoms(fmt)
    mul, sub, middle = ptx.mul, ptx.sub, float(layout(fmt).middle)

    @inlined
    def remains(block: Any, g: Any) -> Any:
        return sub(offset(block, g), mul(scale(block, g), float32(middle)))

    return remains


@family((fmt,) for fmt in BLOCK_FORMATS)
def factor_kernel(fmt: BlockFormat) -> Kernel:
    """The power of two of each row: a block of threads looks for its largest scale or offset."""
    scale, offset = atoms(fmt).scale, rest(fmt)
    size, group, has_offset = fmt.block_size, fmt.group, fmt.has_offset
    groups = size // group
    bits_of, float_of, store_float = ptx.bits_of, ptx.float_of, ptx.store_float

    def find(blocks: Any, factors: Any) -> None:
        most = cuda.shared.array(THREADS, uint32)
        row, thread = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
        largest = uint32(0)
        for i in range(thread, uint32(blocks.shape[1] * groups), uint32(THREADS)):
            block, g = blocks[row, i // uint32(groups)], int64(i % uint32(groups))
            for part in range(1 + has_offset):
                value = offset(block, g) if part else scale(block, g)
                bits = bits_of(value) & uint32(0x7FFFFFFF)
                if bits < uint32(0x7F800000) and bits > largest:
                    largest = bits
        most[thread] = largest
        cuda.syncthreads()
        if thread == uint32(0):
            for i in range(THREADS):
                largest = max(largest, most[i])
            exponent = max(largest >> uint32(23), uint32(40)) - uint32(LARGEST)  # biased
            factor = float_of(exponent << uint32(23)) if largest else float32(1)
            store_float(factors + uint64(row) * uint64(4), factor)

    return Kernel(f"factors of {fmt.name}", find, array(uint8, 3), uint64, threads=THREADS)


@inlined
def place_fp4(u: Any, r: Any) -> Any:
    """Sign and magnitude of code r of a half word where ``fragments`` wants them."""
    sign, magnitude = u >> uint32(3), u & uint32(7)
    if r < 3:
        return (sign << uint32(15) | magnitude << uint32(6)) >> uint32(3 * r)
    return sign << uint32(14) | (magnitude & uint32(1)) << uint32(13) | magnitude >> uint32(1) << uint32(10)


@cache
def placer(kept: Layout) -> Any:
    """The device function that puts the stored code of step s, register r, half e into a lane's words."""
    low, high, table, fp4 = kept.low, kept.high, bool(kept.levels), kept.fp4

    @inlined
    def place(words: Any, s: Any, r: Any, e: Any, u: Any) -> None:
        if low == 8:
            words[2 * s + r // 2] |= u << uint32(r % 2 * 8 + 16 * e)
        elif fp4:
            words[s] |= place_fp4(u, r) << uint32(16 * e)
        elif table:
            words[s] |= u << uint32(4 * (2 * r + e))
        elif low == 4:
            words[s] |= (u & uint32(15)) << uint32(4 * r + 16 * e)
        else:
            words[s // 2] |= (u & uint32(3)) << uint32(2 * (s % 2 * 4 + r) + 16 * e)
        if high == 2:
            words[low + s // 2] |= (u >> uint32(low)) << uint32(2 * (s % 2 * 4 + r) + 16 * e)
        elif high == 1:
            words[low] |= (u >> uint32(low)) << uint32(4 * s + r + 16 * e)

    return place


@family((fmt,) for fmt in BLOCK_FORMATS)
def strip_kernel(fmt: BlockFormat) -> Kernel:
    """A thread makes a lane's share of one record: 32 codes, and some of the scales."""
    kept = layout(fmt)
    (code, scale, _), offset = atoms(fmt), rest(fmt)
    size, group, count, low, high = fmt.block_size, fmt.group, kept.bits, kept.low, kept.high
    high_at, scales_at, record = kept.high_at, kept.scales_at, kept.record
    runs, run, scales, place = kept.runs, kept.run, kept.scales, placer(kept)
    index_of, half_bits, load_float = Table(stored(kept)), ptx.half_bits, ptx.load_float
    mul, reciprocal = ptx.mul, ptx.reciprocal
    store4, store2 = ptx.store4, ptx.store2

    @inlined
    def pack_step(blocks: Any, words: Any, s: Any, strip: Any, step: Any, g: Any, t: Any) -> None:
        rows, columns = uint32(blocks.shape[0]), uint32(blocks.shape[1] * size)
        for r in range(4):
            row = strip * uint32(ROWS) + g + uint32(r % 2 * 8)
            for e in range(2):
                column = step * uint32(STEP) + uint32(16 * s + r // 2 * 2 + e) + t * uint32(4)
                u = uint32(0)
                if row < rows and column < columns:
                    c = code(blocks[row, column // uint32(size)], int64(column % uint32(size)))
                    u = uint32(index_of[int64(c) & int64(255)])
                place(words, s, r, e, u)

    def pack(blocks: Any, records: Any, factors: Any, steps: Any) -> None:
        index = uint32(cuda.blockIdx.y) * uint32(THREADS) + uint32(cuda.threadIdx.x)
        lane, step, strip = index & uint32(31), index >> uint32(5), uint32(cuda.blockIdx.x)
        if step >= steps:
            return
        g, t = lane >> uint32(2), lane & uint32(3)
        rows, columns = uint32(blocks.shape[0]), uint32(blocks.shape[1] * size)
        words = cuda.local.array(count, uint32)
        for i in range(count):
            words[i] = uint32(0)
        pack_step(blocks, words, 0, strip, step, g, t)  # a loop over steps would not be unrolled
        pack_step(blocks, words, 1, strip, step, g, t)
        pack_step(blocks, words, 2, strip, step, g, t)
        pack_step(blocks, words, 3, strip, step, g, t)
        to = records + (uint64(strip) * uint64(steps) + uint64(step)) * uint64(record)
        for i in range(low):
            at = i // 4 * 512 + i % 4 * 4 if low == 8 else 4 * i
            store4(to + uint64(at) + uint64(lane * uint32(min(16, 4 * low))), words[i])
        for i in range(high):
            store4(to + uint64(high_at + 4 * i) + uint64(lane * uint32(4 * high)), words[low + i])
        for i in range(t, uint32(2 * scales), uint32(4)):
            row = strip * uint32(ROWS) + g + i // uint32(scales) * uint32(8)
            which = i % uint32(scales)
            column = step * uint32(STEP) + which % uint32(runs) * uint32(run)
            bits = uint32(0)
            if row < rows and column < columns:
                block, of = blocks[row, column // uint32(size)], int64(column % uint32(size)) // group
                value = offset(block, of) if which >= uint32(runs) else scale(block, of)
                bits = half_bits(mul(value, reciprocal(load_float(factors + uint64(row) * uint64(4)))))
            store2(to + uint64(scales_at) + uint64((g * uint32(2 * scales) + i) * uint32(2)), bits)

    parameters = (array(uint8, 3), uint64, uint64, uint32)
    return Kernel(f"strips of {fmt.name}", pack, *parameters, threads=THREADS)


def strips(q: QuantArray) -> Strips:
    """The strips of an array [N, K] on its device; made once and kept with it."""
    found: Strips = q.prepared(made)
    return found


def made(q: QuantArray) -> Strips:
    """The strips of an array [N, K], made now."""
    cp, fmt, (n, k) = cupy(), q.format, q.shape
    assert isinstance(fmt, BlockFormat)
    kept = layout(fmt)
    count, steps = 8 * -(-n // (8 * ROWS)), 2 * -(-k // (2 * STEP))  # what kernels take at a time
    records = cp.empty((count, steps, kept.record), np.uint8)
    factors = cp.ones(count * ROWS, np.float32)
    blocks = q.raw.reshape(n, k // fmt.block_size, fmt.dtype.itemsize)
    factor_kernel(fmt)((n,), (THREADS,), blocks, factors)
    strip_kernel(fmt)((count, -(-32 * steps // THREADS)), (THREADS,), blocks, records, factors, steps)
    return Strips(records, factors, kept)
