"""The file's bytes, restored from packed weights.

Each bit of a block is one bit of a code, of a half or of a byte that packed weights keep. Which one is
found out with blocks that have a single bit set, so no format has to say how its blocks are packed. Formats
with bits that are kept nowhere cannot be restored: the grids of the i-quants, the packed digits of tq1_0,
the sums of q8_K.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays.array import QuantArray
from ...errors import UnsupportedError
from ...formats import BLOCK_FORMATS, BlockFormat, Format
from ..driver import device
from ..driver.launch import Kernel, family
from ..intrinsics import ptx
from ..intrinsics.atoms import Table, inlined
from ..intrinsics.floats import LEAST
from ..intrinsics.lane import address
from ..intrinsics.language import cuda, int64, uint32, uint64
from .layout import ROWS, STEP, PackedLayout, half_addresses, layout_of, stored_codes
from .pack import LONGEST, pack_weights, packed_weights

THREADS = 256
TRIED = 64  # random blocks that must be restored exactly


def elements(fmt: BlockFormat, raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The elements that packed weights hold of blocks [n, bytes of a block]: [n, codes, then halves, then
    sub-scales].

    The verbs of a format work on many blocks as they do on one: ``block[at]`` is a byte of each.
    """
    layout, tile, how = layout_of(fmt), raw.T, fmt.scales
    groups = range(fmt.block_size // fmt.group)
    if fmt.index is not None:
        parts: list[Any] = [fmt.index(tile, i) for i in range(fmt.block_size)]
    else:
        with np.errstate(all="ignore"):
            codes = fmt.unpack(np.ascontiguousarray(raw).view(fmt.dtype)[:, 0]).codes
        parts = list(stored_codes(layout)[codes.view(np.uint8)].T)
    if how.d is not None:
        parts.append(how.d(tile))
    for at in half_addresses(fmt):
        parts.append(tile[at] | tile[at + 1].astype(np.int64) << 8)
    for byte in (how.sub, how.low):
        if byte is not None:
            parts += [byte(tile, g) for g in groups]
    return np.array(parts, np.int64).T


@cache
def sources(fmt: BlockFormat) -> NDArray[np.int32] | None:
    """The source of each bit of a block, as ``element << 5 | inverted << 4 | bit``; None if some bits are
    not kept.
    """
    size = fmt.dtype.itemsize
    ones = np.packbits(np.eye(8 * size, dtype=np.uint8), axis=1, bitorder="little")
    none = elements(fmt, np.zeros((1, size), np.uint8))[0]
    changed = elements(fmt, ones) ^ none
    where = changed.argmax(axis=1)
    bit = changed[np.arange(8 * size), where]
    if (np.count_nonzero(changed, axis=1) != 1).any() or (bit & bit - 1).any():
        return None
    k = np.log2(bit).astype(np.int64)
    places = (where << 5 | (none[where] >> k & 1) << 4 | k).astype(np.int32)
    blocks = np.random.default_rng(0).integers(0, 256, (TRIED, size), np.uint8)
    return places if np.array_equal(put_together(places, elements(fmt, blocks)), blocks) else None


def put_together(places: NDArray[np.int32], parts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Blocks restored on the host from their elements, as the kernel restores them."""
    bits = parts[:, places >> 5] >> (places & 15) ^ places >> 4
    return np.packbits((bits & 1).astype(np.uint8), axis=1, bitorder="little")


@cache
def code_finder(layout: PackedLayout) -> Any:
    """The device function that finds a code in a fragment: of lane 4 g + t, step s, register r, place e."""
    low, high, high_at, fp4, table = layout.low, layout.high, layout.high_at, layout.fp4, bool(layout.levels)
    load, wide, mask = ptx.load4, min(16, 4 * layout.low), (1 << layout.low) - 1

    @inlined
    def code(fragment_bytes: Any, lane: Any, s: Any, r: Any, e: Any) -> Any:
        at, i = fragment_bytes + uint64(lane * wide), 4 * (s % 2) + r
        if low == 8:
            word = 2 * s + r // 2
            w = load(at + uint64(word // 4 * 512 + word % 4 * 4))
            u = w >> (r % 2 * 8 + 16 * e)
        elif fp4:
            w = load(at + uint64(4 * s)) >> (16 * e)
            u = w << (3 * min(r, uint32(2)))
            u = u >> 12 & 8 | u >> 6 & 7
            last = w >> 11 & 8 | w >> 9 & 6 | w >> 13 & 1
            u = last if r == 3 else u
        elif table:
            u = load(at + uint64(4 * s)) >> (8 * r + 4 * e)
        elif low == 4:
            u = load(at + uint64(4 * s)) >> (4 * r + 16 * e)
        else:
            u = load(at + uint64(s // 2 * 4)) >> (2 * i + 16 * e)
        u &= mask
        if high == 2:
            w = load(fragment_bytes + uint64(high_at + lane * 8 + s // 2 * 4))
            u |= (w >> (2 * i + 16 * e) & 3) << low
        elif high == 1:
            w = load(fragment_bytes + uint64(high_at + lane * 4))
            u |= (w >> (4 * s + r + 16 * e) & 1) << low
        return u

    return code


@cache
def element_finder(fmt: BlockFormat) -> Any:
    """The device function that finds an element of block b of a row in its fragment row."""
    layout = layout_of(fmt)
    code, load, fragment_bytes = code_finder(layout), ptx.load4, layout.fragment_bytes
    size, group, run, runs = fmt.block_size, fmt.group, layout.run, layout.runs
    halves, blocks, subs, groups = layout.halves, layout.blocks, layout.subs, fmt.block_size // fmt.group
    halves_at, half_stride, subs_at, sub_stride = (
        layout.halves_at, layout.half_stride, layout.subs_at, layout.sub_stride
    )  # fmt: skip

    @inlined
    def element(fragment_row: Any, row: Any, b: Any, i: Any) -> Any:
        g, side, column = row & 7, row >> 3 & 1, b * size
        if i < size:
            column += i
        elif i >= size + halves:
            column += (i - (size + halves)) % groups * group
        at, within = (
            fragment_row + uint64(column // STEP) * fragment_bytes,
            column % STEP,
        )
        if i < size:
            lane, r = g * 4 + within // 4 % 4, within // 2 % 2
            value = code(at, lane, within // 16, r * 2 + side, within % 2)
        elif i < size + halves:
            word = (i - size) * blocks + within // size
            word = load(at + uint64(halves_at + g * half_stride + word * 4))
            value = word >> (16 * side) & 0xFFFF
        else:
            byte = (side * subs + (i - (size + halves)) // groups) * runs
            byte += within // run
            place = subs_at + g * sub_stride + (byte & 0xFFFFFFFC)
            value = load(at + place) >> (byte % 4 * 8) & 255
        return value

    return element


@family((fmt,) for fmt in BLOCK_FORMATS if sources(fmt) is not None)
def restore_kernel(fmt: BlockFormat) -> Kernel:
    """The kernel that restores blocks: a thread makes one byte of a row."""
    places = sources(fmt)
    assert places is not None
    source, element, store1 = Table(places), element_finder(fmt), ptx.store1
    length, fragment_bytes = fmt.dtype.itemsize, layout_of(fmt).fragment_bytes

    def restore(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        raw: Any,  # uint8 [rows, row_bytes]
        row_bytes: Any, steps: Any,
    ) -> None:  # fmt: skip
        index = uint32(cuda.blockIdx.y) * THREADS + uint32(cuda.threadIdx.x)
        if index >= row_bytes:
            return
        row = uint32(cuda.blockIdx.x)
        b, at = index // length, index % length
        fragment_row = address(fragments, row // ROWS, steps, 0, fragment_bytes)
        byte = uint32(0)
        for bit in range(8):
            how = uint32(source[int64(at) * 8 + bit])
            value = element(fragment_row, row, b, how >> 5) >> (how & 15) ^ how >> 4
            byte |= (value & 1) << uint32(bit)
        store1(address(raw, row, row_bytes, index, 1), byte)

    return Kernel(f"blocks of {fmt.name}", restore, uint64, uint64, uint32, uint32, threads=THREADS)


def refuse(request: str, q: QuantArray) -> None:
    """Raise an error if packed weights cannot stand for the bytes of an array."""
    fmt, way = q.format, "keep the bytes, or drop the packed weights with q.drop_prepared()"
    if not isinstance(fmt, BlockFormat) or sources(fmt) is None:
        able = ", ".join(f.name for f in BLOCK_FORMATS if sources(f) is not None)
        raise UnsupportedError(
            f"{request}: no packed weights hold all bits of {fmt.name}, as those of {able} do; {way}"
        )
    if q.ndim not in (2, 3):
        raise UnsupportedError(
            f"{request}: kernels keep arrays of two axes or three, this has {q.ndim}; {way}"
        )
    if q.shape[-1] > LONGEST:
        raise UnsupportedError(f"{request}: kernels keep rows of up to {LONGEST} columns; {way}")


def packed_memory(request: str, q: QuantArray) -> Any:
    """The memory of the packed weights, which can stand for the bytes."""
    refuse(request, q)
    if reason := device.older_than(LEAST["bfloat16"]):
        raise UnsupportedError(f"{request}: the order that could stand for them {reason}; keep the bytes")
    device.refuse_capture(request)
    return packed_weights(q).fragments


def restored(q: QuantArray) -> Any:
    """The bytes [..., N, bytes of a row] of an array that has its packed weights alone."""
    fmt, (*experts, n, k) = q.format, q.shape
    assert isinstance(fmt, BlockFormat)
    fragments, row_bytes = q.prepared(pack_weights).fragments, fmt.row_bytes(k)
    raw = device.cupy().empty((*experts, n, row_bytes), np.uint8)
    grid, e = (n, -(-row_bytes // THREADS)), prod(experts)
    packed_weights, rows = fragments.reshape(e, -1, *fragments.shape[1:]), raw.reshape(e, n, row_bytes)
    for i in range(e):
        restore_kernel(fmt)(grid, (THREADS,), packed_weights[i], rows[i], row_bytes, fragments.shape[1])
    return raw


# The size of packed weights, and the file's bytes restored from them on the host, by NumPy.
#
# A tensor with packed weights may be moved to the host by programs that know nothing of blocks. Kernels for
# CPUs read the file's order, so it is restored there, once, as to_blocks.py does it on a GPU.

SLAB = 1 << 20  # elements that are restored at a time


def packed_shape(fmt: Format, shape: Sequence[int]) -> tuple[int, int, int] | None:
    """The shape of the fragments of an array [N, K] or [E, N, K]: fragment rows, steps, bytes of one.

    None where packed weights do not hold all bits of the blocks, and for arrays without elements.
    """
    if not isinstance(fmt, BlockFormat) or len(shape) not in (2, 3) or not all(shape):
        return None
    *experts, n, k = shape
    if k > LONGEST or sources(fmt) is None:
        return None
    count, steps = 8 * -(-n // (8 * ROWS)), 2 * -(-k // (2 * STEP))
    return prod(experts) * count, steps, layout_of(fmt).fragment_bytes


def restored_on_host(fmt: Format, shape: Sequence[int], packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The file's bytes [..., N, bytes of a row] of an array with these packed weights."""
    fragments = packed_shape(fmt, shape)
    places = sources(fmt) if isinstance(fmt, BlockFormat) else None
    assert isinstance(fmt, BlockFormat)
    assert fragments is not None
    assert places is not None
    *experts, n, k = shape
    e, blocks = prod(experts), k // fmt.block_size
    words = np.ascontiguousarray(packed).reshape(-1).view(np.uint32).reshape(e, -1)
    raw = np.empty((e, n, blocks, fmt.dtype.itemsize), np.uint8)
    length = fmt.block_size + 2 * fmt.block_size // fmt.group + 4
    rows = max(1, SLAB // (blocks * length))
    for matrix, target in zip(words, raw, strict=True):
        for first in range(0, n, rows):
            numbers = np.arange(first, min(first + rows, n))
            parts = _elements(fmt, matrix, numbers, blocks, fragments[1])
            target[first : first + rows] = put_together(places, parts).reshape(len(numbers), blocks, -1)
    return raw.reshape(*experts, n, -1)


def _elements(
    fmt: BlockFormat, words: NDArray[np.uint32], rows: NDArray[np.int64], blocks: int, steps: int
) -> Any:  # fmt: skip
    """The elements of all blocks of some rows, [blocks, elements], as ``to_blocks.elements`` has them."""
    layout, size, groups = layout_of(fmt), fmt.block_size, fmt.block_size // fmt.group
    row, b = rows[:, None, None], np.arange(blocks)[None, :, None]
    g, side, first = row & 7, row >> 3 & 1, row // ROWS * steps

    def place(column: Any) -> tuple[Any, Any]:
        return (first + column // STEP) * layout.fragment_bytes, column % STEP

    at, within = place(b * size + np.arange(size))
    lane, r = g * 4 + within // 4 % 4, within // 2 % 2 * 2 + side
    parts = [_codes(layout, words, at, lane, within // 16, r, within % 2)]
    at, within = place(b * size)
    word = np.arange(layout.halves) * layout.blocks + within // size
    halves = _load(words, at + layout.halves_at + g * layout.half_stride + word * 4)
    parts.append(halves >> 16 * side & 0xFFFF)
    i = np.arange(layout.subs * groups)
    at, within = place(b * size + i % groups * fmt.group)
    byte = (side * layout.subs + i // groups) * layout.runs + within // layout.run
    subs = _load(words, at + layout.subs_at + g * layout.sub_stride + byte // 4 * 4)
    parts.append(subs >> byte % 4 * 8 & 255)
    elements: Any = np.concatenate(parts, axis=2).reshape(len(rows) * blocks, -1)
    return elements


def _load(words: NDArray[np.uint32], at: Any) -> Any:
    """The words at these offsets in bytes."""
    return words[at // 4].astype(np.int64)


def _codes(
    layout: PackedLayout, words: NDArray[np.uint32], at: Any, lane: Any, s: Any, r: Any, e: Any
) -> Any:  # fmt: skip
    """The stored codes of fragments at ``at``: of lane 4 g + t, step s, register r, place e."""
    low, i = layout.low, 4 * (s % 2) + r
    first = at + lane * min(16, 4 * low)
    if low == 8:
        word = 2 * s + r // 2
        u = _load(words, first + word // 4 * 512 + word % 4 * 4) >> (r % 2 * 8 + 16 * e)
    elif layout.fp4:
        w = _load(words, first + 4 * s) >> 16 * e
        u = w << 3 * np.minimum(r, 2)
        last = w >> 11 & 8 | w >> 9 & 6 | w >> 13 & 1
        u = np.where(r == 3, last, u >> 12 & 8 | u >> 6 & 7)
    elif layout.levels:
        u = _load(words, first + 4 * s) >> (8 * r + 4 * e)
    elif low == 4:
        u = _load(words, first + 4 * s) >> (4 * r + 16 * e)
    else:
        u = _load(words, first + s // 2 * 4) >> (2 * i + 16 * e)
    u = u & (1 << low) - 1
    if layout.high == 2:
        w = _load(words, at + layout.high_at + lane * 8 + s // 2 * 4)
        u |= (w >> (2 * i + 16 * e) & 3) << low
    elif layout.high == 1:
        w = _load(words, at + layout.high_at + lane * 4)
        u |= (w >> (4 * s + r + 16 * e) & 1) << low
    return u
