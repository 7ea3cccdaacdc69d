"""The parts of the kernel for ``y @ q`` with few rows: stages, loads of activations, products, sums.

Sums run over rows of weights, so a fragment is the first operand of ``mma`` the other way round: 16 columns
of weights by 16 rows. A lane's weights become bfloat16, scale included, as for ``wgmma`` (packed/weights.py).
Then ``movmatrix`` turns each 8 × 8 of them: row and column change places among the lanes of a warp.

    a warp's stage   a row of ``span`` fragments, and the 16 columns of y that meet their rows
    a lane's sums    of columns 16 s + 4 (g / 2) + g % 2 of step s and two further, by rows 2 t, 2 t + 1 of y
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ..intrinsics import bf16x2, codes, halves, ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..packed.layout import ROWS, STEP, PackedLayout
from ..packed.weights import fragment_weights
from .clusters import cluster_epilogue
from .stages import FLOATS, HALVES, RESERVED, ROOMY, GemvStage

COLUMNS = {8: 8, 16: 4, 64: 2}  # rows of y that kernels are made for: the most blocks of a cluster
TILE = 16  # columns of weights that mma takes at once


@dataclass(frozen=True)
class TransposedStage(GemvStage):
    """A stage of a small block, whose outputs are columns of weights."""

    small: bool = True

    @classmethod
    def of(cls, layout: PackedLayout, columns: int) -> TransposedStage:
        """The stage for a number of rows of y."""
        return cls(layout, columns, 2 if columns <= FLOATS else 1)

    @property
    def warps(self) -> int:
        return 8 if self.columns <= TILE else 4

    @property
    def count(self) -> int:
        return 4

    @property
    def blocks(self) -> int:
        return max(1, min(2, ROOMY // (self.shared + RESERVED)))

    @property
    def most_splits(self) -> int:
        return COLUMNS[self.columns]

    @property
    def parts(self) -> int:
        """Tiles of 16 columns of weights."""
        return self.span * STEP // TILE

    @property
    def numbers(self) -> int:
        return 4 * self.parts * self.tiles

    @property
    def pitch(self) -> int:
        return (4 if self.floats else 2) * ROWS + 16

    @property
    def length(self) -> int:
        return self.size + self.columns * self.pitch

    @property
    def rows(self) -> int:
        return self.span * STEP


@cache
def fetchers(stage: TransposedStage) -> tuple[Any, Any]:
    """The device functions that start the copies of one stage: of weights, and of columns of y as they lie.

    ``kind``: of the floats of y, by its place in KINDS; those of 16 bits fill half of a row for float32.
    """
    chunks, floats = stage.size // 16, stage.floats
    copy16, fetch_floats, fetch_bits = ptx.copy16, column_fetcher(stage, 4), column_fetcher(stage, 2)

    @inlined
    def fetch_weights(at: Any, lane: Any, w_at: Any) -> None:
        offset = uint32(lane << uint32(4))
        for first in range(0, chunks, 32):
            if first + 32 <= chunks or lane < uint32(chunks - first):
                copy16(uint32(at + offset + uint32(16 * first)), w_at + uint64(offset) + uint64(16 * first))

    @inlined
    def fetch_columns(at: Any, lane: Any, y: Any, kind: Any, row: Any, m: Any, n: Any) -> None:
        if floats and kind == uint32(0):
            fetch_floats(at, lane, y, row, m, n)
        else:
            fetch_bits(at, lane, y, row, m, n)

    return fetch_weights, fetch_columns


@cache
def column_fetcher(stage: TransposedStage, width: int) -> Any:
    """The device function that starts the copies of 16 columns of y, ``width`` bytes each; zeros beyond y."""
    columns, pitch, size, copy16_or_zeros = stage.columns, stage.pitch, stage.size, bf16x2.copy16_or_zeros
    row_chunks = ROWS * width // 16
    shift, every = row_chunks.bit_length() - 1, 16 // width

    @inlined
    def fetch(at: Any, lane: Any, y: Any, fragment_row: Any, m: Any, n: Any) -> None:
        for first in range(0, row_chunks * columns, 32):
            c = uint32(lane + uint32(first))
            row, chunk = uint32(c >> uint32(shift)), uint32(c & uint32(row_chunks - 1))
            if first + 32 <= row_chunks * columns or row < uint32(columns):
                column = uint32(fragment_row * uint32(ROWS) + chunk * uint32(every))
                there = row < m and column < n
                source = address(y, row, n, column, width) if there else y
                place = uint32(uint32(size) + row * uint32(pitch) + uint32(chunk << uint32(4)))
                copy16_or_zeros(uint32(at + place), source, uint32(16) if there else uint32(0))

    return fetch


@cache
def column_taker(stage: TransposedStage) -> Any:
    """The device function that loads a lane's pairs of y as bfloat16: two for each tile of eight rows."""
    size, pitch, tiles, floats = stage.size, stage.pitch, stage.tiles, stage.floats
    take4, take8, narrowed, half_values = bf16x2.take4, bf16x2.take8, bf16x2.narrowed, codes.half_values
    float_of = ptx.float_of

    @inlined
    def take_floats(at: Any, b: Any) -> None:
        for i in range(2):
            v = take8(uint32(at + uint32(32 * i)))
            b[i] = narrowed(float_of(v[0]), float_of(v[1]))

    @inlined
    def take_bits(at: Any, kind: Any, b: Any) -> None:
        for tile in range(tiles):
            for i in range(2):
                b[2 * tile + i] = take4(uint32(at + uint32(8 * tile * pitch + 16 * i)))
        if kind == uint32(HALVES):
            for i in range(2 * tiles):
                low, high = half_values(b[i])
                b[i] = narrowed(low, high)

    @inlined
    def take(at: Any, lane: Any, kind: Any, b: Any) -> None:
        g, t = g_and_t(lane)
        row_at = uint32(at + uint32(size) + g * uint32(pitch))
        if floats and kind == uint32(0):
            take_floats(uint32(row_at + t * uint32(8)), b)
        else:
            take_bits(uint32(row_at + t * uint32(4)), kind, b)

    return take


@cache
def part_multiplier(stage: TransposedStage) -> Any:
    """The device function that multiplies 16 columns of a fragment: its step s, the part-th of the stage."""
    tiles, turned, mma = stage.tiles, halves.transposed, bf16x2.mma_into

    @inlined
    def multiply(w: Any, s: Any, part: Any, b: Any, sums: Any) -> None:
        a = cuda.local.array(4, uint32)
        a[0], a[1] = turned(w[4 * s]), turned(w[4 * s + 2])
        a[2], a[3] = turned(w[4 * s + 1]), turned(w[4 * s + 3])
        for tile in range(tiles):
            mma(sums, 4 * (part * tiles + tile), a, 0, b, 2 * tile)

    return multiply


@cache
def multiplier(stage: TransposedStage) -> Any:
    """The device function that adds a stage to a lane's sums."""
    (count, load, unpack, _), fragment_bytes = fragment_weights(stage.layout), stage.layout.fragment_bytes
    take, multiply_part, twice = column_taker(stage), part_multiplier(stage), stage.span > 1
    b_count = 2 * stage.tiles

    @inlined
    def multiply_fragment(at: Any, lane: Any, part: Any, b: Any, sums: Any, opaque: Any) -> None:
        words, w = cuda.local.array(count, uint32), cuda.local.array(16, uint32)
        load(at, lane, words)
        unpack(words, w, opaque)
        multiply_part(w, 0, part, b, sums)  # a loop over steps would not be unrolled
        multiply_part(w, 1, part + 1, b, sums)
        multiply_part(w, 2, part + 2, b, sums)
        multiply_part(w, 3, part + 3, b, sums)

    @inlined
    def multiply(at: Any, lane: Any, kind: Any, sums: Any, opaque: Any) -> None:
        b = cuda.local.array(b_count, uint32)
        take(at, lane, kind, b)
        multiply_fragment(at, lane, 0, b, sums, opaque)
        if twice:
            multiply_fragment(uint32(at + uint32(fragment_bytes)), lane, 4, b, sums, opaque)

    return multiply


@cache
def epilogue(stage: TransposedStage) -> Any:
    """The device function that adds up the sums of the warps, the first warp first, and stores outputs."""
    columns, tiles, stride, parts = stage.columns, stage.tiles, stage.sums, stage.parts
    share, base, put_float = cluster_epilogue(stage), ptx.shared_base, bf16x2.put_float
    factor = float32(fragment_weights(stage.layout).factor)

    @inlined
    def put_part(sums: Any, part: Any, warp: Any, g: Any, t: Any) -> None:
        for i in range(4 * tiles):
            row = uint32(TILE * part + i // 2 % 2 * 2) + (g >> uint32(1)) * uint32(4) + (g & uint32(1))
            column = uint32(i // 4 * 8 + i % 2) + t * uint32(2)
            at = (warp * uint32(columns) + column) * uint32(stride) + row
            put_float(base() + at * uint32(4), sums[part * 4 * tiles + i] * factor)

    @inlined
    def put_four(sums: Any, part: Any, warp: Any, g: Any, t: Any) -> None:
        put_part(sums, part, warp, g, t)  # a loop over parts would not be unrolled
        put_part(sums, part + 1, warp, g, t)
        put_part(sums, part + 2, warp, g, t)
        put_part(sums, part + 3, warp, g, t)

    twice = parts > 4

    @inlined
    def finish(sums: Any, result: Any, first: Any, rank: Any, splits: Any, m: Any, k: Any) -> None:
        warp, lane = warp_and_lane()
        g, t = g_and_t(lane)
        put_four(sums, 0, warp, g, t)
        if twice:
            put_four(sums, 4, warp, g, t)
        cuda.syncthreads()
        share(result, first, rank, splits, m, k)

    return finish
