"""Weights of block formats unpacked to int8 codes and float32 scales, once for each array."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...formats import BLOCK_FORMATS, BlockFormat
from ...formats.packing import packing
from ..intrinsics import ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import atoms
from ..intrinsics.language import cuda, int64, uint8, uint32, uint64
from ..machine.device import cupy
from ..machine.launch import Kernel, array, family
from .layout import Unpacked, padded

THREADS = 256


@family((fmt,) for fmt in BLOCK_FORMATS)
def weight_kernel(fmt: BlockFormat) -> Kernel:
    """The kernel that unpacks blocks: a thread unpacks 16 neighbours, which always lie within a run."""
    code, scale, offset = atoms(fmt)
    size, group, run, has_offset = fmt.block_size, fmt.group, packing(fmt).run, fmt.has_offset
    store16, store_float = ptx.store16, ptx.store_float

    def unpack(
        blocks: Any,  # uint8 [rows of weights, blocks of a row, bytes of a block]
        codes: Any,  # int8 [rows, columns]
        scales: Any,  # float32 [columns / run, rows]
        offsets: Any,  # as scales, where the format has them
        rows: Any, columns: Any,
    ) -> None:  # fmt: skip
        column = (uint32(cuda.blockIdx.y) * uint32(THREADS) + uint32(cuda.threadIdx.x)) * uint32(16)
        row = uint32(cuda.blockIdx.x)
        if column < uint32(blocks.shape[1] * size):
            block = blocks[row, column // uint32(size)]
            i = int64(column % uint32(size))
            words = cuda.local.array(4, uint32)
            for w in range(4):
                word = uint32(0)
                for j in range(4):
                    word |= (uint32(code(block, i + 4 * w + j)) & uint32(255)) << uint32(8 * j)
                words[w] = word
            store16(address(codes, row, columns, column, 1), words[0], words[1], words[2], words[3])
            if column % uint32(run) == uint32(0):
                g = column // uint32(run)
                store_float(address(scales, g, rows, row, 4), scale(block, i // group))
                if has_offset:
                    store_float(address(offsets, g, rows, row, 4), offset(block, i // group))

    parameters = (array(uint8, 3), uint64, uint64, uint64, uint32, uint32)
    return Kernel(f"unpacked weights of {fmt.name}", unpack, *parameters, threads=THREADS)


def unpacked_weights(q: QuantArray) -> Unpacked:
    """The unpacked weights of an array [N, K] on its device; unpacked once and kept with the array."""
    weights: Unpacked = q.prepared(unpack_weights)
    return weights


def unpack_weights(q: QuantArray) -> Unpacked:
    """The unpacked weights of an array [N, K], unpacked now."""
    cp, fmt, (n, k) = cupy(), q.format, q.shape
    assert isinstance(fmt, BlockFormat)
    rows, columns, run = padded(n), padded(k), packing(fmt).run
    codes = cp.empty((rows, columns), np.int8)
    scale = cp.zeros((columns // run, rows), np.float32)
    offset = cp.zeros_like(scale) if fmt.has_offset else None
    blocks = q.raw.reshape(n, k // fmt.block_size, fmt.dtype.itemsize)
    grid = (n, -(-k // (16 * THREADS)))
    weight_kernel(fmt)(
        grid, (THREADS,), blocks, codes, scale, scale if offset is None else offset, rows, columns
    )
    return Unpacked(codes, scale, offset, run)
