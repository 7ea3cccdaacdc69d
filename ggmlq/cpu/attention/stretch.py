"""The steps of a stretch of positions that both ways of multiplying share, and what each way adds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..machine.arguments import reader
from ..machine.jit import inner
from ..machine.memory import call_kernel, fail, floats_at, words_at
from .operands import LANES, MORE, Attend
from .softmax import NONE, biased, finish, weights

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
        at = ((batch * f.heads + head) * f.queries + query) * f.width_v
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
