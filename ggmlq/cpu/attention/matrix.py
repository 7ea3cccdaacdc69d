"""The products of attention on the matrix unit of Intel's CPUs, in bfloat16: queries, keys, values, weights.

Tiles of the unit are 16 rows of 64 bytes. Queries and weights are rows as they lie, 32 numbers each. Keys are
turned: a row of a tile is two neighbouring columns of 16 positions. Values are woven: a row is two
neighbouring positions of 16 columns. Both are done once for all rows of a work unit, which are more than in
vectors. Scores and results are float32 between tiles, so the maximum runs as in vectors; ``powers`` makes
weights of scores.

Floor for 128 positions of 256 rows and 128 columns: 2048 products of 16 clocks, and 32,768 powers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ..amx.instructions import instructions
from ..amx.unit import PITCH, TILE, bfloats
from ..lanes import chosen, emitted, load, splat, store
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner
from ..machine.memory import floats_at
from ..machine.simd import BFLOATS, FLOATS, I32, I64, INTS, Simd, vec
from ..machine.target import AVX512
from .drive import LANES, LARGEST, LONG, MANY, MORE, STEP, STRETCH, SUM
from .drive import TILE as LEAST
from .softmax import NONE, biased, exponential_of, largest, total, weights
from .units import Way, filled, over_all, over_stretches, seen

PAIR = 2 * TILE  # bytes of two tiles
HEIGHT = 16
PAGE = 4096


@cache
def whole(unit: Any) -> Any:
    """Compiled: units ``begin`` … ``end`` over all their positions; ``unit``: a kind of ``Unit``."""
    return over_all(matrix(unit))


@cache
def stretches(unit: Any) -> Any:
    """Compiled: stretches ``begin`` … ``end`` of all units, counted through, to ``parts``."""
    return over_stretches(matrix(unit))


@cache
def matrix(unit: Any) -> Way:
    """Products of bfloat16 in tiles of the unit."""
    begin, end, *_ = instructions(unit, "dot")
    room = unit.ROOM + PAGE - 1 & -PAGE
    round_rows, turn, weave = rounder(), turner(), weaver()
    multiply, add = products(unit), additions(unit)

    @inner
    def places(f: Any, tiles: Any) -> Any:
        """Addresses: of the unit's memory, and of tiles of queries, keys, values and weights."""
        here = tiles.ctypes.data + PAGE - 1 & -PAGE
        q = here + room
        k = q + 2 * MANY * f.width
        v = k + 2 * LONG * f.width
        return here, q, k, v, v + 2 * LONG * f.width_v

    def memory_of(f: Any) -> Any:
        numbers = (MANY + LONG) * f.width + LONG * f.width_v + MANY * LONG
        return (
            np.empty((MANY, f.width), np.float32), np.empty((LONG, f.width), np.float32),
            np.empty((LONG, f.width_v), np.float32), np.empty((MANY, LONG), np.float32),
            np.empty(room + 2 * numbers + PAGE, np.uint8),
        )  # fmt: skip

    def open_(memory: Any) -> None:
        begin(memory[4].ctypes.data + PAGE - 1 & -PAGE)

    def take(f: Any, count: int, memory: Any) -> None:
        _, q, _, _, _ = places(f, memory[4])
        round_rows(memory[0].ctypes.data, 4 * f.width, in_pairs(count), f.width // STEP, q)

    def stretch(
        f: Any, batch: int, kv_head: int, first: int, count: int, start: int, memory: Any, words: Any,
        results: Any,
    ) -> None:  # fmt: skip
        _, keys, values, scores, tiles = memory
        here, q, k, v, p = places(f, tiles)
        group, rows, width, more = f.heads // f.kv_heads, in_pairs(count), f.width, f.width_v
        low, _, _ = seen(f, batch, first // group)
        _, high, _ = seen(f, batch, (first + count - 1) // group)
        low, high = max(start, low // LONG * LONG), min(start + STRETCH, high)
        k_rows = f.k + batch * f.k_batch + kv_head * f.k_head
        v_rows = f.v + batch * f.v_batch + kv_head * f.v_head
        for position in range(low, high, LONG):
            n = min(LONG, high - position)
            columns = (n + LEAST - 1) // LEAST * LEAST
            filled(f.fill_k, k_rows + position * f.k_row, f.k_row, n, width, keys, words)
            turn(keys.ctypes.data, 4 * width, columns, width // STEP, k)
            multiply(here, q, k, rows, columns, width // STEP, scores.ctypes.data)
            weigh(f, batch, kv_head, first, count, position, n, columns, scores, results, p)
            if f.fill_v:
                filled(f.fill_v, v_rows + position * f.v_row, f.v_row, n, more, values, words)
                clear(values, n, columns, more)
                weave(values.ctypes.data, 4 * more, columns // STEP, more // HEIGHT, v)
            else:
                clear(keys, n, columns, more)
                weave(keys.ctypes.data, 4 * width, columns // STEP, more // HEIGHT, v)
            add(here, p, v, rows, columns // STEP, more, results.ctypes.data)

    def close(memory: Any) -> None:
        end(memory[4].ctypes.data + PAGE - 1 & -PAGE)
        memory[4][0] = 0  # an array lives until its last mention

    return Way(inner(memory_of), inner(open_), inner(take), inner(stretch), inner(close))


@inner
def in_pairs(rows: int) -> int:
    """Rows in whole pairs of tiles."""
    return (rows + STEP - 1) // STEP * STEP


@inner
def clear(values: Any, start: int, stop: int, columns: int) -> None:
    """Zeros at positions behind the last, whose weights are zeros: what lies there may be infinite."""
    for i in range(start, stop):
        for j in range(columns):
            values[i, j] = np.float32(0)


@inner
def weigh(
    f: Any, batch: int, kv_head: int, first: int, count: int, position: int, n: int, columns: int,
    scores: Any, results: Any, p: int,
) -> None:  # fmt: skip
    """Products of ``n`` positions to tiles of weights, row by row; ``columns``: those in whole tiles."""
    group, numbers, pairs = f.heads // f.kv_heads, floats_at(f.numbers, 1, 2)[0], columns // STEP
    for r in range(count):
        query, head = (first + r) // group, kv_head * group + (first + r) % group
        low, end, place = seen(f, batch, query)
        at = p + PAIR * (r // STEP * pairs) + TILE * (r // HEIGHT % 2) + PITCH * (r % HEIGHT)
        powers(
            f, numbers, scores[r], columns, (low, min(end, position + n), position, place), head, query,
            batch, results[r], f.width_v, at, PAIR,
        )  # fmt: skip


# --- tiles --------------------------------------------------------------------------------------


def rounder() -> Any:
    """Compiled: rows of float32 at a pitch to tiles [pairs of 16 rows, steps of 32 columns, 2]."""
    put_row = intrinsic_of(_put_row, 2)

    def round_rows(source: int, pitch: int, rows: int, steps: int, to: int) -> None:
        for r in range(rows):
            at = to + PAIR * (r // STEP * steps) + TILE * (r // HEIGHT % 2) + PITCH * (r % HEIGHT)
            for s in range(steps):
                put_row(source + r * pitch + 4 * STEP * s, at + PAIR * s)

    return inner(round_rows)


def _put_row(builder: Any, source: Any, to: Any) -> None:
    """32 float32 at an address to 32 bfloat16 at another."""
    simd = Simd(builder, AVX512)
    simd.store(_rounded(simd, source), to)


def _rounded(simd: Simd, source: Any) -> Any:
    low, high = (simd.load(simd.builder.add(source, I64(PITCH * i)), FLOATS) for i in range(2))
    return bfloats(simd, low, high)


def turner() -> Any:
    """Compiled: rows of keys to tiles [16 positions, steps of 32 columns], a row a pair of columns."""
    turn_tile = intrinsic_of(_turn_tile, 3)

    def turn(source: int, pitch: int, positions: int, steps: int, to: int) -> None:
        for i in range(0, positions, HEIGHT):
            for s in range(steps):
                turn_tile(source + i * pitch + 4 * STEP * s, pitch, to)
                to += TILE

    return inner(turn)


def _turn_tile(builder: Any, source: Any, pitch: Any, to: Any) -> None:
    """16 rows of 16 pairs of columns, transposed: blocks of 8, 4, 2 and 1 change places."""
    simd = Simd(builder, AVX512)
    rows = [
        builder.bitcast(_rounded(simd, simd.apart(builder.add(source, builder.mul(pitch, I64(i))))), INTS)
        for i in range(HEIGHT)
    ]
    for d in (8, 4, 2, 1):
        low = ir.Constant(vec(I32, HEIGHT), [j if not j & d else HEIGHT + j - d for j in range(HEIGHT)])
        high = ir.Constant(vec(I32, HEIGHT), [HEIGHT + j if j & d else j + d for j in range(HEIGHT)])
        for i in range(HEIGHT):
            if not i & d:
                a, b = rows[i], rows[i + d]
                rows[i], rows[i + d] = builder.shuffle_vector(a, b, low), builder.shuffle_vector(a, b, high)
    for i, row in enumerate(rows):
        simd.store(row, builder.add(to, I64(PITCH * i)))


def weaver() -> Any:
    """Compiled: rows of values to tiles [steps of 32 positions, 16 columns], a row a pair of positions."""
    weave_rows = intrinsic_of(_weave_rows, 3)

    def weave(source: int, pitch: int, steps: int, tiles: int, to: int) -> None:
        for s in range(steps):
            for i in range(HEIGHT):
                pair = source + (STEP * s + 2 * i) * pitch
                for t in range(tiles):
                    weave_rows(pair + PITCH * t, pitch, to + TILE * (s * tiles + t) + PITCH * i)

    return inner(weave)


def _weave_rows(builder: Any, source: Any, pitch: Any, to: Any) -> None:
    """16 columns of two rows, in turn."""
    simd = Simd(builder, AVX512)
    both = bfloats(simd, *(simd.load(at, FLOATS) for at in (source, builder.add(source, pitch))))
    turns = ir.Constant(vec(I32, 32), [i // 2 + HEIGHT * (i % 2) for i in range(32)])
    numbers = builder.bitcast(both, BFLOATS)
    simd.store(builder.shuffle_vector(numbers, ir.Constant(BFLOATS, ir.Undefined), turns), to)


# --- products -----------------------------------------------------------------------------------


def products(unit: Any) -> Any:
    """Compiled: tiles of queries times tiles of keys, to scores [rows, LONG]."""
    _, _, no_sums, _, store_sums, step, _ = instructions(unit, "dot")

    def multiply(here: int, q: int, k: int, rows: int, positions: int, steps: int, scores: int) -> None:
        for j in range(0, positions, STEP):
            left = k + TILE * (j // HEIGHT * steps)
            for r in range(0, rows, STEP):
                x = q + PAIR * (r // STEP * steps)
                no_sums(here)
                for s in range(steps):
                    step(here, x + PAIR * s, left + TILE * s, left + TILE * (steps + s))
                store_sums(here, scores + 4 * (r * LONG + j), 4 * LONG, 4 * LONG * HEIGHT)

    return inner(multiply)


def additions(unit: Any) -> Any:
    """Compiled: tiles of weights times tiles of values, added to results [rows, columns + MORE]."""
    _, _, _, _, store_sums, step, _ = instructions(unit, "dot")
    load_rows = intrinsic_of(lambda builder, here, at, pitch: _load_rows(unit(builder, here), at, pitch), 3)

    def add(here: int, p: int, v: int, rows: int, steps: int, columns: int, results: int) -> None:
        pitch, tiles = 4 * (columns + MORE), columns // HEIGHT
        for c in range(0, columns, STEP):
            for r in range(0, rows, STEP):
                at, x, w = (
                    results + r * pitch + 4 * c,
                    p + PAIR * (r // STEP * steps),
                    v + TILE * (c // HEIGHT),
                )
                load_rows(here, at, pitch)
                for s in range(steps):
                    step(here, x + PAIR * s, w + TILE * tiles * s, w + TILE * (tiles * s + 1))
                store_sums(here, at, pitch, pitch * HEIGHT)

    return inner(add)


def _load_rows(u: Any, at: Any, pitch: Any) -> None:
    """Sums from rows at a pitch."""
    below = u.b.add(at, u.b.mul(pitch, I64(HEIGHT)))
    for t in range(4):
        u.load(t, u.b.add(below if t // 2 else at, I64(PITCH * (t % 2))), pitch)


# --- The step from scores to weights on the matrix unit: powers of two, as tiles of bfloat16 ------
#
# Where all columns are seen and scores are products times the scale alone, products are read twice: for the
# largest, and for 2 ** (product · scale · log2 e - the largest's). AVX-512 splits off whole powers by
# itself, so that seven instructions make 16 weights where ``exponent.py`` takes 28; the polynomial is off
# by 3e-6 at most, bfloat16 by 4e-3. Other scores are computed by ``softmax.py`` first.

F32 = types.float32
LOG2E = np.float32(1.4426950408889634)
# Of 2 ** r for r from 0 to 1, behind 1: the least relative error.
POLYNOMIAL = 0.6930448412895203, 0.2412802129983902, 0.052242472767829895, 0.013426684774458408
DOWN, AS_SET = I32(1 | 8), I32(4)  # round to the integer below, without a flag; the rounding that is set


@inner
def powers(
    f: Any, numbers: Any, row: Any, columns: int, seen: Any, head: int, query: int, batch: int, result: Any,
    more: int, to: int, apart: int,
) -> None:  # fmt: skip
    """Weights of a row of products, 32 bfloat16 at ``to`` and at each ``apart``; ``result``: see ``weights``.

    ``seen``: the first position that the query sees, the one behind the last, the first of the columns, and
    the query's place.
    """
    low, end, position, place = seen
    slope = np.float32(1) if f.mask else np.float32(0)
    if f.slopes:
        slope = floats_at(f.slopes, 1, head + 1)[0, head]
    factor = numbers[0] * LOG2E
    if slope or numbers[1] or factor <= 0 or low > position or end < position + columns:
        mask = 0
        if f.mask:
            mask = f.mask + batch * f.mask_batch + head * f.mask_head + query * f.mask_query
        top = biased(row, columns, position, low, end, place, numbers[0], numbers[1], slope, mask)
        factor = LOG2E
    else:
        top = _top(row, columns) * numbers[0]
    before = result[more + LARGEST]
    peak = top if top > before else before
    if peak == NONE:  # nothing is seen so far, unless it is NaN
        weights(row, columns, top, result, more)
        for i in range(0, columns, 2 * LANES):
            put(to, load(row, i, LANES), load(row, i + LANES, LANES))
            to += apart
        return
    if peak > before:
        shrink = exponential_of(before - peak)
        for i in range(0, more, LANES):
            store(result, i, load(result, i, LANES) * shrink)
        result[more + LARGEST] = peak
        result[more + SUM] *= shrink
    sums = splat(np.float32(0), F32, LANES)
    for i in range(0, columns, 2 * LANES):
        a = power(load(row, i, LANES), factor, -peak * LOG2E)
        b = power(load(row, i + LANES, LANES), factor, -peak * LOG2E)
        put(to, a, b)
        sums = sums + (a + b)
        to += apart
    result[more + SUM] += total(sums)


@inner
def _top(row: Any, columns: int) -> Any:
    """The largest of a row."""
    a, b = splat(NONE, F32, LANES), splat(NONE, F32, LANES)
    for i in range(0, columns, 2 * LANES):
        s, t = load(row, i, LANES), load(row, i + LANES, LANES)
        a, b = chosen(s > a, s, a), chosen(t > b, t, b)
    return largest(chosen(a > b, a, b))


@emitted
def power(typingctx: Any, lanes: Any, factor: Any, less: Any) -> Any:
    """2 ** (lanes · factor + less), 0 for minus infinity."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        simd = Simd(builder, AVX512)
        x, by, plus = args[0], simd.splat(args[1]), simd.splat(args[2])
        x = simd.fma(x, by, plus)
        every = ir.Constant(ir.IntType(16), -1)
        nothing = ir.Constant(FLOATS, None)
        r = simd.call("llvm.x86.avx512.mask.reduce.ps.512", FLOATS, x, DOWN, nothing, every, AS_SET)
        y = ir.Constant(FLOATS, [POLYNOMIAL[-1]] * LANES)
        for number in (*POLYNOMIAL[-2::-1], 1.0):
            y = simd.fma(y, r, ir.Constant(FLOATS, [number] * LANES))
        return simd.call("llvm.x86.avx512.mask.scalef.ps.512", FLOATS, y, x, nothing, every, AS_SET)

    return lanes(lanes, F32, F32), codegen


@emitted
def put(typingctx: Any, to: Any, low: Any, high: Any) -> Any:
    """Two vectors as 32 bfloat16 at an address."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        simd = Simd(builder, AVX512)
        simd.store(bfloats(simd, *args[1:]), args[0])
        return context.get_dummy_value()

    return types.void(types.int64, low, high), codegen
