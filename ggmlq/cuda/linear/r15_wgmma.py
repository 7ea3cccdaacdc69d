"""Hopper's own tensor instructions: weights decoded into registers, activations never leave shared memory.

Changed: the scale is multiplied into the weight, in bfloat16, while it is unpacked; so a
sum stays in the tensor cores from the first column to the last, and no instruction is spent on an
output. ``wgmma`` takes the weights from the registers of four warps and the activations straight from
shared memory. It runs by itself: while it multiplies what lies in one set of registers, the next
step is unpacked into another set.

Weights are rounded as cuda:dequant_bf16 rounds them, after their scale was rounded in the same way. The
head of packed/weights.py says how one instruction makes two weights of their bits.

Limited by the barrier and the waits of each step, about twice the time of its products; with
thousands of rows cuBLAS on a decoded copy is still ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...arrays.array import QuantArray
from ...base.slots import rows_of
from ...dispatch.ladder import register
from ..activations.floats import narrowed_for_wgmma
from ..epilogue.results import FOUR, add_partials, result_of
from ..intrinsics import bf16x2, dependent_launch, ptx, wgmma
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import address, g_and_t, opaque_zero, warp_and_lane
from ..intrinsics.language import cuda, uint32, uint64
from ..kernels.hopper.frame import MAX_SHARED_BYTES
from ..kernels.hopper.kernel import multiplier
from ..kernels.hopper.tiles import refuses_without_wgmma
from ..machine import device
from ..machine.launch import Kernel, family
from ..machine.recorded import between, decided
from ..packed.layout import FRAGMENT_ROWS, ROWS, STEP, TILE_ROWS, PackedLayout, layouts
from ..packed.pack import packed_weights
from ..packed.weights import FragmentWeights, fragment_weights
from ..rings.int_tiles import store_four
from ..rings.mma_copies import Fetchers, offset_advancer, prologue, refiller

# The launch of cuda:wgmma: a tile for the rows, K split where there are few tiles.

# K split among blocks by the grid, where there are few tiles.


SHORTEST = 6  # steps of a part of K


def split_of(tiles: int, blocks: int, steps: int) -> int:
    """The number of parts of K with which the blocks fill the card once.

    ``blocks``: how many a multiprocessor holds.
    """
    return max(1, min(device.multiprocessors() * blocks // tiles, steps // SHORTEST))


BUDGET = 220 << 10  # bytes of shared memory that the blocks of a multiprocessor share on Hopper


class TilesPlan(NamedTuple):
    """A tile, and the grid of its blocks; the last are the parts of K."""

    tile: Any
    grid: tuple[int, int, int]


def plan_tiles(m: int, layout: PackedLayout, tiles: tuple[Any, ...], n: int, steps: int) -> TilesPlan:
    """The smallest tile that holds all rows, and the blocks that fill the card."""
    tile = next((tile for tile in tiles if tile.columns >= m), tiles[-1])
    down, across = -(-n // TILE_ROWS), -(-m // tile.columns)
    beside = device.resident_blocks(tile.blocks, tile.shared(layout))
    return TilesPlan(tile, (down, across, split_of(down * across, beside, steps)))


def launch_tiles(
    kernel: Callable[..., Kernel], tiles: tuple[Any, ...], x: Any, q: QuantArray, out: Any
) -> None:
    """Launch ``kernel(layout, tile)`` with the tile of :func:`plan_tiles`; add up partial sums.

    ``x``: the activations as the kernel reads them.
    """
    w, m, (n, k) = packed_weights(q), rows_of(out), q.shape
    steps = w.fragments.shape[1]
    tile, grid = decided(plan_tiles, m, w.layout, tiles, n, steps)
    splits = grid[-1]
    wide = n if splits == 1 else -(-n // FOUR) * FOUR
    to = out if splits == 1 else between((splits, m, wide), np.float32)
    kernel(w.layout, tile)(grid, (tile.threads,), w.fragments, x, to, m, wide, k, steps)
    if splits > 1:
        add_partials(to, result_of(out, None), m, n)


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
        return max(3, min(4, (BUDGET // self.blocks - 1024) // self.stage(layout)))

    def shared(self, layout: PackedLayout) -> int:
        """Bytes of shared memory, enough that a multiprocessor holds no more than ``blocks`` blocks.

        There are hardly more blocks than places, so with more on one multiprocessor others would stay empty.
        """
        needed = 1024 + max(self.stages(layout) * self.stage(layout), self.columns * PITCH)
        return max(needed, MAX_SHARED_BYTES // (self.blocks + 1))


TILES = (WarpgroupTile(32, 2), WarpgroupTile(64, 2), WarpgroupTile(128, 1))


@cache
def fetchers(layout: PackedLayout, tile: WarpgroupTile) -> Fetchers:
    """The device functions that start the copies of one stage: of weights, and of activations."""
    fragment_bytes, chunks, columns = layout.fragment_bytes, layout.fragment_bytes // 16, tile.columns
    rows_together = THREADS // 8
    weights_at = tile.columns * 2 * STEP
    copy16, copy16_or_zeros = ptx.copy16, bf16x2.copy16_or_zeros

    @inlined
    def fetch_weights(at: Any, w_at: Any, apart: Any, step: Any) -> None:
        fragment_row, lane = warp_and_lane()
        to = at + uint32(weights_at) + fragment_row * uint32(fragment_bytes) + lane * uint32(16)
        source = address(w_at + uint64(fragment_row) * apart, step, fragment_bytes, lane * uint32(16), 1)
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
        for i in range(0, columns, rows_together):
            # rows beyond the last are multiplied and thrown away
            source_row = min(m0 + row + uint32(i), m - uint32(1))
            target = to + uint32(i * 2 * STEP)
            copy16_or_zeros(target, x + uint64(source_row * k + column) * uint64(2), length)

    return fetch_weights, fetch_activations


def unpacker(weights: FragmentWeights) -> Any:
    """The device function that makes a lane's weights of the fragment at an address."""
    count, load, make = weights.words, weights.load, weights.unpack

    @inlined
    def unpack(at: Any, lane: Any, a: Any, opaque: Any) -> None:
        words = cuda.local.array(count, uint32)
        load(at, lane, words)
        make(words, a, opaque)

    return unpack


@family(lambda: ((layout, tile) for layout in layouts() for tile in TILES))
def kernel(layout: PackedLayout, tile: WarpgroupTile) -> Kernel:
    """The kernel: block (row of tiles, tile of activations, part of the columns)."""
    weights, times = fragment_weights(layout), wgmma.sums(tile.columns).times
    length, count, columns = tile.stage(layout), tile.stages(layout), tile.columns
    fragment_bytes = layout.fragment_bytes
    ahead, end, weights_at = count - 1, (count - 1) * length, columns * 2 * STEP
    fetch, zeros, publish = fetchers(layout, tile), wgmma.sums(columns).zeros, wgmma.publish
    start, after = prologue(fetch, ahead, length), offset_advancer(count, length)
    refill = refiller(fetch, ptx.wait_for_all_but(count - 3), publish)
    unpack, multiply, store = unpacker(weights), multiplier(columns), storer(columns)
    base, first_there, wait = ptx.shared_base, ptx.wait_for_all_but(ahead - 1), wgmma.wait
    let_successor_start, shrunk = dependent_launch.let_successor_start, np.float32(weights.factor)

    def product(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        x: Any,  # bfloat16 [m, k], each 16 in the order of activations.floats.orderer
        y: Any,  # float32 [splits, m, n]
        m: Any, n: Any, k: Any, steps: Any,
    ) -> None:  # fmt: skip
        (fragment_row, lane), part, splits = warp_and_lane(), uint32(cuda.blockIdx.z), uint32(cuda.gridDim.z)
        m0 = uint32(cuda.blockIdx.y) * uint32(columns)
        apart = uint64(steps) * uint64(fragment_bytes)
        w_at = fragments + uint64(cuda.blockIdx.x) * uint64(FRAGMENT_ROWS) * apart
        twos = steps >> uint32(1)
        first = uint32(part * twos) // splits << uint32(1)
        last = uint32((part + uint32(1)) * twos) // splits << uint32(1)
        ring = (base() + uint32(1023)) & uint32(0xFFFFFC00)
        fragment_at = uint32(weights_at) + fragment_row * uint32(fragment_bytes)
        opaque = opaque_zero(steps)
        even, odd = cuda.local.array(16, uint32), cuda.local.array(16, uint32)
        start(ring, w_at, apart, x, m0, first, last, m, k)
        first_there()
        publish()
        cuda.syncthreads()
        unpack(ring + fragment_at, lane, even, opaque)
        total = zeros()
        to, here = uint32(end), uint32(0)
        for step in range(first, last, 2):
            total = multiply(total, even, ring + here)
            here = after(here)
            refill(ring + to, w_at, apart, x, m0, step + uint32(ahead), last, m, k)
            to = after(to)
            unpack(ring + here + fragment_at, lane, odd, opaque)  # while the others are being multiplied
            total = multiply(total, odd, ring + here)
            here = after(here)
            refill(ring + to, w_at, apart, x, m0, step + uint32(ahead + 1), last, m, k)
            to = after(to)
            unpack(ring + here + fragment_at, lane, even, opaque)  # in the end: never multiplied
        wait()
        total = times(total, shrunk)
        let_successor_start()  # not before: its blocks would come between those of this one
        cuda.syncthreads()
        y_at = y + uint64(part) * uint64(m) * uint64(n) * uint64(4)
        store(total, ring, y_at, m0, m, n)

    parameters = (uint64,) * 3 + (uint32,) * 4
    return Kernel(
        f"wgmma of {layout.name}, {tile}", product, *parameters, threads=THREADS, blocks=tile.blocks,
        shared=tile.shared(layout), least=(9, 0), exact=True, early=True,
    )  # fmt: skip


@cache
def storer(columns: int) -> Any:
    """The device function that writes a tile through shared memory: four rows of outputs a lane."""
    put, take_floats = wgmma.sums(columns).put, ptx.take_floats
    store16, bits_of = ptx.store16, ptx.bits_of

    @inlined
    def store(total: Any, at: Any, y: Any, m0: Any, m: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        row = warp * uint32(ROWS) + g
        put(total, at + t * uint32(2 * PITCH) + row * uint32(4), uint32(PITCH))
        cuda.syncthreads()
        row = uint32(cuda.blockIdx.x) * uint32(TILE_ROWS) + lane * uint32(4)
        for column in range(warp, min(uint32(columns), m - m0), uint32(FRAGMENT_ROWS)):
            v = take_floats(at + column * uint32(PITCH) + lane * uint32(16))
            to = address(y, m0 + column, n, row, 4)
            if row + uint32(3) < n and to & uint64(15) == uint64(0):
                store16(to, bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3]))
            else:
                store_four(to, row, n, v[0], v[1], v[2], v[3])

    return store


@register(
    __name__, __doc__, arithmetic="bf16s", accumulate="f16", refuses=refuses_without_wgmma, repeats=True
)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    if x.size and out.size:
        launch_tiles(kernel, TILES, narrowed_for_wgmma(x), q, out)
    else:
        out.fill(0)
