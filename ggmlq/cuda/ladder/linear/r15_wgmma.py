"""Hopper's own tensor instructions: weights decoded into registers, activations never leave shared memory.

Changed: the scale is multiplied into the weight, in bfloat16, while it is unpacked; so a
sum stays in the tensor cores from the first column to the last, and no instruction is spent on an
output. ``wgmma`` takes the weights from the registers of four warps and the activations straight from
shared memory. It runs by itself: while it multiplies what lies in one set of registers, the next
step is unpacked into another set.

Weights are rounded as cuda:dequant_bf16 rounds them, after their scale was rounded in the same way. The
head of layouts/weights.py says how one instruction makes two weights of their bits.

    block     128 rows of weights × 32, 64 or 128 rows of x, in eight warps of 16 rows each: two warpgroups
    stage     x [columns][64], swizzled · weights [8 fragments]         a step of 64 columns
    ring      one stage is multiplied, one is unpacked, others are being copied:

              copies          step s + 3  | step s + 4  |
              unpack          step s + 1  | step s + 2  |      into the other set of registers
              tensor cores    step s      | step s + 1  |

Limited by the barrier and the waits of each step, about twice the time of its products; with
thousands of rows cuBLAS on a decoded copy is still ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ....arrays.array import QuantArray
from ....base.slots import rows_of
from ....dispatch.ladder import register
from ...driver import device
from ...driver.launch import Kernel, family
from ...driver.recorded import between, decided
from ...intrinsics import hopper, ptx, wgmma
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import address, g_and_t, opaque_zero, store_four, warp_and_lane
from ...intrinsics.language import cuda, uint32, uint64
from ...kernels.epilogue.results import FOUR, add_partials, result_of
from ...kernels.hopper.frame import MAX_SHARED_BYTES
from ...kernels.hopper.tiles import refuses_without_wgmma
from ...kernels.mma.ring import offset_advancer
from ...layouts.floats import narrowed_for_wgmma
from ...layouts.layout import FRAGMENT_ROWS, ROWS, STEP, TILE_ROWS, PackedLayout, layouts
from ...layouts.pack import packed_weights
from ...layouts.weights import FragmentWeights, fragment_weights

SHARED_BUDGET = 220 << 10  # bytes of shared memory that the blocks of a multiprocessor share
THREADS = 32 * FRAGMENT_ROWS  # a warp for each fragment row of a block
PITCH = 4 * (TILE_ROWS + 4)  # bytes between columns of sums in shared memory


@dataclass(frozen=True)
class WarpgroupTile:
    """The rows of activations of a block, and the blocks that a multiprocessor holds."""

    columns: int
    blocks: int
    threads: ClassVar[int] = THREADS

    def stage(self, layout: PackedLayout) -> int:
        """Bytes of a stage: activations, then weights; in whole kilobytes, as the swizzle demands."""
        return -(-(self.columns * 2 * STEP + FRAGMENT_ROWS * layout.fragment_bytes) // 1024) * 1024

    def stages(self, layout: PackedLayout) -> int:
        """Stages in shared memory: those in flight, and the one that is multiplied."""
        return max(3, min(4, (SHARED_BUDGET // self.blocks - 1024) // self.stage(layout)))

    def shared(self, layout: PackedLayout) -> int:
        """Bytes of shared memory, enough that a multiprocessor holds no more than ``blocks`` blocks.

        There are hardly more blocks than places, so with more on one multiprocessor others would stay empty.
        """
        needed = 1024 + max(self.stages(layout) * self.stage(layout), self.columns * PITCH)
        return max(needed, MAX_SHARED_BYTES // (self.blocks + 1))


TILES = (WarpgroupTile(32, 2), WarpgroupTile(64, 2), WarpgroupTile(128, 1))


@family(lambda: ((layout, tile) for layout in layouts() for tile in TILES))
def kernel(layout: PackedLayout, tile: WarpgroupTile) -> Kernel:
    """The kernel: block (row of tiles, tile of activations, part of the columns)."""
    weights, times = fragment_weights(layout), wgmma.sums(tile.columns).times
    length, ahead, columns = tile.stage(layout), tile.stages(layout) - 1, tile.columns
    end, weights_at, fragment_bytes = ahead * length, columns * 2 * STEP, layout.fragment_bytes
    zeros, publish, commit = wgmma.sums(columns).zeros, wgmma.publish, ptx.commit
    fetch_weights, fetch_activations = weights_fetcher(layout, tile), activations_fetcher(tile)
    refill, after, unpack, multiply, store = (
        refiller(layout, tile), offset_advancer(ahead + 1, length), unpacker(weights), multiplier(columns),
        storer(columns),
    )  # fmt: skip
    base, first_there, wait = ptx.shared_base, ptx.wait_for_all_but(ahead - 1), wgmma.wait
    wait_for_predecessor, let_successor_start, shrunk = (
        hopper.wait_for_predecessor, hopper.let_successor_start,
        np.float32(weights.factor),
    )  # fmt: skip

    def product(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        x: Any,  # bfloat16 [m, k], each 16 in the order of activations.floats.orderer
        y: Any,  # float32 [splits, m, n]
        m: Any, n: Any, k: Any, steps: Any,
    ) -> None:  # fmt: skip
        (fragment_row, lane), part, splits = warp_and_lane(), uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
        m0 = uint32(cuda.blockIdx.y) * columns
        apart = uint64(steps) * fragment_bytes
        w_at = fragments + uint64(cuda.blockIdx.x) * FRAGMENT_ROWS * apart
        twos = steps >> 1
        first = uint32(part * twos) // splits << 1
        last = uint32((part + 1) * twos) // splits << 1
        ring = (base() + 1023) & 0xFFFFFC00  # swizzled stages begin at multiples of 1024
        fragment_at = weights_at + fragment_row * fragment_bytes
        opaque = opaque_zero(steps)
        even, odd = cuda.local.array(16, uint32), cuda.local.array(16, uint32)
        # The ring is filled but for one stage. Weights do not change, so their copies start while the kernel
        # before still runs.
        for i in range(ahead):
            if first + uint32(i) < last:
                fetch_weights(ring + uint32(i * length), w_at, apart, first + uint32(i))
        wait_for_predecessor()  # it may have made x, or read y
        for i in range(ahead):
            if first + uint32(i) < last:
                fetch_activations(ring + uint32(i * length), x, m0, first + uint32(i), m, k)
            commit()
        first_there()
        publish()
        cuda.syncthreads()
        unpack(ring + fragment_at, lane, even, opaque)
        total = zeros()
        to, here = uint32(end), uint32(0)
        for step in range(first, last, 2):
            # `multiply` starts products and waits for those before, so the stage before is free for copies
            # once all warps have met in `refill`, and so are the registers that it was multiplied from.
            total = multiply(total, even, ring + here)
            here = after(here)
            refill(ring + to, w_at, apart, x, m0, step + ahead, last, m, k)
            to = after(to)
            unpack(ring + here + fragment_at, lane, odd, opaque)  # while the others are being multiplied
            total = multiply(total, odd, ring + here)
            here = after(here)
            refill(ring + to, w_at, apart, x, m0, step + (ahead + 1), last, m, k)
            to = after(to)
            unpack(ring + here + fragment_at, lane, even, opaque)  # in the end: never multiplied
        wait()
        total = times(total, shrunk)
        let_successor_start()  # not before: its blocks would come between those of this one
        cuda.syncthreads()  # the ring is free: outputs pass through it
        y_at = y + uint64(part) * m * n * 4
        store(total, ring, y_at, m0, m, n)

    parameters = (uint64,) * 3 + (uint32,) * 4
    return Kernel(
        f"wgmma of {layout.name}, {tile}", product, *parameters, threads=THREADS, blocks=tile.blocks,
        shared=tile.shared(layout), least=(9, 0), exact=True, early=True,
    )  # fmt: skip


def refiller(layout: PackedLayout, tile: WarpgroupTile) -> Any:
    """The device function that waits for the next stage, and starts to fill the one that is free."""
    stage_there, publish, commit = ptx.wait_for_all_but(tile.stages(layout) - 3), wgmma.publish, ptx.commit
    fetch_weights, fetch_activations = weights_fetcher(layout, tile), activations_fetcher(tile)

    @inlined
    def refill(to: Any, w_at: Any, apart: Any, x: Any, m0: Any, step: Any, last: Any, m: Any, k: Any) -> None:
        stage_there()
        # cp.async wrote x through one proxy, wgmma reads it through another: each thread makes its own copies
        # visible before the barrier tells the others that they may read them.
        publish()
        cuda.syncthreads()  # all see the stage, and nobody reads the one to fill
        if step < last:
            fetch_weights(to, w_at, apart, step)
            fetch_activations(to, x, m0, step, m, k)
        commit()  # of nothing, too: waits count groups of copies

    return refill


def weights_fetcher(layout: PackedLayout, tile: WarpgroupTile) -> Any:
    """The device function that starts the copies of a stage's weights: a warp copies its fragment."""
    fragment_bytes, chunks = layout.fragment_bytes, layout.fragment_bytes // 16
    weights_at, copy16 = tile.columns * 2 * STEP, ptx.copy16

    @inlined
    def fetch_weights(at: Any, w_at: Any, apart: Any, step: Any) -> None:
        fragment_row, lane = warp_and_lane()
        to = at + weights_at + fragment_row * fragment_bytes + lane * 16
        source = address(w_at + fragment_row * apart, step, fragment_bytes, lane * 16, 1)
        for first in range(0, chunks, 32):
            if lane + uint32(first) < chunks:
                copy16(to + uint32(16 * first), source + uint64(16 * first))

    return fetch_weights


def activations_fetcher(tile: WarpgroupTile) -> Any:
    """The device function that starts the copies of a stage's activations.

    Chunk c of 16 bytes of a row r goes to c ^ (r % 8), where wgmma's swizzle looks for it. Columns beyond K
    come as zeros.
    """
    rows_together, columns, copy16_or_zeros = THREADS // 8, tile.columns, ptx.copy16_or_zeros

    @inlined
    def fetch_activations(at: Any, x: Any, m0: Any, step: Any, m: Any, k: Any) -> None:
        thread = uint32(cuda.threadIdx.x)
        row, chunk = thread >> 3, thread & 7
        column = step * STEP + chunk * 8
        length = uint32(16) if column < k else uint32(0)
        column = column if column < k else 0
        to = at + row * (2 * STEP) + ((chunk ^ row & 7) << 4)
        for i in range(0, columns, rows_together):
            # rows beyond the last are multiplied and thrown away
            source_row = min(m0 + row + uint32(i), m - 1)
            target = to + uint32(i * 2 * STEP)
            copy16_or_zeros(target, x + uint64(source_row * k + column) * 2, length)

    return fetch_activations


def unpacker(weights: FragmentWeights) -> Any:
    """The device function that makes a lane's weights of the fragment at an address."""
    count, load, make = weights.words, weights.load, weights.unpack

    @inlined
    def unpack(at: Any, lane: Any, a: Any, opaque: Any) -> None:
        words = cuda.local.array(count, uint32)
        load(at, lane, words)
        make(words, a, opaque)

    return unpack


def multiplier(columns: int) -> Any:
    """The device function that starts a step's products, and waits for those of the step before."""
    advance = wgmma.sums(columns).advance

    @inlined
    def multiply(total: Any, a: Any, at: Any) -> Any:
        rows = (
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
            a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15],
        )  # fmt: skip
        return advance(total, rows, uint32(at))

    return multiply


@cache
def storer(columns: int) -> Any:
    """The device function that writes a tile through shared memory: four rows of outputs a lane."""
    put, take_floats = wgmma.sums(columns).put, ptx.take_floats
    store16, bits_of = ptx.store16, ptx.bits_of

    @inlined
    def store(total: Any, at: Any, y: Any, m0: Any, m: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        row = warp * ROWS + g
        put(total, at + t * (2 * PITCH) + row * 4, uint32(PITCH))
        cuda.syncthreads()
        row = uint32(cuda.blockIdx.x) * TILE_ROWS + lane * 4
        for column in range(warp, min(uint32(columns), m - m0), uint32(FRAGMENT_ROWS)):
            v = take_floats(at + column * PITCH + lane * 16)
            to = address(y, m0 + column, n, row, 4)
            if row + 3 < n and to & 15 == 0:
                store16(to, bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3]))
            else:
                store_four(to, row, n, v[0], v[1], v[2], v[3])

    return store


# --- the launch: a tile for the rows; K split among blocks by the grid (split_k) where tiles are few ------

MIN_STEPS_OF_A_PART = 6  # of K


class TilesPlan(NamedTuple):
    """A tile, and the grid of its blocks; the last are the parts of K."""

    tile: Any
    grid: tuple[int, int, int]


def plan_tiles(m: int, layout: PackedLayout, tiles: tuple[Any, ...], n: int, steps: int) -> TilesPlan:
    """The smallest tile that holds all rows, and the blocks that fill the card."""
    tile = next((tile for tile in tiles if tile.columns >= m), tiles[-1])
    down, across = -(-n // TILE_ROWS), -(-m // tile.columns)
    beside = device.resident_blocks(tile.blocks, tile.shared(layout))
    # As many parts of K as fill the card once.
    fitting = device.multiprocessors() * beside // (down * across)
    return TilesPlan(tile, (down, across, max(1, min(fitting, steps // MIN_STEPS_OF_A_PART))))


@register(
    __name__, __doc__, arithmetic="bf16s", accumulate="f16", refuses=refuses_without_wgmma, repeats=True
)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    if not (x.size and out.size):
        out.fill(0)
        return
    x, w, m, (n, k) = narrowed_for_wgmma(x), packed_weights(q), rows_of(out), q.shape
    steps = w.fragments.shape[1]
    tile, grid = decided(plan_tiles, m, w.layout, TILES, n, steps)
    splits = grid[-1]
    wide = n if splits == 1 else -(-n // FOUR) * FOUR
    to = out if splits == 1 else between((splits, m, wide), np.float32)
    kernel(w.layout, tile)(grid, (tile.threads,), w.fragments, x, to, m, wide, k, steps)
    if splits > 1:
        add_partials(to, result_of(out, None), m, n)
