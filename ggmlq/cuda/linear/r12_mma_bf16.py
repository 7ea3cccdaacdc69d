"""Weights as the wide operand of mma, activations as bfloat16: few rows waste nothing, nothing overflows.

Changed: the weights are the 16 rows of ``mma``, the activations its 8 columns. Blocks of threads make
128 rows of outputs; they take codes and scales from strips, as cuda:gemv does, and a tile of
activations that all four warps share, through a ring of stages. Where there are few tiles the columns
are divided among blocks too, and a second, small kernel adds the parts in a fixed order.

A sum of one run meets its scale once for 16 or 32 columns: one multiply-add an output. The rest is
exact: integer codes in bfloat16, sums in float32.

Limited by ``mma.sync``, which reaches under two thirds of what Hopper's wgmma does: with many rows
decoding everything for cuBLAS is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ...array import QuantArray
from ...card import older_than
from ...formats import BlockFormat
from ...ladder import register
from ...problems import Linear
from ..activations.floats import narrowed
from ..dequantize import BLOCK_FORMATS
from ..machine import device
from ..machine.launch import Kernel, family
from ..pipeline.parts import ADDERS, adder, parts_of
from ..strips.codes import buffers, fragment_of, words_of
from ..strips.layout import ROWS, STEP, Layout, layout
from ..strips.make import LONGEST, strips
from ..strips.scales import scales_of
from ..words import bf16x2, early_start, ptx
from ..words.atoms import inlined
from ..words.language import cuda, float32, uint32, uint64
from .r11_gemv import LEAST

WARPS, BOTH = 4, 2  # of a block, down its rows; strips of a warp
STRIPS = WARPS * BOTH  # of a block
BUDGET = 220 << 10  # bytes of shared memory that the blocks of a multiprocessor share on Hopper
MOST = 65535 * 64  # rows of activations: a grid has 65535 rows of blocks


@dataclass(frozen=True)
class Shape:
    """Of a block: rows of activations, warps that share them, and blocks on a multiprocessor."""

    columns: int
    across: int
    blocks: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * WARPS * self.across

    @property
    def own(self) -> int:
        """Rows of activations of a warp."""
        return self.columns // self.across

    def stage(self, kept: Layout) -> int:
        """Bytes of a stage: weights, then activations."""
        return STRIPS * kept.record + self.columns * 2 * STEP

    def stages(self, kept: Layout) -> int:
        """In shared memory at once."""
        return max(2, min(4, BUDGET // (self.blocks * self.stage(kept))))

    def shared(self, kept: Layout) -> int:
        """Bytes of shared memory."""
        return self.stages(kept) * self.stage(kept)


SHAPES = (Shape(16, 1, 4), Shape(32, 1, 3), Shape(64, 1, 2))


@cache
def fetchers(kept: Layout, shape: Shape) -> tuple[Any, Any]:
    """The device functions that start the copies of one stage: of weights, and of activations.

    A row of activations is eight chunks of 16 bytes; chunk c of row r lies at c ^ 2 (r % 4), so the
    eight bytes that each lane wants of it come without a conflict.
    """
    record, chunks, columns, rows_each = kept.record, kept.record // 16, shape.columns, shape.threads // 8
    weights, strips_each = STRIPS * kept.record, BOTH // shape.across
    copy16, copy16_of = ptx.copy16, bf16x2.copy16_of

    @inlined
    def fetch_weights(at: Any, of_w: Any, apart: Any, step: Any) -> None:
        thread = uint32(cuda.threadIdx.x)
        lane, own = thread & uint32(31), (thread >> uint32(5)) * uint32(strips_each)
        to = at + own * uint32(record) + lane * uint32(16)
        source = of_w + uint64(own) * apart + uint64(step) * uint64(record) + uint64(lane * uint32(16))
        for strip in range(strips_each):
            for first in range(0, chunks, 32):
                if lane + uint32(first) < uint32(chunks):
                    place = uint32(strip * record + 16 * first)
                    copy16(to + place, source + uint64(strip) * apart + uint64(16 * first))

    @inlined
    def fetch_activations(at: Any, x: Any, m0: Any, step: Any, m: Any, k: Any) -> None:
        thread = uint32(cuda.threadIdx.x)
        row, chunk = thread >> uint32(3), thread & uint32(7)
        column = step * uint32(STEP) + chunk * uint32(8)
        length = uint32(16) if column < k else uint32(0)
        column = column if column < k else uint32(0)
        to = at + row * uint32(2 * STEP) + ((chunk ^ (row & uint32(3)) << uint32(1)) << uint32(4))
        for i in range(0, columns, rows_each):
            of = min(m0 + row + uint32(i), m - uint32(1))  # what is beyond is multiplied and thrown away
            of_x = x + uint64(of * k + column) * uint64(2)
            copy16_of(to + uint32(weights + i * 2 * STEP), of_x, length)

    return fetch_weights, fetch_activations


def starter(fetch_weights: Any, fetch_activations: Any, ahead: int, length: int) -> Any:
    """The device function that fills the first stages of a ring."""
    commit, wait_for_predecessor = ptx.commit, early_start.wait_for_predecessor

    @inlined
    def start(
        ring: Any, of_w: Any, apart: Any, x: Any, m0: Any, first: Any, last: Any, m: Any, k: Any
    ) -> None:
        for i in range(ahead):
            if first + uint32(i) < last:
                fetch_weights(ring + uint32(i * length), of_w, apart, first + uint32(i))
        wait_for_predecessor()  # it may have made x, or read y
        for i in range(ahead):
            if first + uint32(i) < last:
                fetch_activations(ring + uint32(i * length), x, m0, first + uint32(i), m, k)
            commit()

    return start


@cache
def multiplier(kept: Layout, shape: Shape) -> Any:
    """The device function that adds one step to a lane's sums."""
    across, weights, own = shape.own // 8, STRIPS * kept.record, shape.own
    count, values = buffers(kept)
    raised = kept.has_offset  # what they have too much costs nothing then
    load_words, load_scales, fragment = words_of(kept), scales_of(kept, raised), fragment_of(kept, raised)
    record, runs, scales, has_offset = kept.record, kept.runs, kept.scales, kept.has_offset
    each = 4 // runs
    mma, take8, ones, none = bf16x2.mma, bf16x2.take8, bf16x2.ONES, float32(0)

    @inlined
    def multiply_run(
        run: Any, w0: Any, w1: Any, f0: Any, f1: Any, of_x: Any, t: Any, swap: Any, sums: Any, unseen: Any
    ) -> None:
        a0, a1 = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        c0, c1 = cuda.local.array(8, uint32), cuda.local.array(8, uint32)
        for i in range(each):
            fragment(w0, run * each + i, a0, unseen)
            fragment(w1, run * each + i, a1, unseen)
            for r in range(4):
                c0[4 * i + r], c1[4 * i + r] = a0[r], a1[r]
        for j in range(across):
            d = e = x = (none, none, none, none)
            for i in range(each):
                place = ((uint32(2 * (run * each + i)) + (t >> uint32(1))) ^ swap) << uint32(4)
                b = take8(of_x + uint32(8 * 2 * STEP * j) + place)
                o = 4 * i
                d = mma(c0[o], c0[o + 1], c0[o + 2], c0[o + 3], b[0], b[1], d[0], d[1], d[2], d[3])
                e = mma(c1[o], c1[o + 1], c1[o + 2], c1[o + 3], b[0], b[1], e[0], e[1], e[2], e[3])
                if has_offset:
                    x = mma(ones, ones, ones, ones, b[0], b[1], x[0], x[1], x[2], x[3])
            add_scaled(sums, 8 * j, f0[run], f0[scales + run], f1[run], f1[scales + run], d, e)
            if has_offset:
                p, q = -f0[runs + run], -f0[scales + runs + run]
                u, v = -f1[runs + run], -f1[scales + runs + run]
                add_scaled(sums, 8 * j, p, q, u, v, x, x)

    @inlined
    def multiply(at: Any, warp: Any, lane: Any, sums: Any, unseen: Any) -> None:
        g, t = lane >> uint32(2), lane & uint32(3)
        column = (warp // uint32(WARPS)) * uint32(own) + g
        of_x = at + uint32(weights) + column * uint32(2 * STEP) + (t & uint32(1)) * uint32(8)
        swap, of_w = (g & uint32(3)) << uint32(1), at + warp % uint32(WARPS) * uint32(BOTH * record)
        w0, w1 = cuda.local.array(count, uint32), cuda.local.array(count, uint32)
        f0, f1 = cuda.local.array(values, float32), cuda.local.array(values, float32)
        load_words(of_w, lane, w0)
        load_words(of_w + uint32(record), lane, w1)
        load_scales(of_w, lane, f0)
        load_scales(of_w + uint32(record), lane, f1)
        multiply_run(0, w0, w1, f0, f1, of_x, t, swap, sums, unseen)  # a loop over runs would not be unrolled
        multiply_run(1, w0, w1, f0, f1, of_x, t, swap, sums, unseen)
        if runs == 4:
            multiply_run(2, w0, w1, f0, f1, of_x, t, swap, sums, unseen)
            multiply_run(3, w0, w1, f0, f1, of_x, t, swap, sums, unseen)

    return multiply


@inlined
def add_scaled(sums: Any, o: Any, p: Any, q: Any, u: Any, v: Any, d: Any, e: Any) -> None:
    """Sums of rows g, g + 8 of two strips and two columns, with the scales of those rows."""
    sums[o], sums[o + 1] = sums[o] + p * d[0], sums[o + 1] + p * d[1]
    sums[o + 2], sums[o + 3] = sums[o + 2] + q * d[2], sums[o + 3] + q * d[3]
    sums[o + 4], sums[o + 5] = sums[o + 4] + u * e[0], sums[o + 5] + u * e[1]
    sums[o + 6], sums[o + 7] = sums[o + 6] + v * e[2], sums[o + 7] + v * e[3]


@family((fmt, shape) for fmt in BLOCK_FORMATS for shape in SHAPES)
def kernel(fmt: BlockFormat, shape: Shape) -> Kernel:
    """Block (row tile, tile of activations, part of the columns)."""
    kept = layout(fmt)
    length, count, across, record = shape.stage(kept), shape.stages(kept), shape.own // 8, kept.record
    ahead, end, columns, own = count - 1, (count - 1) * length, shape.columns, shape.own
    fetch_weights, fetch_activations = both = fetchers(kept, shape)
    start, multiply = starter(*both, ahead, length), multiplier(kept, shape)
    base, commit, wait = ptx.shared_base, ptx.commit, ptx.wait_for_all_but(count - 2)
    store_float = ptx.store_float
    let_successor_start = early_start.let_successor_start

    def product(records: Any, x: Any, y: Any, m: Any, n: Any, k: Any, steps: Any) -> None:
        thread, part, parts = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
        warp, lane = thread >> uint32(5), thread & uint32(31)
        m0 = uint32(cuda.blockIdx.y) * uint32(columns)
        apart = uint64(steps) * uint64(record)
        of_w = records + uint64(cuda.blockIdx.x) * uint64(STRIPS) * apart
        first, last = uint32(part * steps) // parts, uint32((part + uint32(1)) * steps) // parts
        unseen = steps >> uint32(16) & uint32(0x8000)
        sums = cuda.local.array(own, float32)
        for i in range(own):
            sums[i] = float32(0)
        start(base(), of_w, apart, x, m0, first, last, m, k)
        to, here = uint32(end), uint32(0)
        for step in range(first, last):
            wait()
            cuda.syncthreads()  # the stage is there for all, and all are done with the one to fill
            if step + uint32(ahead) < last:
                fetch_weights(base() + to, of_w, apart, step + uint32(ahead))
                fetch_activations(base() + to, x, m0, step + uint32(ahead), m, k)
            commit()
            multiply(base() + here, warp, lane, sums, unseen)
            to = uint32(0) if to == uint32(end) else to + uint32(length)
            here = uint32(0) if here == uint32(end) else here + uint32(length)
        let_successor_start()  # not before: its blocks would come between those of this one
        g, t = lane >> uint32(2), lane & uint32(3)
        strip = uint32(cuda.blockIdx.x) * uint32(STRIPS) + warp % uint32(WARPS) * uint32(BOTH)
        first_row = strip * uint32(ROWS) + g
        first_column = m0 + warp // uint32(WARPS) * uint32(own) + t * uint32(2)
        of_y = y + uint64(part) * uint64(m) * uint64(n) * uint64(4)
        for i in range(4):
            row = first_row + uint32(8 * i)
            if row < n:
                for j in range(across):
                    for c in range(2):
                        column = first_column + uint32(8 * j + c)
                        if column < m:
                            at = of_y + (uint64(column) * uint64(n) + uint64(row)) * uint64(4)
                            store_float(at, sums[8 * j + 2 * i + c])

    parameters = (uint64,) * 3 + (uint32,) * 4
    return Kernel(
        f"mma_bf16 of {fmt.name}, {shape}", product, *parameters, threads=shape.threads, blocks=shape.blocks,
        shared=shape.shared(kept), least=LEAST, early=True,
    )  # fmt: skip


def refuses(problem: Linear) -> str | None:
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > MOST or problem.k > LONGEST or problem.m * problem.k >= 1 << 32:
        return f"takes up to {MOST} rows, {LONGEST} columns and 2**32 elements of activations"
    return older_than(problem.card, LEAST)


def run(kernel: Callable[..., Kernel], shapes: Sequence[Any], given: Any, q: QuantArray, out: Any) -> None:
    """Launch ``kernel(format, shape)`` of the lowest tiles that hold all rows, and add up its parts.

    ``given``: the activations as the kernel reads them.
    """
    w, (m, n), k = strips(q), out.shape, q.shape[1]
    shape = next((shape for shape in shapes if shape.columns >= m), shapes[-1])
    down, across, steps = -(-n // (STRIPS * ROWS)), -(-m // shape.columns), w.records.shape[1]
    beside = device.blocks_beside(shape.blocks, shape.shared(w.layout))
    parts = parts_of(down * across, beside, steps)
    to = out if parts == 1 else device.cupy().empty((parts, m, n), np.float32)
    grid, sizes = (down, across, parts), (m, n, k, steps)
    kernel(q.format, shape)(grid, (shape.threads,), w.records, given, to, *sizes)
    if parts > 1:
        adder()((-(-m * n // ADDERS),), (ADDERS,), to, out, parts, m * n)


@register(__name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    if x.size and out.size:
        run(kernel, SHAPES, narrowed(x, "bfloat16"), q, out)
    else:
        out.fill(0)
