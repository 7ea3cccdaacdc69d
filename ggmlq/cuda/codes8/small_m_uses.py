"""The list of uses of one expert that a block of cuda:small_m_codes serves: rows of x, rows of outputs.

A *use* is a number t · U + u: token t meets the u-th of its experts (schedule/uses.py). One warp looks at
all ids and leaves in shared memory, at the end of the block's layout,

    rows of x [columns] · uses [columns] · the number of uses · the expert

for producers, scale copiers and the epilogue. If an earlier block serves a block's use, its list is empty
and it ends.
"""

from __future__ import annotations

from typing import Any

from ..intrinsics import bf16x2, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, uint32
from ..schedule.uses import finder
from .epilogue import quad_storer
from .small_m import SmallMTile, SmallMVariant

IDS_PER_LANE = 2, 8, 32  # kernels for up to 64, 256 and 1024 uses
MOST = 32 * IDS_PER_LANE[-1]  # uses
NAN = float("nan")


def list_bytes(tile: SmallMTile) -> int:
    """Bytes of a tile's list of uses."""
    return 8 * tile.columns + 8


def use_list_writer(tile: SmallMTile, ids_per_lane: int) -> Any:
    """The device function by which one warp writes the list into shared memory."""
    find, put, take4, columns = finder(tile.columns, ids_per_lane), ptx.put, bf16x2.take4, tile.columns
    list_offset, uses_offset, end = tile.row_list, tile.row_list + 4 * columns, tile.row_list + 8 * columns

    @inlined
    def make(ring: Any, ids: Any, use: Any, uses: Any, per: Any, experts: Any, lane: Any) -> None:
        served, expert = find(uint32(ring + uint32(uses_offset)), ids, use, uses, experts, lane)
        at = uint32(ring + uint32(lane << uint32(2)))
        if lane < served:
            put(uint32(at + uint32(list_offset)), uint32(take4(uint32(at + uint32(uses_offset))) // per))
        if lane == uint32(0):
            put(uint32(ring + uint32(end)), served)
            put(uint32(ring + uint32(end + 4)), expert)

    return make


def use_list_reader(tile: SmallMTile) -> Any:
    """The device function that reads from the list how many uses the block serves, and their expert."""
    take4, end = bf16x2.take4, tile.row_list + 8 * tile.columns

    @inlined
    def read(ring: Any) -> Any:
        return take4(uint32(ring + uint32(end))), take4(uint32(ring + uint32(end + 4)))

    return read


def nan_writer(variant: SmallMVariant) -> Any:
    """The device function that writes NaN to a tile's outputs of one use, because its id is no expert."""
    store, fours, none = quad_storer(variant.out.kind), variant.tile.rows // 4, (float32(0),) * 4

    @inlined
    def write_nan(y: Any, use: Any, row0: Any, n: Any) -> None:
        thread, nan = uint32(cuda.threadIdx.x), float32(NAN)
        if thread < uint32(fours):
            store(y, use, uint32(row0 + uint32(thread << uint32(2))), n, none, nan, nan, nan, nan)

    return write_nan
