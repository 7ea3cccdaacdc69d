"""Quantizes floats with a scale for each tile of up to 16384, a block of threads a tile; reads them once.

A thread loads all its pieces before it looks at one of them; the raw words stay, so that floats of 16 bits
take half a register each, and are made into floats twice: for the extremes, then for the codes. Warps
agree by shuffles, the block through a few words of shared memory.

    128 × 128      of DeepSeek's weights: two rows of a tile, 256 bytes each, to a warp's load of 16 bits
    1 × columns    whole rows, up to 16384; what a tile has beyond the last column is 0

Limited by memory, and by what a multiprocessor holds at a time: three tiles of 16 bits, two of 32.
"""

from __future__ import annotations

from typing import Any

from ...codes import CODES
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import address, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine.launch import Kernel, family
from ._codes import Conversion, keeps_nan_of, scale_storing, scaler, storing, zero_of
from ._division import divider
from ._groups import tried
from ._loads import SIZES, agreeing, extremes, floats_per_load, spreading, words_into

MOST_LOADS = 8  # of a thread, at most
TILES = ((128, 128), (64, 64), (1, 1024), (1, 2048), (1, 4096), (1, 8192), (1, 16384))  # powers of two


def shape_of(kind: str, tile: tuple[int, int]) -> tuple[int, int]:
    """Threads of a block, and pieces of a thread."""
    loads = tile[0] * tile[1] // floats_per_load(kind, True)
    threads = min(max(loads // MOST_LOADS, 128), 512)
    return threads, loads // threads


def all_agreeing(warps: int, both: bool, keeps_nan: bool) -> Any:
    """The device function ``agree(high, low)``: the extremes of all threads of a block."""
    agree_warp, agree_all = agreeing(32, both, keeps_nan), agreeing(warps, both, keeps_nan)

    @inlined
    def agree(high: Any, low: Any) -> Any:
        high, low = agree_warp(high, low)
        highs, lows = cuda.shared.array(warps, float32), cuda.shared.array(warps, float32)
        warp, lane = warp_and_lane()
        if lane == uint32(0):
            highs[warp], lows[warp] = high, low
        cuda.syncthreads()
        return agree_all(highs[lane % uint32(warps)], lows[lane % uint32(warps)])

    return agree


@family(tried(TILES))
def kernel(kind: str, conversion: Conversion, tile: tuple[int, int]) -> Kernel:
    """The kernel for tiles of a shape."""
    (tile_rows, tile_columns), size, per = tile, SIZES[kind], floats_per_load(kind, True)
    threads, loads = shape_of(kind, tile)
    across, warps = tile_columns // per, threads // 32  # pieces of a row
    fit = 1024 // threads if threads > 256 else 768 // threads
    spread, both, length, raw = spreading(kind), conversion.zeros, per, 4 * loads
    keeps_nan = keeps_nan_of(conversion)
    widen, agree = extremes(per, both, keeps_nan), all_agreeing(warps, both, keeps_nan)
    scale_of, zero = scaler(conversion), zero_of(conversion)
    prepare, divide = divider(CODES[conversion.code], both, conversion.scale, per)
    store, store_scale, store4 = storing(conversion, per), scale_storing(conversion), ptx.store4
    code_size, take_turn = conversion.size, dependent_launch.take_turn

    def quantize(
        x: Any, pitch: Any,  # of the kind [rows, columns], elements from row to row
        codes: Any, columns: Any,  # [rows, columns]
        scales: Any, down: Any, along: Any,  # and the bytes from one to the next
        zeros: Any, zeros_down: Any, zeros_along: Any,  # int32
        rows: Any, eps: Any, first: Any,
    ) -> None:  # fmt: skip
        take_turn()
        thread = uint32(cuda.threadIdx.x)
        tile_row = uint32(uint32(cuda.blockIdx.y) + first)
        row0 = uint32(tile_row * uint32(tile_rows) + thread // uint32(across))
        start = uint32(uint32(cuda.blockIdx.x) * uint32(tile_columns))
        column0 = uint32(start + thread % uint32(across) * uint32(length))
        words, v = cuda.local.array(raw, uint32), cuda.local.array(length, float32)
        for p in range(loads):
            row = uint32(row0 + uint32(p * threads // across))
            column = uint32(column0 + uint32(p * threads % across * length))
            for e in range(4):
                words[4 * p + e] = uint32(0)
            if row < rows and column < columns:
                words_into(words, 4 * p, address(x, row, pitch, column, size))
        high, low = float32(0), float32(0)
        for p in range(loads):
            spread(words, 4 * p, v, 0)
            high, low = widen(v, high, low)
        high, low = agree(high, low)
        s = scale_of(high, low, ptx.float_of(eps))
        z, known = zero(low, s), prepare(s)
        for p in range(loads):
            row = uint32(row0 + uint32(p * threads // across))
            column = uint32(column0 + uint32(p * threads % across * length))
            if row < rows and column < columns:
                spread(words, 4 * p, v, 0)
                divide(v, s, known)
                store(address(codes, row, columns, column, code_size), v, 0, z)
        if thread == uint32(0):
            i, j = uint64(tile_row), uint64(cuda.blockIdx.x)
            store_scale(scales + i * uint64(down) + j * uint64(along), s)
            if both:
                store4(zeros + i * uint64(zeros_down) + j * uint64(zeros_along), uint32(z))

    long, word = uint64, uint32
    parameters = (long, long, long, word, long, long, long, long, long, long, word, word, word)
    name = f"tiles of {tile_rows}x{tile_columns} {kind} to {conversion}"
    return Kernel(
        name, quantize, *parameters, threads=threads, blocks=fit, least=conversion.least, early=True
    )
