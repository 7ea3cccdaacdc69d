"""Hopper's own tensor instructions: weights decoded into registers, activations never leave shared memory.

Changed from mma_bf16: the scale is multiplied into the weight, in bfloat16, while it is unpacked; so a
sum stays in the tensor cores from the first column to the last, and no instruction is spent on an
output. ``wgmma`` takes the weights from the registers of four warps and the activations straight from
shared memory. It runs by itself: while it multiplies what lies in one set of registers, the next
step is unpacked into another set.

Weights are rounded as cuda:dequant_bf16 rounds them, after their scale was rounded in the same way.

Limited by the barrier and the waits of each step, about twice the time of its products; with
thousands of rows cuBLAS on a decoded copy is still ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from ...array import QuantArray
from ...formats import BlockFormat
from ...ladder import register
from ...problems import Linear
from ..activations.floats import narrowed_for_wgmma
from ..dequantize import BLOCK_FORMATS
from ..machine.launch import Kernel, family
from ..planes.tiles import store_four
from ..strips.codes import buffers, fragment_of, words_of
from ..strips.layout import ROWS, STEP, Layout, layout
from ..strips.scales import scales_of
from ..words import bf16x2, early_start, ptx, warpgroup
from ..words.atoms import inlined
from ..words.language import cuda, float32, uint32, uint64
from . import r12_mma_bf16
from .r12_mma_bf16 import BUDGET, STRIPS, starter

THREADS = 32 * STRIPS  # a warp for each strip of a block
PITCH = 4 * (STRIPS * ROWS + 4)  # bytes between columns of sums in shared memory
MINUS_ZERO = np.uint32(bf16x2.pair(-0.0))


@dataclass(frozen=True)
class Shape:
    """Of a block: rows of activations, and how many of it a multiprocessor holds."""

    columns: int
    blocks: int
    threads: ClassVar[int] = THREADS

    def stage(self, kept: Layout) -> int:
        """Bytes of a stage: activations, then weights; whole kilobytes, as the swizzle asks."""
        return -(-(self.columns * 2 * STEP + STRIPS * kept.record) // 1024) * 1024

    def stages(self, kept: Layout) -> int:
        """In shared memory at once: those on their way, and the one that is multiplied."""
        return max(3, min(4, (BUDGET // self.blocks - 1024) // self.stage(kept)))

    def shared(self, kept: Layout) -> int:
        """Bytes of shared memory."""
        return 1024 + max(self.stages(kept) * self.stage(kept), self.columns * PITCH)


SHAPES = (Shape(32, 2), Shape(64, 2), Shape(128, 1))


@cache
def fetchers(kept: Layout, shape: Shape) -> tuple[Any, Any]:
    """The device functions that start the copies of one stage: of weights, and of activations."""
    record, chunks, columns, rows_each = kept.record, kept.record // 16, shape.columns, THREADS // 8
    of_weights = shape.columns * 2 * STEP
    copy16, copy16_of = ptx.copy16, bf16x2.copy16_of

    @inlined
    def fetch_weights(at: Any, of_w: Any, apart: Any, step: Any) -> None:
        thread = uint32(cuda.threadIdx.x)
        lane, strip = thread & uint32(31), thread >> uint32(5)
        to = at + uint32(of_weights) + strip * uint32(record) + lane * uint32(16)
        source = of_w + uint64(strip) * apart + uint64(step) * uint64(record) + uint64(lane * uint32(16))
        for first in range(0, chunks, 32):
            if lane + uint32(first) < uint32(chunks):
                copy16(to + uint32(16 * first), source + uint64(16 * first))

    @inlined
    def fetch_activations(at: Any, x: Any, m0: Any, step: Any, m: Any, k: Any) -> None:
        thread = uint32(cuda.threadIdx.x)
        row, chunk = thread >> uint32(3), thread & uint32(7)
        column = step * uint32(STEP) + chunk * uint32(8)
        length = uint32(16) if column < k else uint32(0)
        column = column if column < k else uint32(0)
        to = at + row * uint32(2 * STEP) + ((chunk ^ row & uint32(7)) << uint32(4))
        for i in range(0, columns, rows_each):
            of = min(m0 + row + uint32(i), m - uint32(1))  # what is beyond is multiplied and thrown away
            copy16_of(to + uint32(i * 2 * STEP), x + uint64(of * k + column) * uint64(2), length)

    return fetch_weights, fetch_activations


@cache
def unpacker(kept: Layout) -> Any:
    """The device function that makes a lane's weights of one record: four registers a step."""
    count, values = buffers(kept)
    load_words, middle = words_of(kept), kept.middle
    load_scales, fragment = scales_of(kept, middle=middle), fragment_of(kept, middle=middle)
    runs, scales, has_offset, each = kept.runs, kept.scales, kept.has_offset, 4 // kept.runs
    narrowed, fma = bf16x2.narrowed, bf16x2.fma

    @inlined
    def unpack(at: Any, lane: Any, a: Any, unseen: Any) -> None:
        words, f = cuda.local.array(count, uint32), cuda.local.array(values, float32)
        codes = cuda.local.array(4, uint32)
        load_words(at, lane, words)
        load_scales(at, lane, f)
        for run in range(runs):
            low, high = narrowed(f[run], f[run]), narrowed(f[scales + run], f[scales + run])
            minus_low = minus_high = MINUS_ZERO
            if has_offset:
                minus_low = narrowed(-f[runs + run], -f[runs + run])
                minus_high = narrowed(-f[scales + runs + run], -f[scales + runs + run])
            for s in range(run * each, run * each + each):
                fragment(words, s, codes, unseen)
                for r in range(2):
                    a[4 * s + 2 * r] = fma(codes[2 * r], low, minus_low)
                    a[4 * s + 2 * r + 1] = fma(codes[2 * r + 1], high, minus_high)

    return unpack


def multiplier(columns: int) -> Any:
    """The device function that starts the products of one step with the registers of a lane.

    It waits for those of the step before, whose registers and stage are free then.
    """
    mma, swizzled = warpgroup.sums(columns).mma, warpgroup.SWIZZLED
    fence, close, wait_for_all_but_one = warpgroup.fence, warpgroup.commit, warpgroup.wait_for_all_but_one

    @inlined
    def multiply(total: Any, a: Any, at: Any) -> Any:
        tile = uint64(swizzled) | uint64(at >> uint32(4))
        fence()
        total = mma(total, a[0], a[1], a[2], a[3], tile)
        total = mma(total, a[4], a[5], a[6], a[7], tile + uint64(2))
        total = mma(total, a[8], a[9], a[10], a[11], tile + uint64(4))
        total = mma(total, a[12], a[13], a[14], a[15], tile + uint64(6))
        close()
        wait_for_all_but_one()
        return total

    return multiply


def refiller(kept: Layout, shape: Shape) -> Any:
    """The device function that waits for the next stage, and starts to fill the one that is free."""
    fetch_weights, fetch_activations = fetchers(kept, shape)
    wait, publish, commit = ptx.wait_for_all_but(shape.stages(kept) - 3), warpgroup.publish, ptx.commit

    @inlined
    def refill(to: Any, of_w: Any, apart: Any, x: Any, m0: Any, step: Any, last: Any, m: Any, k: Any) -> None:
        wait()
        publish()
        cuda.syncthreads()  # the stage is there for all, and all have multiplied the one to fill
        if step < last:
            fetch_weights(to, of_w, apart, step)
            fetch_activations(to, x, m0, step, m, k)
        commit()

    return refill


@family((fmt, shape) for fmt in BLOCK_FORMATS for shape in SHAPES)
def kernel(fmt: BlockFormat, shape: Shape) -> Kernel:
    """Block (row tile, tile of activations, part of the columns)."""
    kept = layout(fmt)
    length, count, columns, record = shape.stage(kept), shape.stages(kept), shape.columns, kept.record
    ahead, end = count - 1, (count - 1) * length
    of_weights = columns * 2 * STEP
    first_fetch, refill = starter(*fetchers(kept, shape), ahead, length), refiller(kept, shape)
    unpack, multiply, store = unpacker(kept), multiplier(columns), storer(columns)
    base, first_there, wait = ptx.shared_base, ptx.wait_for_all_but(ahead - 1), warpgroup.wait
    zeros, publish = warpgroup.sums(columns).zeros, warpgroup.publish
    let_successor_start = early_start.let_successor_start

    @inlined
    def after(stage: Any) -> Any:
        return uint32(0) if stage == uint32(end) else stage + uint32(length)

    def product(records: Any, x: Any, y: Any, m: Any, n: Any, k: Any, steps: Any) -> None:
        thread, part, parts = uint32(cuda.threadIdx.x), uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
        strip, lane = thread >> uint32(5), thread & uint32(31)
        m0 = uint32(cuda.blockIdx.y) * uint32(columns)
        apart = uint64(steps) * uint64(record)
        of_w = records + uint64(cuda.blockIdx.x) * uint64(STRIPS) * apart
        twos = steps >> uint32(1)
        first = uint32(part * twos) // parts << uint32(1)
        last = uint32((part + uint32(1)) * twos) // parts << uint32(1)
        ring = (base() + uint32(1023)) & uint32(0xFFFFFC00)
        own = uint32(of_weights) + strip * uint32(record)
        unseen = steps >> uint32(16) & uint32(0x8000)
        even, odd = cuda.local.array(16, uint32), cuda.local.array(16, uint32)
        first_fetch(ring, of_w, apart, x, m0, first, last, m, k)
        first_there()
        publish()
        cuda.syncthreads()
        unpack(ring + own, lane, even, unseen)
        total = zeros()
        to, here = uint32(end), uint32(0)
        for step in range(first, last, 2):
            total = multiply(total, even, ring + here)
            here = after(here)
            refill(ring + to, of_w, apart, x, m0, step + uint32(ahead), last, m, k)
            to = after(to)
            unpack(ring + here + own, lane, odd, unseen)  # while the others are being multiplied
            total = multiply(total, odd, ring + here)
            here = after(here)
            refill(ring + to, of_w, apart, x, m0, step + uint32(ahead + 1), last, m, k)
            to = after(to)
            unpack(ring + here + own, lane, even, unseen)  # in the end of what is there, for nothing
        wait()
        let_successor_start()  # not before: its blocks would come between those of this one
        cuda.syncthreads()
        of_y = y + uint64(part) * uint64(m) * uint64(n) * uint64(4)
        store(total, ring, of_y, m0, m, n)

    parameters = (uint64,) * 3 + (uint32,) * 4
    return Kernel(
        f"wgmma of {fmt.name}, {shape}", product, *parameters, threads=THREADS, blocks=shape.blocks,
        shared=shape.shared(kept), least=(9, 0), exact=True, early=True,
    )  # fmt: skip


@cache
def storer(columns: int) -> Any:
    """The device function that writes a tile through shared memory: four rows of outputs a lane."""
    put, take_floats = warpgroup.sums(columns).put, ptx.take_floats
    store16, bits_of = ptx.store16, ptx.bits_of

    @inlined
    def store(total: Any, at: Any, y: Any, m0: Any, m: Any, n: Any) -> None:
        thread = uint32(cuda.threadIdx.x)
        warp, lane = thread >> uint32(5), thread & uint32(31)
        g, t = lane >> uint32(2), lane & uint32(3)
        row = warp * uint32(ROWS) + g
        put(total, at + t * uint32(2 * PITCH) + row * uint32(4), uint32(PITCH))
        cuda.syncthreads()
        row = uint32(cuda.blockIdx.x) * uint32(STRIPS * ROWS) + lane * uint32(4)
        for column in range(warp, min(uint32(columns), m - m0), uint32(STRIPS)):
            v = take_floats(at + column * uint32(PITCH) + lane * uint32(16))
            to = y + (uint64(m0 + column) * uint64(n) + uint64(row)) * uint64(4)
            if row + uint32(3) < n and to & uint64(15) == uint64(0):
                store16(to, bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3]))
            else:
                store_four(to, row, n, v[0], v[1], v[2], v[3])

    return store


def refuses(problem: Linear) -> str | None:
    if problem.card is not None and problem.card.capability != (9, 0):
        return "needs compute capability 9.0: other GPUs do not have these instructions"
    return r12_mma_bf16.refuses(problem)


@register(__name__, __doc__, arithmetic="bf16s", accumulate="f16", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    if x.size and out.size:
        r12_mma_bf16.run(kernel, SHAPES, narrowed_for_wgmma(x), q, out)
    else:
        out.fill(0)
