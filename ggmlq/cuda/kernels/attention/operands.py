"""K and V as kernels read them: rows that begin at multiples of 16 bytes; rows of a cache for KV append.

types that kernels decode     as they are stored
other types                   dequantized to fp16 here
blocks, many query rows       dequantized to fp16 here, both by one launch (``dequantizer``): each row
                              would otherwise be decoded again for every tile of queries
rows that lie otherwise       copied
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from ....arrays.array import QuantArray
from ....arrays.scaled import ScaledArray
from ...driver.device import cupy
from ...driver.launch import Kernel, array, family
from ...intrinsics import hopper, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.language import cuda, int32, int64, types, uint32, uint64
from ...layouts.floats import aligned_floats
from .kv_tiles import MAX_HALF, UNIT_COLUMNS, copier, decoder, unit_columns
from .plan import (
    DECODED_TYPES,
    FLOAT16_TYPES,
    MIN_CAPABILITY,
    MMA_ROWS,
    REGISTER_TYPES,
    USUAL_TYPES,
    WIDTHS,
    row_bytes,
)

# --- rows -----------------------------------------------------------------------------------

FLOAT_TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}  # by dtypes
WORD64 = (1 << 64) - 1  # strides may be negative
COPIED_POSITIONS = 8  # of which rows of any type fill a multiple of 16 bytes


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
        if name in FLOAT16_TYPES or (name in DECODED_TYPES and not decoded):
            raw = rows.strided
        else:
            name, raw = "f16", _bytes_of(_together(rows).dequantize(np.float16))
    else:
        if rows.dtype.name not in FLOAT_TYPES:
            rows = aligned_floats(rows)
        if decoded and rows.dtype == np.float32:
            rows = cupy().clip(rows, -MAX_HALF, MAX_HALF).astype(np.float16)
        name = FLOAT_TYPES[rows.dtype.name]
        raw = _bytes_of(rows)
    size = 4 if name == "f32" else 2
    if name in ("f32", *FLOAT16_TYPES) and width % MMA_ROWS:
        raw, width = _widened(raw, -(-width // MMA_ROWS) * MMA_ROWS * size), -(-width // MMA_ROWS) * MMA_ROWS
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
    positions = s % 16 == 0 if name in FLOAT16_TYPES else s == row_bytes(name, width)
    return byte == 1 and positions and not (b % 16 or h % 16 or raw.data.ptr % 16)


def _copied(raw: Any) -> Any:
    """A copy whose rows follow each other, of a multiple of eight positions."""
    batch, heads, positions, length = raw.shape
    memory = cupy().empty(
        (batch, heads, -(-positions // COPIED_POSITIONS) * COPIED_POSITIONS, length), np.uint8
    )
    copy = memory[:, :, :positions]
    copy[...] = raw
    return copy


# --- blocks as halves -------------------------------------------------------------------------

ADDRESSES, STRIDES = types.UniTuple(uint64, 4), types.UniTuple(uint64, 4)


@dataclass(frozen=True)
class DequantPlan:
    """A block of threads, which decodes some positions of a KV head's keys, or values."""

    k: str
    v: str
    width: int
    width_v: int
    team_threads: int = 256
    team_positions: int = 64


def dequant_plans() -> Iterator[tuple[DequantPlan]]:
    """Blocks of threads for the usual widths and types."""
    for (k, v), width in product(USUAL_TYPES, WIDTHS):
        if k in REGISTER_TYPES:
            yield (DequantPlan(k, v, width, width),)


@cache
def rows_decoder(plan: DequantPlan, name: str, width: int) -> Any:
    """The device function ``decode(rows, to, count, rank)``: rows in shared memory to halves in memory."""
    threads, length, columns, store16 = (
        plan.team_threads, row_bytes(name, width), unit_columns(name), ptx.store16
    )  # fmt: skip
    units, (words, read, convert), two = width // columns, decoder(name), columns == 2 * UNIT_COLUMNS

    @inlined
    def decode(rows: Any, to: Any, count: Any, rank: Any) -> None:
        out, packed = cuda.local.array(8, uint32), cuda.local.array(words, uint32)
        at = rank
        while at < count * units:
            row = at // units
            unit = at - row * units
            read(rows + row * length, unit, packed, 0)
            convert(packed, 0, out)
            chunk = (unit >> 1) * 4 + (unit & 1) if two else unit
            place = to + uint64(row * (2 * width) + chunk * (2 * UNIT_COLUMNS))
            store16(place, out[0], out[1], out[2], out[3])
            if two:
                store16(place + 4 * UNIT_COLUMNS, out[4], out[5], out[6], out[7])
            at += threads

    return decode


@cache
def rows_dequantizer(plan: DequantPlan, values: bool) -> Any:
    """The device function that copies and decodes the positions of a block."""
    name, width = (plan.v, plan.width_v) if values else (plan.k, plan.width)
    copy, decode, base = copier(plan, name, width), rows_decoder(plan, name, width), ptx.shared_base
    span, commit, wait, which = plan.team_positions, ptx.commit, ptx.wait_for_all_but(0), int(values)
    sequence_stride, head_stride, decoded = 2 * which, 2 * which + 1, 2 + which  # places of words

    @inlined
    def dequantize(addresses: Any, strides: Any, sizes: Any) -> None:
        positions, heads = sizes
        unit, first = uint32(cuda.blockIdx.y), uint32(cuda.blockIdx.x) * span
        rank = cuda.threadIdx.x
        sequence = unit // heads
        rows = addresses[which] + sequence * strides[sequence_stride]
        rows += uint64(unit - sequence * heads) * strides[head_stride]
        copy(base(), rows, uint64(0), first, positions, uint32(rank))
        commit()
        wait()  # this thread's copies have arrived
        cuda.syncthreads()  # … and those of all
        to = addresses[decoded] + (uint64(unit) * positions + first) * (2 * width)
        decode(base(), to, min(uint32(span), positions - first), uint32(rank))

    return dequantize


@family(dequant_plans)
def dequantizer(plan: DequantPlan) -> Kernel:
    """The kernel: block (some positions, KV head of a sequence, keys or values)."""
    dequantize_keys, dequantize_values, start_dependent = (
        rows_dequantizer(plan, False), rows_dequantizer(plan, True), hopper.take_turn
    )  # fmt: skip

    def dequantize(
        addresses: Any,  # keys, values, both as halves
        strides: Any,  # bytes from sequence to sequence and from head to head, of keys and of values
        sizes: Any,  # positions, KV heads
    ) -> None:
        start_dependent()
        if uint32(cuda.blockIdx.z) == 0:
            dequantize_keys(addresses, strides, sizes)
        else:
            dequantize_values(addresses, strides, sizes)

    longest = max(row_bytes(plan.k, plan.width), row_bytes(plan.v, plan.width_v))
    name = f"keys and values of {plan.k}, {plan.v}, {plan.width}/{plan.width_v} as halves"
    return Kernel(
        name, dequantize, ADDRESSES, STRIDES, types.UniTuple(uint32, 2), threads=plan.team_threads,
        least=MIN_CAPABILITY, shared=plan.team_positions * longest + 16, early=True,
    )  # fmt: skip


def dequantizes(k: Any, v: Any) -> bool:
    """True if :func:`dequantized` takes keys and values."""
    return all(
        isinstance(rows, QuantArray)
        and rows.format.name in REGISTER_TYPES
        and fits(rows.format.name, rows.strided, rows.shape[3])
        for rows in (k, v)
    )


def dequantized(k: QuantArray, v: QuantArray, lengths: Any) -> tuple[Rows, Rows]:
    """Keys and values as rows of halves, as many as sequences have where the host knows ``lengths``."""
    batch, heads, positions, _ = k.shape
    if isinstance(lengths, np.ndarray):
        positions = min(positions, int(lengths.max()))
    plan = DequantPlan(k.format.name, v.format.name, k.shape[3], v.shape[3])
    out = [cupy().empty((batch, heads, positions, 2 * x.shape[3]), np.uint8) for x in (k, v)]
    raws = k.strided, v.strided
    addresses = tuple(x.data.ptr for x in (*raws, *out))
    strides = tuple(stride & WORD64 for raw in raws for stride in raw.strides[:2])
    grid = (-(-positions // plan.team_positions), batch * heads, 2)
    dequantizer(plan)(grid, (plan.team_threads,), addresses, strides, (positions, heads))
    return Rows("f16", out[0], k.shape[3]), Rows("f16", out[1], v.shape[3])


# --- KV append: rows of a cache for new positions ----------------------------------------------
#
# The numbers of positions of its sequences grow on the device, so a recorded graph appends again.

APPEND_THREADS = 256
NUMBERS = array(int64, 1)


@family()
def counter() -> Kernel:
    """The kernel that numbers rows; a block of threads a sequence."""
    start_dependent = hopper.take_turn

    def kernel(
        lengths: Any,  # int64 [B], which grow
        numbers: Any,  # int64 [B]: of new positions
        ids: Any,  # int64 [B · HK · T]
        same: Any,  # new positions of all sequences, or -1
        heads: Any,
        queries: Any,
        positions: Any,
    ) -> None:
        start_dependent()
        b, i = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
        start, more = lengths[b], int64(same)
        if same < int32(0):
            more = max(int64(0), min(numbers[b], int64(queries)))
        cuda.syncthreads()  # all have read the length, which the first thread now writes
        if i == 0:
            lengths[b] = min(start + more, int64(positions))
        while i < heads * queries:
            head = i // queries
            at = i - head * queries
            place, row = start + int64(at), int64(-1)
            if int64(at) < more and place < int64(positions):
                row = int64(b * heads + head) * int64(positions) + place
            ids[int64(b) * int64(heads * queries) + int64(i)] = row
            i += APPEND_THREADS

    words = int32, uint32, uint32, uint32
    return Kernel(
        "rows of a cache", kernel, NUMBERS, NUMBERS, NUMBERS, *words, threads=APPEND_THREADS, early=True
    )


def cache_rows(lengths: Any, numbers: Any, same: int, heads: int, queries: int, positions: int) -> Any:
    """Ids [B, HK, T] of rows [B · HK · positions] for new positions, by which ``lengths`` [B] grow.

    Of T positions each sequence gets the first ``same``, or if that is -1 its part of ``numbers`` [B]. Ids of
    the others, and of positions beyond the last, are -1.
    """
    ids = cupy().empty((len(lengths), heads, queries), np.int64)
    counter()(
        (len(lengths),), (APPEND_THREADS,), lengths, numbers, ids.reshape(-1), same & 0xFFFFFFFF, heads,
        queries, positions,
    )  # fmt: skip
    return ids
