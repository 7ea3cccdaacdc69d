"""Many rows: tiles of activations that all warps of a block share, and a ring that four warps fill.

Changed from gemv: its warps read all activations again for each two fragment rows. Here four warps make
128 rows of outputs from one tile of up to 64 rows of activations, which all warps read in the same
stages of shared memory (rings/ring.py), with one barrier a step. Where there are few tiles the
columns are split among blocks too, and a second, small kernel adds the partial sums in a fixed order
(schedule/split_k.py).

A sum of one run is scaled once for 16 or 32 columns: one multiply-add an output. The rest is
exact: integer codes in bfloat16, sums in float32.

Limited by ``mma.sync``, which reaches under two thirds of what Hopper's wgmma does: with many rows
decoding everything for cuBLAS is faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from ...arrays.array import QuantArray
from ...dispatch.ladder import register
from ..activations.floats import narrowed
from ..intrinsics import bf16x2, dependent_launch, ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import four_into, g_and_t, opaque_zero, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine.launch import Kernel, family
from ..packed.codes import buffer_sizes, step_unpacker, word_loader
from ..packed.layout import FRAGMENT_ROWS, ROWS, STEP, PackedLayout, layouts
from ..packed.scales import scale_loader
from ..rings.ring import Fetchers, offset_advancer, prologue, refiller
from ..warp_specialized.problems import LEAST, refuses_shape
from ._tiled import BUDGET, launch_tiles

WARPS, TWO = 4, 2  # warps of a block; fragment rows of a warp


@dataclass(frozen=True)
class BfloatTile:
    """The rows of activations of a block, and the blocks that a multiprocessor holds."""

    columns: int
    blocks: int
    threads: ClassVar[int] = 32 * WARPS

    def stage(self, layout: PackedLayout) -> int:
        """Bytes of a stage: weights, then activations."""
        return FRAGMENT_ROWS * layout.fragment_bytes + self.columns * 2 * STEP

    def stages(self, layout: PackedLayout) -> int:
        """Stages in shared memory."""
        return max(2, min(4, BUDGET // (self.blocks * self.stage(layout))))

    def shared(self, layout: PackedLayout) -> int:
        """Bytes of shared memory."""
        return self.stages(layout) * self.stage(layout)


TILES = (BfloatTile(16, 4), BfloatTile(32, 3), BfloatTile(64, 2))


@cache
def fetchers(layout: PackedLayout, tile: BfloatTile) -> Fetchers:
    """The device functions that start the copies of one stage: of weights, and of activations.

    A row of activations is eight chunks of 16 bytes; chunk c of row r lies at c ^ 2 (r % 4), so the eight
    bytes of each lane come without a bank conflict.
    """
    fragment_bytes, chunks, columns = layout.fragment_bytes, layout.fragment_bytes // 16, tile.columns
    rows_together = tile.threads // 8
    weights_at = FRAGMENT_ROWS * fragment_bytes
    copy16, copy16_or_zeros = ptx.copy16, bf16x2.copy16_or_zeros

    @inlined
    def fetch_weights(at: Any, w_at: Any, apart: Any, step: Any) -> None:
        warp, lane = warp_and_lane()
        warp_row = warp * uint32(TWO)
        to = at + warp_row * uint32(fragment_bytes) + lane * uint32(16)
        source = address(w_at + uint64(warp_row) * apart, step, fragment_bytes, lane * uint32(16), 1)
        for fragment_row in range(TWO):
            for first in range(0, chunks, 32):
                if lane + uint32(first) < uint32(chunks):
                    place = uint32(fragment_row * fragment_bytes + 16 * first)
                    copy16(to + place, source + uint64(fragment_row) * apart + uint64(16 * first))

    @inlined
    def fetch_activations(at: Any, x: Any, m0: Any, step: Any, m: Any, k: Any) -> None:
        thread = uint32(cuda.threadIdx.x)
        row, chunk = thread >> uint32(3), thread & uint32(7)
        column = step * uint32(STEP) + chunk * uint32(8)
        length = uint32(16) if column < k else uint32(0)
        column = column if column < k else uint32(0)
        to = at + row * uint32(2 * STEP) + ((chunk ^ (row & uint32(3)) << uint32(1)) << uint32(4))
        for i in range(0, columns, rows_together):
            # rows beyond the last are multiplied and thrown away
            source_row = min(m0 + row + uint32(i), m - uint32(1))
            target = to + uint32(weights_at + i * 2 * STEP)
            copy16_or_zeros(target, x + uint64(source_row * k + column) * uint64(2), length)

    return fetch_weights, fetch_activations


@cache
def multiplier(layout: PackedLayout, tile: BfloatTile) -> Any:
    """The device function that adds one step to a lane's sums."""
    fragment_bytes, weights_at = layout.fragment_bytes, FRAGMENT_ROWS * layout.fragment_bytes
    count = layout.runs
    words_count, scales_count = buffer_sizes(layout)
    load_words, load_scales = word_loader(layout), scale_loader(layout)
    multiply_run = run_multiplier(layout, tile)

    @inlined
    def multiply(at: Any, warp: Any, lane: Any, sums: Any, opaque: Any) -> None:
        g, t = g_and_t(lane)
        x_at = at + uint32(weights_at) + g * uint32(2 * STEP) + (t & uint32(1)) * uint32(8)
        swap, w_at = (g & uint32(3)) << uint32(1), at + warp * uint32(TWO * fragment_bytes)
        w0, w1 = cuda.local.array(words_count, uint32), cuda.local.array(words_count, uint32)
        f0, f1 = cuda.local.array(scales_count, float32), cuda.local.array(scales_count, float32)
        load_words(w_at, lane, w0)
        load_words(w_at + uint32(fragment_bytes), lane, w1)
        load_scales(w_at, lane, f0)
        load_scales(w_at + uint32(fragment_bytes), lane, f1)
        multiply_run(0, w0, w1, f0, f1, x_at, t, swap, sums, opaque)  # a loop over runs would not be unrolled
        multiply_run(1, w0, w1, f0, f1, x_at, t, swap, sums, opaque)
        if count == 4:
            multiply_run(2, w0, w1, f0, f1, x_at, t, swap, sums, opaque)
            multiply_run(3, w0, w1, f0, f1, x_at, t, swap, sums, opaque)

    return multiply


@cache
def run_multiplier(layout: PackedLayout, tile: BfloatTile) -> Any:
    """The device function that adds one run of both fragment rows of a warp: codes, then their scales."""
    runs, scales, has_offset, steps_per_run = layout.runs, layout.scales, layout.has_offset, 4 // layout.runs
    unpack_step = step_unpacker(layout)
    eights, take8, ones = tile.columns // 8, bf16x2.take8, bf16x2.ONES
    mma_into, sums_into = bf16x2.mma_into, bf16x2.sums_into

    @inlined
    def multiply_run(
        run: Any, w0: Any, w1: Any, f0: Any, f1: Any, x_at: Any, t: Any, swap: Any, sums: Any, opaque: Any
    ) -> None:
        a, b = cuda.local.array(4, uint32), cuda.local.array(2, uint32)
        c0, c1 = cuda.local.array(8, uint32), cuda.local.array(8, uint32)
        for i in range(steps_per_run):
            unpack_step(w0, run * steps_per_run + i, a, opaque)
            four_into(c0, 4 * i, a)
            unpack_step(w1, run * steps_per_run + i, a, opaque)
            four_into(c1, 4 * i, a)
        d, e, x = cuda.local.array(4, float32), cuda.local.array(4, float32), cuda.local.array(4, float32)
        for j in range(eights):
            for i in range(4):
                d[i] = e[i] = x[i] = float32(0)
            for i in range(steps_per_run):
                place = ((uint32(2 * (run * steps_per_run + i)) + (t >> uint32(1))) ^ swap) << uint32(4)
                b[0], b[1] = take8(x_at + uint32(8 * 2 * STEP * j) + place)
                mma_into(d, 0, c0, 4 * i, b, 0)
                mma_into(e, 0, c1, 4 * i, b, 0)
                if has_offset:
                    sums_into(x, 0, ones, b, 0)
            add_scaled(sums, 8 * j, f0[run], f0[scales + run], d)
            add_scaled(sums, 8 * j + 4, f1[run], f1[scales + run], e)
            if has_offset:
                add_scaled(sums, 8 * j, -f0[runs + run], -f0[scales + runs + run], x)
                add_scaled(sums, 8 * j + 4, -f1[runs + run], -f1[scales + runs + run], x)

    return multiply_run


@inlined
def add_scaled(sums: Any, at: Any, low: Any, high: Any, d: Any) -> None:
    """Add sums of rows g, g + 8 of a fragment row and two columns, times the scales of those rows."""
    sums[at], sums[at + 1] = sums[at] + low * d[0], sums[at + 1] + low * d[1]
    sums[at + 2], sums[at + 3] = sums[at + 2] + high * d[2], sums[at + 3] + high * d[3]


@cache
def storer(eights: int) -> Any:
    """The device function that writes a lane's outputs."""
    store_float = ptx.store_float

    @inlined
    def store(sums: Any, y: Any, warp: Any, lane: Any, m0: Any, m: Any, n: Any) -> None:
        g, t = g_and_t(lane)
        fragment_row = uint32(cuda.blockIdx.x) * uint32(FRAGMENT_ROWS) + warp * uint32(TWO)
        first_row, first_column = fragment_row * uint32(ROWS) + g, m0 + t * uint32(2)
        for i in range(4):
            row = first_row + uint32(8 * i)
            if row < n:
                for j in range(eights):
                    for c in range(2):
                        column = first_column + uint32(8 * j + c)
                        if column < m:
                            store_float(address(y, column, n, row, 4), sums[8 * j + 2 * i + c])

    return store


@family(lambda: ((layout, tile) for layout in layouts() for tile in TILES))
def kernel(layout: PackedLayout, tile: BfloatTile) -> Kernel:
    """The kernel: block (row of tiles, tile of activations, part of the columns)."""
    length, count, columns = tile.stage(layout), tile.stages(layout), tile.columns
    fragment_bytes = layout.fragment_bytes
    ahead, end, fetch = count - 1, (count - 1) * length, fetchers(layout, tile)
    start, after = prologue(fetch, ahead, length), offset_advancer(count, length)
    refill = refiller(fetch, ptx.wait_for_all_but(count - 2))
    multiply, store, base = multiplier(layout, tile), storer(columns // 8), ptx.shared_base
    let_successor_start = dependent_launch.let_successor_start

    def product(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        x: Any,  # bfloat16 [m, k]
        y: Any,  # float32 [splits, m, n]
        m: Any, n: Any, k: Any, steps: Any,
    ) -> None:  # fmt: skip
        (warp, lane), part, splits = warp_and_lane(), uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
        m0 = uint32(cuda.blockIdx.y) * uint32(columns)
        apart = uint64(steps) * uint64(fragment_bytes)
        w_at = fragments + uint64(cuda.blockIdx.x) * uint64(FRAGMENT_ROWS) * apart
        first, last = uint32(part * steps) // splits, uint32((part + uint32(1)) * steps) // splits
        opaque = opaque_zero(steps)
        sums = cuda.local.array(columns, float32)
        for i in range(columns):
            sums[i] = float32(0)
        start(base(), w_at, apart, x, m0, first, last, m, k)
        to, here = uint32(end), uint32(0)
        for step in range(first, last):
            refill(base() + to, w_at, apart, x, m0, step + uint32(ahead), last, m, k)
            multiply(base() + here, warp, lane, sums, opaque)
            to, here = after(to), after(here)
        let_successor_start()  # not before: its blocks would come between those of this one
        store(sums, y + uint64(part) * uint64(m) * uint64(n) * uint64(4), warp, lane, m0, m, n)

    parameters = (uint64,) * 3 + (uint32,) * 4
    return Kernel(
        f"mma_bf16 of {layout.name}, {tile}", product, *parameters, threads=tile.threads, blocks=tile.blocks,
        shared=tile.shared(layout), least=LEAST, early=True,
    )  # fmt: skip


@register(__name__, __doc__, arithmetic="bf16x", accumulate="f16", refuses=refuses_shape, repeats=True)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    if x.size and out.size:
        launch_tiles(kernel, TILES, narrowed(x, "bfloat16"), q, out)
    else:
        out.fill(0)
