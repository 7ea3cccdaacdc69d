"""Activations as two floats of 4 bits each, in the order in which ``mma`` takes them with their scales.

    tiles       [steps of 64 columns][rows, eight by eight][bytes of eight rows]
    eight rows  [row g][t][digit][word of columns 0 … 31, 32 … 63], then [row g][digit][runs of 16] scales
    factors     float32 [m, rounded up to whole tiles]: what a row's results are multiplied with

They lie as code_tiles.py has codes and scales, so the same copies bring them. A word holds columns 8 t + 2,
0, 6, 4, 3, 1, 7, 5 (packed/float_codes.py). A row is multiplied with a power of two first, so that its
largest is below 2**TOP. Then of each 16, twice: the scale is a sixth of the largest, as the nearest e4m3; the
digit is the quotient, as the nearest float of 4 bits; what both leave over goes on. A row with infinity or
NaN has the factor NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..intrinsics import codes, dependent_launch, ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.codes import size_of
from ..intrinsics.floats import KINDS
from ..intrinsics.lane import ALL_LANES, warp_and_lane
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from ..machine.recorded import between
from ..rings.mma_tile import CODES, EIGHT, eight_bytes
from .code_tiles import STEP, four_loader
from .half_rows import BELOW, FOUR, MOST, SIGN_OFF, THREADS
from .scaled_tiles import CONVERTS, INFINITE
from .x_tiles import readable_rows

TOP = 11  # of rows: a sixth of 2**11 is below 448, the largest scale
DIGITS, LARGEST = 2, 6  # of an activation; the largest float of 4 bits
TIES = 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0  # between neighbours: every second one is rounded up
SMALL, SCALE = np.float32(2.0**126), np.float32(2.0**120)  # what their bits are too small by, as a float32's
ENDLESS = np.float32(np.inf)  # divides all to 0


@inlined
def _digit(value: Any) -> Any:
    """The nearest float of 4 bits, ties to even."""
    size = ptx.float_of(size_of(value))
    code = uint32(size > float32(TIES[0])) + uint32(size >= float32(TIES[1]))
    code = code + uint32(size > float32(TIES[2])) + uint32(size >= float32(TIES[3]))
    code = code + uint32(size > float32(TIES[4])) + uint32(size >= float32(TIES[5]))
    code = code + uint32(size > float32(TIES[6]))
    return uint32(code | uint32(ptx.bits_of(value) >> uint32(31)) << uint32(3))


@inlined
def _rest(value: Any, scale: Any, code: Any) -> Any:
    """The part of a value that its digit leaves over."""
    size = ptx.mul(ptx.float_of(uint32(uint32(code & uint32(7)) << uint32(22))), SMALL)
    return ptx.fma(scale, size if code >= uint32(8) else -size, value)


@inlined
def _first(v: Any, four: Any) -> Any:
    """The byte of the scale of 16 numbers, four in each of four lanes; a word of eight digits; the rest."""
    v0, v1, v2, v3 = v
    largest = max(size_of(v0), size_of(v1), size_of(v2), size_of(v3))
    largest = max(largest, uint32(cuda.shfl_xor_sync(ALL_LANES, int32(largest), 2)))
    largest = max(largest, uint32(cuda.shfl_xor_sync(ALL_LANES, int32(largest), 1)))
    part = ptx.div(ptx.float_of(largest), float32(LARGEST))
    byte = uint32(codes.four_e4m3(part, part, part, part) & uint32(0x7F))
    scale = ptx.mul(ptx.float_of(uint32(byte << uint32(20))), SCALE)
    by = scale if byte != uint32(0) else ENDLESS
    q0, q1, q2, q3 = (
        _digit(ptx.div(v0, by)), _digit(ptx.div(v1, by)), _digit(ptx.div(v2, by)), _digit(ptx.div(v3, by))
    )  # fmt: skip
    rest = _rest(v0, scale, q0), _rest(v1, scale, q1), _rest(v2, scale, q2), _rest(v3, scale, q3)
    word = uint32(q2 | uint32(q0 << uint32(4)) | uint32(q3 << uint32(16)) | uint32(q1 << uint32(20)))
    word = uint32(word << uint32(uint32(four & uint32(1)) << uint32(3)))
    return byte, uint32(word | uint32(cuda.shfl_xor_sync(ALL_LANES, int32(word), 1))), rest


@inlined
def _largest_of_row(largest: Any, all_largest: Any) -> Any:
    """The largest of all threads' words."""
    warp, lane = warp_and_lane()
    for step in (16, 8, 4, 2, 1):
        largest = max(largest, uint32(cuda.shfl_xor_sync(ALL_LANES, int32(largest), step)))
    if lane == uint32(0):
        all_largest[warp] = largest
    cuda.syncthreads()
    for i in range(THREADS // 32):
        largest = max(largest, uint32(all_largest[i]))
    return largest


@inlined
def _joined(word: Any, first: Any, second: Any) -> Any:
    """A word with the bits of lanes that are ``first`` and ``second`` away."""
    word = uint32(word | uint32(cuda.shfl_xor_sync(ALL_LANES, int32(word), first)))
    return uint32(word | uint32(cuda.shfl_xor_sync(ALL_LANES, int32(word), second)))


@family((kind,) for kind in KINDS)
def digit_tile_kernel(kind: str) -> Kernel:
    """The kernel that makes tiles and factors: block (row)."""
    load, size, length, warps = four_loader(kind), KINDS[kind], eight_bytes(0), THREADS // 32
    store4, store_float, mul, float_of = ptx.store4, ptx.store_float, ptx.mul, ptx.float_of
    take_turn = dependent_launch.take_turn
    largest_of_row, joined, first = _largest_of_row, _joined, _first

    def make(
        x: Any,  # of the kind [m, k]
        tiles: Any,  # uint8 [columns / 64, eights, bytes of eight rows]
        factors: Any,  # float32 [m]
        k: Any, columns: Any, eights: Any,
    ) -> None:  # fmt: skip
        take_turn()
        row, largest = uint32(cuda.blockIdx.x), uint32(0)
        column, apart = uint32(uint32(cuda.threadIdx.x) * uint32(FOUR)), uint32(THREADS * FOUR)
        at = column
        while at < k:
            v = load(address(x, row, k, at, size))
            largest = max(largest, size_of(v[0]), size_of(v[1]), size_of(v[2]), size_of(v[3]))
            at = uint32(at + apart)
        largest = largest_of_row(largest, cuda.shared.array(warps, uint32))
        up = min(max(int32(int32(TOP + BELOW) - int32(largest >> uint32(23))), int32(1)), int32(MOST))
        factor, g = float_of(uint32(uint32(up) << uint32(23))), row & uint32(EIGHT - 1)
        at = column
        while at < columns:  # whole warps
            v0 = v1 = v2 = v3 = float32(0)
            if at < k:
                v0, v1, v2, v3 = load(address(x, row, k, at, size))
            rest = mul(v0, factor), mul(v1, factor), mul(v2, factor), mul(v3, factor)
            place = address(tiles, at // uint32(STEP), eights, row // uint32(EIGHT), length)
            four = uint32(at >> uint32(2)) & uint32(15)
            half, run, t = four >> uint32(3), four >> uint32(2), uint32(four >> uint32(1)) & uint32(3)
            word_at = uint32(g * uint32(STEP) + t * uint32(16) + half * uint32(4))
            for i in range(DIGITS):
                byte, word, rest = first(rest, four)
                scales = joined(uint32(byte << uint32(run << uint32(3))), 4, 8)
                if four & uint32(1) == uint32(0):
                    store4(place + uint64(word_at + uint32(8 * i)), word)
                if four == uint32(0):
                    store4(place + uint64(uint32(CODES + 4 * i) + g * uint32(8)), scales)
            at = uint32(at + apart)
        if uint32(cuda.threadIdx.x) == uint32(0):
            down = uint32(uint32(int32(SIGN_OFF) - up) << uint32(23))
            if largest >= uint32(INFINITE):
                down = uint32(INFINITE | 1 << 22)
            store_float(factors + uint64(row) * uint64(4), float_of(down))

    parameters = (uint64, uint64, uint64, uint32, uint32, uint32)
    return Kernel(f"{kind} to digits", make, *parameters, threads=THREADS, least=CONVERTS, early=True)


def digit_tiles_of(x: Any, steps: int, rows: int) -> tuple[Any, Any]:
    """The tiles of rows of floats, in whole tiles of ``rows``, and the factors of their rows."""
    x, kind = readable_rows(x)
    m, k = x.shape
    height, columns = -(-m // rows) * rows, steps * STEP
    tiles, factors = (
        between((steps, height // EIGHT, eight_bytes(0)), np.uint8),
        between((height,), np.float32),
    )
    digit_tile_kernel(kind)((m,), (THREADS,), x, tiles, factors, k, columns, height // EIGHT)
    return tiles, factors
