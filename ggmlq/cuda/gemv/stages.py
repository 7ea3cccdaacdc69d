"""What each warp of cuda:gemv has in shared memory: stages of weights and activations, in flight or landed.

A warp copies its stages itself and waits for no other. Two records of a strip at a time cost fewer
instructions than one; GPUs with little shared memory take one. The numbers of warps and stages are
those that were fastest on an H200 (bench/notes/gemv.md): more stages in flight do not help.

A block makes outputs of two strips or of four. Each block reads all activations, so with four they are
loaded and converted half as often.

A block has all of a multiprocessor, or is *small*: one of several that a multiprocessor holds, and one of a
cluster that shares the columns of a strip (clusters.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ..intrinsics import bf16x2, ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t
from ..intrinsics.language import uint32, uint64
from ..packed.layout import ROWS, STEP, StripLayout

BOTH, FOUR = 2, 4  # strips of a block
FLOATS = 8  # up to so many rows are narrowed by the kernel itself
LARGE = 800  # bytes of a record from which fewer warps are faster
SMALL = 4  # warps of a small block
# Warps of small blocks that a multiprocessor has registers for, by strips and rows of activations.
WARPS = {
    BOTH: {1: 24, 2: 24, 4: 20, 8: 16, 16: 12},
    FOUR: {1: 20, 2: 16, 4: 16, 8: 16, 16: 12},
}
COLUMNS = (*WARPS[BOTH], 32)  # rows of activations that there are kernels for
SPANS = 2, 1  # records of a strip in a stage, for GPUs with much or little shared memory
ROOMY, RESERVED = 227 << 10, 1 << 10  # bytes of shared memory of a Hopper multiprocessor, less of a block


@dataclass(frozen=True)
class Stage:
    """What a warp works on at a time: so many records of each strip, and of the activations."""

    layout: StripLayout
    columns: int  # rows of activations
    span: int  # records of a strip
    small: bool = False
    strips: int = BOTH

    @property
    def warps(self) -> int:
        """Of a block; each has its own stages."""
        if self.small:
            return SMALL
        if self.columns > 4:
            return 8
        return 12 if self.layout.record > LARGE or self.strips > BOTH else 16

    @property
    def blocks(self) -> int:
        """That a multiprocessor holds: as many as there are registers and shared memory for."""
        if not self.small:
            return 1
        wanted = WARPS[self.strips][self.columns] // SMALL
        return max(1, min(wanted, ROOMY // (self.shared + RESERVED)))

    @property
    def parts(self) -> int:
        """The most blocks that share the columns of a strip."""
        if not self.small or (self.strips > BOTH and self.columns > 4):
            return 1
        return 8 if self.columns <= FLOATS and self.strips == BOTH else 4

    @property
    def floats(self) -> bool:
        """Whether activations are float32, or bfloat16 already."""
        return self.columns <= FLOATS

    @property
    def tiles(self) -> int:
        """Eight rows of activations each."""
        return -(-self.columns // 8)

    @property
    def numbers(self) -> int:
        """Sums of a lane: four of a strip and tile."""
        return 4 * self.strips * self.tiles

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of activations."""
        return (4 if self.floats else 2) * STEP * self.span

    @property
    def pitch(self) -> int:
        """Bytes from row to row of activations: no bank of shared memory is met twice."""
        return self.row_bytes + (64 if self.floats and self.columns > 1 else 0)

    @property
    def size(self) -> int:
        """Bytes of a strip."""
        return self.span * self.layout.record

    @property
    def length(self) -> int:
        """Bytes of a stage."""
        return self.strips * self.size + self.columns * self.pitch

    @property
    def rows(self) -> int:
        """Of outputs of a block."""
        return self.strips * ROWS

    @property
    def sums(self) -> int:
        """Floats between columns of sums: no bank of shared memory is met twice."""
        return self.rows + 4

    @property
    def count(self) -> int:
        """Stages of a warp: those in flight, and the one it works on."""
        return 3 if self.columns == 8 and self.span > 1 and self.strips == BOTH and not self.small else 2

    @property
    def of_parts(self) -> int:
        """Where sums of other blocks come to lie: behind stages, and in the end sums of warps."""
        return self.warps * max(self.count * self.length, self.columns * self.sums * 4)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        of_others = self.parts * self.columns * self.rows * 4 if self.small else 0
        return self.of_parts + of_others


def columns_of(strips: int) -> tuple[int, ...]:
    """Rows of activations that there are kernels for, with so many strips."""
    return COLUMNS if strips == BOTH else tuple(WARPS[strips])


def kinds_of(strips: int, columns: int) -> tuple[bool, ...]:
    """Of blocks: lone ones are False, small ones True. Those that no shape wants are left out."""
    lone, small = strips == BOTH or columns > 4, columns in WARPS[strips]
    return (False,) * lone + (True,) * small


@cache
def fetchers(stage: Stage) -> tuple[Any, Any]:
    """The device functions that start the copies of one stage: of weights, and of activations."""
    size, chunks, row_chunks, pitch = stage.size, stage.size // 16, stage.row_bytes // 16, stage.pitch
    columns, every, strips = stage.columns, stage.span * STEP, stage.strips
    width, swaps = (4, False) if stage.floats else (2, True)
    copy16, copy16_or_zeros = ptx.copy16, bf16x2.copy16_or_zeros

    @inlined
    def fetch_weights(at: Any, lane: Any, of_w: Any, apart: Any, span: Any) -> None:
        source = address(of_w, span, size, lane * uint32(16), 1)
        to = at + lane * uint32(16)
        for strip in range(strips):
            for first in range(0, chunks, 32):
                if lane + uint32(first) < uint32(chunks):
                    copy16(
                        to + uint32(strip * size + 16 * first),
                        source + uint64(strip) * apart + uint64(16 * first),
                    )

    @inlined
    def fetch_activations(at: Any, lane: Any, x: Any, span: Any, m: Any, k: Any) -> None:
        for first in range(0, row_chunks * columns, 32):
            c = lane + uint32(first)
            row, chunk = c // uint32(row_chunks), c % uint32(row_chunks)
            column = span * uint32(every) + chunk * uint32(16 // width)
            if c < uint32(row_chunks * columns):
                there = row < m and column < k
                of_x = address(x, row, k, column, width) if there else x
                if swaps:
                    chunk ^= (row & uint32(3)) << uint32(1)
                place = uint32(strips * size) + row * uint32(pitch) + chunk * uint32(16)
                copy16_or_zeros(at + place, of_x, uint32(16) if there else uint32(0))

    return fetch_weights, fetch_activations


@cache
def taker(stage: Stage) -> Any:
    """The device function that loads a lane's activations of a record: pairs of bfloat16, eight a tile.

    There are eight rows or more: fewer are by_runs.py's. Rows of bfloat16 have chunk c of row r at
    c ^ 2 (r % 4), so that no bank is met twice.
    """
    of_w, pitch, tiles = stage.strips * stage.size, stage.pitch, stage.tiles
    narrowed, take_floats, take8 = bf16x2.narrowed, ptx.take_floats, bf16x2.take8

    @inlined
    def take_and_narrow(at: Any, record: Any, lane: Any, b: Any) -> None:
        g, t = g_and_t(lane)
        of_x = at + uint32(of_w + record * 4 * STEP) + g * uint32(pitch) + t * uint32(16)
        for s in range(4):
            v = take_floats(of_x + uint32(64 * s))
            b[2 * s], b[2 * s + 1] = narrowed(v[0], v[1]), narrowed(v[2], v[3])

    @inlined
    def take(at: Any, record: Any, lane: Any, b: Any) -> None:
        g, t = g_and_t(lane)
        of_x = at + uint32(of_w + record * 2 * STEP) + g * uint32(pitch) + (t & uint32(1)) * uint32(8)
        swap = (g & uint32(3)) << uint32(1)
        for s in range(4):
            place = ((uint32(2 * s) + (t >> uint32(1))) ^ swap) << uint32(4)
            for tile in range(tiles):
                v = take8(of_x + place + uint32(8 * tile * pitch))
                b[8 * tile + 2 * s], b[8 * tile + 2 * s + 1] = v[0], v[1]

    return take_and_narrow if stage.floats else take
