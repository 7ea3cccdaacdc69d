"""The kernel of ``linear``'s rung ``cpu:amx``: tiles of activations times panels, decoded between products.

Two panels are 32 rows of weights. A *chunk* of their columns is decoded into the first cache, then
multiplied with all blocks of 32 rows of activations, which pass by from the second cache. While the last of
these is multiplied, each run of the next chunk is decoded to the place of the run that has just been loaded,
by instructions that stand between its products: the vector units work beside the matrix unit.

Sums stay in tiles for a chunk. Between chunks those of ``near`` pairs of panels lie in the second cache, so
that a chunk of activations is read once for all of these. Each sum takes its products in the order of the
columns, whatever the number of rows, the chunk and the threads: results are the same to the last bit.

With many blocks all that comes next is asked for ahead: the sums of the next block, the activations of the
next chunk, and the next panels, at whose borders the memory's prefetching would begin anew.

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
from ..machine.simd import I64, Simd
from ..machine.target import AVX512
from ..panels.layout import ROWS, SUPER, PanelLayout
from .instructions import LINE, SUMS, instructions
from .operands import Operands
from .results import gatherer, putter
from .unit import PITCH, TILE
from .weights import Decoder, decoder

operands = reader(Operands)
PAGE = 4096
AT_ONCE = 4  # lines of the next sums, and of the next activations, that are asked for in a step


@cache
def multiplier(layout: PanelLayout, unit: Any) -> Any:
    """Compiled: pairs of panels ``first`` … ``stop`` times all blocks; ``unit``: a kind of ``Unit``."""
    decode, room = decoder(layout), unit.ROOM + PAGE - 1 & -PAGE
    begin, end, no_sums, load_sums, store_sums, step, half_step = instructions(unit, "dot")
    result, gather, ask = putter(store_sums), gatherer(), panel_asker(layout)
    by_two, by_one = sweeper(step, weaver(layout, unit, 2)), sweeper(half_step, weaver(layout, unit, 1))

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        weights, panels, panel_bytes, runs = fields.weights, fields.panels, fields.panel_bytes, fields.runs
        blocks, chunk, many = fields.blocks, min(fields.chunk, runs), fields.near > 1
        alone = blocks == 1 and not many  # sums never leave their tiles
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
            sums = sums_at + SUMS * (pair - near_first) * blocks
            x = fields.tiles + 2 * TILE * start * blocks
            # of the next chunk, a part while each pair is multiplied
            next_x = fields.tiles + 2 * TILE * (start + steps if start + steps < runs else 0) * blocks
            next_x += PITCH * AT_ONCE * (pair - near_first) * blocks * steps
            for block in range(blocks):
                if start == 0:
                    no_sums(unit_at)
                elif not alone:
                    load_sums(unit_at, sums)
                due = next_steps if block == blocks - 1 else 0
                if next_steps and not due:
                    ask(left, right, next_start, next_steps, block, blocks - 1)
                sums_ahead = sums + SUMS if many else 0
                if many and due:
                    sums_ahead = sums_at + SUMS * ((next_pair - near_first) % fields.near) * blocks
                if fields.m - 2 * ROWS * block > ROWS:
                    by_two(unit_at, x, w, steps, left, right, next_start, due, sums_ahead, next_x)
                else:
                    by_one(unit_at, x, w, steps, left, right, next_start, due, sums_ahead, next_x)
                if start + steps == runs and not many:
                    result(unit_at, fields, 2 * ROWS * block, 2 * ROWS * pair, edge)
                elif not alone:
                    store_sums(unit_at, sums, LINE, 2 * TILE)
                sums, x, next_x = sums + SUMS, x + 2 * TILE * steps, next_x + PITCH * AT_ONCE * steps
            for s in range(steps, next_steps):
                decode(left, next_start + s, w + 2 * TILE * s)
                decode(right, next_start + s, w + 2 * TILE * s + TILE)
            pair, start = next_pair, next_start
            if pair == near_stop:
                if many:
                    gather(fields, near_first, near_stop, sums_at)
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


def sweeper(step: Any, woven: Any) -> Any:
    """Compiled: the steps of a chunk; between the products of the first ``due`` a run of the next is decoded."""
    ask_near, ask_far = asker(1, AT_ONCE), asker(2, AT_ONCE)

    def sweep(
        unit_at: int, x: int, w: int, steps: int, left: int, right: int, next_start: int, due: int,
        sums_ahead: int, x_ahead: int,
    ) -> None:  # fmt: skip
        for s in range(steps):
            if sums_ahead:
                ask_near(sums_ahead + PITCH * AT_ONCE * s)
                ask_far(x_ahead + PITCH * AT_ONCE * s)
            here, now = x + 2 * TILE * s, w + 2 * TILE * s
            if s < due:
                woven(unit_at, here, now, left, right, next_start + s)
            else:
                step(unit_at, here, now, now + TILE)

    return inner(sweep)


def weaver(layout: PanelLayout, unit: Any, halves: int) -> Any:
    """An intrinsic: a step with 16 or 32 rows of activations, and a run decoded to where its weights lay.

    Its words: the unit, activations, decoded weights, the left and the right panel, the number of the run.
    """

    def emit(builder: Any, here: Any, x: Any, w: Any, left: Any, right: Any, run: Any) -> None:
        u, decoding = unit(builder, here), Decoder(builder, layout)
        beside = builder.add(w, I64(TILE))
        u.load(4, w)
        u.load(5, beside)
        for i in range(halves):
            u.load(6 + i, builder.add(x, I64(TILE * i)), passing=True)
        parts = [*_turns(decoding, left, run, w), *_turns(decoding, right, run, beside)]
        for i in range(2 * halves):
            u.dot(i, 6 + i // 2, 4 + i % 2)
            for part in parts[i * len(parts) // (2 * halves) : (i + 1) * len(parts) // (2 * halves)]:
                part()

    return intrinsic_of(emit, 6)


def _turns(decoding: Decoder, panel: Any, run: Any, to: Any) -> list[Any]:
    """Functions that emit the one half of a decoding and the other."""
    halves = decoding.halves(panel, run, to)
    return [lambda: next(halves)] * 2


def asker(cache: int, lines: int) -> Any:
    """An intrinsic that asks for some lines from an address on, into the first cache or the second."""

    def emit(builder: Any, at: Any) -> None:
        for i in range(lines):
            Simd(builder, AVX512).fetch(builder.add(at, I64(PITCH * i)), cache)

    return intrinsic_of(emit, 1)


def panel_asker(layout: PanelLayout) -> Any:
    """Compiled: ask for part ``part`` of ``parts`` of some runs of two panels."""
    ask, run_bytes, head = asker(2, 1), layout.run_bytes, layout.head

    def ask_part(left: int, right: int, start: int, runs: int, part: int, parts: int) -> None:
        at = start * run_bytes + start // SUPER * head
        lines = (runs * run_bytes + (runs + SUPER - 1) // SUPER * head + PITCH - 1) // PITCH + 1
        for i in range(lines * part // parts, lines * (part + 1) // parts):
            ask(left + at + PITCH * i)
            ask(right + at + PITCH * i)

    return inner(ask_part)
