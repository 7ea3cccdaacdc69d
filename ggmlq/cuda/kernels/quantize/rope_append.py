"""RoPE of heads on their way into a KV cache: one launch for queries, keys and values.

For a cache of floats a block of threads has a part of a token's columns: of its queries, which get RoPE and
are written in the order of attention, of its keys, which get RoPE and are appended as rows, or of its
values. For types in blocks it has a head, which gets RoPE and is spread by a Hadamard transform.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ....errors import ShapeError
from ...driver.device import cupy
from ...driver.launch import Kernel, family
from ...intrinsics import hopper, ptx
from ...intrinsics.lane import ALL_LANES
from ...intrinsics.language import cuda, float32, int64, types, uint32
from ..layers import ROWS, THREADS, VECTOR, rope_of
from ._block import IDS, KIND_OF, SCALARS, bits_in, words_of

SPREAD, LEAST = (64, 128, 256), 64  # columns of heads that are spread; of values that are spread together
APART = types.Array(float32, 2, "A")  # rows that may be parts of longer ones


@family((halves, name) for halves in (False, True) for name in SCALARS)
def append_kernel(halves: bool, name: str) -> Kernel:
    """The kernel of RoPE that appends keys and values to a cache of numbers without blocks."""
    rope, bits = rope_of(halves), bits_in(KIND_OF[name])

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
        hopper.take_turn()
        token = uint32(cuda.blockIdx.y)
        at = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        of_q, of_k, of_v = heads * columns, kv_heads * columns, kv_heads * columns_v
        if at < of_q:
            head = at // columns
            column, sequence = at - head * columns, token // each
            value = rope(q, token, head * columns, column, cos, sin, token, pairs)
            row = (sequence * heads + head) * each + (token - sequence * each)
            out[int64(row) * int64(columns) + int64(column)] = value
        elif at < of_q + of_k:
            at -= of_q
            head = at // columns
            column, row = at - head * columns, ids[token * kv_heads + head]
            value = rope(k, token, head * columns, column, cos, sin, token, pairs)
            if row >= int64(0):  # negative: a token that has no row in the cache
                keys[row * int64(columns) + int64(column)] = bits(value)
        elif at < of_q + of_k + of_v:
            at -= of_q + of_k
            head = at // columns_v
            column, row = at - head * columns_v, ids[token * kv_heads + head]
            if row >= int64(0):
                values[row * int64(columns_v) + int64(column)] = bits(v[token, at])

    words = words_of(KIND_OF[name])
    parameters = APART, APART, APART, ROWS, ROWS, IDS, words, words, VECTOR, *(uint32,) * 6
    title = f"RoPE of {'halves' if halves else 'neighbours'} into a KV cache of {name}"
    return Kernel(title, kernel, *parameters, threads=THREADS, early=True)


class Angles(NamedTuple):
    """Cosines and sines of RoPE's angles [T, pairs], contiguous."""

    cos: Any
    sin: Any


def _angles(
    heads: tuple[Any, Any, Any], angles: tuple[Any, Any], ids: tuple[int, ...], widths: tuple[int, ...]
) -> Angles:
    """Angles for rows of these widths. Heads that do not fit are refused: kernels read as heads say."""
    (tokens, _, columns), kv_heads, pairs = heads[0].shape, heads[1].shape[1], angles[0].shape[-1]
    fit = [x.shape for x in heads[1:]] == [(tokens, kv_heads, width) for width in widths]
    rope = all(part.shape == (tokens, pairs) for part in angles) and 2 * pairs <= columns
    if not (fit and rope and ids == (tokens, kv_heads) and columns == widths[0]):
        raise ShapeError(
            f"heads {', '.join(str(x.shape) for x in heads)}, {pairs} pairs with RoPE, into rows {ids} of "
            f"{widths} columns: queries, keys and values are [tokens, heads, columns], as wide as the rows; "
            "correct the sizes of heads in the model's metadata"
        )
    return Angles(*map(cupy().ascontiguousarray, angles))


def append(
    heads: tuple[Any, Any, Any], halves: bool, angles: tuple[Any, Any], ids: Any, cache: tuple[Any, Any],
    batch: int,
) -> Any:  # fmt: skip
    """Queries [B, H, T / B, D] with RoPE, from heads [T, H, D] of queries, keys and values [T, HK, DV].

    Keys with RoPE, and values, go into rows ``ids`` [T, HK] of two arrays of one type without blocks.
    """
    (tokens, count, columns), (_, kv_heads, columns_v) = heads[0].shape, heads[2].shape
    cos, sin = _angles(heads, angles, ids.shape, tuple(rows.shape[-1] for rows in cache))
    name = cache[0].format.name
    raw = (rows.raw.reshape(-1).view(np.uint32 if name == "f32" else np.uint16) for rows in cache)
    out = cupy().empty((batch, count, tokens // batch, columns), np.float32)
    blocks = -(-(count * columns + kv_heads * (columns + columns_v)) // THREADS)
    append_kernel(halves, name)(
        (blocks, tokens), (THREADS,), *(rows.reshape(tokens, -1) for rows in heads), cos, sin,
        ids.reshape(-1), *raw, out.reshape(-1), columns, columns_v, count, kv_heads, cos.shape[-1],
        tokens // batch,
    )  # fmt: skip
    return out


@family((halves, columns) for halves in (False, True) for columns in SPREAD)
def spread_kernel(halves: bool, columns: int) -> Kernel:
    """The kernel of RoPE that spreads heads by a Hadamard transform: a number a thread."""
    rope = rope_of(halves)
    within = tuple(1 << i for i in range(5))  # steps within a warp
    beyond = tuple(1 << i for i in range(5, columns.bit_length() - 1))
    factor, factor_v = (np.float32(1 / math.sqrt(count)) for count in (columns, LEAST))

    def kernel(
        q: Any,  # float32 [T, H · D]
        k: Any,  # float32 [T, HK · D]
        v: Any,  # float32 [T, HK · D]
        cos: Any,  # float32 [T, pairs]
        sin: Any,
        out: Any,  # float32 [B · H · T / B · D]
        keys: Any,  # float32 [T · HK · D]
        values: Any,  # float32 [T · HK · D]
        heads: Any,
        kv_heads: Any,
        pairs: Any,
        each: Any,  # tokens of a sequence, T / B
    ) -> None:
        hopper.take_turn()
        both = cuda.shared.array(columns, float32)
        token, head, i = uint32(cuda.blockIdx.y), uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
        of_q, of_k = head < heads, head < heads + kv_heads
        if of_q:
            sequence = token // each
            row = (sequence * heads + head) * each + (token - sequence * each)
            value = rope(q, token, head * columns, i, cos, sin, token, pairs)
        elif of_k:
            head -= heads
            row = token * kv_heads + head
            value = rope(k, token, head * columns, i, cos, sin, token, pairs)
        else:
            head -= heads + kv_heads
            row = token * kv_heads + head
            value = v[token, head * columns + i]
        # Butterflies: partners of the first five steps are lanes of a warp, those of later ones other warps.
        for half in within:
            other = cuda.shfl_xor_sync(ALL_LANES, value, half)
            value = ptx.sub(other, value) if i & uint32(half) else ptx.add(value, other)
        for half in beyond:
            both[i] = value
            cuda.syncthreads()  # all numbers are there before a thread reads its partner's
            other = both[i ^ uint32(half)]
            cuda.syncthreads()  # all have read theirs, which the next step overwrites
            # Values are spread in runs of LEAST columns, queries and keys over the whole head. All threads go
            # through the barriers all the same.
            if of_k or uint32(half) < LEAST:
                value = ptx.sub(other, value) if i & uint32(half) else ptx.add(value, other)
        place = int64(row) * int64(columns) + int64(i)
        if of_q:
            out[place] = ptx.mul(value, factor)
        elif of_k:
            keys[place] = ptx.mul(value, factor)
        else:
            values[place] = ptx.mul(value, factor_v)

    parameters = APART, APART, APART, ROWS, ROWS, VECTOR, VECTOR, VECTOR, *(uint32,) * 4
    title = f"RoPE of {'halves' if halves else 'neighbours'}, heads of {columns} spread"
    return Kernel(title, kernel, *parameters, threads=columns, early=True)


def spread(
    heads: tuple[Any, Any, Any], halves: bool, angles: tuple[Any, Any], batch: int
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Queries [B, H, T / B, D], keys [T, HK, D] with RoPE, and values, spread, from heads of D columns."""
    xp = cupy()
    (tokens, count, columns), kv_heads = heads[0].shape, heads[1].shape[1]
    widths = (columns if columns in SPREAD else 0, columns)
    cos, sin = _angles(heads, angles, (tokens, kv_heads), widths)
    out = xp.empty((batch, count, tokens // batch, columns), np.float32)
    keys, values = (xp.empty((tokens, kv_heads, columns), np.float32) for _ in range(2))
    spread_kernel(halves, columns)(
        (count + 2 * kv_heads, tokens), (columns,), *(rows.reshape(tokens, -1) for rows in heads), cos, sin,
        out.reshape(-1), keys.reshape(-1), values.reshape(-1), count, kv_heads, cos.shape[-1],
        tokens // batch,
    )  # fmt: skip
    return out, keys, values
