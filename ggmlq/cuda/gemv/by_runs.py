"""cuda:gemv with up to four rows of activations: the spare columns of ``mma`` serve other runs.

An operand of eight columns holds four runs of up to two rows, or two runs of four: of each column the
activations of one row in one run, and zeros elsewhere. So lane 4 g + t finds sums of one run alone, and makes
the scales of that run alone. As many records as it takes for all runs are a *unit*; a record with more runs
than fit takes two *passes*. At the end the lanes of a g that have the same rows add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ..intrinsics import bf16x2, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import ALL_LANES, g_and_t
from ..intrinsics.language import cuda, float32, uint32
from ..packed.codes import buffers
from ..packed.layout import STEP
from ..packed.operand import operand_of_run, summer
from .stages import BOTH, Stage

MOST = 4  # rows of activations


@dataclass(frozen=True)
class Unit:
    """What is multiplied at once, of a stage."""

    stage: Stage

    @property
    def columns(self) -> int:
        """Of a run: a lane has sums of two."""
        return max(self.stage.columns, 2)

    @property
    def places(self) -> int:
        """Runs that an operand has columns for."""
        return 8 // self.columns

    @property
    def steps(self) -> int:
        """Of a run, 16 columns of K each."""
        return 4 // self.stage.layout.runs

    @property
    def records(self) -> int:
        return max(1, min(self.places // self.stage.layout.runs, self.stage.span))

    @property
    def passes(self) -> int:
        return max(1, self.stage.layout.runs // self.places)

    @property
    def held(self) -> int:
        """Runs of a pass."""
        return min(self.places, self.records * self.stage.layout.runs)


def serves(stage: Stage) -> bool:
    """Whether there are columns to spare."""
    return stage.columns <= MOST


@cache
def multiplier(stage: Stage) -> Any:
    """The device function that adds a span of all strips to a lane's sums, four of a strip."""
    multiply_unit, again = unit_multiplier(stage), stage.span > Unit(stage).records

    @inlined
    def multiply(at: Any, lane: Any, sums: Any, unseen: Any) -> None:
        multiply_unit(at, 0, lane, sums, unseen)
        if again:
            multiply_unit(at, 1, lane, sums, unseen)

    return multiply


@cache
def activations_of(stage: Stage) -> Any:
    """The device function that loads a unit's activations: those of a lane's own run, and zeros in others.

    ``b``: registers of ``mma``; ``x``: sums of activations, two a pass.
    """
    unit, columns, pitch = Unit(stage), stage.columns, stage.pitch
    of_weights, steps, passes, held = stage.strips * stage.size, unit.steps, unit.passes, unit.held
    shift, some_idle, needs_sums = (
        unit.columns.bit_length() - 1,
        held < unit.places,
        operand_of_run(stage.layout)[-1],
    )
    narrowed, take_floats, sum_of, ones = bf16x2.narrowed, ptx.take_floats, summer(steps), bf16x2.ONES
    numbers, of_unit, of_pass, of_step = 2 * steps * passes, 4 * STEP * unit.records, 64 * held * steps, 64

    @inlined
    def take(at: Any, which: Any, lane: Any, b: Any, x: Any) -> None:
        g, t = g_and_t(lane)
        own, v = uint32(g >> uint32(shift)), cuda.local.array(numbers, uint32)
        run = min(own, uint32(held - 1)) if some_idle else own
        first = at + uint32(of_weights + which * of_unit) + (g & uint32(columns - 1)) * uint32(pitch)
        first = uint32(first + t * uint32(16) + run * uint32(of_step * steps))
        for i in range(steps * passes):
            f = take_floats(first + uint32(i // steps * of_pass + i % steps * of_step))
            v[2 * i], v[2 * i + 1] = narrowed(f[0], f[1]), narrowed(f[2], f[3])
            if some_idle and own >= uint32(held):
                v[2 * i] = v[2 * i + 1] = uint32(0)
        for i in range(passes):
            if needs_sums:
                x[2 * i], x[2 * i + 1] = sum_of(v, 2 * steps * i, ones)
            for j in range(held):
                mask = uint32(0xFFFFFFFF) if own == uint32(j) else uint32(0)
                for k in range(2 * steps):
                    b[2 * steps * (held * i + j) + k] = v[2 * steps * i + k] & mask

    return take


@cache
def record_adder(stage: Stage) -> Any:
    """The device function that multiplies one record of a strip; ``d``: four sums a pass."""
    operand, (count, _), steps = operand_of_run(stage.layout), buffers(stage.layout), 4 // Unit(stage).passes
    load_words, fragment, mma_into = operand.load_words, operand.fragment, bf16x2.mma_into

    @inlined
    def add_record(at: Any, lane: Any, b: Any, first: Any, d: Any, unseen: Any) -> None:
        words, a = cuda.local.array(count, uint32), cuda.local.array(4, uint32)
        load_words(at, lane, words)
        for s in range(4):
            fragment(words, s, a, unseen)
            mma_into(d, s // steps * 4, a, 0, b, first + 2 * s)

    return add_record


@cache
def unit_multiplier(stage: Stage) -> Any:
    """The device function for one unit of all strips."""
    unit, layout, size, columns, several = (
        Unit(stage),
        stage.layout,
        stage.size,
        stage.columns,
        stage.strips > BOTH,
    )
    runs, record, has_offset, records = layout.runs, layout.record, layout.has_offset, unit.records
    passes, held, some_idle, shift = (
        unit.passes,
        unit.held,
        unit.held < unit.places,
        unit.columns.bit_length() - 2,
    )
    _, load_scales, _, lowered, _ = operand_of_run(layout)
    take, add_record, of_b, of_x, of_d = (
        activations_of(stage),
        record_adder(stage),
        8 * records,
        2 * passes,
        4 * passes,
    )
    each = min(columns, 2)

    @inlined
    def multiply_pair(here: Any, pair: Any, lane: Any, b: Any, x: Any, sums: Any, unseen: Any) -> None:
        d, f = cuda.local.array(of_d, float32), cuda.local.array(4, float32)
        own = uint32((lane & uint32(3)) >> uint32(shift))
        if some_idle:
            own = min(own, uint32(held - 1))
        for strip in range(pair * BOTH, pair * BOTH + BOTH):
            at = here + uint32(strip * size)
            for i in range(of_d):
                d[i] = float32(0)
            add_record(at, lane, b, 0, d, unseen)
            if records > 1:
                add_record(at + uint32(record), lane, b, 8, d, unseen)
                at = at + own // uint32(runs) * uint32(record)
            for i in range(passes):
                load_scales(at, lane, uint32(uint32(i * held) + own) % uint32(runs), f)
                for c in range(each):
                    for side in range(2):
                        o, y = 4 * strip + 2 * side + c, x[2 * i + c]
                        total = sums[o] + f[side] * lowered(y, d[4 * i + 2 * side + c])
                        sums[o] = total - f[2 + side] * y if has_offset else total

    @inlined
    def multiply(at: Any, which: Any, lane: Any, sums: Any, unseen: Any) -> None:
        b, x = cuda.local.array(of_b, uint32), cuda.local.array(of_x, float32)
        for i in range(of_x):
            x[i] = float32(0)
        take(at, which, lane, b, x)
        here = at + uint32(which * records * record)
        multiply_pair(here, 0, lane, b, x, sums, unseen)
        if several:
            multiply_pair(here, 1, lane, b, x, sums, unseen)  # a loop over four is not always unrolled

    return multiply


@cache
def gatherer(stage: Stage) -> Any:
    """The device function that adds up what lanes of a g have of the same rows."""
    numbers, twice = stage.numbers, stage.columns <= 2

    @inlined
    def gather(sums: Any) -> None:
        for i in range(numbers):
            if twice:
                sums[i] += cuda.shfl_xor_sync(ALL_LANES, sums[i], 1)
            sums[i] += cuda.shfl_xor_sync(ALL_LANES, sums[i], 2)

    return gather
