"""Rows of keys or values as float32, some positions at a time, for the products of attention.

The kernels of attention call this code by its address: so there is one for each type, not for each pair.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import types

from ...formats import Format
from ..lanes import load, recast, store, word
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at, reader
from ..unpack.decode import decoder
from .drive import Fill

F32 = types.float32
operands = reader(Fill)


@inner
def _copy(row: Any, values: Any) -> None:
    """The ``decode`` of float32."""
    n = len(row) // 4
    whole = n - n % 16
    for i in range(0, whole, 16):
        store(values, i, recast(load(row, 4 * i, 64), F32))
    for i in range(whole, n):
        values[i] = word(row, 4 * i, F32)


@cache
def filler(fmt: Format) -> Any:
    """Compiled: the rows of ``Fill`` to floats; the range does not matter."""
    decode: Any = _copy if fmt.name == "f32" else decoder(fmt)
    size, nbytes = fmt.block_size, fmt.dtype.itemsize

    def work(arguments: int, begin: int, end: int) -> None:
        f = operands(arguments)
        row_bytes = f.width // size * nbytes
        if f.apart == row_bytes and f.width == f.pitch:
            decode(bytes_at(f.rows, 1, f.lines * row_bytes)[0], floats_at(f.values, 1, f.lines * f.width)[0])
        else:
            for i in range(f.lines):
                row = bytes_at(f.rows + i * f.apart, 1, row_bytes)[0]
                decode(row, floats_at(f.values + 4 * i * f.pitch, 1, f.width)[0])

    return jit(work)
