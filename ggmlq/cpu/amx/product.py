"""The kernel of ``linear``'s rung ``cpu:amx``: tiles of activations times panels, decoded between products.

Two panels are 32 rows of weights. A *chunk* of their columns is decoded into the first cache, then
multiplied with all blocks of 32 rows of activations, which pass by from the second cache. The next chunk is
decoded meanwhile, by instructions that stand between products: the vector units work beside the matrix unit.
With many blocks it is decoded to another place, a tile while eight runs are multiplied. With few it is
decoded while the last of them is multiplied, each run to the place of the run that has just been loaded.

Sums stay in tiles for a chunk. Between chunks those of ``near`` pairs of panels lie in the second cache, so
that a chunk of activations is read once for all of these. Each sum takes its products in the order of the
columns, whatever the number of rows, the chunk and the threads: results are the same to the last bit.

With many blocks the sums of the next block, the activations of the next chunk, and the panel of the next tile
are asked for ahead.

Floors for 32 rows of weights, 32 of activations and a run: four products, 64 clocks; four loads of tiles,
32; two decoded tiles for all activations.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
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
from .weights import PARTS, Decoder, decoder

operands = reader(Operands)
PAGE = 4096
AT_ONCE = 4  # lines of the next sums, and of the next activations, that are asked for in a step


class Chunk(NamedTuple):
    """A chunk of the columns of a pair of panels, and the sums of the pair."""

    pair: int
    start: int  # its first run
    steps: int  # its runs
    sums: int  # address of those of the first block


@cache
def multiplier(layout: PanelLayout, unit: Any) -> Any:
    """Compiled: pairs of panels ``first`` … ``stop`` times all blocks; ``unit``: a kind of ``Unit``."""
    decode, room = decoder(layout), unit.ROOM + PAGE - 1 & -PAGE
    begin, end, *_ = instructions(unit, "dot")
    gather, by_many, by_few = gatherer(), many_sweeper(layout, unit), few_sweeper(layout, unit)

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        weights, panels, panel_bytes, runs = fields.weights, fields.panels, fields.panel_bytes, fields.runs
        blocks, chunk, many = fields.blocks, min(fields.chunk, runs), fields.near > 1
        bytes_of_chunk = 2 * TILE * chunk
        size = room + 2 * bytes_of_chunk + SUMS * (1 + blocks * min(fields.near, stop - first))
        memory = np.empty(size + PAGE, np.uint8)
        unit_at = memory.ctypes.data + PAGE - 1 & -PAGE
        w = unit_at + room
        ahead = w + bytes_of_chunk if many else w
        edge = w + 2 * bytes_of_chunk
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
            place, next_place = pair - near_first, (next_pair - near_first) % fields.near
            now = Chunk(pair, start, steps, sums + SUMS * place * blocks)
            then = Chunk(next_pair, next_start, next_steps, sums + SUMS * next_place * blocks)
            if many:
                done = by_many(unit_at, fields, now, then, left, right, w, ahead, place)
            else:
                by_few(unit_at, fields, now, then, left, right, w, edge)
                done = 2 * steps
            for i in range(done, 2 * next_steps):
                decode(right if i % 2 else left, next_start + i // 2, ahead + TILE * i)
            w, ahead = ahead, w
            pair, start = next_pair, next_start
            if pair == near_stop:
                if many:
                    gather(fields, near_first, near_stop, sums, edge)
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


def many_sweeper(layout: PanelLayout, unit: Any) -> Any:
    """Compiled: a chunk at ``w`` times all blocks; the number of tiles of the next that lie ``ahead``."""
    _, _, no_sums, load_sums, store_sums, step, _ = instructions(unit, "dot")
    by_eight, near, far, eight = eight_steps(layout, unit), asker(1), asker(2), PARTS

    def by_many(
        unit_at: int, fields: Any, now: Any, then: Any, left: int, right: int, w: int, ahead: int, place: int
    ) -> int:
        blocks, steps, due, done = fields.blocks, now.steps, 2 * then.steps, 0
        x = fields.tiles + 2 * TILE * now.start * blocks
        # of the next chunk, a part while each pair that is near is multiplied
        next_x = now.start + steps if now.start + steps < fields.runs else 0
        x_ahead = fields.tiles + (2 * TILE * next_x + PITCH * AT_ONCE * place * steps) * blocks
        for block in range(blocks):
            sums = now.sums + SUMS * block
            sums_ahead = then.sums if block == blocks - 1 else sums + SUMS
            if now.start == 0:
                no_sums(unit_at)
            else:
                load_sums(unit_at, sums)
            s = 0
            while s < steps:
                here, offset = x + 2 * TILE * s, PITCH * AT_ONCE * s
                if s + eight <= steps and done < due:
                    panel = right if done % 2 else left
                    run, to = then.start + done // 2, ahead + TILE * done
                    by_eight(
                        unit_at, here, w + 2 * TILE * s, panel, run, to, sums_ahead + offset, x_ahead + offset
                    )
                    s, done = s + eight, done + 1
                else:
                    near(sums_ahead + offset)
                    far(x_ahead + offset)
                    step(unit_at, here, w + 2 * TILE * s, w + 2 * TILE * s + TILE)
                    s += 1
            store_sums(unit_at, sums, LINE, 2 * TILE)
            x, x_ahead = x + 2 * TILE * steps, x_ahead + PITCH * AT_ONCE * steps
        return done

    return inner(by_many)


def eight_steps(layout: PanelLayout, unit: Any) -> Any:
    """An intrinsic: eight steps, between them the decoding of a tile, and lines that are asked for ahead.

    Its words: the unit, activations, decoded weights; a panel, the number of a run, the place of its tile;
    the next sums, the next activations.
    """

    def emit(
        b: Any, here: Any, x: Any, w: Any, panel: Any, run: Any, to: Any, sums: Any, x_ahead: Any
    ) -> None:
        u, decoding = unit(b, here), Decoder(b, layout)
        place = decoding.run_at(panel, b.add(run, I64(1))).run
        for line in range(-(-layout.run_bytes // PITCH)):
            u.simd.fetch(b.add(place, I64(PITCH * line)), 1)
        for i, _ in enumerate(decoding.parts(panel, run, to)):
            _ask(b, b.add(sums, I64(PITCH * AT_ONCE * i)), 1)
            _ask(b, b.add(x_ahead, I64(PITCH * AT_ONCE * i)), 2)
            rows, weights = b.add(x, I64(2 * TILE * i)), b.add(w, I64(2 * TILE * i))
            u.load(6, rows, passing=True)
            u.load(4, weights)
            u.dot(0, 6, 4)
            u.load(5, b.add(weights, I64(TILE)))
            u.dot(1, 6, 5)
            u.load(7, b.add(rows, I64(TILE)), passing=True)
            u.dot(2, 7, 4)
            u.dot(3, 7, 5)

    return intrinsic_of(emit, 8)


def asker(cache: int) -> Any:
    """An intrinsic that asks for some lines from an address on, into the first cache or the second."""
    return intrinsic_of(lambda builder, at: _ask(builder, at, cache), 1)


def _ask(builder: Any, at: Any, cache: int) -> None:
    for i in range(AT_ONCE):
        Simd(builder, AVX512).fetch(builder.add(at, I64(PITCH * i)), cache)


def few_sweeper(layout: PanelLayout, unit: Any) -> Any:
    """Compiled: a chunk at ``w`` times all blocks; then the next lies there, as far as it is no longer."""
    _, _, no_sums, load_sums, store_sums, step, half_step = instructions(unit, "dot")
    by_two, by_one = sweeper(step, weaver(layout, unit)), sweeper(half_step, decoder_after(half_step, layout))
    result = putter(store_sums)

    def by_few(
        unit_at: int, fields: Any, now: Any, then: Any, left: int, right: int, w: int, edge: int
    ) -> None:
        blocks, steps = fields.blocks, now.steps
        for block in range(blocks):
            sums = now.sums + SUMS * block
            x = fields.tiles + 2 * TILE * (now.start * blocks + block * steps)
            if now.start == 0:
                no_sums(unit_at)
            elif blocks > 1:  # else sums never leave their tiles
                load_sums(unit_at, sums)
            due = then.steps if block == blocks - 1 else 0
            if fields.m - 2 * ROWS * block > ROWS:
                by_two(unit_at, x, w, steps, left, right, then.start, due)
            else:
                by_one(unit_at, x, w, steps, left, right, then.start, due)
            if now.start + steps == fields.runs:
                result(unit_at, fields, 2 * ROWS * block, 2 * ROWS * now.pair, edge)
            elif blocks > 1:
                store_sums(unit_at, sums, LINE, 2 * TILE)

    return inner(by_few)


def sweeper(step: Any, woven: Any) -> Any:
    """Compiled: the steps of a chunk, the first ``due`` of them with a run of the next chunk in between."""

    def sweep(unit_at: int, x: int, w: int, steps: int, left: int, right: int, start: int, due: int) -> None:
        for s in range(steps):
            here, now = x + 2 * TILE * s, w + 2 * TILE * s
            if s < due:
                woven(unit_at, here, now, left, right, start + s)
            else:
                step(unit_at, here, now, now + TILE)

    return inner(sweep)


def weaver(layout: PanelLayout, unit: Any) -> Any:
    """An intrinsic: a step, and a run of two panels decoded between its products, to where its weights lay.

    Its words: the unit, activations, decoded weights, the left and the right panel, the number of the run.
    """

    def emit(builder: Any, here: Any, x: Any, w: Any, left: Any, right: Any, run: Any) -> None:
        u, decoding = unit(builder, here), Decoder(builder, layout)
        beside = builder.add(w, I64(TILE))
        u.load(4, w)
        u.load(5, beside)
        for i in range(2):
            u.load(6 + i, builder.add(x, I64(TILE * i)), passing=True)
        parts = chain(decoding.parts(left, run, w), decoding.parts(right, run, beside))
        for i in range(4):
            u.dot(i, 6 + i // 2, 4 + i % 2)
            for _ in range(PARTS // 2):
                next(parts)

    return intrinsic_of(emit, 6)


def decoder_after(half_step: Any, layout: PanelLayout) -> Any:
    """Compiled: the same for a tile of activations, whose two products leave no time beside them."""
    decode = decoder(layout)

    def decode_after(unit_at: int, x: int, w: int, left: int, right: int, run: int) -> None:
        half_step(unit_at, x, w, w + TILE)
        decode(left, run, w)
        decode(right, run, w + TILE)

    return inner(decode_after)
