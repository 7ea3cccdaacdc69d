"""The kernels of attention over short vectors, as DeepSeek has it: what goes into queries and into the cache.

A query is what a matrix of its head makes of its first columns, and behind it the last columns with RoPE. A
key, the same for all heads, is the short vector, and behind it its own columns with RoPE.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...formats import Format
from ..machine.jit import jit
from ..machine.memory import bytes_at, floats_at, reader, words_at
from .call import Columns, LatentAppend
from .rope_append import ENCODERS, rotate

arguments_of, columns_of = reader(LatentAppend), reader(Columns)


@cache
def some_columns() -> Any:
    """Compiled: rows ``first`` … ``stop`` of ``Columns``."""

    def work(arguments: int, first: int, stop: int) -> None:
        f = columns_of(arguments)
        for r in range(first, stop):
            x = floats_at(f.x + 4 * r * f.pitch, 1, f.width)[0]
            out = floats_at(f.out + 4 * r * f.width, 1, f.width)[0]
            for i in range(f.width):
                out[i] = x[i]

    return jit(work)


@cache
def append(neox: bool, fmt: Format) -> Any:
    """Compiled: queries, then keys, ``first`` … ``stop`` of ``LatentAppend``; ``neox``: as in RoPE."""
    put, nbytes = ENCODERS[fmt.name], fmt.dtype.itemsize

    def work(arguments: int, first: int, stop: int) -> None:
        f = arguments_of(arguments)
        queries, whole = f.tokens * f.heads, f.latent + f.width
        start, key = words_at(f.end, 1)[0] - f.tokens, np.empty(whole, np.float32)
        for r in range(first, stop):
            if r < queries:
                token, head = r // f.heads, r % f.heads
                x = floats_at(f.q + 4 * (r * f.q_width + f.q_width - f.width), 1, f.width)[0]
                vector = floats_at(f.inside + 4 * r * f.latent, 1, f.latent)[0]
                out = floats_at(f.out + 4 * (head * f.tokens + token) * whole, 1, whole)[0]
            else:
                token = r - queries
                x = floats_at(f.keys + 4 * (token * f.key_pitch + f.latent), 1, f.width)[0]
                vector = floats_at(f.short + 4 * token * f.latent, 1, f.latent)[0]
                out = key
            for i in range(f.latent):
                out[i] = vector[i]
            rotate(f, token, x, out[f.latent :], neox)
            if r >= queries:
                put(key, bytes_at(f.rows + (start + token) * f.row, 1, whole * nbytes)[0])

    return jit(work)
