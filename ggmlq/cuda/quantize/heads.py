"""Heads turned by their positions, and keys and values put into a cache of floats: one launch for all.

A block of threads has a part of a token's columns: of its queries, which are turned and written in the order
of attention, of its keys, which are turned and put into their rows, or of its values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..activations.layers import ROWS, THREADS, VECTOR
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, int64, types, uint32
from ..machine.device import cupy
from ..machine.launch import Kernel, family
from ._kinds import IDS, KIND_OF, SCALARS, bits_in, words_of

APART = types.Array(float32, 2, "A")  # rows that may be parts of longer ones


def turning(halves: bool) -> Any:
    """The device function that gives a number of a head, turned; ``halves``: pairs are half of them apart."""
    mul, fma = ptx.mul, ptx.fma

    @inlined
    def turn(x: Any, token: Any, start: Any, column: Any, cos: Any, sin: Any, pairs: Any) -> Any:
        value = x[token, start + column]
        if column < pairs + pairs:
            if halves:
                first = column < pairs
                pair = column if first else column - pairs
                other = column + pairs if first else column - pairs
            else:
                first = (column & uint32(1)) == uint32(0)
                pair, other = column >> uint32(1), column ^ uint32(1)
            away = mul(x[token, start + other], sin[token, pair])
            value = fma(value, cos[token, pair], -away if first else away)
        return value

    return turn


@family((halves, name) for halves in (False, True) for name in SCALARS)
def heads_placer(halves: bool, name: str) -> Kernel:
    """The kernel that turns heads, and puts keys and values into a cache of numbers without blocks."""
    turn, bits, take_turn = turning(halves), bits_in(KIND_OF[name]), dependent_launch.take_turn

    def kernel(
        q: Any,  # float32 [T, H · D]
        k: Any,  # float32 [T, HK · D]
        v: Any,  # float32 [T, HK · DV]
        cos: Any,  # float32 [T, pairs]
        sin: Any,
        ids: Any,  # int64 [T · HK]: rows of the cache
        keys: Any,  # bits of numbers [rows · D]
        values: Any,  # bits of numbers [rows · DV]
        out: Any,  # float32 [B · H · T / B · D]
        columns: Any,  # D
        columns_v: Any,
        heads: Any,
        kv_heads: Any,
        pairs: Any,
        each: Any,  # tokens of a sequence, T / B
    ) -> None:
        take_turn()
        token = uint32(cuda.blockIdx.y)
        at = uint32(cuda.blockIdx.x) * uint32(THREADS) + uint32(cuda.threadIdx.x)
        of_q, of_k, of_v = heads * columns, kv_heads * columns, kv_heads * columns_v
        if at < of_q:
            head = at // columns
            column, sequence = at - head * columns, token // each
            value = turn(q, token, head * columns, column, cos, sin, pairs)
            row = (sequence * heads + head) * each + (token - sequence * each)
            out[int64(row) * int64(columns) + int64(column)] = value
        elif at < of_q + of_k:
            at -= of_q
            head = at // columns
            column, row = at - head * columns, ids[token * kv_heads + head]
            value = turn(k, token, head * columns, column, cos, sin, pairs)
            if row >= int64(0):
                keys[row * int64(columns) + int64(column)] = bits(value)
        elif at < of_q + of_k + of_v:
            at -= of_q + of_k
            head = at // columns_v
            column, row = at - head * columns_v, ids[token * kv_heads + head]
            if row >= int64(0):
                values[row * int64(columns_v) + int64(column)] = bits(v[token, at])

    words = words_of(KIND_OF[name])
    parameters = APART, APART, APART, ROWS, ROWS, IDS, words, words, VECTOR, *(uint32,) * 6
    title = f"heads by {'halves' if halves else 'neighbours'} into {name}"
    return Kernel(title, kernel, *parameters, threads=THREADS, early=True)


def placed(
    heads: tuple[Any, Any, Any], halves: bool, turns: tuple[Any, Any], ids: Any, cache: tuple[Any, Any],
    batch: int,
) -> Any:  # fmt: skip
    """Queries [B, H, T / B, D] turned, from heads [T, H, D] of queries, keys and values [T, HK, DV].

    Keys, turned, and values go into rows ``ids`` [T, HK] of two arrays of one type without blocks.
    """
    xp = cupy()
    (tokens, count, columns), (_, kv_heads, columns_v) = heads[0].shape, heads[2].shape
    cos, sin = (xp.ascontiguousarray(part) for part in turns)
    fmt, (keys, values) = cache[0].format, cache
    raw = (
        rows.raw.reshape(-1).view(np.uint32 if fmt.name == "f32" else np.uint16) for rows in (keys, values)
    )
    out = xp.empty((batch, count, tokens // batch, columns), np.float32)
    blocks = -(-(count * columns + kv_heads * (columns + columns_v)) // THREADS)
    heads_placer(halves, fmt.name)(
        (blocks, tokens), (THREADS,), *(rows.reshape(tokens, -1) for rows in heads), cos, sin,
        ids.reshape(-1), *raw, out.reshape(-1), columns, columns_v, count, kv_heads, cos.shape[-1],
        tokens // batch,
    )  # fmt: skip
    return out
