"""From the sums of ``mma`` on 8-bit codes to results: scales of each stage, zero points, stores of a tile.

A thread has the sums of rows g and g + 8 of each 16, and of columns 2 t and 2 t + 1 of each 8. It holds the
scales of those rows and of those columns; where all columns of a warp share one (``uniform``) it holds the
products of both, and an output costs one multiply-add.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ...intrinsics import ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import address, g_and_t, warp_and_lane, warp_origin
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from ..codes8.mma_tiles import ByteTile


@inlined
def flag(condition: Any) -> Any:
    """A condition as a number."""
    return uint32(1) if condition else uint32(0)


@inlined
def corner(tile_rows: Any, tile_columns: Any, across: Any) -> Any:
    """Row and column of a thread's first sum in its block's tile; ``across``: warps side by side.

    Elsewhere in this file ``down`` and ``across`` are a warp's tiles of ``mma``, 16 rows and 8 columns.
    """
    _, lane = warp_and_lane()
    g, t = g_and_t(lane)
    wm, wn = warp_origin(tile_rows, tile_columns, across)
    return wm + g, wn + t * 2


class Scales(NamedTuple):
    """Scales of both operands, in the order of a kernel's parameter."""

    x: Any  # address of those of x
    w: Any
    row_x: Any  # bytes from a row of scales to the next
    row_w: Any
    column_x: Any  # bytes from a column of scales to the next
    column_w: Any
    rows_x: Any  # rows of x that share a scale
    rows_w: Any
    steps_x: Any  # steps that do
    steps_w: Any


class ZeroTermsOfBoth(NamedTuple):
    """The ZeroTerms (kernels/codes8/rows.py) of x, then of w, as a kernel takes them."""

    points_x: Any
    others_x: Any
    points_w: Any
    others_w: Any


class StageScales(NamedTuple):
    """Device functions for the scales of a stage.

    None waits: ``fetch`` starts copies of the ring's group, and the ring's wait and barrier
    (codes8/mma_tiles.py) come before ``hold``.
    """

    slots: int  # 64-bit numbers that ``start`` writes
    held: int  # floats that ``hold`` writes
    start: Any  # (slots, scales, m0, n0, m, n): addresses of the scales that this thread copies
    fetch: Any  # (at, slots, step): start the copies of a stage's scales
    hold: Any  # (at, wm, wn, held): load a stage's scales into registers
    scale: Any  # (held, i, j, c): the scale of sum 4 (i · across + j) + c


@cache
def stage_scales(tile: ByteTile, uniform: bool) -> StageScales:
    """The device functions for a tile whose rows and columns have one scale a step."""
    scale_count, rows, threads = tile.rows + tile.columns, tile.rows, tile.threads
    times = -(-scale_count // threads)
    (down, across), scales_offset = tile.grid, tile.scales
    copy4, take4, take_pair = ptx.copy4, ptx.take4, ptx.take_pair
    float_of, mul, columns_from = ptx.float_of, ptx.mul, 2 * tile.grid[0]

    @inlined
    def start(slots: Any, scales: Any, m0: Any, n0: Any, m: Any, n: Any) -> None:
        s = Scales(*scales)
        # Rows beyond the last take the scale of that one: their sums are not stored.
        for f in range(times):
            i = uint32(cuda.threadIdx.x) + uint32(f * threads)
            if i < rows:
                place = min(m0 + i, m - 1) // s.rows_x
                slots[3 * f] = s.x + place * s.row_x
                slots[3 * f + 1], slots[3 * f + 2] = s.column_x, uint64(s.steps_x)
            else:
                place = min(n0 + i - rows, n - 1) // s.rows_w
                slots[3 * f] = s.w + place * s.row_w
                slots[3 * f + 1], slots[3 * f + 2] = s.column_w, uint64(s.steps_w)

    @inlined
    def fetch(at: Any, slots: Any, step: Any) -> None:
        for f in range(times):
            i = uint32(cuda.threadIdx.x) + uint32(f * threads)
            if scale_count % threads == 0 or i < scale_count:
                column = uint64(step // uint32(slots[3 * f + 2]))
                copy4(at + scales_offset + i * 4, slots[3 * f] + column * slots[3 * f + 1])

    @inlined
    def hold(at: Any, wm: Any, wn: Any, held: Any) -> None:
        _, lane = warp_and_lane()
        g, t = g_and_t(lane)
        row_scales_at = at + scales_offset + (wm + g) * 4
        column_scales_at = at + (scales_offset + 4 * rows) + wn * 4
        for i in range(2 * down):
            held[i] = float_of(take4(row_scales_at + uint32(32 * i)))
        if uniform:  # one scale for all columns of the warp: its products with those of the rows
            one = float_of(take4(column_scales_at))
            for i in range(2 * down):
                held[i] = mul(held[i], one)
        else:
            for j in range(across):
                pair = take_pair(column_scales_at + t * 8 + uint32(32 * j))
                held[columns_from + 2 * j], held[columns_from + 2 * j + 1] = pair[0], pair[1]

    @inlined
    def scale(held: Any, i: Any, j: Any, c: Any) -> Any:
        if uniform:
            return held[2 * i + c // 2]
        return mul(held[2 * i + c // 2], held[columns_from + 2 * j + c % 2])

    return StageScales(3 * times, 2 * down + (0 if uniform else 2 * across), start, fetch, hold, scale)


@cache
def scale_loader(tile: ByteTile) -> Any:
    """The device function that reads scales that do not vary along K from memory, where stages hold none."""
    (down, across), from_columns = tile.grid, 2 * tile.grid[0]
    warp_rows, warp_columns = tile.warp_rows, tile.warp_columns
    warps_across, load_float = tile.columns // tile.warp_columns, ptx.load_float

    @inlined
    def hold(scales: Any, held: Any, m0: Any, n0: Any, m: Any, n: Any) -> None:
        s = Scales(*scales)
        row, column = corner(warp_rows, warp_columns, warps_across)
        for i in range(2 * down):
            place = min(m0 + row + uint32(8 * i), m - 1) // s.rows_x
            held[i] = load_float(s.x + place * s.row_x)
        for j in range(across):
            for c in range(2):
                place = min(n0 + column + uint32(8 * j + c), n - 1) // s.rows_w
                held[from_columns + 2 * j + c] = load_float(s.w + place * s.row_w)

    return hold


@cache
def zero_point_corrector(tile: ByteTile) -> Any:
    """The device function that subtracts the part of the zero points from the sums of a group."""
    down, across = tile.grid
    warp_rows, warp_columns = tile.warp_rows, tile.warp_columns
    warps_across, load4 = tile.columns // tile.warp_columns, ptx.load4_nc

    @inlined
    def correct(part: Any, zeros: Any, group: Any, m0: Any, n0: Any, m: Any, n: Any) -> None:
        terms = ZeroTermsOfBoth(*zeros)
        row, column = corner(warp_rows, warp_columns, warps_across)
        for i in range(2 * down):
            at = address(uint64(0), group, m, min(m0 + row + uint32(8 * i), m - 1), 4)
            point, other = load4(terms.points_x + at), load4(terms.others_x + at)
            for j in range(across):
                for c in range(2):  # loaded again for each row: registers are dearer
                    at = address(uint64(0), group, n, min(n0 + column + uint32(8 * j + c), n - 1), 4)
                    o = 4 * (i // 2 * across + j) + 2 * (i % 2) + c
                    off = int32(point * load4(terms.others_w + at))
                    off += int32(other * load4(terms.points_w + at))
                    part[o] = int32(part[o] - int32(off))

    return correct


@cache
def storer(tile: ByteTile) -> Any:
    """The device function that writes a tile of floats, as far as it lies within [m, n]."""
    down, across = tile.grid
    store_pair_if, store_if = ptx.store_pair_if, ptx.store_if
    warp_rows, warp_columns = tile.warp_rows, tile.warp_columns
    warps_across = tile.columns // tile.warp_columns

    @inlined
    def store(sums: Any, y: Any, m0: Any, n0: Any, m: Any, n: Any) -> None:
        row, column = corner(warp_rows, warp_columns, warps_across)
        row, column = m0 + row, n0 + column
        at, below = address(y, row, n, column, 4), uint64(n) * 32
        if n & 1 == 0 and y & 7 == 0:  # pairs are in or out together
            for i in range(2 * down):
                for j in range(across):
                    o = 4 * (i // 2 * across + j) + 2 * (i % 2)
                    inside = flag(row + uint32(8 * i) < m and column + uint32(8 * j) < n)
                    store_pair_if(at + uint64(32 * j), sums[o], sums[o + 1], inside)
                at += below
        else:
            for i in range(2 * down):
                for j in range(across):
                    o = 4 * (i // 2 * across + j) + 2 * (i % 2)
                    for c in range(2):
                        inside = flag(row + uint32(8 * i) < m and column + uint32(8 * j + c) < n)
                        store_if(at + uint64(32 * j + 4 * c), sums[o + c], inside)
                at += below

    return store


def clearer(count: int, kind: Any) -> Any:
    """The device function that sets ``count`` sums to zero; in sixteens, which are unrolled early."""
    sixteens, rest = count // 16, count % 16
    zero = kind(0) if kind is float32 else int32(0)

    @inlined
    def clear(sums: Any) -> None:
        for i in range(sixteens):
            for j in range(16):
                sums[16 * i + j] = zero
        for j in range(rest):
            sums[16 * sixteens + j] = zero

    return clear
