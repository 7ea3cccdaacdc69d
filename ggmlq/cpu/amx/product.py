"""The kernel of ``linear``'s rung ``cpu:amx``: tiles of activations times panels, decoded between products.

Two panels are 32 rows of weights. A *chunk* of their columns is decoded into the first cache, then
multiplied with all blocks of 32 rows of activations, which pass by from the second cache. While the last of
these is multiplied, each run of the next chunk is decoded to the place of the run that has just been loaded.

Sums stay in tiles for a chunk. Between chunks those of ``near`` pairs of panels lie in the second cache, so
that a chunk of activations is read once for all of these. Each sum takes its products in the order of the
columns, whatever the number of rows, the chunk and the threads: results are the same to the last bit.

Floors for 32 rows of weights, 32 of activations and a run: four products, 64 clocks; four loads of tiles,
32; two decoded tiles for all activations.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.arguments import reader
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at
from ..machine.simd import F16, FLOATS, I64, Simd, vec
from ..machine.target import AVX512
from ..panels.layout import ROWS, PanelLayout
from .instructions import LINE, SUMS, instructions
from .operands import NUMBERS, Operands
from .unit import PITCH, TILE, bfloats
from .weights import decoder

operands = reader(Operands)
PAGE = 4096
HALVES, BFLOATS = NUMBERS.index("float16"), NUMBERS.index("bfloat16")


@cache
def multiplier(layout: PanelLayout, unit: Any) -> Any:
    """Compiled: pairs of panels ``first`` … ``stop`` times all blocks; ``unit``: a kind of ``Unit``."""
    decode, room = decoder(layout), unit.ROOM + PAGE - 1 & -PAGE
    begin, end, no_sums, load_sums, store_sums, step, half_step = instructions(unit, "dot")
    result, by_two, by_one = putter(store_sums), sweeper(step, decode), sweeper(half_step, decode)

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        weights, panels, panel_bytes, runs = fields.weights, fields.panels, fields.panel_bytes, fields.runs
        blocks, chunk = fields.blocks, min(fields.chunk, runs)
        alone = blocks == 1 and fields.near == 1  # sums never leave their tiles
        bytes_of_chunk = 2 * TILE * chunk
        size = room + bytes_of_chunk + SUMS * (1 + blocks * min(fields.near, stop - first))
        memory = np.empty(size + PAGE, np.uint8)
        unit_at = memory.ctypes.data + PAGE - 1 & -PAGE
        w, edge = unit_at + room, unit_at + room + bytes_of_chunk
        sums_at = edge + SUMS
        begin(unit_at)
        for i in range(2 * chunk):
            decode(weights + min(2 * first + i % 2, panels - 1) * panel_bytes, i // 2, w + TILE * i)
        near_first = pair = first
        near_stop, start = min(first + fields.near, stop), 0
        while pair < stop:
            steps = min(chunk, runs - start)
            next_pair, next_start = following(pair, start, near_first, near_stop, chunk, runs)
            next_steps = min(chunk, runs - next_start) if next_pair < stop else 0
            left = weights + 2 * next_pair * panel_bytes
            right = weights + min(2 * next_pair + 1, panels - 1) * panel_bytes
            for block in range(blocks):
                sums = sums_at + SUMS * ((pair - near_first) * blocks + block)
                x = fields.tiles + 2 * TILE * (start * blocks + block * steps)
                if start == 0:
                    no_sums(unit_at)
                elif not alone:
                    load_sums(unit_at, sums)
                due = next_steps if block == blocks - 1 else 0
                if fields.m - 2 * ROWS * block > ROWS:
                    by_two(unit_at, x, w, steps, left, right, next_start, due)
                else:
                    by_one(unit_at, x, w, steps, left, right, next_start, due)
                if start + steps == runs:
                    result(unit_at, fields, 2 * ROWS * block, 2 * ROWS * pair, edge)
                elif not alone:
                    store_sums(unit_at, sums, LINE, 2 * TILE)
            for s in range(steps, next_steps):
                decode(left, next_start + s, w + 2 * TILE * s)
                decode(right, next_start + s, w + 2 * TILE * s + TILE)
            pair, start = next_pair, next_start
            if pair == near_stop:
                near_first, near_stop = pair, min(pair + fields.near, stop)
        end(unit_at)
        memory[0] = 0  # an array lives until its last mention

    return jit(multiply)


@inner
def following(pair: int, start: int, near_first: int, near_stop: int, chunk: int, runs: int) -> Any:
    """The next pair and first run: another near pair, the next chunk of these, or the next near pairs."""
    if pair + 1 < near_stop:
        return pair + 1, start
    if start + chunk < runs:
        return near_first, start + chunk
    return near_stop, 0


def sweeper(step: Any, decode: Any) -> Any:
    """Compiled: the steps of a chunk; after each of the first ``due`` a run of the next chunk is decoded."""

    def sweep(
        unit_at: int, x: int, w: int, steps: int, left: int, right: int, next_start: int, due: int
    ) -> None:
        for s in range(steps):
            step(unit_at, x + 2 * TILE * s, w + 2 * TILE * s, w + 2 * TILE * s + TILE)
            if s < due:
                decode(left, next_start + s, w + 2 * TILE * s)
                decode(right, next_start + s, w + 2 * TILE * s + TILE)

    return inner(sweep)


def putter(store_sums: Any) -> Any:
    """Compiled: write the sums of a block and a pair of panels to the result, rounded to its numbers."""
    to_halves, to_bfloats = (intrinsic_of(emit, 2) for emit in (_to_halves, _to_bfloats))

    def put(unit_at: int, fields: Any, row: int, column: int, edge: int) -> None:
        n, rows, columns = fields.n, min(2 * ROWS, fields.m - row), min(2 * ROWS, fields.n - column)
        if rows == columns == 2 * ROWS and not fields.number:
            store_sums(unit_at, fields.out + 4 * (row * n + column), 4 * n, 4 * ROWS * n)
            return
        store_sums(unit_at, edge, LINE, 2 * TILE)
        width = 2 if fields.number else 4
        for r in range(rows):
            line, to = edge + LINE * r, fields.out + width * ((row + r) * n + column)
            rounded = to if fields.number and columns == 2 * ROWS else line
            if fields.number == HALVES:
                to_halves(line, rounded)
            elif fields.number == BFLOATS:
                to_bfloats(line, rounded)
            if rounded != to:
                source, target = bytes_at(line, 1, width * columns), bytes_at(to, 1, width * columns)
                for i in range(width * columns):  # from array to array Numba would allocate
                    target[0, i] = source[0, i]

    return inner(put)


def _to_halves(builder: Any, source: Any, to: Any) -> None:
    """32 float32 at an address to 32 float16 at another."""
    simd = Simd(builder, AVX512)
    parts = [simd.load(builder.add(source, I64(PITCH * i)), FLOATS) for i in range(2)]
    for i, part in enumerate(parts):
        simd.store(builder.fptrunc(part, vec(F16, ROWS)), builder.add(to, I64(PITCH // 2 * i)))


def _to_bfloats(builder: Any, source: Any, to: Any) -> None:
    """32 float32 at an address to 32 bfloat16 at another."""
    simd = Simd(builder, AVX512)
    simd.store(bfloats(simd, *(simd.load(builder.add(source, I64(PITCH * i)), FLOATS) for i in range(2))), to)
