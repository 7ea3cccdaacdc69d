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
def pair_of_halves(a: Any, b: Any) -> Any:
    """Two floats as the halves of a word."""
    return ptx.half_bits(a) | ptx.half_bits(b) << uint32(16)


@family((fmt, dtype) for fmt in BLOCK_FORMATS for dtype in (FLOAT, HALF))
def decoder(fmt: BlockFormat, dtype: np.dtype[Any]) -> Kernel:
    """The kernel for one format and one type of values."""
    value, (_, scale, offset) = values(fmt), atoms(fmt)
    each = 16 // dtype.itemsize
    size, group, halves = fmt.block_size, fmt.group, dtype == HALF
    bits_of, pair, store16 = ptx.bits_of, pair_of_halves, ptx.store16

    def decode(blocks: Any, out: Any) -> None:
        index = uint64(cuda.blockIdx.x) * uint64(THREADS) + uint64(cuda.threadIdx.x)
        b = index // uint64(size // each)
        if b < blocks.shape[0]:
            block = blocks[b]
            i = int64(index % uint64(size // each)) * each
            s, o = scale(block, i // group), offset(block, i // group)
            v = cuda.local.array(each, float32)
            for j in range(each):  # a loop, so that a code book is in the code once
                v[j] = value(block, i + j, s, o)
            at = out + index * uint64(16)
            if halves:
                store16(at, pair(v[0], v[1]), pair(v[2], v[3]), pair(v[4], v[5]), pair(v[6], v[7]))
            else:
                store16(at, bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3]))

    return Kernel(f"dequantize {fmt.name} to {dtype}", decode, BLOCKS, uint64, threads=THREADS)


def dequantize(q: QuantArray, dtype: np.dtype[Any]) -> Any:
    """The values of an array on a GPU, on that GPU."""
    cp = cupy()
    with q.raw.device:
        if isinstance(q.format, ScalarFormat):
            return _scalars(cp, q, dtype)
        assert isinstance(q.format, BlockFormat)
        out = cp.empty(q.shape, dtype if dtype == HALF else FLOAT)
        kernel = decoder(q.format, out.dtype)
        blocks = q.raw.reshape(-1, q.format.dtype.itemsize)
        kernel((-(-out.nbytes // (16 * THREADS)),), (THREADS,), blocks, out)
        return out.astype(dtype, copy=False)


def _scalars(cp: Any, q: QuantArray, dtype: np.dtype[Any]) -> Any:
    stored = q.raw.reshape(-1).view(q.format.dtype).reshape(q.shape)
    if isinstance(q.format, ScalarFormat) and q.format.bfloat:
        stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(dtype)
