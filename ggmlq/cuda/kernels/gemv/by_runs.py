"""The products of cuda:gemv with up to four rows of activations: spare columns of ``mma`` serve other runs.

An operand of eight columns holds four runs of up to two rows, or two runs of four rows. Each column has the
activations of one row in one run, and zeros elsewhere. So lane 4 g + t gets sums of one run alone, and
makes the scales of that run alone. A *batch* is as many fragments as fill the operand with runs; a fragment
with more runs than fit takes two *passes*. In the end the lanes with the same g and the same rows of
activations add up their sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ...intrinsics import bf16x2
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import ALL_LANES, g_and_t
from ...intrinsics.language import cuda, float32, uint32
from ...layouts.codes import buffer_sizes
from ...layouts.layout import STEP
from ...layouts.operand import activation_summer, run_operand
from .stages import TWO, GemvStage, four_takers

MAX_COLUMNS = 4  # rows of activations


@dataclass(frozen=True)
class RunBatch:
    """The part of a stage that is multiplied at once."""

    stage: GemvStage

    @property
    def columns(self) -> int:
        """Columns of a run: a lane has sums of two."""
        return max(self.stage.columns, 2)

    @property
    def places(self) -> int:
        """Runs that an operand has columns for."""
        return 8 // self.columns

    @property
    def steps(self) -> int:
        """Steps of a run, 16 columns of K each."""
        return 4 // self.stage.layout.runs

    @property
    def fragments(self) -> int:
        return max(1, min(self.places // self.stage.layout.runs, self.stage.span))

    @property
    def passes(self) -> int:
        return max(1, self.stage.layout.runs // self.places)

    @property
    def pass_runs(self) -> int:
        """Runs of a pass."""
        return min(self.places, self.fragments * self.stage.layout.runs)


def serves(stage: GemvStage) -> bool:
    """True where rows leave columns to spare."""
    return stage.columns <= MAX_COLUMNS


@cache
def multiplier(stage: GemvStage) -> Any:
    """The device function that adds a span of all fragment rows to a lane's sums, four for each of them."""
    multiply_batch, twice = batch_multiplier(stage), stage.span > RunBatch(stage).fragments

    @inlined
    def multiply(at: Any, lane: Any, kind: Any, sums: Any, opaque: Any) -> None:
        multiply_batch(at, 0, lane, kind, sums, opaque)
        if twice:
            multiply_batch(at, 1, lane, kind, sums, opaque)

    return multiply


@cache
def activations_of(stage: GemvStage) -> Any:
    """The device function that loads a batch's activations: of the lane's own run, and zeros for other runs.

    ``b``: registers of ``mma``; ``x``: sums of activations, two a pass; ``kind``: as in stages.py.
    """
    batch, columns, pitch = RunBatch(stage), stage.columns, stage.pitch
    x_at, steps, passes, pass_runs = (
        stage.fragment_rows * stage.size,
        batch.steps,
        batch.passes,
        batch.pass_runs,
    )
    shift, some_idle = batch.columns.bit_length() - 1, pass_runs < batch.places
    needs_sums = run_operand(stage.layout)[-1]
    (take_floats, take_bits, change_halves), sum_of = four_takers(), activation_summer(steps)
    ones, count = bf16x2.ONES, steps * passes
    numbers, batch_columns, pass_columns = 2 * steps * passes, STEP * batch.fragments, 16 * pass_runs * steps

    @inlined
    def take(at: Any, which: Any, lane: Any, kind: Any, b: Any, x: Any) -> None:
        g, t = g_and_t(lane)
        lane_run, v = uint32(g >> shift), cuda.local.array(numbers, uint32)
        run = min(lane_run, uint32(pass_runs - 1)) if some_idle else lane_run
        row_at = at + x_at + (g & columns - 1) * pitch
        first = uint32(which * batch_columns + t * 4 + run * (16 * steps))
        if kind == 0:
            for i in range(count):
                column = uint32(first + uint32(i // steps * pass_columns + i % steps * 16))
                v[2 * i], v[2 * i + 1] = take_floats(row_at, column)
        else:
            for i in range(count):
                column = uint32(first + uint32(i // steps * pass_columns + i % steps * 16))
                v[2 * i], v[2 * i + 1] = take_bits(row_at, column)
            change_halves(kind, v, numbers)
        if some_idle and lane_run >= uint32(pass_runs):
            for i in range(numbers):
                v[i] = uint32(0)
        for i in range(passes):
            if needs_sums:
                x[2 * i], x[2 * i + 1] = sum_of(v, 2 * steps * i, ones)
            for j in range(pass_runs):
                mask = uint32(0xFFFFFFFF) if lane_run == uint32(j) else uint32(0)
                for k in range(2 * steps):
                    b[2 * steps * (pass_runs * i + j) + k] = v[2 * steps * i + k] & mask

    return take


@cache
def fragment_adder(stage: GemvStage) -> Any:
    """The device function that multiplies one fragment and adds to ``d``, four sums a pass."""
    operand, (count, _) = run_operand(stage.layout), buffer_sizes(stage.layout)
    steps = 4 // RunBatch(stage).passes
    load_words, unpack_step, mma_into = operand.load_words, operand.unpack_step, bf16x2.mma_into

    @inlined
    def add_fragment(at: Any, lane: Any, b: Any, first: Any, d: Any, opaque: Any) -> None:
        words, a = cuda.local.array(count, uint32), cuda.local.array(4, uint32)
        load_words(at, lane, words)
        for s in range(4):
            unpack_step(words, s, a, opaque)
            mma_into(d, s // steps * 4, a, 0, b, first + 2 * s)

    return add_fragment


@cache
def batch_multiplier(stage: GemvStage) -> Any:
    """The device function that adds one batch of all fragment rows to a lane's sums."""
    batch, layout, size, columns = RunBatch(stage), stage.layout, stage.size, stage.columns
    four_rows = stage.fragment_rows > TWO
    runs, fragment_bytes, has_offset = layout.runs, layout.fragment_bytes, layout.has_offset
    fragments = batch.fragments
    passes, pass_runs, some_idle = batch.passes, batch.pass_runs, batch.pass_runs < batch.places
    shift = batch.columns.bit_length() - 2
    _, load_scales, _, lowered, _ = run_operand(layout)
    take, add_fragment, b_count = activations_of(stage), fragment_adder(stage), 8 * fragments
    x_count, d_count = 2 * passes, 4 * passes
    x_columns = min(columns, 2)

    @inlined
    def multiply_pair(here: Any, pair: Any, lane: Any, b: Any, x: Any, sums: Any, opaque: Any) -> None:
        d, f = cuda.local.array(d_count, float32), cuda.local.array(4, float32)
        lane_run = uint32((lane & 3) >> shift)
        if some_idle:
            lane_run = min(lane_run, uint32(pass_runs - 1))
        for fragment_row in range(pair * TWO, pair * TWO + TWO):
            at = here + uint32(fragment_row * size)
            for i in range(d_count):
                d[i] = float32(0)
            add_fragment(at, lane, b, 0, d, opaque)
            if fragments > 1:
                add_fragment(at + fragment_bytes, lane, b, 8, d, opaque)
                at = at + lane_run // runs * fragment_bytes
            for i in range(passes):
                load_scales(at, lane, uint32(uint32(i * pass_runs) + lane_run) % runs, f)
                for c in range(x_columns):
                    for side in range(2):
                        o, y = 4 * fragment_row + 2 * side + c, x[2 * i + c]
                        total = sums[o] + f[side] * lowered(y, d[4 * i + 2 * side + c])
                        sums[o] = total - f[2 + side] * y if has_offset else total

    @inlined
    def multiply(at: Any, which: Any, lane: Any, kind: Any, sums: Any, opaque: Any) -> None:
        b, x = cuda.local.array(b_count, uint32), cuda.local.array(x_count, float32)
        for i in range(x_count):
            x[i] = float32(0)
        take(at, which, lane, kind, b, x)
        here = at + which * fragments * fragment_bytes
        multiply_pair(here, 0, lane, b, x, sums, opaque)
        if four_rows:
            multiply_pair(here, 1, lane, b, x, sums, opaque)  # a loop over four is not always unrolled

    return multiply


@cache
def gatherer(stage: GemvStage) -> Any:
    """The device function that adds up the sums of the lanes with the same g and the same rows."""
    numbers, twice = stage.numbers, stage.columns <= 2

    @inlined
    def gather(sums: Any) -> None:
        for i in range(numbers):
            if twice:
                sums[i] += cuda.shfl_xor_sync(ALL_LANES, sums[i], 1)
            sums[i] += cuda.shfl_xor_sync(ALL_LANES, sums[i], 2)

    return gather
