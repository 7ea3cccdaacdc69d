"""The kernel of RoPE: queries are rotated, keys are rotated into the cache, values follow them.

row r      0 … T·H                queries, head by head of a token
           … + T·HK               keys
           … + T·HK               values
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...formats import Format
from ..encode import floats16
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at, reader, words_at
from .call import RopeAppend

arguments_of = reader(RopeAppend)


@inner
def _as_it_is(values: Any, blocks: Any) -> None:
    """The encoder of float32."""
    to = blocks.view(np.float32)
    for i in range(len(values)):
        to[i] = values[i]


ENCODERS = {"f16": floats16._f16, "bf16": floats16._bf16, "f32": _as_it_is}


@cache
def append(neox: bool, k: Format, v: Format) -> Any:
    """Compiled: rows ``first`` … ``stop`` of ``RopeAppend``; ``neox``: pairs are half of them apart."""
    put_k, put_v = ENCODERS[k.name], ENCODERS[v.name]
    k_bytes, v_bytes = k.dtype.itemsize, v.dtype.itemsize

    @inner
    def rotate(f: Any, token: int, x: Any, out: Any) -> None:
        """One head; columns behind the pairs stay."""
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

    def work(arguments: int, first: int, stop: int) -> None:
        f = arguments_of(arguments)
        start = words_at(f.end, 1)[0] - f.tokens
        queries, keys = f.tokens * f.heads, f.tokens * f.kv_heads
        turned = np.empty(f.width, np.float32)
        for r in range(first, stop):
            if r < queries:
                token, head = r // f.heads, r % f.heads
                x = floats_at(f.q + 4 * (token * f.q_pitch + head * f.width), 1, f.width)[0]
                rotate(f, token, x, floats_at(f.out + 4 * (head * f.tokens + token) * f.width, 1, f.width)[0])
            elif r < queries + keys:
                token, head = (r - queries) // f.kv_heads, (r - queries) % f.kv_heads
                x = floats_at(f.k + 4 * (token * f.k_pitch + head * f.width), 1, f.width)[0]
                rotate(f, token, x, turned)
                to = f.k_rows + head * f.k_head + (start + token) * f.k_row
                put_k(turned, bytes_at(to, 1, f.width * k_bytes)[0])
            else:
                token, head = (r - queries - keys) // f.kv_heads, (r - queries - keys) % f.kv_heads
                x = floats_at(f.v + 4 * (token * f.v_pitch + head * f.width_v), 1, f.width_v)[0]
                to = f.v_rows + head * f.v_head + (start + token) * f.v_row
                put_v(x, bytes_at(to, 1, f.width_v * v_bytes)[0])

    return jit(work)
