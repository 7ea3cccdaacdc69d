"""The parts of cuda:gemv_int16 with a gate: rows of two matrices side by side in a block, and one result.

A stage's fragment rows are those of the gate and of what it lets through in turn: so a block has both sums of
each of its outputs, and the epilogue makes ``act(gate) · up`` of them. The matrices lie apart, or over each
other in one array.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...intrinsics import barrier as barriers
from ...intrinsics import bf16x2, ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import g_and_t, warp_and_lane
from ...intrinsics.language import cuda, float32, uint32, uint64
from ..epilogue.results import bias_loader, store_result
from .stages import GemvStage


@cache
def pair_fetcher(stage: GemvStage) -> Any:
    """The device function that starts the copies of a stage's weights; ``beside``: from the gate to up."""
    size, chunks, fragment_rows, copy16 = stage.size, stage.size // 16, stage.fragment_rows, ptx.copy16

    @inlined
    def fetch(at: Any, lane: Any, w_at: Any, apart: Any, beside: Any, span: Any) -> None:
        offset = uint32(lane << 4)
        start, to = w_at + uint64(span) * size + offset, uint32(at + offset)
        for fragment_row in range(fragment_rows):
            source = start + uint64(fragment_row // 2) * apart + (beside if fragment_row % 2 else uint64(0))
            for first in range(0, chunks, 32):
                if first + 32 <= chunks or lane < uint32(chunks - first):
                    place = uint32(to + uint32(fragment_row * size + 16 * first))
                    copy16(place, source + uint64(16 * first))

    return fetch


@cache
def sum_putter(stage: GemvStage) -> Any:
    """The device function that puts a warp's sums, of one row of activations, into shared memory."""
    stride, count = stage.sums, 2 * stage.fragment_rows
    base, put_float = ptx.shared_base, bf16x2.put_float

    @inlined
    def put(sums: Any, warp: Any, lane: Any) -> None:
        g, t = g_and_t(lane)
        if t == 0:
            for i in range(count):  # rows g, g + 8 of a fragment row
                at = uint32(warp * stride + uint32(8 * i) + g)
                put_float(base() + uint32(at << 2), sums[2 * i])

    return put


@cache
def block_adder(stage: GemvStage) -> Any:
    """The device function that adds up the sums of a row of weights, the first warp first."""
    warps, stride, base, take_float = stage.warps, stage.sums, ptx.shared_base, bf16x2.take_float

    @inlined
    def add_up(row: Any) -> Any:
        total = float32(0)
        for i in range(warps):
            total += take_float(base() + uint32(uint32(uint32(i * stride) + row) << 2))
        return total

    return add_up


@inlined
def row_of_gate(output: Any) -> Any:
    """The row of a block's weights that is the gate of an output; its partner is 16 rows further."""
    return uint32(uint32(uint32(output >> 4) << 5) + uint32(output & 15))


@cache
def epilogue(stage: GemvStage, act: Any) -> Any:
    """The device function that adds up sums, within a cluster too, and stores ``act(which, gate, up)``.

    ``gate``, ``up``: results as in kernels/epilogue/results.py, whose biases are added before.
    """
    rows, outputs, partials_at = stage.rows, stage.rows // 2, stage.partials_at
    put, add_up, load_bias, store = sum_putter(stage), block_adder(stage), bias_loader(), store_result
    base, take_float, put_float_in_block = ptx.shared_base, bf16x2.take_float, barriers.put_float_in_block
    join, meet = barriers.wait_for_cluster, barriers.sync_cluster

    @inlined
    def write(gate: Any, up: Any, which: Any, row: Any, n: Any, g: Any, u: Any) -> None:
        if row < n:
            g, u = g + load_bias(gate, row, n), u + load_bias(up, row, n)
            store(gate, uint32(0), row, n, act(which, g, u))

    @inlined
    def sum_of_blocks(row: Any, splits: Any) -> Any:
        at = uint32(base() + partials_at + uint32(row << 2))
        total, i = float32(0), uint32(0)
        while i < splits:
            total += take_float(at)
            at, i = uint32(at + 4 * rows), uint32(i + 1)
        return total

    @inlined
    def finish(sums: Any, gate: Any, up: Any, which: Any, tile: Any, rank: Any, splits: Any, n: Any) -> None:
        warp, lane = warp_and_lane()
        put(sums, warp, lane)
        cuda.syncthreads()
        row, at = uint32(uint32(tile * outputs) + lane), row_of_gate(lane)
        if splits == 1:
            if warp == 0 and lane < outputs:
                write(gate, up, which, row, n, add_up(at), add_up(uint32(at + 16)))
        else:
            join()  # the shared memory of the other blocks can be written
            part = uint32(uint32(warp << 5) + lane)
            if part < rows:
                place = uint32(uint32(rank * rows) + part)
                to = uint32(base() + partials_at + uint32(place << 2))
                put_float_in_block(to, uint32(0), add_up(part))
            meet()
            if rank == 0 and warp == 0 and lane < outputs:
                g, u = sum_of_blocks(at, splits), sum_of_blocks(uint32(at + 16), splits)
                write(gate, up, which, row, n, g, u)

    return finish
