"""The parts of the kernel for ``y @ q`` with few rows: stages, loads of activations, products, sums.

Sums run over rows of weights, so weights are the first operand of ``mma`` the other way round: 16 columns by
16 rows. A lane of ``mma`` wants four rows, which t says, of two columns, which g says. A word of packed codes
has four columns of rows r and r + 8. So lane 4 g + t takes the words that are made for lanes 4 t + g % 4 and
16 further, rows t, t + 8 and t + 4, t + 12, of fragment g / 4 of two: no number moves between lanes.

    a warp's stage   two rows of two fragments, and the 32 columns of y that meet their rows
    a lane's sums    of columns 16 s + 4 (g % 4) … + 3 of each step s, by rows 2 t, 2 t + 1 of y
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ..intrinsics import bf16x2, codes, ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..packed.layout import ROWS, STEP, PackedLayout
from ..packed.row_pairs import HIGH_HALVES, LOW_HALVES, row_pairs
from .clusters import cluster_epilogue
from .stages import HALVES, LARGE, RESERVED, ROOMY, GemvStage

COLUMNS = {8: 4, 16: 2, 32: 2}  # rows of y that kernels are made for: the most blocks of a cluster
SPAN, PAIR = 2, 2  # fragments side by side in a stage; rows of them
DEEP = PAIR * ROWS  # rows of weights of a stage


@dataclass(frozen=True)
class TransposedStage(GemvStage):
    """A stage of a small block, whose outputs are columns of weights."""

    small: bool = True

    @classmethod
    def of(cls, layout: PackedLayout, columns: int) -> TransposedStage:
        """The stage for a number of rows of y."""
        return cls(layout, columns, SPAN)

    @property
    def warps(self) -> int:
        return 8

    @property
    def count(self) -> int:
        return 3 if self.layout.fragment_bytes <= LARGE else 2

    @property
    def blocks(self) -> int:
        return max(1, min(2 if self.columns <= 16 else 1, ROOMY // (self.shared + RESERVED)))

    @property
    def most_splits(self) -> int:
        return COLUMNS[self.columns]

    @property
    def numbers(self) -> int:
        return 32 * self.tiles

    @property
    def pitch(self) -> int:
        return (4 if self.floats else 2) * DEEP + 16

    @property
    def length(self) -> int:
        return PAIR * self.size + self.columns * self.pitch

    @property
    def rows(self) -> int:
        return self.span * STEP


@cache
def fetchers(stage: TransposedStage) -> tuple[Any, Any]:
    """The device functions that start the copies of one stage: of weights, and of columns of y as they lie.

    ``kind``: of the floats of y, by its place in KINDS; those of 16 bits fill half of a row for float32.
    """
    size, chunks, floats = stage.size, stage.size // 16, stage.floats
    copy16, fetch_floats, fetch_bits = ptx.copy16, column_fetcher(stage, 4), column_fetcher(stage, 2)

    @inlined
    def fetch_weights(at: Any, lane: Any, w_at: Any, apart: Any) -> None:
        offset = uint32(lane << uint32(4))
        to, source = uint32(at + offset), w_at + uint64(offset)
        for row in range(PAIR):
            for first in range(0, chunks, 32):
                if first + 32 <= chunks or lane < uint32(chunks - first):
                    place = uint32(to + uint32(row * size + 16 * first))
                    copy16(place, source + uint64(row) * apart + uint64(16 * first))

    @inlined
    def fetch_columns(at: Any, lane: Any, y: Any, kind: Any, pair: Any, m: Any, n: Any) -> None:
        if floats and kind == uint32(0):
            fetch_floats(at, lane, y, pair, m, n)
        else:
            fetch_bits(at, lane, y, pair, m, n)

    return fetch_weights, fetch_columns


@cache
def column_fetcher(stage: TransposedStage, width: int) -> Any:
    """The device function that starts the copies of 32 columns of y, ``width`` bytes each; zeros beyond y."""
    columns, pitch, copy16_or_zeros = stage.columns, stage.pitch, bf16x2.copy16_or_zeros
    row_chunks, columns_at = DEEP * width // 16, PAIR * stage.size
    shift, every = row_chunks.bit_length() - 1, 16 // width

    @inlined
    def fetch(at: Any, lane: Any, y: Any, pair: Any, m: Any, n: Any) -> None:
        for first in range(0, row_chunks * columns, 32):
            c = uint32(lane + uint32(first))
            row, chunk = uint32(c >> uint32(shift)), uint32(c & uint32(row_chunks - 1))
            if first + 32 <= row_chunks * columns or row < uint32(columns):
                column = uint32(pair * uint32(DEEP) + chunk * uint32(every))
                there = row < m and column < n
                source = address(y, row, n, column, width) if there else y
                place = uint32(uint32(columns_at) + row * uint32(pitch) + uint32(chunk << uint32(4)))
                copy16_or_zeros(uint32(at + place), source, uint32(16) if there else uint32(0))

    return fetch


@cache
def column_taker(stage: TransposedStage) -> Any:
    """The device function that loads a lane's pairs of y as bfloat16: two for each tile of eight rows.

    They are those of rows t and t + 8 of the weights, then of rows t + 4 and t + 12.
    """
    columns_at, pitch, tiles, floats = PAIR * stage.size, stage.pitch, stage.tiles, stage.floats
    take4, take_float, narrowed = bf16x2.take4, bf16x2.take_float, bf16x2.narrowed
    half_values, permute = codes.half_values, bf16x2.permute

    @inlined
    def take_floats(at: Any, b: Any) -> None:
        for i in range(2):
            first = uint32(at + uint32(16 * i))
            b[i] = narrowed(take_float(first), take_float(uint32(first + uint32(32))))

    @inlined
    def take_bits(at: Any, picks: Any, kind: Any, b: Any) -> None:
        for tile in range(tiles):
            for i in range(2):
                first = uint32(at + uint32(8 * tile * pitch + 8 * i))
                b[2 * tile + i] = permute(take4(first), take4(uint32(first + uint32(16))), picks)
        if kind == uint32(HALVES):
            for i in range(2 * tiles):
                low, high = half_values(b[i])
                b[i] = narrowed(low, high)

    @inlined
    def take(at: Any, row: Any, lane: Any, kind: Any, b: Any) -> None:
        g, t = g_and_t(lane)
        row_at = uint32(at + uint32(columns_at) + g * uint32(pitch))
        if floats and kind == uint32(0):
            take_floats(uint32(row_at + uint32(4 * ROWS * row) + t * uint32(4)), b)
        else:  # of two rows in a word
            picks = HIGH_HALVES if t & uint32(1) else LOW_HALVES
            word_at = uint32(row_at + uint32(2 * ROWS * row) + (t >> uint32(1)) * uint32(4))
            take_bits(word_at, picks, kind, b)

    return take


@cache
def step_multiplier(stage: TransposedStage) -> Any:
    """The device function that multiplies step s of the two fragments: 16 columns twice."""
    unpack, tiles, mma = row_pairs(stage.layout).unpack, stage.tiles, bf16x2.mma_into

    @inlined
    def multiply(words: Any, others: Any, s: Any, f: Any, b: Any, sums: Any, opaque: Any) -> None:
        w, a = cuda.local.array(8, uint32), cuda.local.array(4, uint32)
        unpack(words, s, w, 0, f[0], f[1], opaque)
        unpack(others, s, w, 4, f[2], f[3], opaque)
        for half in range(2):
            a[0], a[1], a[2], a[3] = w[2 * half], w[2 * half + 1], w[2 * half + 4], w[2 * half + 5]
            for tile in range(tiles):
                mma(sums, 4 * ((2 * s + half) * tiles + tile), a, 0, b, 2 * tile)

    return multiply


@cache
def multiplier(stage: TransposedStage) -> Any:
    """The device function that adds a stage to a lane's sums."""
    (count, load, scales, _, _), fragment_bytes = row_pairs(stage.layout), stage.layout.fragment_bytes
    take, multiply_step, b_count = column_taker(stage), step_multiplier(stage), 2 * stage.tiles
    runs, per_run, size = stage.layout.runs, 4 // stage.layout.runs, stage.size

    @inlined
    def multiply_run(words: Any, others: Any, run: Any, b: Any, sums: Any, opaque: Any) -> None:
        f = cuda.local.array(4, uint32)
        f[0], f[1] = scales(words, run, opaque)
        f[2], f[3] = scales(others, run, opaque)
        for s in range(run * per_run, run * per_run + per_run):
            multiply_step(words, others, s, f, b, sums, opaque)

    @inlined
    def multiply_row(at: Any, row: Any, lane: Any, kind: Any, sums: Any, opaque: Any) -> None:
        b = cuda.local.array(b_count, uint32)
        words, others = cuda.local.array(count, uint32), cuda.local.array(count, uint32)
        take(at, row, lane, kind, b)
        g, t = g_and_t(lane)
        here = uint32(at + uint32(row * size) + (g >> uint32(2)) * uint32(fragment_bytes))
        there = uint32(t * uint32(4) + (g & uint32(3)))
        load(here, there, words)
        load(here, uint32(there + uint32(16)), others)
        multiply_run(words, others, 0, b, sums, opaque)  # a loop over runs would not be unrolled
        multiply_run(words, others, 1, b, sums, opaque)
        if runs > 2:
            multiply_run(words, others, 2, b, sums, opaque)
            multiply_run(words, others, 3, b, sums, opaque)

    @inlined
    def multiply(at: Any, lane: Any, kind: Any, sums: Any, opaque: Any) -> None:
        multiply_row(at, 0, lane, kind, sums, opaque)
        multiply_row(at, 1, lane, kind, sums, opaque)

    return multiply


@cache
def epilogue(stage: TransposedStage) -> Any:
    """The device function that adds up the sums of the warps, the first warp first, and stores outputs."""
    columns, tiles, stride = stage.columns, stage.tiles, stage.sums
    share, base, put_float = cluster_epilogue(stage), ptx.shared_base, bf16x2.put_float
    factor = float32(row_pairs(stage.layout).factor)

    @inlined
    def put_step(sums: Any, s: Any, warp: Any, g: Any, t: Any, m: Any) -> None:
        first = (g >> uint32(2)) * uint32(STEP) + (g & uint32(3)) * uint32(4)
        for i in range(8 * tiles):
            row = first + uint32(16 * s + i // (4 * tiles) * 2 + i // 2 % 2)
            column = uint32(i // 4 % tiles * 8 + i % 2) + t * uint32(2)
            at = (warp * uint32(columns) + column) * uint32(stride) + row
            if column < m:
                put_float(base() + at * uint32(4), sums[8 * tiles * s + i] * factor)

    @inlined
    def finish(sums: Any, result: Any, first: Any, rank: Any, splits: Any, m: Any, k: Any) -> None:
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        put_step(sums, 0, warp, g, t, m)  # a loop over steps would not be unrolled
        put_step(sums, 1, warp, g, t, m)
        put_step(sums, 2, warp, g, t, m)
        put_step(sums, 3, warp, g, t, m)
        cuda.syncthreads()
        share(result, first, rank, splits, m, k)

    return finish
