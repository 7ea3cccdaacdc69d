"""The kernels of RoPE: queries are rotated, keys are rotated into the cache, values follow them.

Rows are numbered through: T·H of queries, token by token, then T·HK of keys, and as many of values. A cache
of floats has its rows from ``append``. For one in blocks ``append`` leaves rows of float32, spread by a
Hadamard transform, and ``store`` encodes them, sixteen blocks at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...errors import NonFiniteError
from ...formats import Format
from ..encode import floats16
from ..machine.intrinsics import root
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at, reader, words_at
from .call import RopeAppend, Spread, Store

arguments_of, store_of, spread_of = reader(RopeAppend), reader(Store), reader(Spread)
SIXTEEN = 16  # blocks that an encoder takes at a time


@inner
def _as_it_is(values: Any, blocks: Any) -> None:
    """The encoder of float32."""
    to = blocks.view(np.float32)
    for i in range(len(values)):
        to[i] = values[i]


ENCODERS = {"f16": floats16._f16, "bf16": floats16._bf16, "f32": _as_it_is}


@inner
def spread_row(row: Any, columns: int) -> None:
    """Runs of columns times the orthogonal Hadamard matrix, by sums and differences of halves."""
    factor = np.float32(1 / root(np.float64(columns)))
    for start in range(0, len(row), columns):
        half = 1
        while half < columns:
            for first in range(start, start + columns, 2 * half):
                for i in range(first, first + half):
                    a, b = row[i], row[i + half]
                    row[i] = a + b
                    row[i + half] = a - b
            half *= 2
        for i in range(start, start + columns):
            row[i] *= factor


@inner
def rotate(f: Any, token: int, x: Any, out: Any, neox: bool) -> None:
    """The RoPE of one head; columns behind the pairs stay."""
    pairs = f.pairs
    cos = floats_at(f.cos + 4 * token * pairs, 1, pairs)[0]
    sin = floats_at(f.sin + 4 * token * pairs, 1, pairs)[0]
    for i in range(pairs):
        at, other = (i, i + pairs) if neox else (2 * i, 2 * i + 1)
        a, b = x[at], x[other]
        out[at] = a * cos[i] - b * sin[i]
        out[other] = a * sin[i] + b * cos[i]
    for i in range(2 * pairs, f.width):
        out[i] = x[i]


@cache
def append(neox: bool, k: Format, v: Format) -> Any:
    """Compiled: rows ``first`` … ``stop`` of ``RopeAppend``; ``neox``: pairs are half of them apart."""
    put_k, put_v = ENCODERS[k.name], ENCODERS[v.name]
    k_bytes, v_bytes = k.dtype.itemsize, v.dtype.itemsize

    def work(arguments: int, first: int, stop: int) -> None:
        f = arguments_of(arguments)
        first_k = words_at(f.k_end, 1)[0] - f.tokens if f.k_end else 0
        first_v = words_at(f.v_end, 1)[0] - f.tokens if f.v_end else 0
        queries, keys = f.tokens * f.heads, f.tokens * f.kv_heads
        turned, values = np.empty(f.width, np.float32), np.empty(f.width_v, np.float32)
        for r in range(first, stop):
            if r < queries:
                token, head = r // f.heads, r % f.heads
                x = floats_at(f.q + 4 * (token * f.q_pitch + head * f.width), 1, f.width)[0]
                out = floats_at(f.out + 4 * (head * f.tokens + token) * f.width, 1, f.width)[0]
                rotate(f, token, x, out, neox)
                if f.k_spread:
                    spread_row(out, f.k_spread)
            elif r < queries + keys:
                token, head = (r - queries) // f.kv_heads, (r - queries) % f.kv_heads
                x = floats_at(f.k + 4 * (token * f.k_pitch + head * f.width), 1, f.width)[0]
                rotate(f, token, x, turned, neox)
                if f.k_spread:
                    spread_row(turned, f.k_spread)
                to = f.k_rows + head * f.k_head + (first_k + token) * f.k_row
                put_k(turned, bytes_at(to, 1, f.width * k_bytes)[0])
            else:
                token, head = (r - queries - keys) // f.kv_heads, (r - queries - keys) % f.kv_heads
                x = floats_at(f.v + 4 * (token * f.v_pitch + head * f.width_v), 1, f.width_v)[0]
                for i in range(f.width_v):
                    values[i] = x[i]
                if f.v_spread:
                    spread_row(values, f.v_spread)
                to = f.v_rows + head * f.v_head + (first_v + token) * f.v_row
                put_v(values, bytes_at(to, 1, f.width_v * v_bytes)[0])

    return jit(work)


@cache
def store(fmt: Format) -> Any:
    """Compiled: rows ``first`` … ``stop`` of ``Store`` to blocks, and these into the cache."""
    from ..encode.tiles import runner

    run, size, nbytes = runner(fmt), fmt.block_size, fmt.dtype.itemsize

    def work(arguments: int, first: int, stop: int) -> None:
        f = store_of(arguments)
        start = words_at(f.end, 1)[0] - f.tokens
        count, row_bytes = (stop - first) * f.width // size, f.width // size * nbytes
        values = floats_at(f.values + 4 * first * f.width, 1, count * size)[0]
        wrong = False
        for value in values:
            wrong |= value - value != 0
        if wrong:
            raise NonFiniteError("a cache of blocks holds no NaN and no infinity")
        x, out = np.empty((size, SIXTEEN), np.float32), np.empty((nbytes, SIXTEEN), np.uint8)
        raw = np.empty(max(count, SIXTEEN) * nbytes, np.uint8)
        if count < SIXTEEN:  # repeated up to that number
            more = np.empty(SIXTEEN * size, np.float32)
            for i in range(len(more)):
                more[i] = values[i % len(values)]
            run(more, None, None, raw, x, None, None, out)
        else:
            run(values, None, None, raw, x, None, None, out)
        for r in range(first, stop):
            head, token = r // f.tokens, r % f.tokens
            to = bytes_at(f.rows + head * f.head + (start + token) * f.row, 1, row_bytes)[0]
            for i in range(row_bytes):
                to[i] = raw[(r - first) * row_bytes + i]

    return jit(work)


@cache
def spread() -> Any:
    """Compiled: rows ``first`` … ``stop`` of ``Spread``."""

    def work(arguments: int, first: int, stop: int) -> None:
        f = spread_of(arguments)
        for r in range(first, stop):
            x = floats_at(f.x + 4 * r * f.width, 1, f.width)[0]
            out = floats_at(f.out + 4 * r * f.width, 1, f.width)[0]
            for i in range(f.width):
                out[i] = x[i]
            spread_row(out, f.columns)

    return jit(work)
