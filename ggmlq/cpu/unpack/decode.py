"""Blocks to floats on the CPU: each format's walk, with codes turned into values as they come."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import types

from ...formats import BlockFormat, Format
from ..lanes import convert, recast, spans, store_floats
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at, reader
from . import Stretch, walker

CHUNK = 4096  # weights: their scales stay in the first cache
I8, F32 = types.int8, types.float32
stretch = reader(Stretch)


@cache
def decoder(fmt: Format) -> Callable[..., None] | None:
    """The compiled ``decode(row, values)`` of a format, or None where it has no walk.

    ``row`` is uint8[::1], the bytes of whole blocks. ``values`` is contiguous and receives float32,
    float64, or halves as uint16: the float32 that ggml decodes, converted.
    """
    walk = walker(fmt)
    if walk is None:
        return None
    group = fmt.group if isinstance(fmt, BlockFormat) else 0
    put = _put(group, isinstance(fmt, BlockFormat) and fmt.has_offset)
    size, nbytes = fmt.block_size, fmt.dtype.itemsize
    step = max(1, CHUNK // size)
    groups = step * size // max(group, 1)

    def decode(row: Any, values: Any) -> None:
        scales, offsets = np.empty(groups, np.float32), np.empty(groups, np.float32)
        blocks = len(row) // nbytes
        for first in range(0, blocks, step):
            last = min(first + step, blocks)
            walk(row[first * nbytes : last * nbytes], put, (values[first * size :], scales, offsets))

    compiled: Callable[..., None] = jit(decode)
    return compiled


@cache
def floats(fmt: Format) -> Any:
    """Compiled: the blocks of ``Stretch`` to its floats; the range does not matter."""
    decode: Any = decoder(fmt)

    def work(arguments: int, first: int, stop: int) -> None:
        operands = stretch(arguments)
        decode(
            bytes_at(operands.raw, 1, operands.nbytes)[0], floats_at(operands.values, 1, operands.length)[0]
        )

    return jit(work)


def _put(group: int, has_offset: bool) -> Any:
    """The step that turns codes into values and stores them (formats without groups: stores values)."""

    def values(out: Any, at: int, values: Any) -> None:
        store_floats(out[0], at, values)

    def scaled(out: Any, at: int, codes: Any) -> None:
        codes = convert(recast(codes, I8), F32)
        store_floats(out[0], at, codes * spans(out[1], at // group, group, codes))

    def less_offset(out: Any, at: int, codes: Any) -> None:
        values = convert(recast(codes, I8), F32) * spans(out[1], at // group, group, codes)
        # two roundings, as in ggml: never a fused one
        store_floats(out[0], at, values - spans(out[2], at // group, group, codes))

    return inner(less_offset if has_offset else scaled if group else values)
