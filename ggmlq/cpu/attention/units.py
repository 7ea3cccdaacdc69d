"""The kernels of attention: rows of queries over stretches of positions, and the stretches merged.

A work unit is some queries of the heads that share keys. Either it goes through all positions, stretch by
stretch, or each stretch is a unit by itself whose result goes to memory. Both merge in the same order.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner, jit
from ..machine.memory import floats_at
from ..machine.simd import Simd
from ..machine.target import Target
from . import tile
from .operands import LANES, MORE, ROWS, STRETCH, TILE
from .softmax import merge
from .stretch import (
    Way,
    empty,
    filled,
    finished,
    in_vectors,
    operands,
    scored,
    seen,
    take_queries,
)  # fmt: skip

FEW, LINE = 8, 64  # rows that wait for memory; bytes that come together


@cache
def _nearing(target: Target) -> Any:
    """Compiled: rows ``first`` … of so many columns come into the first cache, as they are read soon."""
    fetch = intrinsic_of(lambda b, at: Simd(b, target).fetch(at, 1), 1)

    def come_near(rows: int, apart: int, first: int, end: int, width: int) -> None:
        nbytes = min(apart, 4 * width)
        for row in range(first, end):
            for i in range(0, nbytes, LINE):
                fetch(rows + row * apart + i)

    return inner(come_near)


@cache
def vectors(target: Target) -> Way:
    """Products of float32 in vector registers."""
    scores, weighted = tile.scores(target), tile.weighted(target)
    lanes, come_near = tile.width_of(target), _nearing(target)

    def stretch(
        f: Any, batch: int, kv_head: int, first: int, count: int, start: int, memory: Any, words: Any,
        results: Any,
    ) -> None:  # fmt: skip
        queries, k_tile, v_tile, products = memory
        pitch, more = queries.shape[1], results.shape[1] - MORE
        group = f.heads // f.kv_heads
        low, _, _ = seen(f, batch, first // group)
        _, high, _ = seen(f, batch, (first + count - 1) // group)
        # With few rows products wait for memory: between them the next tile comes near, if there is one.
        together, far = (LANES, high) if count <= FEW else (TILE, 0)
        low, high = max(start, low // TILE * TILE), min(start + STRETCH, high)
        k_rows = f.k + batch * f.k_batch + kv_head * f.k_head
        v_rows = f.v + batch * f.v_batch + kv_head * f.v_head
        for position in range(low, high, TILE):
            n = min(TILE, high - position)
            filled(f.fill_k, k_rows + position * f.k_row, f.k_row, n, f.width, k_tile, words)
            for j in range(0, n, together):
                ahead = position + TILE + j
                come_near(k_rows, f.k_row, ahead, min(ahead + together, far), f.width)
                scores(
                    queries.ctypes.data, 4 * pitch, count, k_tile.ctypes.data + 4 * pitch * j, 4 * pitch,
                    (min(n - j, together) + LANES - 1) // LANES * LANES, pitch // lanes,
                    products.ctypes.data + 4 * j, 4 * TILE,
                )  # fmt: skip
            scored(f, batch, kv_head, first, count, position, position + n, TILE, products, results, more)
            at, apart = k_tile.ctypes.data, pitch
            if f.fill_v:
                filled(f.fill_v, v_rows + position * f.v_row, f.v_row, n, f.width_v, v_tile, words)
                at, apart = v_tile.ctypes.data, more
            for j in range(0, n, together):
                ahead = position + TILE + j
                come_near(v_rows, f.v_row, ahead, min(ahead + together, far), f.width_v if f.fill_v else 0)
                weighted(
                    products.ctypes.data + 4 * j, 4 * TILE, count, at + 4 * apart * j, 4 * apart,
                    min(n - j, together), more, results.ctypes.data, 4 * (more + MORE),
                )  # fmt: skip

    return Way(_memory, _nothing, _as_they_lie, inner(stretch), _nothing)


@inner
def _memory(f: Any) -> Any:
    """Queries, a tile of keys, one of values, and products; zeros, as columns behind the last must be."""
    pitch, more = in_vectors(f.width), in_vectors(f.width_v)
    return (
        np.zeros((ROWS, pitch), np.float32), np.zeros((TILE, pitch), np.float32),
        np.zeros((TILE, more), np.float32), np.zeros((ROWS, TILE), np.float32),
    )  # fmt: skip


@inner
def _nothing(memory: Any) -> None:
    """Vectors need no begin and no end."""


@inner
def _as_they_lie(f: Any, count: int, memory: Any) -> None:
    """Vectors take queries as they lie."""


@inner
def _place(f: Any, unit: int) -> Any:
    """Batch, head of keys, first row and number of rows of a unit."""
    block, rest = unit % f.blocks, unit // f.blocks
    first = block * f.rows
    count = min(f.rows, f.heads // f.kv_heads * f.queries - first)
    return rest // f.kv_heads, rest % f.kv_heads, first, count


@cache
def whole(target: Target) -> Any:
    """Compiled: units ``begin`` … ``end`` over all their positions."""
    return over_all(vectors(target))


def over_all(way: Way) -> Any:
    """Compiled: ``whole`` for a way to multiply."""
    memory_of, open_, take, stretch, close = way

    def work(arguments: int, begin: int, end: int) -> None:
        f = operands(arguments)
        memory, more = memory_of(f), in_vectors(f.width_v)
        words = np.zeros(8, np.int64)
        part, results = (
            np.zeros((f.rows, more + MORE), np.float32),
            np.zeros((f.rows, more + MORE), np.float32),
        )
        open_(memory)
        for unit in range(begin, end):
            batch, kv_head, first, count = _place(f, unit)
            take_queries(f, batch, kv_head, first, count, memory[0])
            take(f, count, memory)
            empty(results, count, more)
            _, high, _ = seen(f, batch, (first + count - 1) // (f.heads // f.kv_heads))
            for start in range(0, high, STRETCH):
                empty(part, count, more)
                stretch(f, batch, kv_head, first, count, start, memory, words, part)
                for r in range(count):
                    merge(results[r], part[r], more)
            finished(f, batch, kv_head, first, count, results, more)
        close(memory)

    return jit(work)


@cache
def stretches(target: Target) -> Any:
    """Compiled: stretches ``begin`` … ``end`` of all units, counted through, to ``parts``."""
    return over_stretches(vectors(target))


def over_stretches(way: Way) -> Any:
    """Compiled: ``stretches`` for a way to multiply."""
    memory_of, open_, take, stretch, close = way

    def work(arguments: int, begin: int, end: int) -> None:
        f = operands(arguments)
        memory, more = memory_of(f), in_vectors(f.width_v)
        words = np.zeros(8, np.int64)
        open_(memory)
        for number in range(begin, end):
            unit, start = number // f.stretches, number % f.stretches * STRETCH
            batch, kv_head, first, count = _place(f, unit)
            part = floats_at(f.parts + 4 * number * f.rows * (more + MORE), f.rows, more + MORE)
            empty(part, count, more)
            _, high, _ = seen(f, batch, (first + count - 1) // (f.heads // f.kv_heads))
            if start < high:
                take_queries(f, batch, kv_head, first, count, memory[0])
                take(f, count, memory)
                stretch(f, batch, kv_head, first, count, start, memory, words, part)
        close(memory)

    return jit(work)


@cache
def merged() -> Any:
    """Compiled: units ``begin`` … ``end`` from their stretches."""

    def work(arguments: int, begin: int, end: int) -> None:
        f = operands(arguments)
        more = in_vectors(f.width_v)
        results = np.zeros((f.rows, more + MORE), np.float32)
        for unit in range(begin, end):
            batch, kv_head, first, count = _place(f, unit)
            empty(results, count, more)
            for s in range(f.stretches):
                at = f.parts + 4 * (unit * f.stretches + s) * f.rows * (more + MORE)
                part = floats_at(at, f.rows, more + MORE)
                for r in range(count):
                    merge(results[r], part[r], more)
            finished(f, batch, kv_head, first, count, results, more)

    return jit(work)
