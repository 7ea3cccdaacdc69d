"""A warp's stages of cuda:gemv in shared memory: weights and activations, in flight or arrived.

A warp copies its own stages and waits for no other warp. Two fragments at a time cost fewer instructions
than one; GPUs with little shared memory take one. The numbers of warps and stages are those that were
fastest on an H200 (bench/notes/gemv.md): more stages in flight do not help.

A block makes outputs of two fragment rows or of four. Each block reads all activations, so with four they are
loaded and converted half as often.

A *lone* block has a multiprocessor for itself. A *small* one shares it with others, and may be one of a
cluster that splits the columns of a tile (stages.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from ...intrinsics import barrier as barriers
from ...intrinsics import bf16x2, codes, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import address, g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, uint32, uint64
from ...layouts.layout import ROWS, STEP, PackedLayout
from ..epilogue.results import bias_loader, store_result

LEAST, WIDE = (8, 0), (9, 0)  # capabilities; in code for earlier GPUs 32 rows and two fragments spill
TWO, FOUR = 2, 4  # fragment rows of a block
FLOATS = 8  # rows of activations, up to which the kernel itself narrows floats
HALVES = 1  # the kind of float16, by its place in KINDS
LONG = 4 << 10  # bytes of a stage up to which small blocks have three
LARGE = 800  # bytes of a fragment from which fewer warps are faster
SMALL = 4  # warps of a small block
# Warps of small blocks that a multiprocessor has registers for, by fragment rows and rows of activations.
WARPS = {
    TWO: {1: 24, 2: 24, 4: 20, 8: 16, 16: 12},
    FOUR: {1: 20, 2: 16, 4: 16, 8: 16, 16: 12},
}
COLUMNS = (*WARPS[TWO], 32)  # rows of activations that kernels are made for
SPANS = 2, 1  # fragments of a row in a stage, for GPUs with much or little shared memory
# Bytes of shared memory: of a Hopper multiprocessor, and lost for each block.
ROOMY, RESERVED = 227 << 10, 1 << 10


@dataclass(frozen=True)
class GemvStage:
    """The part of a product that a warp works on at a time: fragments of each row, and their activations."""

    layout: PackedLayout
    columns: int  # rows of activations
    span: int  # fragments of a row
    small: bool = False
    fragment_rows: int = TWO
    narrow: bool = False  # of eight rows: their floats have 16 bits

    @property
    def warps(self) -> int:
        """Warps of a block; each has stages of its own."""
        if self.small:
            return SMALL
        if self.columns > 4:
            return 8
        return 12 if self.layout.fragment_bytes > LARGE or self.fragment_rows > TWO else 16

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor has registers and shared memory for."""
        if not self.small:
            return 1
        resident = WARPS[self.fragment_rows][self.columns] // SMALL
        return max(1, min(resident, ROOMY // (self.shared + RESERVED)))

    @property
    def most_splits(self) -> int:
        """The most blocks that split the columns of a tile."""
        if not self.small or (self.fragment_rows > TWO and self.columns > 4):
            return 1
        return 8 if self.columns <= FLOATS and self.fragment_rows == TWO else 4

    @property
    def floats(self) -> bool:
        """True where rows of a stage have room for float32, False where they are of 16 bits."""
        return self.columns <= FLOATS and not self.narrow

    @property
    def takes_bits(self) -> bool:
        """True where activations may be of 16 bits; with eight rows a branch in the loop costs too much."""
        return self.columns != FLOATS or self.narrow

    @property
    def tiles(self) -> int:
        """Tiles of eight rows of activations."""
        return -(-self.columns // 8)

    @property
    def numbers(self) -> int:
        """Sums of a lane: four for each fragment row and tile."""
        return 4 * self.fragment_rows * self.tiles

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of activations."""
        return (4 if self.floats else 2) * STEP * self.span

    @property
    def pitch(self) -> int:
        """Bytes from row to row of activations, padded against bank conflicts."""
        return self.row_bytes + (64 if self.floats and self.columns > 1 else 0)

    @property
    def size(self) -> int:
        """Bytes of a fragment row."""
        return self.span * self.layout.fragment_bytes

    @property
    def length(self) -> int:
        """Bytes of a stage."""
        return self.fragment_rows * self.size + self.columns * self.pitch

    @property
    def rows(self) -> int:
        """Rows of a block's outputs."""
        return self.fragment_rows * ROWS

    @property
    def sums(self) -> int:
        """Floats from one column of sums to the next, padded against bank conflicts."""
        return self.rows + 4

    @property
    def count(self) -> int:
        """Stages of a warp: those in flight, and the one it works on."""
        if self.small:
            return 3 if self.columns <= 4 and self.length <= LONG else 2
        return 3 if self.columns == 8 and self.span > 1 and self.fragment_rows == TWO else 2

    @property
    def partials_at(self) -> int:
        """Offset of the sums of other blocks: behind the stages, and behind the warps' sums in the end."""
        return self.warps * max(self.count * self.length, self.columns * self.sums * 4)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        other_bytes = self.most_splits * self.columns * self.rows * 4 if self.small else 0
        return self.partials_at + other_bytes


def columns_of(fragment_rows: int) -> tuple[int, ...]:
    """The rows of activations that kernels are made for, by the fragment rows of a block."""
    return COLUMNS if fragment_rows == TWO else tuple(WARPS[fragment_rows])


def columns_for(m: int) -> int:
    """The rows of activations of the smallest kernel that takes ``m`` rows."""
    return next(columns for columns in COLUMNS if columns >= m)


def widths_of(columns: int) -> tuple[bool, ...]:
    """The kernels of so many rows: False for all floats, or those of 32 bits; True for those of 16 alone."""
    return (False, True) if columns == FLOATS else (False,)


def kinds_of(fragment_rows: int, columns: int) -> tuple[bool, ...]:
    """The kinds of blocks that kernels are made for: False for lone blocks, True for small ones."""
    lone, small = fragment_rows == TWO or columns > 4, columns in WARPS[fragment_rows]
    return (False,) * lone + (True,) * small


@cache
def fetchers(stage: GemvStage) -> tuple[Any, Any]:
    """The device functions that start the copies of one stage: of weights, and of activations as they lie.

    ``kind``: of the floats of x, by its place in KINDS.
    """
    size, chunks, fragment_rows = stage.size, stage.size // 16, stage.fragment_rows
    floats, bits = stage.floats, stage.takes_bits
    copy16, fetch_floats, fetch_bits = ptx.copy16, row_fetcher(stage, 4), row_fetcher(stage, 2)

    @inlined
    def fetch_weights(at: Any, lane: Any, w_at: Any, apart: Any, span: Any) -> None:
        offset = uint32(lane << 4)
        source, to = w_at + uint64(span) * size + offset, uint32(at + offset)
        for fragment_row in range(fragment_rows):
            for first in range(0, chunks, 32):
                if first + 32 <= chunks or lane < uint32(chunks - first):
                    copy16(
                        uint32(to + uint32(fragment_row * size + 16 * first)),
                        source + uint64(fragment_row) * apart + uint64(16 * first),
                    )

    @inlined
    def fetch_activations(at: Any, lane: Any, x: Any, kind: Any, span: Any, m: Any, k: Any) -> None:
        if not bits:
            fetch_floats(at, lane, x, span, m, k)
        elif not floats:
            fetch_bits(at, lane, x, span, m, k)
        elif kind == 0:
            fetch_floats(at, lane, x, span, m, k)
        else:
            fetch_bits(at, lane, x, span, m, k)

    return fetch_weights, fetch_activations


@cache
def row_fetcher(stage: GemvStage, width: int) -> Any:
    """The device function that starts the copies of a stage's activations, ``width`` bytes each.

    Those of 16 bits fill half of the room where there is room for float32.
    """
    columns, every, pitch = stage.columns, stage.span * STEP, stage.pitch
    rows_at = stage.fragment_rows * stage.size
    row_chunks, swaps, copy16_or_zeros = every * width // 16, not stage.floats, bf16x2.copy16_or_zeros
    shift = row_chunks.bit_length() - 1

    @inlined
    def fetch(at: Any, lane: Any, x: Any, span: Any, m: Any, k: Any) -> None:
        for first in range(0, row_chunks * columns, 32):
            c = uint32(lane + uint32(first))
            row, chunk = uint32(c >> shift), uint32(c & row_chunks - 1)
            column = uint32(uint32(span * every) + uint32(chunk * (16 // width)))
            if first + 32 <= row_chunks * columns or c < row_chunks * columns:
                there = row < m and column < k
                source_of_x = address(x, row, k, column, width) if there else x
                if swaps:
                    chunk = uint32(chunk ^ uint32((row & uint32(3)) << uint32(1)))
                place = uint32(rows_at + uint32(row * pitch) + uint32(chunk << 4))
                copy16_or_zeros(uint32(at + place), source_of_x, uint32(16) if there else uint32(0))

    return fetch


@cache
def four_takers() -> tuple[Any, Any, Any]:
    """The device functions for four activations of a row, from a column on, as pairs of bfloat16.

    They take those of float32, and the bits of others; the third makes pairs of bfloat16 of ``count`` pairs
    of float16, where ``kind`` says so.
    """
    narrowed, take_floats, take8, half_values = (
        bf16x2.narrowed, ptx.take_floats, bf16x2.take8, codes.half_values
    )  # fmt: skip

    @inlined
    def take_floats_narrowed(row_at: Any, column: Any) -> Any:
        v = take_floats(uint32(row_at + uint32(column << 2)))
        return narrowed(v[0], v[1]), narrowed(v[2], v[3])

    @inlined
    def take_bits(row_at: Any, column: Any) -> Any:
        w = take8(uint32(row_at + uint32(column << 1)))
        return w[0], w[1]

    @inlined
    def change_halves(kind: Any, pairs: Any, count: Any) -> None:
        if kind == HALVES:
            for i in range(count):
                low, high = half_values(pairs[i])
                pairs[i] = narrowed(low, high)

    return take_floats_narrowed, take_bits, change_halves


@cache
def activation_loader(stage: GemvStage) -> Any:
    """The device function that loads a lane's activations of a fragment: pairs of bfloat16, eight a tile.

    It serves eight rows or more; by_runs.py serves up to four. In rows of 16 bits without more room, chunk c
    of row r lies at c ^ 2 (r % 4), so that loads have no bank conflicts. ``kind``: as in :func:`fetchers`.
    """
    weight_bytes, pitch, tiles = stage.fragment_rows * stage.size, stage.pitch, stage.tiles
    narrowed, take_floats, take8 = bf16x2.narrowed, ptx.take_floats, bf16x2.take8
    (_, _, change_halves), pairs = four_takers(), 8 * tiles

    @inlined
    def take_and_narrow(at: Any, fragment: Any, lane: Any, b: Any, kind: Any) -> None:
        g, t = g_and_t(lane)
        x_at = at + (weight_bytes + fragment * 4 * STEP) + g * pitch + t * 16
        for s in range(4):
            v = take_floats(x_at + uint32(64 * s))
            b[2 * s], b[2 * s + 1] = narrowed(v[0], v[1]), narrowed(v[2], v[3])

    @inlined
    def take(at: Any, fragment: Any, lane: Any, b: Any, kind: Any) -> None:
        g, t = g_and_t(lane)
        x_at = (
            at + uint32(weight_bytes + fragment * 2 * STEP) + g * uint32(pitch) + (t & uint32(1)) * uint32(8)
        )
        swap = (g & uint32(3)) << uint32(1)
        for s in range(4):
            place = ((uint32(2 * s) + (t >> uint32(1))) ^ swap) << uint32(4)
            for tile in range(tiles):
                v = take8(x_at + place + uint32(8 * tile * pitch))
                b[8 * tile + 2 * s], b[8 * tile + 2 * s + 1] = v[0], v[1]
        change_halves(kind, b, pairs)

    return take_and_narrow if stage.floats else take


# Small blocks of cuda:gemv: a cluster of them splits the columns of a tile, so that any N fills a card.
#
#     warp       0 … 3 of block 0    0 … 3 of block 1    …
#     spans      0 … 3               4 … 7               …       and so on, round after round
#
# In the end a block adds up the sums of its warps and sends each column of sums to the block of the cluster
# that writes it. That block adds up the sums of all blocks, in their order. From capability 9.0 on.


class SplitBlocks(NamedTuple):
    """The blocks that split a tile, and the blocks on a multiprocessor; (1, 1) is a lone, large block."""

    splits: int
    most: int


ALONE = SplitBlocks(1, 1)


@cache
def warp_placer(stage: GemvStage) -> Any:
    """The device function for a warp's place: tile, rank of its block, first span, distance to the next span.

    It also tells the other blocks of the cluster that this block runs.
    """
    warps, small, greet = stage.warps, stage.small, barriers.arrive_at_cluster_relaxed

    @inlined
    def place(warp: Any, splits: Any) -> Any:
        block = uint32(cuda.blockIdx.x)
        if not small:
            return block, uint32(0), warp, uint32(warps)
        if splits > 1:
            greet()
        tile = uint32(block // splits)
        rank = uint32(block - uint32(tile * splits))
        return tile, rank, uint32(warp + uint32(rank * warps)), uint32(splits * warps)

    return place


@cache
def cluster_epilogue(stage: GemvStage) -> Any:
    """The device function that takes the sums of a block's warps from shared memory to results.

    ``result``: as in kernels/epilogue/results.py.
    """
    columns, warps, sums, partials_at = stage.columns, stage.warps, stage.sums, stage.partials_at
    rows, line = stage.rows, 4 * stage.rows  # and bytes of a column of sums of another block
    base, take_float, load_bias, store = ptx.shared_base, bf16x2.take_float, bias_loader(), store_result
    join, meet, put_float_in_block = (
        barriers.wait_for_cluster,
        barriers.sync_cluster,
        barriers.put_float_in_block,
    )

    @inlined
    def block_sum(column: Any, row: Any) -> Any:
        total = float32(0)
        for i in range(warps):
            at = uint32(uint32(uint32(i * columns) + column) * sums + row)
            total += take_float(base() + uint32(at << 2))
        return total

    @inlined
    def share(result: Any, row0: Any, rank: Any, splits: Any, m: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        row, column, last = uint32(row0 + lane), warp, min(uint32(columns), m)
        if splits == 1:
            while column < last:
                for below in range(0, rows, 32):
                    total, r = block_sum(column, uint32(lane + uint32(below))), uint32(row + uint32(below))
                    if r < n:
                        store(result, column, r, n, total + load_bias(result, r, n))
                column = uint32(column + warps)
        else:
            join()  # the shared memory of the other blocks can be written
            to = uint32(base() + partials_at + uint32(lane << 2))
            while column < last:
                there = uint32(to + uint32(uint32(rank * columns) + column) * line)
                for below in range(0, rows, 32):
                    total = block_sum(column, uint32(lane + uint32(below)))
                    put_float_in_block(uint32(there + uint32(4 * below)), uint32(column % splits), total)
                column = uint32(column + warps)
            meet()
            column = uint32(rank + uint32(splits * warp))
            while column < last:
                for below in range(0, rows, 32):
                    at = uint32(to + uint32(column * line) + uint32(4 * below))
                    total, i = float32(0), uint32(0)
                    while i < splits:
                        total += take_float(at)
                        at, i = uint32(at + columns * line), uint32(i + 1)
                    r = uint32(row + uint32(below))
                    if r < n:
                        store(result, column, r, n, total + load_bias(result, r, n))
                column = uint32(column + uint32(splits * warps))

    return share
