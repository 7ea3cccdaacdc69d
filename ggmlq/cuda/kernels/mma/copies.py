"""Copies of packed weights, and of activations as 16 bits or as bytes, into stages for ``mma.sync``.

A row of activations is eight chunks of 16 bytes in a stage; chunk c of row r lies at c ^ 2 (r % 4), so the
eight bytes of each lane come without a bank conflict. A thread keeps the addresses of what it copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from ...intrinsics import bf16x2, codes, dependent_launch, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.integers import held, wide_place
from ...intrinsics.language import cuda, uint32, uint64
from ...layouts.code_tiles import EIGHT, eight_bytes, sum_run
from ...layouts.layout import FRAGMENT_ROWS, STEP, PackedLayout

# A ring of stages in shared memory: filled once before the first product, then one stage a step.
#
# ``fetchers`` are a rung's two device functions, which start the copies of one stage:
#
#     fetch_weights(at, of_w, apart, step)        of_w: the block's packed weights, ``apart`` bytes between
#                                                 fragments
#     fetch_activations(at, x, m0, step, m, k)    m0: the block's first row of activations
#
# Weights do not change, so their copies start while the predecessor of the kernel still runs.

Fetchers = tuple[Any, Any]


def prologue(fetchers: Fetchers, ahead: int, length: int) -> Any:
    """The device function that fills the first ``ahead`` stages, of ``length`` bytes each."""
    fetch_weights, fetch_activations = fetchers
    commit, wait_for_predecessor = ptx.commit, dependent_launch.wait_for_predecessor

    @inlined
    def start(
        ring: Any, weights_at: Any, apart: Any, x: Any, m0: Any, first: Any, last: Any, m: Any, k: Any
    ) -> None:
        for i in range(ahead):
            if first + uint32(i) < last:
                fetch_weights(ring + uint32(i * length), weights_at, apart, first + uint32(i))
        wait_for_predecessor()  # the predecessor may have made x, or read y
        for i in range(ahead):
            if first + uint32(i) < last:
                fetch_activations(ring + uint32(i * length), x, m0, first + uint32(i), m, k)
            commit()

    return start


@inlined
def nothing() -> None:
    """Do nothing, in place of a fence: for instructions that read shared memory as all others do."""


def refiller(fetchers: Fetchers, wait: Any, publish: Any = nothing) -> Any:
    """The device function that waits for the next stage, and starts to fill the one that is free.

    ``publish``: makes copied bytes visible to instructions that read shared memory through another proxy.
    """
    fetch_weights, fetch_activations = fetchers
    commit = ptx.commit

    @inlined
    def refill(
        to: Any, weights_at: Any, apart: Any, x: Any, m0: Any, step: Any, last: Any, m: Any, k: Any
    ) -> None:
        wait()
        publish()
        cuda.syncthreads()  # all see the stage, and nobody reads the one to fill
        if step < last:
            fetch_weights(to, weights_at, apart, step)
            fetch_activations(to, x, m0, step, m, k)
        commit()

    return refill


def offset_advancer(count: int, length: int) -> Any:
    """The device function for the next stage, as its offset in the ring."""
    end = (count - 1) * length

    @inlined
    def after(stage: Any) -> Any:
        return 0 if stage == end else uint32(stage + length)

    return after


# Tiles of packed weights times activations of 16 bits, or bytes, for ``mma.sync``: warps, stages, memory.

KB = 1 << 10
RESERVED = KB  # bytes that CUDA takes for each block, beside the block's own
SHARED = 100 * KB  # of a multiprocessor of 8.6, 8.9 and 12.x; with more, as others have, nothing was faster
MOST_STAGES = 4
WARP_FRAGMENTS = 2  # fragment rows of a warp


@dataclass(frozen=True)
class MmaTile:
    """128 rows of weights times some rows of activations, by warps that have two fragment rows each."""

    columns: int
    blocks: int  # that a multiprocessor holds

    def __str__(self) -> str:
        return f"{self.columns} columns"

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return FRAGMENT_ROWS // WARP_FRAGMENTS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    def stage(self, layout: PackedLayout) -> int:
        """Bytes of a stage: weights, then activations."""
        return FRAGMENT_ROWS * layout.fragment_bytes + self.columns * 2 * STEP

    def sums_bytes(self, layout: PackedLayout) -> int:
        """Bytes behind the stages for sums of activations, a float a run and row."""
        return 4 * layout.runs * self.columns if layout.has_offset else 0

    def stages(self, layout: PackedLayout) -> int:
        """Stages of a block's ring."""
        room = SHARED // self.blocks - RESERVED - self.sums_bytes(layout)
        return max(2, min(MOST_STAGES, room // self.stage(layout)))

    def shared(self, layout: PackedLayout) -> int:
        """Bytes of shared memory of a block."""
        return self.stages(layout) * self.stage(layout) + self.sums_bytes(layout)


TILES = MmaTile(16, 4), MmaTile(32, 3), MmaTile(64, 2)
WIDE = MmaTile(128, 2)  # for weights with much to do for a step, whatever its rows of activations


# --- bytes: code tiles, of which layouts/code_tiles.py has the picture ------------------------


@dataclass(frozen=True)
class CodeTile(MmaTile):
    """128 rows of weights times some rows of activations as bytes."""

    def stage(self, layout: PackedLayout) -> int:
        """Bytes of a stage: weights, then activations with their scales and sums."""
        return FRAGMENT_ROWS * layout.fragment_bytes + self.columns // EIGHT * eight_bytes(sum_run(layout))

    def sums_bytes(self, layout: PackedLayout) -> int:
        """Nothing: sums come with the activations."""
        return 0


CODE_TILES = CodeTile(16, 4), CodeTile(32, 3), CodeTile(64, 2), CodeTile(128, 2)


ROW, CHUNK = 2 * STEP, 16  # bytes of a row of activations in a stage, and of a copy


class Sources(NamedTuple):
    """Device functions for the places of what a thread fetches."""

    weights: Any  # (fragments, first row, steps, warp, lane) -> fragments; a warp's first; place in a stage
    activations: Any  # (x, m0, m, k, lane) -> x; first elements of rows; place in a stage


@cache
def sources(layout: PackedLayout, tile: MmaTile) -> Sources:
    """The device functions for a thread's places, which are the same in each step."""
    fragment_bytes, weights_at = layout.fragment_bytes, FRAGMENT_ROWS * layout.fragment_bytes
    rows_together, warp_rows = tile.threads // 8, FRAGMENT_ROWS // tile.warps

    def row(i: int) -> Any:
        @inlined
        def address(first: Any) -> Any:
            # rows beyond the last are multiplied and thrown away
            row_of_x, m, k = first
            source_row = min(uint32(row_of_x + i * rows_together), uint32(m - 1))
            return (uint32(source_row * k),)

        return address

    all_rows = several(row, tile.columns // rows_together)

    @inlined
    def weights(fragments: Any, first_row: Any, steps: Any, warp: Any, lane: Any) -> Any:
        first = uint32(uint32(first_row + warp * warp_rows) * steps)
        place = uint32(warp * (warp_rows * fragment_bytes) + lane * 16)
        return fragments, held(first, lane), held(place, lane)

    @inlined
    def activations(x: Any, m0: Any, m: Any, k: Any, lane: Any) -> Any:
        thread = uint32(cuda.threadIdx.x)
        rows = all_rows((uint32(m0 + (thread >> 3)), m, k))
        return x, rows, held(uint32(place_of(thread) + weights_at), lane)

    return Sources(weights, activations)


@cache
def listed_activations(tile: MmaTile, weights_at: int) -> Any:
    """The device function for a thread's places of rows that a list of uses names; ``per``: uses of a row.

    Beyond ``count`` the last one is multiplied and thrown away.
    """
    rows_together, load4 = tile.threads // 8, codes.load4

    def row(i: int) -> Any:
        @inlined
        def address(facts: Any) -> Any:
            row_of_thread, uses, count, per, k = facts
            place = min(uint32(row_of_thread + i * rows_together), uint32(count - 1))
            use = load4(uses + uint64(place) * 4)
            return (uint32(uint32(use // per) * k),)

        return address

    all_rows = several(row, tile.columns // rows_together)

    @inlined
    def activations(x: Any, uses: Any, count: Any, per: Any, k: Any, lane: Any) -> Any:
        thread = uint32(cuda.threadIdx.x)
        rows = all_rows((uint32(thread >> 3), uses, count, per, k))
        return x, rows, held(uint32(place_of(thread) + weights_at), lane)

    return activations


@inlined
def place_of(thread: Any) -> Any:
    """The place of a thread's chunk among the activations of a stage."""
    row, chunk = thread >> 3, thread & 7
    return uint32(row * ROW + ((chunk ^ (row & 3) << 1) << 4))


def several(one: Callable[[int], Any], count: int, first: int = 0) -> Any:
    """The device function that joins the tuples of device functions ``one(0)`` … to one tuple."""
    if count == 1:
        return one(first)
    half = count // 2
    low, high = several(one, half, first), several(one, count - half, first + half)

    @inlined
    def joined(facts: Any) -> Any:
        return low(facts) + high(facts)

    return joined


@cache
def fetchers(layout: PackedLayout, tile: MmaTile) -> Fetchers:
    """The device functions that start the copies of one stage: of weights, and of activations.

    ``w_at``, ``x``: what :class:`Sources` give.
    """
    fragment_bytes, chunks = layout.fragment_bytes, layout.fragment_bytes // 16
    rows_together, warp_rows = tile.threads // 8, FRAGMENT_ROWS // tile.warps
    copy16, copy16_or_zeros = ptx.copy16, bf16x2.copy16_or_zeros

    def row(i: int) -> Any:
        @inlined
        def copy(facts: Any) -> Any:
            x, elements, to, column, length = facts
            source = wide_place(uint32(elements[i] + column), uint32(2), x)
            copy16_or_zeros(uint32(to + i * rows_together * ROW), source, length)
            return (column,)

        return copy

    copy_rows = several(row, tile.columns // rows_together)

    @inlined
    def fetch_weights(at: Any, w_at: Any, apart: Any, step: Any) -> None:
        (fragments, first, place), lane = w_at, uint32(cuda.threadIdx.x) & 31
        source = wide_place(uint32(first + step), uint32(fragment_bytes), fragments) + uint64(lane * 16)
        for fragment_row in range(warp_rows):
            to = uint32(at + place + uint32(fragment_row * fragment_bytes))
            for first in range(0, chunks, 32):
                if lane < uint32(chunks - first):
                    here = source + uint64(fragment_row) * apart + uint64(16 * first)
                    copy16(uint32(to + uint32(16 * first)), here)

    @inlined
    def fetch_activations(at: Any, x: Any, m0: Any, step: Any, m: Any, k: Any) -> None:
        first_element, elements, place = x
        column = uint32(step * STEP + (uint32(cuda.threadIdx.x) & 7) * 8)
        length = uint32(16) if column < k else uint32(0)
        column = column if column < k else 0
        copy_rows((first_element, elements, uint32(at + place), column, length))

    return fetch_weights, fetch_activations


@cache
def code_fetcher(layout: PackedLayout, tile: CodeTile) -> Any:
    """The device function that starts the copies of a stage's code tiles: one piece of memory."""
    length, weights_at = eight_bytes(sum_run(layout)), FRAGMENT_ROWS * layout.fragment_bytes
    chunks, copy16, threads = tile.columns // EIGHT * length // CHUNK, ptx.copy16, tile.threads

    @inlined
    def fetch(at: Any, x: Any, m0: Any, step: Any, m: Any, height: Any) -> None:
        eights = uint32(step * uint32(height // EIGHT) + m0 // EIGHT)
        thread = uint32(cuda.threadIdx.x)
        source = wide_place(eights, uint32(length), x) + uint64(thread * CHUNK)
        to = uint32(at + weights_at + thread * CHUNK)
        for first in range(0, chunks, threads):
            if thread < uint32(chunks - first):
                copy16(uint32(to + uint32(first * CHUNK)), source + uint64(first * CHUNK))

    return fetch
