"""cuda:gemv with one or two rows of activations: the other columns of ``mma`` serve other runs.

Column 2 t + c of an operand of eight has row c of the activations in run t, and zeros elsewhere. So
lane 4 g + t finds sums of run t alone, and makes the scales of that run alone; where a record has two
runs, two records are taken together. At the end the lanes of a g add up.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..strips.codes import buffers
from ..strips.layout import STEP
from ..strips.operand import operand_of_run, summer
from ..words import bf16x2, ptx
from ..words.atoms import inlined
from ..words.lane import EVERYONE, g_and_t
from ..words.language import cuda, float32, uint32
from .stages import BOTH, Stage


def serves(stage: Stage) -> bool:
    """Whether that takes fewer instructions: where scales are products, or sums of activations are needed."""
    return stage.columns <= 2 and (stage.layout.subs > 0 or operand_of_run(stage.layout).needs_sums)


@cache
def multiplier(stage: Stage) -> Any:
    """The device function that adds a span of both strips to a lane's sums, four of a strip."""
    together = min(4 // stage.layout.runs, stage.span)
    multiply_records, again = records_multiplier(stage, together), stage.span > together

    @inlined
    def multiply(at: Any, lane: Any, sums: Any, unseen: Any) -> None:
        multiply_records(at, 0, lane, sums, unseen)
        if again:
            multiply_records(at, 1, lane, sums, unseen)

    return multiply


@cache
def activations_of(stage: Stage) -> Any:
    """The device function that loads a record of activations as registers of ``mma``; zeros in other runs."""
    size, columns, pitch, each = stage.size, stage.columns, stage.pitch, 4 // stage.layout.runs
    narrowed, take_floats = bf16x2.narrowed, ptx.take_floats

    @inlined
    def take(at: Any, record: Any, first_run: Any, lane: Any, b: Any, to: Any) -> None:
        g, t = g_and_t(lane)
        row = g & uint32(columns - 1)
        of_x = at + uint32(BOTH * size + record * 4 * STEP) + row * uint32(pitch) + t * uint32(16)
        for s in range(4):
            own = uint32(0xFFFFFFFF) if g >> uint32(1) == uint32(first_run + s // each) else uint32(0)
            v = take_floats(of_x + uint32(64 * s))
            b[to + 2 * s], b[to + 2 * s + 1] = narrowed(v[0], v[1]) & own, narrowed(v[2], v[3]) & own

    return take


@cache
def record_adder(stage: Stage) -> Any:
    """The device function that multiplies one record of a strip."""
    operand, (count, _) = operand_of_run(stage.layout), buffers(stage.layout)
    load_words, fragment, mma_into = operand.load_words, operand.fragment, bf16x2.mma_into

    @inlined
    def add_record(at: Any, lane: Any, b: Any, first: Any, d: Any, unseen: Any) -> None:
        words, a = cuda.local.array(count, uint32), cuda.local.array(4, uint32)
        load_words(at, lane, words)
        for s in range(4):
            fragment(words, s, a, unseen)
            mma_into(d, 0, a, 0, b, first + 2 * s)

    return add_record


@cache
def records_multiplier(stage: Stage, together: int) -> Any:
    """The device function for so many records, whose runs are four at most."""
    layout, size, columns = stage.layout, stage.size, stage.columns
    runs, record, has_offset, of_x = layout.runs, layout.record, layout.has_offset, 8 * together
    _, load_scales, _, lowered, needs_sums = operand_of_run(layout)
    take, add_record, sum_of, ones = activations_of(stage), record_adder(stage), summer(4), bf16x2.ONES

    @inlined
    def multiply(at: Any, pair: Any, lane: Any, sums: Any, unseen: Any) -> None:
        t, b = lane & uint32(3), cuda.local.array(of_x, uint32)
        d, f = cuda.local.array(4, float32), cuda.local.array(4, float32)
        take(at, pair * together, 0, lane, b, 0)
        x0 = x1 = float32(0)
        if needs_sums:
            x0, x1 = sum_of(b, 0, ones)
        if together > 1:
            take(at, 1, runs, lane, b, 8)
            if needs_sums:
                y0, y1 = sum_of(b, 8, ones)
                x0, x1 = x0 + y0, x1 + y1
        own = uint32(pair * together) + (t // uint32(runs) if together > 1 else uint32(0))
        for strip in range(BOTH):
            here, o = at + uint32(strip * size), 4 * strip
            d[0] = d[1] = d[2] = d[3] = float32(0)
            add_record(here + uint32(pair * together * record), lane, b, 0, d, unseen)
            if together > 1:
                add_record(here + uint32(record), lane, b, 8, d, unseen)
            load_scales(here + own * uint32(record), lane, t % uint32(runs), f)
            for c in range(columns):
                x = x1 if c else x0
                for side in range(2):
                    total = sums[o + 2 * side + c] + f[side] * lowered(x, d[2 * side + c])
                    if has_offset:
                        total -= f[2 + side] * x
                    sums[o + 2 * side + c] = total

    return multiply


@inlined
def gather(sums: Any) -> None:
    """Add up what the four lanes of a g have."""
    for i in range(8):
        for other in (1, 2):
            sums[i] += cuda.shfl_xor_sync(EVERYONE, sums[i], other)
