"""A few rows: weights straight from memory in the file's bits, on tensor cores that have time to spare.

Changed: no warp waits for a fragment. With few rows all that counts is to read the weights once, as fast as
memory gives them. Each of the 4 to 16 warps of a block keeps fragments in flight into shared memory
(gemv/stages.py), without waiting for any other warp; the first ones while the kernel before this one still
runs (intrinsics/dependent_launch.py). A block makes 32 or 64 rows of outputs; its warps share the columns and
add up at the end, in a fixed order. And codes of some types stay raised, which saves instructions
(layouts/operand.py).

Activations stay as they are and become bfloat16 while they are read: so one kernel does all. (Floats of 32
bits are rounded by a kernel before if they are 9 rows and more; 5 to 8 rows have a kernel for them and one
for 16 bits.) The codes
are exact in bfloat16, and scales multiply only sums: nothing overflows. (An activation that is infinite may
make NaN, for raised codes are up to 128 too high and that is taken off.)

With up to four rows the columns of ``mma`` that are free serve other runs (gemv/by_runs.py). An estimate
(cost/gemv.py) decides how many fragment rows a block has, and how blocks split them.

Limited by instructions as much as by memory: unpacking codes and making scales takes half of all issue
slots. A block of 64 rows of outputs loads and converts activations half as often.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.epilogue import PLAIN, Epilogue
from ....dispatch.ladder import register
from ....dispatch.problems import Linear
from ...driver.launch import Kernel, family
from ...intrinsics import bf16x2
from ...intrinsics.atoms import inlined
from ...intrinsics.language import cuda, float32, uint32
from ...kernels.cost.gemv import GemvSplit
from ...kernels.gemv import by_runs
from ...kernels.gemv.linear import gemv_kernel, multiply_rows, refuses_rows, spans
from ...kernels.gemv.stages import (
    COLUMNS,
    FOUR,
    TWO,
    GemvStage,
    activation_loader,
    columns_of,
    kinds_of,
    widths_of,
)
from ...layouts.codes import buffer_sizes
from ...layouts.layout import PackedLayout, layouts
from ...layouts.operand import activation_summer, fragment_operand


@cache
def multiplier(stage: GemvStage) -> Any:
    """The device function that adds a span, 1 or 2 fragments of each fragment row, to a lane's sums."""
    multiply_fragment, twice = fragment_multiplier(stage), stage.span > 1

    @inlined
    def multiply(at: Any, lane: Any, kind: Any, sums: Any, opaque: Any) -> None:
        multiply_fragment(at, 0, lane, kind, sums, opaque)  # a loop over fragments would not be unrolled
        if twice:
            multiply_fragment(at, 1, lane, kind, sums, opaque)

    return multiply


@cache
def fragment_multiplier(stage: GemvStage) -> Any:
    """The device function that adds one fragment of each fragment row to a lane's sums."""
    layout, size, tiles, twice = stage.layout, stage.size, stage.tiles, stage.fragment_rows > TWO
    count, values = buffer_sizes(layout)
    runs, scales, has_offset = layout.runs, layout.scales, layout.has_offset
    load_words, load_scales, unpack_step, first_sums = fragment_operand(layout, tiles)
    steps_per_run, fragment_bytes, take = 4 // runs, layout.fragment_bytes, activation_loader(stage)
    sum_of = activation_summer(4 // layout.runs)
    x_count, d_count = 8 * tiles, 4 * tiles
    ones, mma_into = bf16x2.ONES, bf16x2.mma_into

    @inlined
    def multiply_pair(
        here: Any, pair: Any, lane: Any, b: Any, x: Any, start: Any, sums: Any, opaque: Any
    ) -> None:
        words, a = cuda.local.array(count, uint32), cuda.local.array(4, uint32)
        f, d = cuda.local.array(values, float32), cuda.local.array(d_count, float32)
        for fragment_row in range(pair * TWO, pair * TWO + TWO):
            load_words(here + uint32(fragment_row * size), lane, words)
            load_scales(here + uint32(fragment_row * size), lane, f)
            for run in range(runs):
                for tile in range(tiles):
                    i, j = 8 * tile + 2 * run, 4 * tile
                    d[j], d[j + 1], d[j + 2], d[j + 3] = start[i], start[i + 1], start[i], start[i + 1]
                for s in range(run * steps_per_run, run * steps_per_run + steps_per_run):
                    unpack_step(words, s, a, opaque)
                    for tile in range(tiles):
                        mma_into(d, 4 * tile, a, 0, b, 8 * tile + 2 * s)
                for tile in range(tiles):
                    o, j, i = 4 * (fragment_row * tiles + tile), 4 * tile, 8 * tile + 2 * run
                    low, high = f[run], f[scales + run]
                    sums[o], sums[o + 2] = sums[o] + low * d[j], sums[o + 2] + high * d[j + 2]
                    sums[o + 1], sums[o + 3] = sums[o + 1] + low * d[j + 1], sums[o + 3] + high * d[j + 3]
                    if has_offset:
                        low, high = f[runs + run], f[scales + runs + run]
                        sums[o], sums[o + 2] = sums[o] - low * x[i], sums[o + 2] - high * x[i]
                        sums[o + 1] -= low * x[i + 1]
                        sums[o + 3] -= high * x[i + 1]

    @inlined
    def multiply(at: Any, which: Any, lane: Any, kind: Any, sums: Any, opaque: Any) -> None:
        b = cuda.local.array(x_count, uint32)
        x, start = cuda.local.array(x_count, float32), cuda.local.array(x_count, float32)
        take(at, which, lane, b, kind)
        for tile in range(tiles):
            for run in range(runs):
                i, first = 8 * tile + 2 * run, 8 * tile + 2 * run * steps_per_run
                if has_offset:
                    x[i], x[i + 1] = sum_of(b, first, ones)
                start[i], start[i + 1] = first_sums(b, first, x[i], x[i + 1])
        here = at + which * fragment_bytes
        multiply_pair(here, 0, lane, b, x, start, sums, opaque)
        if twice:
            multiply_pair(here, 1, lane, b, x, start, sums, opaque)  # a loop over four is not always unrolled

    return multiply


@family(
    lambda: (
        (layout, columns, span, small, fragment_rows, *(True,) * narrow)
        for layout in layouts()
        for fragment_rows in (TWO, FOUR)
        for columns in columns_of(fragment_rows)
        for span in spans(layout, columns)
        for small in kinds_of(fragment_rows, columns)
        for narrow in widths_of(columns)
    )
)
def kernel(
    layout: PackedLayout, columns: int, span: int, small: bool, fragment_rows: int, narrow: bool = False
) -> Kernel:
    """The kernel for up to ``columns`` rows of activations, of small blocks or of lone ones."""
    stage = GemvStage(layout, columns, span, small, fragment_rows, narrow)
    if by_runs.serves(stage):
        return gemv_kernel("gemv", stage, by_runs.multiplier(stage), by_runs.gatherer(stage))
    return gemv_kernel("gemv", stage, multiplier(stage))


def refuses(problem: Linear) -> str | None:
    return refuses_rows(problem, COLUMNS[-1])


@register(
    __name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=refuses, narrow=True, repeats=True,
    ends=True, adds=True,
)  # fmt: skip
def launch(
    x: Any, q: QuantArray, out: Any, split: GemvSplit | None = None, end: Epilogue = PLAIN
) -> None:  # fmt: skip
    """Multiply x by the weights into ``out``; ``split``: another split than the best by estimate."""
    multiply_rows(kernel, x, q, out, split, end)
