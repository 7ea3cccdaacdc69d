"""A few rows: weights straight from memory in the file's bits, on tensor cores that have time to spare.

Changed: all that counts here is to read the weights once, as fast as memory gives them. They lie in
strips (strips.py), with the bits of the file, and each of the 16 warps of a block keeps several
records on their way into shared memory, without waiting for any other warp. A block makes 32 rows
of outputs; its warps share the columns and add up at the end, in a fixed order.

The activations stay floats, rounded to bfloat16, and are narrowed while they are read: so one
kernel does all. The codes are exact in bfloat16, and a scale meets only sums: nothing overflows. (An
activation that is infinite makes NaN, for codes are multiplied 128 too high and that is taken off.)

Limited by memory, where the instructions that unpack a format leave room for it. Beyond 8 rows the
activations, which every block reads, become the larger part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ...array import QuantArray
from ...formats import BlockFormat
from ...ladder import Problem, register
from .. import device, pairs, ptx
from ..atoms import inlined
from ..convert import aligned_floats
from ..dequantize import BLOCK_FORMATS
from ..fragments import buffers, fragment_of, scales_of, words_of, zero_of
from ..language import cuda, float32, uint32, uint64
from ..launch import Kernel, family
from ..layout import ROWS, STEP, Layout, layout
from ..strips import LONGEST, strips

LEAST = (8, 0)
WARPS, BOTH = 16, 2  # of a block; strips of a block
COLUMNS = (1, 2, 4, 8)  # rows of activations that there are kernels for
SERVED_BY = (1, 1, 2, 4, 4, 8, 8, 8, 8)  # so many rows
BUDGET = 225 << 10  # bytes of shared memory
SUMS = BOTH * ROWS + 4  # floats between columns of sums


@dataclass(frozen=True)
class Stage:
    """What a warp works on at a time: so many columns of both strips and of the activations."""

    kept: Layout
    columns: int  # rows of activations
    span: int  # records of a strip

    @property
    def across(self) -> int:
        """Bytes of a row of activations."""
        return 4 * STEP * self.span

    @property
    def pitch(self) -> int:
        """Bytes from row to row of activations: no bank of shared memory is met twice."""
        return self.across + 64

    @property
    def size(self) -> int:
        """Bytes of a strip."""
        return self.span * self.kept.record

    @property
    def length(self) -> int:
        """Bytes of a stage."""
        return BOTH * self.size + self.columns * self.pitch

    @property
    def count(self) -> int:
        """Stages of a warp: those on their way, and the one it works on."""
        return min(3, BUDGET // (WARPS * self.length))

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block: stages, and in the end sums."""
        return max(WARPS * self.count * self.length, WARPS * self.columns * SUMS * 4)


@cache
def stage(kept: Layout, columns: int) -> Stage:
    """Two records cost fewer instructions than one; but there must be room for three stages."""
    two = Stage(kept, columns, 2)
    return two if two.count > 2 else Stage(kept, columns, 1)


@cache
def fetcher(stage: Stage) -> Any:
    """The device function that starts the copies of one stage."""
    size, chunks, across, pitch = stage.size, stage.size // 16, stage.across // 16, stage.pitch
    columns, every = stage.columns, stage.span * STEP
    copy16, copy16_of = ptx.copy16, pairs.copy16_of

    @inlined
    def fetch(at: Any, lane: Any, of_w: Any, apart: Any, x: Any, span: Any, m: Any, k: Any) -> None:
        source = of_w + uint64(span) * uint64(size) + uint64(lane * uint32(16))
        to = at + lane * uint32(16)
        for strip in range(BOTH):
            for first in range(0, chunks, 32):
                if lane + uint32(first) < uint32(chunks):
                    copy16(
                        to + uint32(strip * size + 16 * first),
                        source + uint64(strip) * apart + uint64(16 * first),
                    )
        for first in range(0, across * columns, 32):
            c = lane + uint32(first)
            row, column = c // uint32(across), span * uint32(every) + c % uint32(across) * uint32(4)
            if c < uint32(across * columns):
                there = row < m and column < k
                of_x = x + (uint64(row) * uint64(k) + uint64(column)) * uint64(4) if there else x
                place = uint32(BOTH * size) + row * uint32(pitch) + c % uint32(across) * uint32(16)
                copy16_of(at + place, of_x, uint32(16) if there else uint32(0))

    return fetch


@cache
def multiplier(stage: Stage) -> Any:
    """The device function that adds one record of both strips to a lane's sums, four of each strip."""
    kept, columns, size, pitch = stage.kept, stage.columns, stage.size, stage.pitch
    count, values = buffers(kept)
    load_words, load_scales, fragment = words_of(kept), scales_of(kept, True), fragment_of(kept, True)
    runs, scales, has_offset, several = kept.runs, kept.scales, kept.has_offset, columns > 1
    each, zero, record = 4 // runs, uint32(zero_of(kept)), kept.record
    mma, narrowed, take_floats, ones = pairs.mma, pairs.narrowed, ptx.take_floats, pairs.ONES
    none, raised = float32(0), zero_of(kept) != 0

    @inlined
    def sum_of(b: Any, first: Any, times: Any) -> Any:
        d = (none, none, none, none)
        for s in range(first, first + each):
            d = mma(times, times, times, times, b[2 * s], b[2 * s + 1], d[0], d[1], d[2], d[3])
        return d

    @inlined
    def multiply(at: Any, half: Any, lane: Any, sums: Any, unseen: Any) -> None:
        g, t = lane >> uint32(2), lane & uint32(3)
        b, x, start = cuda.local.array(8, uint32), cuda.local.array(8, float32), cuda.local.array(16, float32)
        row = min(g, uint32(columns - 1))  # the products of the other lanes are thrown away
        of_x = at + uint32(BOTH * size + half * 4 * STEP) + row * uint32(pitch) + t * uint32(16)
        for s in range(4):
            v = take_floats(of_x + uint32(64 * s))
            b[2 * s], b[2 * s + 1] = narrowed(v[0], v[1]), narrowed(v[2], v[3])
        for run in range(runs):
            if has_offset:
                d = sum_of(b, run * each, ones)
                x[2 * run], x[2 * run + 1] = d[0], d[1]
            d = (none, none, none, none)
            if raised:
                d = sum_of(b, run * each, zero)
            for i in range(4):
                start[4 * run + i] = d[i]
        words, a = cuda.local.array(count, uint32), cuda.local.array(4, uint32)
        f = cuda.local.array(values, float32)
        for strip in range(BOTH):
            here, o = at + uint32(strip * size + half * record), 4 * strip
            load_words(here, lane, words)
            load_scales(here, lane, f)
            for run in range(runs):
                o4 = 4 * run
                d = (start[o4], start[o4 + 1], start[o4 + 2], start[o4 + 3])
                for s in range(run * each, run * each + each):
                    fragment(words, s, a, unseen)
                    d = mma(a[0], a[1], a[2], a[3], b[2 * s], b[2 * s + 1], d[0], d[1], d[2], d[3])
                low, high = f[run], f[scales + run]
                sums[o], sums[o + 2] = sums[o] + low * d[0], sums[o + 2] + high * d[2]
                if several:
                    sums[o + 1], sums[o + 3] = sums[o + 1] + low * d[1], sums[o + 3] + high * d[3]
                if has_offset:
                    low, high, x0, x1 = f[runs + run], f[scales + runs + run], x[2 * run], x[2 * run + 1]
                    sums[o], sums[o + 2] = sums[o] - low * x0, sums[o + 2] - high * x0
                    if several:
                        sums[o + 1], sums[o + 3] = sums[o + 1] - low * x1, sums[o + 3] - high * x1

    return multiply


@family((fmt, columns) for fmt in BLOCK_FORMATS for columns in COLUMNS)
def kernel(fmt: BlockFormat, columns: int) -> Kernel:
    """The kernel for up to so many rows of activations."""
    of = stage(layout(fmt), columns)
    length, count, size, spans_each = of.length, of.count, of.size, of.span
    ahead, end, ring = count - 1, (count - 1) * length, count * length
    fetch, multiply = fetcher(of), multiplier(of)
    base, commit, wait = ptx.shared_base, ptx.commit, ptx.wait_for_all_but(count - 2)
    put_float, take_float = pairs.put_float, pairs.take_float
    store_float = ptx.store_float

    def gemv(records: Any, x: Any, y: Any, m: Any, n: Any, k: Any, spans: Any) -> None:
        thread = uint32(cuda.threadIdx.x)
        warp, lane = thread >> uint32(5), thread & uint32(31)
        apart = uint64(spans) * uint64(size)
        of_w = records + uint64(cuda.blockIdx.x) * uint64(BOTH) * apart
        own = base() + warp * uint32(ring)
        sums = cuda.local.array(8, float32)
        for i in range(8):
            sums[i] = float32(0)
        for i in range(ahead):
            span = warp + uint32(WARPS * i)
            if span < spans:
                fetch(own + uint32(i * length), lane, of_w, apart, x, span, m, k)
            commit()
        to, here, span = uint32(end), uint32(0), warp
        while span < spans:
            wait()
            cuda.syncwarp()  # the stage is there for all lanes, and all are done with the one to fill
            if span + uint32(WARPS * ahead) < spans:
                fetch(own + to, lane, of_w, apart, x, span + uint32(WARPS * ahead), m, k)
            commit()
            for half in range(spans_each):
                multiply(own + here, half, lane, sums, spans >> uint32(16) & uint32(0x8000))
            to = uint32(0) if to == uint32(end) else to + uint32(length)
            here = uint32(0) if here == uint32(end) else here + uint32(length)
            span += uint32(WARPS)
        cuda.syncthreads()  # the rings are free
        g, t = lane >> uint32(2), lane & uint32(3)
        if t * uint32(2) < uint32(columns):
            for i in range(8):  # of strip i / 4: rows g, g + 8, columns 2 t, 2 t + 1
                row, column = g + uint32(i // 4 * ROWS + i // 2 % 2 * 8), t * uint32(2) + uint32(i % 2)
                if column < uint32(columns):
                    at = (warp * uint32(columns) + column) * uint32(SUMS) + row
                    put_float(base() + at * uint32(4), sums[i])
        cuda.syncthreads()
        row, column = uint32(cuda.blockIdx.x) * uint32(BOTH * ROWS) + lane, warp
        if row < n and column < m:
            total = float32(0)
            for i in range(WARPS):
                at = (uint32(i * columns) + column) * uint32(SUMS) + lane
                total += take_float(base() + at * uint32(4))
            store_float(y + (uint64(column) * uint64(n) + uint64(row)) * uint64(4), total)

    parameters = (uint64,) * 3 + (uint32,) * 4
    name = f"gemv of {fmt.name}, up to {columns} rows"
    return Kernel(name, gemv, *parameters, threads=32 * WARPS, blocks=1, shared=of.shared, least=LEAST)


def refuses(problem: Problem) -> str | None:
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > COLUMNS[-1]:
        return f"takes up to {COLUMNS[-1]} rows of activations"
    if problem.k > LONGEST:
        return f"takes up to {LONGEST} columns"
    needed = stage(layout(problem.format), SERVED_BY[problem.m]).shared
    return device.older_than(LEAST) or device.too_small_for(needed)


@register(__name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    (m, n), k = out.shape, q.shape[1]
    if not (m and n and k):
        out.fill(0)
        return
    w = strips(q)
    columns = SERVED_BY[m]
    grid = (w.records.shape[0] // BOTH,)
    sizes = (m, n, k, w.records.shape[1] // stage(w.layout, columns).span)
    kernel(q.format, columns)(grid, (32 * WARPS,), w.records, aligned_floats(x), out, *sizes)
