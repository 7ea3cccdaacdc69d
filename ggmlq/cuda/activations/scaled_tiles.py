"""Activations as floats e4m3 with a power of two for each 32, in the order in which ``mma`` takes them.

    tiles       [steps of 64 columns][rows, eight by eight][bytes of eight rows]
    eight rows  [row g][t][step s of 16 columns][4 codes], then [row g][columns 0 … 31, 32 … 63, –, –] scales

They lie as code_tiles.py has codes and scales, so the same copies bring them. The scale of 32 is the least
power of two with which none is beyond 448. The byte that holds it is 6 more, since weights are multiplied
as floats e4m3 that are 2**-6 of themselves (packed/float_codes.py). It is NaN where one of the 32 is not
finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..intrinsics import codes, dependent_launch, ptx
from ..intrinsics.address import address
from ..intrinsics.codes import size_of
from ..intrinsics.floats import KINDS
from ..intrinsics.lane import ALL_LANES
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from ..machine.recorded import between
from ..packed.float_codes import RAISED
from ..rings.mma_tile import CODES, EIGHT, eight_bytes
from .code_tiles import STEP, THREADS, four_loader
from .int8 import largest_size
from .x_tiles import readable_rows

CONVERTS = (8, 9)  # the first capability that converts to e4m3
# What rounds a float's bits up to a power of two once 448 is divided off; its exponent; the bits of infinity.
ABOVE, EXPONENT, INFINITE, NAN = 0x1FFFFF, 8, 0x7F800000, 255
INVERSE = 254  # exponent's bits of a power of two and of its inverse, together


@family((kind,) for kind in KINDS)
def scaled_tile_kernel(kind: str) -> Kernel:
    """The kernel that makes tiles: eight threads serve 32 neighbours, four each."""
    load, size, length = four_loader(kind), KINDS[kind], eight_bytes(0)
    store4, take_turn, mul, float_of = ptx.store4, dependent_launch.take_turn, ptx.mul, ptx.float_of
    four_e4m3 = codes.four_e4m3

    def make(
        x: Any,  # of the kind [m, k]
        tiles: Any,  # uint8 [columns / 64, eights, bytes of eight rows]
        k: Any, columns: Any, eights: Any,
    ) -> None:  # fmt: skip
        take_turn()
        thread = uint32(uint32(cuda.blockIdx.y) * uint32(THREADS) + uint32(cuda.threadIdx.x))
        column, row = uint32(thread * uint32(4)), uint32(cuda.blockIdx.x)
        v0 = v1 = v2 = v3 = float32(0)
        if column < k:
            v0, v1, v2, v3 = load(address(x, row, k, column, size))
        bits = size_of(largest_size(v0, v1, v2, v3))
        power = max(int32(uint32(bits + uint32(ABOVE)) >> uint32(23)) - int32(EXPONENT), int32(0))
        per = float_of(uint32(uint32(int32(INVERSE) - power) << uint32(23)))
        word = four_e4m3(mul(v0, per), mul(v2, per), mul(v1, per), mul(v3, per))
        scale = uint32(NAN) if bits >= uint32(INFINITE) else uint32(power + int32(RAISED))
        other = uint32(cuda.shfl_xor_sync(ALL_LANES, int32(scale), 8))
        if column < columns:
            place = address(tiles, column // uint32(STEP), eights, row // uint32(EIGHT), length)
            g, four = row & uint32(EIGHT - 1), uint32(column >> uint32(2)) & uint32(15)
            at = uint32(g * uint32(STEP) + (four & uint32(3)) * uint32(16) + (four >> uint32(2)) * uint32(4))
            store4(place + uint64(at), word)
            if four == uint32(0):
                store4(place + uint64(uint32(CODES) + g * uint32(4)), uint32(scale | other << uint32(8)))

    parameters = (uint64, uint64, uint32, uint32, uint32)
    return Kernel(f"{kind} to e4m3 tiles", make, *parameters, threads=THREADS, least=CONVERTS, early=True)


def scaled_tiles_of(x: Any, steps: int, rows: int) -> Any:
    """The tiles of rows of floats, in whole tiles of ``rows``."""
    x, kind = readable_rows(x)
    m, k = x.shape
    eights, columns = -(-m // rows) * rows // EIGHT, steps * STEP
    tiles = between((steps, eights, eight_bytes(0)), np.uint8)
    grid = (m, -(-columns // (4 * THREADS)))
    scaled_tile_kernel(kind)(grid, (THREADS,), x, tiles, k, columns, eights)
    return tiles
