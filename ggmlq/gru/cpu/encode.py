"""The inputs x of a GRU from floats to codes, 32 at a time, with counts of values that saturate."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from ...base.threads import share
from ...cpu.lanes import chosen, convert, load, store, total
from ...cpu.machine.jit import inline, jit
from ...fixed.qformat import QFormat
from ..cell import Cell
from ..diagnostics import FAR, TALLIED, far_ends
from ..run import Call
from .vectors import LANES, clamp

AT, AT_FAR = TALLIED.index("x"), TALLIED.index(FAR)
GRAIN = 1 << 16  # numbers that a thread takes at a time: fewer take less than to wake it
MOST = 2**22  # codes; float32 has every one and their halves
INT32 = np.dtype(np.int32)


def encoded(call: Call) -> NDArray[np.int32]:
    """The codes of x [T, N, C]; adds to the counts."""
    t, n, c = call.x.shape
    return encode(call, 0, INT32, -(-c // LANES) * LANES)[:, :c].reshape(t, n, c)


def encode(call: Call, shift: int, dtype: Any, pitch: int) -> NDArray[Any]:
    """The codes of x and a shift, [T · N, pitch] of a dtype; adds to the counts.

    Rows are filled up to whole vectors, with the code of 0.
    """
    fmt, (t, n, c) = call.plan.x, call.x.shape
    codes, x = np.empty((t * n, pitch), dtype), call.x.reshape(t * n, c)
    grain = max(1, GRAIN // c)
    count = np.zeros((-(-t * n // grain), 2), np.int64)
    scale = x.dtype.type(np.ldexp(1.0, fmt.exponent))
    ends = call.cell.prepared("ends of x", _ends) if fmt is call.cell.formats["x"] else _ends(call.cell, fmt)
    zero, more, kernel = np.int32(fmt.zero), np.int32(shift), _kernel(call.even, x.itemsize == 8)

    def work(first: int, stop: int) -> None:
        kernel(x, codes, scale, zero, more, ends, count[first // grain], first, stop)

    share(work, t * n, grain)
    moved, far = count.sum(0).tolist()
    call.counts[AT] += moved
    call.counts[AT_FAR] += far
    return codes


def _ends(cell: Cell, x: QFormat | None = None) -> tuple[Any, ...]:
    """The least and the largest code of x, and of the codes that are not far."""
    fmt = x or cell.formats["x"]
    low, high = (int(np.clip(end, -MOST, MOST)) for end in far_ends(cell, fmt))
    return tuple(np.int32(end) for end in (fmt.low, fmt.high, low, high))


@cache
def _kernel(even: bool, double: bool) -> Any:
    """Compiled: rows ``first`` … ``stop`` of x to codes."""
    nearest, real = _to_even if even else _away, types.float64 if double else types.float32

    def work(
        x: Any, codes: Any, scale: Any, zero: Any, shift: Any, ends: Any, count: Any, first: int, stop: int
    ) -> None:
        low, high, far_low, far_high = ends
        columns, pitch = x.shape[1], codes.shape[1]
        most, last = x.dtype.type(MOST), np.zeros(LANES, x.dtype)
        for row in range(first, stop):
            moved = far = convert(load(last, 0, LANES), types.int32) * 0
            for i in range(0, columns, LANES):
                if i + LANES <= columns:
                    v = load(x, row * columns + i, LANES) * scale
                else:  # zeros behind the end always fit
                    for j in range(LANES):
                        last[j] = x[row, i + j] if i + j < columns else 0
                    v = load(last, 0, LANES) * scale
                    last[:] = 0
                v = chosen(v < -most, -most, v)
                v = chosen(v > most, most, v)  # beyond every format it is no matter where
                towards = convert(v, types.int32)
                code = nearest(towards, v - convert(towards, real)) + zero
                inside = clamp(code, low, high)
                moved = moved + convert(code != inside, types.int32)
                far = far + convert((code < far_low) | (code > far_high), types.int32)
                store(codes, row * pitch + i, convert(inside + shift, codes.dtype))
            count[0] += total(moved)
            count[1] += total(far)

    return jit(work)


@inline
def _away(towards: Any, rest: Any) -> Any:
    """Whole numbers next to floats, from those towards zero; ties away from zero."""
    return towards + convert(rest >= 0.5, types.int32) - convert(rest <= -0.5, types.int32)


@inline
def _to_even(towards: Any, rest: Any) -> Any:
    """Whole numbers next to floats, from those towards zero; ties to the even neighbour."""
    odd = (towards & 1) != 0
    up, down = (rest > 0.5) | ((rest == 0.5) & odd), (rest < -0.5) | ((rest == -0.5) & odd)
    return towards + convert(up, types.int32) - convert(down, types.int32)
