"""Small blocks of cuda:gemv: a cluster of them splits the columns of a tile, so that any N fills a card.

    warp       0 … 3 of block 0    0 … 3 of block 1    …
    spans      0 … 3               4 … 7               …       and so on, round after round

In the end a block adds up the sums of its warps and sends each column of sums to the block of the cluster
that writes it. That block adds up the sums of all blocks, in their order. From capability 9.0 on.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from ..epilogue.results import bias_loader, store_result
from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.lane import warp_and_lane
from ..intrinsics.language import cuda, float32, uint32
from .stages import GemvStage


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
        if splits > uint32(1):
            greet()
        tile = uint32(block // splits)
        rank = uint32(block - uint32(tile * splits))
        return tile, rank, uint32(warp + uint32(rank * uint32(warps))), uint32(splits * uint32(warps))

    return place


@cache
def cluster_epilogue(stage: GemvStage) -> Any:
    """The device function that takes the sums of a block's warps from shared memory to results.

    ``result``: as in epilogue/results.py.
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
            at = uint32(uint32(uint32(i * columns) + column) * uint32(sums) + row)
            total += take_float(base() + uint32(at << uint32(2)))
        return total

    @inlined
    def share(result: Any, row0: Any, rank: Any, splits: Any, m: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        row, column, last = uint32(row0 + lane), warp, min(uint32(columns), m)
        if splits == uint32(1):
            while column < last:
                for below in range(0, rows, 32):
                    total, r = block_sum(column, uint32(lane + uint32(below))), uint32(row + uint32(below))
                    if r < n:
                        store(result, column, r, n, total + load_bias(result, r, n))
                column = uint32(column + uint32(warps))
        else:
            join()  # the shared memory of the other blocks can be written
            to = uint32(base() + uint32(partials_at) + uint32(lane << uint32(2)))
            while column < last:
                there = uint32(to + uint32(uint32(rank * uint32(columns)) + column) * uint32(line))
                for below in range(0, rows, 32):
                    total = block_sum(column, uint32(lane + uint32(below)))
                    put_float_in_block(uint32(there + uint32(4 * below)), uint32(column % splits), total)
                column = uint32(column + uint32(warps))
            meet()
            column = uint32(rank + uint32(splits * warp))
            while column < last:
                for below in range(0, rows, 32):
                    at = uint32(to + uint32(column * uint32(line)) + uint32(4 * below))
                    total, i = float32(0), uint32(0)
                    while i < splits:
                        total += take_float(at)
                        at, i = uint32(at + uint32(columns * line)), uint32(i + uint32(1))
                    r = uint32(row + uint32(below))
                    if r < n:
                        store(result, column, r, n, total + load_bias(result, r, n))
                column = uint32(column + uint32(splits * uint32(warps)))

    return share
