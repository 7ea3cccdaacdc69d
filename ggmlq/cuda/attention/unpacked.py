"""Keys and values of blocks as rows of halves for many queries: both by one launch.

Each row of blocks would otherwise be decoded again for every tile of queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, types, uint32, uint64
from ..machine.device import cupy
from ..machine.launch import Kernel, family
from .codes import EIGHT, decoder, unit_columns
from .kernel import LEAST
from .operands import LONG, Rows, fits
from .plan import BLOCKS, USUAL, WIDTHS, row_bytes
from .rows import copier

ADDRESSES, STRIDES = types.UniTuple(uint64, 4), types.UniTuple(uint64, 4)


@dataclass(frozen=True)
class Unpacking:
    """A block of threads, which decodes some positions of a head of keys, or of its values."""

    k: str
    v: str
    width: int
    width_v: int
    team: int = 256  # threads
    span: int = 64  # positions


def unpackings() -> Iterator[tuple[Unpacking]]:
    """Blocks of threads for the usual widths and types."""
    for (k, v), width in product(USUAL, WIDTHS):
        if k in BLOCKS:
            yield (Unpacking(k, v, width, width),)


@cache
def rows_decoder(plan: Unpacking, name: str, width: int) -> Any:
    """The device function ``decode(rows, to, count, rank)``: rows in shared memory to halves in memory."""
    threads, length, columns, store16 = plan.team, row_bytes(name, width), unit_columns(name), ptx.store16
    units, (words, read, convert), two = width // columns, decoder(name), columns == 2 * EIGHT

    @inlined
    def decode(rows: Any, to: Any, count: Any, rank: Any) -> None:
        out, packed = cuda.local.array(8, uint32), cuda.local.array(words, uint32)
        at = rank
        while at < count * uint32(units):
            row = at // uint32(units)
            unit = at - row * uint32(units)
            read(rows + row * uint32(length), unit, packed, 0)
            convert(packed, 0, out)
            chunk = (unit >> uint32(1)) * uint32(4) + (unit & uint32(1)) if two else unit
            place = to + uint64(row * uint32(2 * width) + chunk * uint32(2 * EIGHT))
            store16(place, out[0], out[1], out[2], out[3])
            if two:
                store16(place + uint64(4 * EIGHT), out[4], out[5], out[6], out[7])
            at += uint32(threads)

    return decode


@cache
def rows_unpacker(plan: Unpacking, values: bool) -> Any:
    """The device function that copies and decodes the positions of a block."""
    name, width = (plan.v, plan.width_v) if values else (plan.k, plan.width)
    copy, decode, base = copier(plan, name, width), rows_decoder(plan, name, width), ptx.shared_base
    span, commit, wait, which = plan.span, ptx.commit, ptx.wait_for_all_but(0), int(values)

    @inlined
    def unpack(addresses: Any, strides: Any, sizes: Any) -> None:
        positions, heads = sizes
        unit, first, rank = uint32(cuda.blockIdx.y), uint32(cuda.blockIdx.x) * uint32(span), cuda.threadIdx.x
        sequence = unit // heads
        rows = addresses[which] + uint64(sequence) * strides[2 * which]
        rows += uint64(unit - sequence * heads) * strides[2 * which + 1]
        copy(base(), rows, uint64(0), first, positions, uint32(rank))
        commit()
        wait()
        cuda.syncthreads()
        to = addresses[2 + which] + (uint64(unit) * uint64(positions) + uint64(first)) * uint64(2 * width)
        decode(base(), to, min(uint32(span), positions - first), uint32(rank))

    return unpack


@family(unpackings)
def kernel(plan: Unpacking) -> Kernel:
    """The kernel: block (some positions, head of keys of a sequence, keys or values)."""
    unpack_keys, unpack_values, take_turn = (
        rows_unpacker(plan, False), rows_unpacker(plan, True), dependent_launch.take_turn
    )  # fmt: skip

    def unpack(
        addresses: Any,  # keys, values, both as halves
        strides: Any,  # bytes from sequence to sequence and from head to head, of keys and of values
        sizes: Any,  # positions, heads of keys
    ) -> None:
        take_turn()
        if uint32(cuda.blockIdx.z) == uint32(0):
            unpack_keys(addresses, strides, sizes)
        else:
            unpack_values(addresses, strides, sizes)

    longest = max(row_bytes(plan.k, plan.width), row_bytes(plan.v, plan.width_v))
    name = f"keys and values of {plan.k}, {plan.v}, {plan.width}/{plan.width_v} as halves"
    return Kernel(
        name, unpack, ADDRESSES, STRIDES, types.UniTuple(uint32, 2), threads=plan.team, least=LEAST,
        shared=plan.span * longest + 16, early=True,
    )  # fmt: skip


def unpacks(k: Any, v: Any) -> bool:
    """True if :func:`unpacked` takes keys and values."""
    return all(
        isinstance(rows, QuantArray)
        and rows.format.name in BLOCKS
        and fits(rows.format.name, rows.strided, rows.shape[3])
        for rows in (k, v)
    )


def unpacked(k: QuantArray, v: QuantArray, lengths: Any) -> tuple[Rows, Rows]:
    """Keys and values as rows of halves, as many as sequences have where the host knows ``lengths``."""
    batch, heads, positions, _ = k.shape
    if isinstance(lengths, np.ndarray):
        positions = min(positions, int(lengths.max()))
    plan = Unpacking(k.format.name, v.format.name, k.shape[3], v.shape[3])
    out = [cupy().empty((batch, heads, positions, 2 * x.shape[3]), np.uint8) for x in (k, v)]
    raws = k.strided, v.strided
    addresses = tuple(x.data.ptr for x in (*raws, *out))
    strides = tuple(stride & LONG for raw in raws for stride in raw.strides[:2])
    grid = (-(-positions // plan.span), batch * heads, 2)
    kernel(plan)(grid, (plan.team,), addresses, strides, (positions, heads))
    return Rows("f16", out[0], k.shape[3]), Rows("f16", out[1], v.shape[3])
