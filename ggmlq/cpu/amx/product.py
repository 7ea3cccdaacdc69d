"""The kernel of ``linear``'s rung ``cpu:amx``: tiles of activations times panels, decoded between products.

Two panels are 32 rows of weights. A *chunk* of their columns is decoded into the first cache, then
multiplied with all blocks of 32 rows of activations, which pass by from the second cache. While the last of
these is multiplied, each run of the next chunk is decoded to the place of the run that has just been loaded,
by instructions that stand between its products: the vector units work beside the matrix unit.

Sums stay in tiles for a chunk. Between chunks those of ``near`` pairs of panels lie in the second cache, so
that a chunk of activations is read once for all of these. Each sum takes its products in the order of the
columns, whatever the number of rows, the chunk and the threads: results are the same to the last bit.

With many blocks the sums of the next block are asked for ahead.

Floors for 32 rows of weights, 32 of activations and a run: four products, 64 clocks; four loads of tiles,
32; two decoded tiles for all activations.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..machine.arguments import reader
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner, jit
from ..machine.simd import I64, Simd
from ..machine.target import AVX512
from ..panels.layout import ROWS, PanelLayout
from .instructions import LINE, SUMS, instructions
from .operands import Operands
from .results import gatherer, putter
from .unit import PITCH, TILE
from .weights import Decoder, decoder

operands = reader(Operands)
PAGE = 4096
AT_ONCE = 4  # lines of the next sums that are asked for in a step


@cache
def multiplier(layout: PanelLayout, unit: Any) -> Any:
    """Compiled: pairs of panels ``first`` … ``stop`` times all blocks; ``unit``: a kind of ``Unit``."""
    decode, room = decoder(layout), unit.ROOM + PAGE - 1 & -PAGE
    begin, end, *_ = instructions(unit, "dot")
    gather, by_blocks = gatherer(), blocks_sweeper(layout, unit)

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        weights, panels, panel_bytes, runs = fields.weights, fields.panels, fields.panel_bytes, fields.runs
        blocks, chunk, many = fields.blocks, min(fields.chunk, runs), fields.near > 1
        bytes_of_chunk = 2 * TILE * chunk
        size = room + bytes_of_chunk + SUMS * (1 + blocks * min(fields.near, stop - first))
        memory = np.empty(size + PAGE, np.uint8)
        unit_at = memory.ctypes.data + PAGE - 1 & -PAGE
        w, edge = unit_at + room, unit_at + room + bytes_of_chunk
        sums = edge + SUMS
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
            now = Chunk(pair, start, steps, sums + SUMS * (pair - near_first) * blocks)
            then = Chunk(
                next_pair,
                next_start,
                next_steps,
                sums + SUMS * ((next_pair - near_first) % fields.near) * blocks,
            )
            by_blocks(unit_at, fields, now, then, left, right, w, edge)
            for s in range(steps, next_steps):
                decode(left, next_start + s, w + 2 * TILE * s)
                decode(right, next_start + s, w + 2 * TILE * s + TILE)
            pair, start = next_pair, next_start
            if pair == near_stop:
                if many:
                    gather(fields, near_first, near_stop, sums, edge)
                near_first, near_stop = pair, min(pair + fields.near, stop)
        end(unit_at)
        memory[0] = 0  # an array lives until its last mention

    return jit(multiply)


class Chunk(NamedTuple):
    """A chunk of the columns of a pair of panels, and the sums of the pair."""

    pair: int
    start: int  # its first run
    steps: int  # its runs
    sums: int  # address of those of the first block


@inner
def following(pair: int, start: int, near_first: int, near_stop: int, chunk: int, runs: int) -> Any:
    """The next pair and first run: another near pair, the next chunk of these, or the next near pairs."""
    if pair + 1 < near_stop:
        return pair + 1, start
    if start + chunk < runs:
        return near_first, start + chunk
    return near_stop, 0


def blocks_sweeper(layout: PanelLayout, unit: Any) -> Any:
    """Compiled: a decoded chunk, at ``w``, times all blocks; then the next chunk lies there."""
    _, _, no_sums, load_sums, store_sums, step, half_step = instructions(unit, "dot")
    by_two, by_one = sweeper(step, weaver(layout, unit, 2)), sweeper(half_step, weaver(layout, unit, 1))
    result = putter(store_sums)

    def by_blocks(
        unit_at: int, fields: Any, now: Any, then: Any, left: int, right: int, w: int, edge: int
    ) -> None:
        blocks, steps, many = fields.blocks, now.steps, fields.near > 1
        alone = blocks == 1 and not many  # sums never leave their tiles
        for block in range(blocks):
            sums, last = now.sums + SUMS * block, block == blocks - 1
            x = fields.tiles + 2 * TILE * (now.start * blocks + block * steps)
            if now.start == 0:
                no_sums(unit_at)
            elif not alone:
                load_sums(unit_at, sums)
            due, sums_ahead = then.steps if last else 0, (then.sums if last else sums + SUMS) if many else 0
            if fields.m - 2 * ROWS * block > ROWS:
                by_two(unit_at, x, w, steps, left, right, then.start, due, sums_ahead)
            else:
                by_one(unit_at, x, w, steps, left, right, then.start, due, sums_ahead)
            if now.start + steps == fields.runs and not many:
                result(unit_at, fields, 2 * ROWS * block, 2 * ROWS * now.pair, edge)
            elif not alone:
                store_sums(unit_at, sums, LINE, 2 * TILE)

    return inner(by_blocks)


def sweeper(step: Any, woven: Any) -> Any:
    """Compiled: the steps of a chunk, the first ``due`` of them with a run of the next chunk in between."""
    ask = intrinsic_of(_ask, 1)

    def sweep(
        unit_at: int, x: int, w: int, steps: int, left: int, right: int, start: int, due: int, ahead: int
    ) -> None:
        for s in range(steps):
            if ahead:
                ask(ahead + PITCH * AT_ONCE * s)
            here, now = x + 2 * TILE * s, w + 2 * TILE * s
            if s < due:
                woven(unit_at, here, now, left, right, start + s)
            else:
                step(unit_at, here, now, now + TILE)

    return inner(sweep)


def _ask(builder: Any, at: Any) -> None:
    """Ask for some lines from an address on, into the first cache."""
    for i in range(AT_ONCE):
        Simd(builder, AVX512).fetch(builder.add(at, I64(PITCH * i)), 1)


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
