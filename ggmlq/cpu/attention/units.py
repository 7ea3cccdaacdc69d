"""The kernels of attention: rows of queries over stretches of positions, and the stretches merged.

A work unit is some queries of the heads that share keys. Either it goes through all positions, stretch by
stretch, or each stretch is a unit by itself whose result goes to memory. Both merge in the same order.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner, jit
from ..machine.memory import call_kernel, fail, floats_at, reader, words_at
from ..machine.simd import Simd
from ..machine.target import Target
from . import tile
from .drive import LANES, MORE, ROWS, STRETCH, TILE, Attend
from .softmax import NONE, biased, finish, merge, weights

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


# --- The steps of a stretch of positions that both ways of multiplying share, and what each way adds ---

operands = reader(Attend)
PROBLEM = 8 * 7  # where the code that decodes leaves what it raised, in bytes of the words of its arguments


class Way(NamedTuple):
    """Compiled steps of one way to multiply; ``memory`` comes from the first."""

    memory: Any  # (f): arrays of a thread, the first of them rows of queries
    begin: Any  # (memory): before the first unit
    take: Any  # (f, count, memory): rows of queries that lie in memory
    stretch: Any  # (f, batch, kv_head, first, count, start, memory, words, results)
    end: Any  # (memory): after the last unit


@inner
def in_vectors(columns: int) -> int:
    """Columns in whole vectors."""
    return (columns + LANES - 1) // LANES * LANES


@inner
def empty(results: Any, rows: int, more: int) -> None:
    """Results of no position."""
    for r in range(rows):
        for i in range(more + MORE):
            results[r, i] = np.float32(0)
        results[r, more] = NONE


@inner
def seen(f: Any, batch: int, query: int) -> Any:
    """The first position that a query sees, the one behind the last, and its place."""
    length = words_at(f.lengths, batch + 1)[batch]
    place = length - f.queries + query
    low, high = 0, length
    if f.causal or f.window:
        high = min(length, place + 1)
    if f.window:
        low = max(0, place + 1 - f.window)
    return low, max(high, low), place


@inner
def take_queries(f: Any, batch: int, kv_head: int, first: int, count: int, to: Any) -> None:
    """Rows of queries with zeros behind the last column."""
    group = f.heads // f.kv_heads
    for r in range(count):
        query, head = (first + r) // group, kv_head * group + (first + r) % group
        at = ((batch * f.heads + head) * f.queries + query) * f.width
        row = floats_at(f.q + 4 * at, 1, f.width)[0]
        for i in range(f.width):
            to[r, i] = row[i]
        for i in range(f.width, to.shape[1]):
            to[r, i] = np.float32(0)


@inner
def finished(f: Any, batch: int, kv_head: int, first: int, count: int, results: Any, more: int) -> None:
    """Results of rows, divided by their sums, to the output."""
    group = f.heads // f.kv_heads
    for r in range(count):
        query, head = (first + r) // group, kv_head * group + (first + r) % group
        sink = floats_at(f.sinks, 1, head + 1)[0, head] if f.sinks else NONE
        at = batch * f.heads * f.queries * f.width_v + head * f.out_head + query * f.out_query
        finish(results[r], more, sink, floats_at(f.out + 4 * at, 1, f.width_v)[0])


@inner
def scored(f: Any, batch: int, kv_head: int, first: int, count: int, position: int, high: int, columns: int,
           scores: Any, results: Any, more: int) -> None:  # fmt: skip
    """Products of some columns to weights, row by row; the positions from ``high`` on are behind the last."""
    group, numbers = f.heads // f.kv_heads, floats_at(f.numbers, 1, 2)[0]
    for r in range(count):
        query, head = (first + r) // group, kv_head * group + (first + r) % group
        low, end, place = seen(f, batch, query)
        slope = np.float32(1) if f.mask else np.float32(0)
        if f.slopes:
            slope = floats_at(f.slopes, 1, head + 1)[0, head]
        mask = 0
        if f.mask:
            mask = f.mask + batch * f.mask_batch + head * f.mask_head + query * f.mask_query
        end = min(end, high)
        top = biased(scores[r], columns, position, low, end, place, numbers[0], numbers[1], slope, mask)
        weights(scores[r], columns, top, results[r], more)


@inner
def filled(code: int, rows: int, apart: int, count: int, width: int, values: Any, words: Any) -> None:
    """Decode rows to a tile, by code at an address."""
    words[0], words[1], words[2], words[3] = rows, apart, count, width
    words[4], words[5] = values.ctypes.data, values.shape[1]
    at = words.ctypes.data
    fail(call_kernel(code, at, 0, 0, at + PROBLEM), words[PROBLEM // 8])
