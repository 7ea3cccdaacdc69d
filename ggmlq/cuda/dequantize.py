"""Decoding on the GPU: one kernel for all formats, through their atoms.

A thread decodes the neighbours that fill one store of 16 bytes, so it needs one scale and one
offset. Product and difference are rounded one after the other, as in ggml: never fused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..array import QuantArray
from ..formats import FORMATS, BlockFormat
from ..formats.scalars import ScalarFormat
from . import ptx
from .atoms import atoms, inlined
from .convert import converted
from .device import cupy
from .language import cuda, float32, int64, uint8, uint32, uint64
from .launch import Kernel, array, family

THREADS = 256
BLOCK_FORMATS = tuple(fmt for fmt in FORMATS.values() if isinstance(fmt, BlockFormat))
BLOCKS = array(uint8, 2)  # [blocks, bytes of a block]
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)


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


@inlined
def store_floats(at: Any, v: Any, i: Any) -> None:
    """Four floats from v[i] on."""
    bits_of = ptx.bits_of
    ptx.store16(at, bits_of(v[i]), bits_of(v[i + 1]), bits_of(v[i + 2]), bits_of(v[i + 3]))


@inlined
def halves(a: Any, b: Any) -> Any:
    """Two floats as the halves of a word."""
    return ptx.half_bits(a) | ptx.half_bits(b) << uint32(16)


@inlined
def store_halves(at: Any, v: Any, i: Any) -> None:
    """Eight floats from v[i] on, as halves."""
    low, high = halves(v[i], v[i + 1]), halves(v[i + 2], v[i + 3])
    ptx.store16(at, low, high, halves(v[i + 4], v[i + 5]), halves(v[i + 6], v[i + 7]))


class _Watched:
    """A block of zeros that remembers which of its bytes were asked for."""

    def __init__(self) -> None:
        self.asked: set[int] = set()

    def __getitem__(self, at: int) -> np.uint8:
        self.asked.add(at)
        return np.uint8(0)


def partner(fmt: BlockFormat, otherwise: int) -> int:
    """How far from element 0 the next one is whose code lies in the same bytes.

    That of the low nibble is 16 further in q4_0 and 32 further in q4_K: the atoms say it.
    """
    first = _Watched()
    fmt.code(first, 0)  # type: ignore[arg-type]
    for distance in (16, 32, 64, 128):
        other = _Watched()
        if 2 * distance <= fmt.block_size:
            fmt.code(other, distance)  # type: ignore[arg-type]
        if first.asked & other.asked:
            return distance
    return otherwise


@family((fmt, dtype) for fmt in BLOCK_FORMATS for dtype in (FLOAT, HALF))
def decoder(fmt: BlockFormat, dtype: np.dtype[Any]) -> Kernel:
    """The kernel for one format and one type of values."""
    value, (_, scale, offset) = values(fmt), atoms(fmt)
    each = 16 // dtype.itemsize  # values of a store
    apart = partner(fmt, each)
    size, group, count = fmt.block_size, fmt.group, 2 * each
    store = store_halves if dtype == HALF else store_floats

    def decode(blocks: Any, out: Any) -> None:
        index = uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x)
        b, part = index // uint32(size // (2 * each)), index % uint32(size // (2 * each))
        if b < blocks.shape[0]:
            block = blocks[b]
            pairs, within = part // uint32(apart // each), part % uint32(apart // each)
            start = pairs * uint32(2 * apart) + within * uint32(each)
            v = cuda.local.array(count, float32)
            for half in range(2):  # loops, so that a code book is in the code once
                i = int64(start) + half * apart
                s, o = scale(block, i // group), offset(block, i // group)
                for j in range(each):
                    v[half * each + j] = value(block, i + j, s, o)
            at = out + (uint64(b) * uint64(size) + uint64(start)) * uint64(16 // each)
            store(at, v, 0)
            store(at + uint64(apart * 16 // each), v, each)

    return Kernel(f"dequantize {fmt.name} to {dtype}", decode, BLOCKS, uint64, threads=THREADS)


def dequantize(q: QuantArray, dtype: np.dtype[Any]) -> Any:
    """The values of an array on the current device."""
    cp = cupy()
    if isinstance(q.format, ScalarFormat):
        return _scalars(q, dtype)
    assert isinstance(q.format, BlockFormat)
    out = cp.empty(q.shape, dtype if dtype == HALF else FLOAT)
    kernel = decoder(q.format, out.dtype)
    blocks = q.raw.reshape(-1, q.format.dtype.itemsize)
    kernel((-(-out.nbytes // (32 * THREADS)),), (THREADS,), blocks, out)
    return converted(out, dtype)


def _scalars(q: QuantArray, dtype: np.dtype[Any]) -> Any:
    stored = q.raw.reshape(-1).view(q.format.dtype).reshape(q.shape)
    if isinstance(q.format, ScalarFormat) and q.format.bfloat:
        stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return converted(stored, dtype)
