"""Rows put into arrays on a GPU: the encoders of this folder, by ids; one kernel.

Four threads serve a block of 32 values, as in _block.py: thread ``part`` has values 4 part … 4 part + 3 and
the four 16 further, and all four shuffle in ``encode``. Of numbers without blocks a block of threads serves a
row.
Of equal ids the last row is written: all threads of a block look whether an id of its rows comes again
further on. With many rows that takes longer than finding out before, so CuPy does it then (``_last_ones``).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ....arrays.array import QuantArray
from ....errors import NonFiniteError, ShapeError, UnsupportedError
from ....formats import FORMATS
from ...driver.device import cupy, current
from ...driver.launch import Kernel, family
from ...intrinsics import hopper, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.floats import KINDS
from ...intrinsics.language import cuda, float32, int32, int64, uint32, uint64
from ...layouts.floats import aligned_floats
from ._block import (
    IDS,
    KIND_OF,
    LANES,
    RUN,
    SCALARS,
    STEP,
    THREADS,
    VALUES,
    bits_in,
    finite,
    loading,
    words_of,
)
from .encoders import ENCODERS

ENCODED = tuple(ENCODERS)
SEARCHED = 8192  # rows: with more, the last of equal ids are found before the launch
AHEAD = 4  # ids that a thread reads at once
INFINITE = {"f32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80}  # the exponent of what is not finite


def searching(rows_of_block: int) -> Any:
    """The device function that finds which ids of a block's rows come again, by all threads of the block.

    ``search(ids, first, last)`` gives an array in shared memory, not 0 for rows from ``first`` on whose id
    stands again further on.
    """

    @inlined
    def search(ids: Any, first: Any, last: Any) -> Any:
        repeated = cuda.shared.array(rows_of_block, int32)
        thread, count = uint64(cuda.threadIdx.x), uint64(ids.shape[0])
        if thread < rows_of_block:
            repeated[thread] = int32(0)
        cuda.syncthreads()  # all flags are clear before a thread sets one
        for i in range(int32(last - first) + int32(1)):
            row = uint64(first) + uint64(i)
            this, at, same = ids[row], row + 1 + thread, int32(0)
            while at + (AHEAD - 1) * THREADS < count:
                for j in range(AHEAD):
                    same |= int32(ids[at + uint64(j * THREADS)] == this)
                at += uint64(AHEAD * THREADS)
            while at < count:
                same |= int32(ids[at] == this)
                at += uint64(THREADS)
            if same != int32(0):
                repeated[i] = int32(1)  # several threads may, all the same number
        cuda.syncthreads()  # all have looked: a thread reads what others have found
        return repeated

    return search


@family((name, kind, unique) for name in ENCODED for kind in KINDS for unique in (False, True))
def block_putter(name: str, kind: str, unique: bool) -> Kernel:
    """The kernel that encodes rows of floats of a kind; ``unique``: no two ids are equal."""
    encode = ENCODERS[name]
    load, search, set_bits = loading(kind), searching(THREADS // LANES), ptx.set_bits
    size, take_turn = FORMATS[name].dtype.itemsize, hopper.take_turn

    def kernel(
        x: Any,  # bits of floats [rows of x · K]
        ids: Any,  # int64 [rows of x]
        raw: Any,
        unfit: Any,
        blocks: Any,  # of x
        per_row: Any,
        rows: Any,  # of q
    ) -> None:
        take_turn()
        thread = uint64(cuda.blockIdx.x) * THREADS + uint64(cuda.threadIdx.x)
        part, b = uint32(uint32(cuda.threadIdx.x) & LANES - 1), thread // LANES
        live = b < blocks
        if not live:  # it has the last block's values: the others of its warp need it in their shuffles
            b = blocks - 1
        row = b // per_row
        at = ids[row]
        v = cuda.local.array(VALUES, float32)
        source = b * RUN + uint64(part) * 4
        for i in range(VALUES):
            v[i] = load(x, source + uint64((i & 3) + 4 * (i & 4)))
        behind = False
        if not unique:  # while values are on their way
            first = uint64(cuda.blockIdx.x) * (THREADS // LANES)
            last = min(first + THREADS // LANES, blocks) - 1
            first = first // per_row
            behind = search(ids, first, last // per_row)[row - first] != int32(0)
        live = live and at >= int64(0) and at < int64(rows)
        store = live and not behind
        place = uint64(0)
        if live:
            place = uint64(at) * per_row + (b - row * per_row)
        scale = encode(v, part, raw + place * size, store)
        if live and (finite(v) != float32(0) or uint32(scale & 0x7C00) == 0x7C00):
            set_bits(unfit, uint32(1))

    parameters = (words_of(kind), IDS, uint64, uint64, uint64, uint64, uint64)
    title = f"put {name} from {kind}{', unique' * unique}"
    return Kernel(title, kernel, *parameters, threads=THREADS, early=True)


@family((name, kind, unique) for name in SCALARS for kind in KINDS for unique in (False, True))
def scalar_putter(name: str, kind: str, unique: bool) -> Kernel:
    """The kernel that converts rows of numbers without blocks; a block of threads has a part of a row."""
    load, bits, search, set_bits = loading(kind), bits_in(KIND_OF[name]), searching(1), ptx.set_bits
    infinite, take_turn = INFINITE[name], hopper.take_turn

    def kernel(
        x: Any,  # bits of floats [rows of x · K]
        ids: Any,  # int64 [rows of x]
        raw: Any,  # bits of numbers [rows of q · K]
        unfit: Any,
        columns: Any,
        rows: Any,  # of q
    ) -> None:
        take_turn()
        row = int64(cuda.blockIdx.x)
        at = ids[row]
        behind = False
        if not unique:
            behind = search(ids, row, row)[0] != int32(0)
        if at >= int64(0) and at < int64(rows):
            for step in range(STEP):
                column = int64(cuda.blockIdx.y) * int64(STEP * THREADS) + int64(step * THREADS)
                column += int64(cuda.threadIdx.x)
                if column < int64(columns):
                    word = bits(load(x, row * int64(columns) + column))
                    if uint32(word & infinite) == infinite:
                        set_bits(unfit, uint32(1))
                    if not behind:
                        raw[at * int64(columns) + column] = word

    parameters = (words_of(kind), IDS, words_of(KIND_OF[name]), uint64, uint64, uint64)
    title = f"put {name} from {kind}{', unique' * unique}"
    return Kernel(title, kernel, *parameters, threads=THREADS, early=True)


def put(request: str, q: QuantArray, ids: Any, x: Any, check: bool, unique: bool = False) -> None:
    """Encode rows of x into rows ``ids`` of q; ``check``: an error for values that do not fit, later."""
    fmt, cp = q.format, cupy()
    if fmt.name not in (*ENCODED, *SCALARS):
        raise UnsupportedError(
            f"{request}: on a GPU rows are encoded to {', '.join((*ENCODED, *SCALARS))}; there is no kernel "
            f"for {fmt.name}; put on the host, or encode whole arrays with gq.quantize"
        )
    kind = x.dtype.name if x.dtype.name in KINDS else "float32"
    x = cp.ascontiguousarray(x) if x.dtype.name in KINDS else aligned_floats(x)
    bits = x.reshape(-1).view(np.uint32 if kind == "float32" else np.uint16)
    ids, unfit = ids.reshape(-1), cp.zeros(1, np.uint32) if check else _unread(current())
    if len(ids) > SEARCHED and not unique:
        ids, unique = _last_ones(ids, len(q)), True
    raw, columns = q.raw.reshape(-1), math.prod(q.shape[1:])
    if bits.size != len(ids) * columns:  # or rows would lie over others, and beyond the last
        raise ShapeError(
            f"{request}: x has {bits.size} values, ids {len(ids)}; there are {columns} columns for each id; "
            "pass rows of that width"
        )
    facts: tuple[int, ...] = columns, len(q)
    if fmt.name in ENCODERS:
        blocks = bits.size // RUN
        grid: tuple[int, ...] = (-(-blocks * LANES // THREADS),)
        kernel, facts = block_putter(fmt.name, kind, unique), (blocks, columns // RUN, len(q))
    else:
        raw = raw.view(np.uint32 if fmt.name == "f32" else np.uint16)
        grid, kernel = (len(ids), -(-columns // (STEP * THREADS))), scalar_putter(fmt.name, kind, unique)
    kernel(grid, (THREADS,), bits, ids, raw, unfit, *facts)
    if check and unfit.item():
        raise NonFiniteError(
            f"{request}: x has a value that {fmt.name} cannot hold: NaN, an infinity, or one too large; "
            "clear them with cupy.nan_to_num and cupy.clip"
        )


@cache
def _unread(index: int) -> Any:
    """A word of a device that kernels mark and nobody reads."""
    return cupy().zeros(1, np.uint32)


def _last_ones(ids: Any, rows: int) -> Any:
    """The ids, with -1 for each that comes again further on."""
    cp = cupy()
    number, last = cp.arange(len(ids)), cp.full(rows + 1, -1, np.int64)
    place = cp.where((ids < 0) | (ids >= rows), rows, ids)
    cp.maximum.at(last, place, number)
    return cp.where(last[place] == number, ids, -1)
