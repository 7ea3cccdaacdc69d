"""Decode a stretch of a row into the first cache, multiply it with every row of activations.

Changed: the loops. A stretch of weights is decoded once and serves all rows of activations, and
nothing leaves the cache: no decoded slab goes through memory.

Why it helps: decoding costs the same whatever the number of activations is.

Limited by the additions: a sum of floats in a fixed order is one after the other, four clocks each,
and one number at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...base.threads import share
from ...dispatch.ladder import register
from ...formats import BlockFormat
from ..machine.jit import jit
from ..unpack import unpacker
from .r0_naive import refuses

STRETCH = 1024  # weights


@register(__name__, __doc__, arithmetic="f32", accumulate="f32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    assert isinstance(q.format, BlockFormat)
    rows, raw, multiply = np.ascontiguousarray(x, np.float32), np.ascontiguousarray(q.raw), kernel(q.format)
    share(lambda first, stop: multiply(rows, raw, out, first, stop), q.shape[0])


@cache
def kernel(fmt: BlockFormat) -> Any:
    """The compiled product of rows with blocks of one format."""
    unpack = unpacker(fmt)
    size, group, nbytes, has_offset = fmt.block_size, fmt.group, fmt.dtype.itemsize, fmt.has_offset
    blocks = STRETCH // size

    def multiply(x: Any, raw: Any, out: Any, first: int, stop: int) -> None:
        codes, values = np.empty(STRETCH, np.int8), np.empty(STRETCH, np.float32)
        scales, offsets = np.empty(STRETCH // group, np.float32), np.zeros(STRETCH // group, np.float32)
        for n in range(first, stop):
            out[:, n] = 0
            for start in range(0, raw.shape[1] // nbytes, blocks):
                stretch = raw[n, start * nbytes : (start + blocks) * nbytes]
                unpack(stretch, codes, scales, offsets)
                count = len(stretch) // nbytes * size
                for k in range(count):
                    values[k] = scales[k // group] * np.float32(codes[k])
                    if has_offset:
                        values[k] -= offsets[k // group]
                for m in range(x.shape[0]):
                    total = out[m, n]
                    for k in range(count):
                        total += x[m, start * size + k] * values[k]
                    out[m, n] = total

    return jit(multiply)
