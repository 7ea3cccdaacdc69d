"""Keys and values as the kernel reads them: rows of bytes that begin at multiples of 16.

Types that the kernel does not decode, and blocks for many rows of queries, are decoded before it. Rows that
lie otherwise are copied.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...arrays.array import QuantArray
from ...arrays.scaled import ScaledArray
from ..activations.floats import aligned_floats
from ..intrinsics import dependent_launch
from ..intrinsics.language import cuda, int32, int64, uint32
from ..machine.device import cupy
from ..machine.launch import Kernel, array, family
from .codes import LARGEST
from .plan import DECODED, EDGE, SIXTEEN, row_bytes

# Rows of a cache for new positions of its sequences, whose numbers of positions grow on the device.

THREADS = 256
NUMBERS = array(int64, 1)


@family()
def counter() -> Kernel:
    """The kernel that numbers rows; a block of threads a sequence."""
    take_turn = dependent_launch.take_turn

    def kernel(
        lengths: Any,  # int64 [B], which grow
        numbers: Any,  # int64 [B]: of new positions
        ids: Any,  # int64 [B · HK · T]
        same: Any,  # new positions of all sequences, or -1
        heads: Any,
        queries: Any,
        positions: Any,
    ) -> None:
        take_turn()
        b, i = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
        start, more = lengths[b], int64(same)
        if same < int32(0):
            more = max(int64(0), min(numbers[b], int64(queries)))
        cuda.syncthreads()  # all have read
        if i == uint32(0):
            lengths[b] = min(start + more, int64(positions))
        while i < heads * queries:
            head = i // queries
            at = i - head * queries
            place, row = start + int64(at), int64(-1)
            if int64(at) < more and place < int64(positions):
                row = int64(b * heads + head) * int64(positions) + place
            ids[int64(b) * int64(heads * queries) + int64(i)] = row
            i += uint32(THREADS)

    words = int32, uint32, uint32, uint32
    return Kernel("rows of a cache", kernel, NUMBERS, NUMBERS, NUMBERS, *words, threads=THREADS, early=True)


def cache_rows(lengths: Any, numbers: Any, same: int, heads: int, queries: int, positions: int) -> Any:
    """Ids [B, HK, T] of rows [B · HK · positions] for new positions, by which ``lengths`` [B] grow.

    Of T positions each sequence gets the first ``same``, or if that is -1 its part of ``numbers`` [B]. Ids of
    the others, and of positions beyond the last, are -1.
    """
    ids = cupy().empty((len(lengths), heads, queries), np.int64)
    counter()(
        (len(lengths),), (THREADS,), lengths, numbers, ids.reshape(-1), same & 0xFFFFFFFF, heads, queries,
        positions,
    )  # fmt: skip
    return ids


NAMES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}  # types of floats, by dtypes
LONG = (1 << 64) - 1  # strides may be negative
TOGETHER = 8  # positions, of which rows of any type fill a multiple of 16 bytes


class Rows(NamedTuple):
    """Keys or values on the device."""

    name: str  # of the type
    raw: Any  # uint8 [B, HK, S, bytes of a row]
    width: int  # columns, those that were added included


def placed(rows: Any, decoded: bool = False) -> Rows:
    """Keys or values [B, HK, S, columns] as the kernel reads them; ``decoded``: in 16 bits."""
    width = rows.shape[3]
    if isinstance(rows, ScaledArray):
        rows = rows.dequantize()
    if isinstance(rows, QuantArray):
        name = rows.format.name
        if name in SIXTEEN or (name in DECODED and not decoded):
            raw = rows.strided
        else:
            name, raw = "f16", _bytes_of(_together(rows).dequantize(np.float16))
    else:
        if rows.dtype.name not in NAMES:
            rows = aligned_floats(rows)
        if decoded and rows.dtype == np.float32:
            rows = cupy().clip(rows, -LARGEST, LARGEST).astype(np.float16)
        name = NAMES[rows.dtype.name]
        raw = _bytes_of(rows)
    size = 4 if name == "f32" else 2
    if name in ("f32", *SIXTEEN) and width % EDGE:
        raw, width = _widened(raw, -(-width // EDGE) * EDGE * size), -(-width // EDGE) * EDGE
    return Rows(name, raw if fits(name, raw, width) else _copied(raw), width)


def _together(rows: QuantArray) -> QuantArray:
    """The rows, or a copy of those that lie apart; nobody else reads it, so nothing waits for it."""
    if rows.strided.flags.c_contiguous:
        return rows
    return QuantArray(rows.format, rows.shape, rows.strided.copy())


def _bytes_of(x: Any) -> Any:
    """Floats as bytes, along the last axis."""
    xp = cupy()
    if x.strides[-1] != x.itemsize or x.shape[-1] == 1:
        x = xp.ascontiguousarray(x)
    return x.view(np.uint8)


def _widened(raw: Any, length: int) -> Any:
    """Rows of bytes with zeros behind them."""
    wide = cupy().zeros((*raw.shape[:3], length), np.uint8)
    wide[..., : raw.shape[3]] = raw
    return wide


def fits(name: str, raw: Any, width: int) -> bool:
    """True if rows begin at multiples of 16 bytes, or follow each other where they are decoded."""
    b, h, s, byte = raw.strides
    positions = s % 16 == 0 if name in SIXTEEN else s == row_bytes(name, width)
    return byte == 1 and positions and not (b % 16 or h % 16 or raw.data.ptr % 16)


def _copied(raw: Any) -> Any:
    """A copy whose rows follow each other, of a multiple of eight positions."""
    batch, heads, positions, length = raw.shape
    memory = cupy().empty((batch, heads, -(-positions // TOGETHER) * TOGETHER, length), np.uint8)
    copy = memory[:, :, :positions]
    copy[...] = raw
    return copy
