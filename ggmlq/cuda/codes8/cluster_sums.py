"""The exchange of sums in a cluster whose blocks split K: each adds up and writes a part of the outputs.

Schedule split_k: when the products are done, the stages of a block take up

    sums     [rows, columns], this block's, when its stages are free
    brought  [sources, rows / split, columns], behind them, when no block of the cluster multiplies any more

Few rows (small_m.py): sums have their own place in shared memory. Sums are added in the order of the parts,
so the result does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from ..epilogue.wgmma_sums import cluster_pusher, column_stager, row_stager
from ..intrinsics import barrier as barriers
from ..intrinsics import bf16x2, dependent_launch, ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..rings.boxed import BoxTile
from .epilogue import quad_encoder, quad_scale_loader, quad_storer
from .small_m import CONSUMER_THREADS, SmallMVariant
from .variant import OutputKind, Variant

# --- four neighbours of a row ------------------------------------------------------------------


class QuadEpilogue(NamedTuple):
    """Device functions for four neighbours of a row: load bias and scales; write those within the row."""

    load_beside: Any  # (out_args, row, column, m, n) -> bias, -0.0 without one, and scales
    write: Any  # (y, row, column, n, bias and scales, a, b, c, d)


@cache
def quad_epilogue(out: OutputKind) -> QuadEpilogue:
    """The device functions for four neighbours of a row of one kind of outputs."""
    put = quad_encoder(out) if out.coded else quad_storer(out.kind)
    scales, add = quad_scale_loader(out), ptx.add

    @inlined
    def load_beside(out_args: Any, row: Any, column: Any, m: Any, n: Any) -> Any:
        none = float32(-0.0)
        e, f, g, h, last = none, none, none, none, uint32(n - uint32(1))
        if out_args[0] != uint64(0):
            e = ptx.load_float(out_args[0] + uint64(min(column, last)) * uint64(4))
            f = ptx.load_float(out_args[0] + uint64(min(uint32(column + uint32(1)), last)) * uint64(4))
            g = ptx.load_float(out_args[0] + uint64(min(uint32(column + uint32(2)), last)) * uint64(4))
            h = ptx.load_float(out_args[0] + uint64(min(uint32(column + uint32(3)), last)) * uint64(4))
        return (e, f, g, h), scales(out_args, min(row, uint32(m - uint32(1))), column, last)

    @inlined
    def write(
        y: Any, row: Any, column: Any, n: Any, bias_and_scales: Any, a: Any, b: Any, c: Any, d: Any
    ) -> None:  # fmt: skip
        bias, scales = bias_and_scales
        a, b, c, d = add(a, bias[0]), add(b, bias[1]), add(c, bias[2]), add(d, bias[3])
        put(y, row, column, n, scales, a, b, c, d)

    return QuadEpilogue(load_beside, write)


# --- split_k ----------------------------------------------------------------------------------


def row_split(tile: BoxTile, split: int) -> Sequence[int]:
    """The rows that a block finishes, and a factor: ``row * factor >> 16`` is the block of a row."""
    rows = -(-tile.rows // split)
    return rows, (1 << 16) // rows + 1


def exchanger(variant: Variant) -> Any:
    """The device function that sends sums to the block that finishes them, adds them and writes them."""
    tile, fours = variant.tile, variant.tile.columns // 4
    pitch, log = 4 * tile.columns + 32, fours.bit_length() - 1  # no two rows g share a bank
    rows, stride = tile.rows, 128 * tile.groups // fours  # rows that all threads copy in one round
    stage, meet = row_stager(tile.columns, tile.halves, pitch), barriers.named_barrier(1, 128 * tile.groups)
    arrive_at_cluster_relaxed, wait_for_cluster, sync_cluster = (
        barriers.arrive_at_cluster_relaxed, barriers.wait_for_cluster, barriers.sync_cluster
    )  # fmt: skip
    put16_in_block, take16, take_floats = barriers.put16_in_block, ptx.take16, ptx.take_floats
    load_beside, write = quad_epilogue(variant.out)
    wait_for_predecessor = dependent_launch.wait_for_predecessor

    @inlined
    def exchange(
        totals: Any, position: Any, ring: Any, y: Any, column: Any, row: Any, m: Any, n: Any, finals: Any,
    ) -> None:  # fmt: skip
        lane, inner, _, _ = position
        rank, split, rows_per_block, inverse, out_args = finals
        alone = split == uint32(1)  # there is no cluster to wait for
        meet()  # the stages of this block are free
        if not alone:
            arrive_at_cluster_relaxed()
        row_index = uint32(inner + uint32(lane >> uint32(2)))
        stage(
            totals, uint32(ring + row_index * uint32(pitch) + uint32(uint32(lane & uint32(3)) << uint32(3)))
        )
        meet()
        if not alone:
            wait_for_cluster()
        thread, received = uint32(cuda.threadIdx.x), uint32(ring + uint32(rows * pitch))
        r, at = uint32(thread >> uint32(log)), uint32(uint32(thread & uint32(fours - 1)) << uint32(4))
        while r < uint32(rows):
            owner = uint32(uint32(r * inverse) >> uint32(16))
            if owner != rank:
                v = take16(uint32(ring + r * uint32(pitch) + at))
                target = uint32(uint32(r - uint32(owner * rows_per_block)) + uint32(rank * rows_per_block))
                put16_in_block(uint32(received + target * uint32(pitch) + at), owner, v[0], v[1], v[2], v[3])
            r = uint32(r + uint32(stride))
        if not alone:
            sync_cluster()  # all sums have arrived
        wait_for_predecessor()  # the predecessor may still read the outputs
        first, r = uint32(rank * rows_per_block), uint32(thread >> uint32(log))
        last = min(rows_per_block, uint32(uint32(rows) - first))
        across = uint32(column + uint32(at >> uint32(2)))
        while r < last:
            e, f, g, h = float32(0), float32(0), float32(0), float32(0)
            below, source = uint32(row + first + r), uint32(0)
            bias_and_scales = load_beside(out_args, below, across, m, n)
            while source < split:
                locate = uint32(received + uint32(source * rows_per_block + r) * uint32(pitch))
                if source == rank:
                    locate = uint32(ring + uint32(first + r) * uint32(pitch))
                v, source = take_floats(uint32(locate + at)), uint32(source + uint32(1))
                e, f, g, h = e + v[0], f + v[1], g + v[2], h + v[3]
            if below < m:
                write(y, below, across, n, bias_and_scales, e, f, g, h)
            r = uint32(r + uint32(stride))

    return exchange


# --- few rows ---------------------------------------------------------------------------------


def sum_exchanger(variant: SmallMVariant) -> Any:
    """The device function that sends sums to the blocks that add them up."""
    tile = variant.tile
    columns, pitch, turns, sums_offset = tile.columns, tile.pitch, tile.turns, tile.sums
    log, fours, shift = columns.bit_length() - 1, tile.rows // 4, (tile.rows // 4).bit_length() - 1
    push, stage = (
        cluster_pusher(columns, variant.integer, pitch),
        column_stager(columns, variant.integer, pitch),
    )
    wait_for_cluster, put16_in_block, take16 = barriers.wait_for_cluster, barriers.put16_in_block, ptx.take16
    meet = barriers.named_barrier(1, CONSUMER_THREADS)

    @inlined
    def store(ring: Any, totals: Any, row: Any, column: Any, turn: Any, rank: Any, halvings: Any) -> None:
        share = uint32(uint32(log) - halvings)  # log2 of the columns that a block finishes
        source = uint32(uint32(uint32(rank * uint32(turns)) + turn) << share)
        if halvings != uint32(0):
            wait_for_cluster()  # the shared memory of the others exists
        push(totals, uint32(ring + uint32(sums_offset) + uint32(row << uint32(2))), column, share, source)

    @inlined
    def exchange_wide(
        ring: Any, totals: Any, row: Any, column: Any, turn: Any, rank: Any, halvings: Any
    ) -> None:
        share = uint32(uint32(log) - halvings)
        meet()  # the stages are free
        column_index = uint32(turn * uint32(columns) + column)
        stage(totals, uint32(ring + column_index * uint32(pitch) + uint32(row << uint32(2))))
        meet()
        if halvings != uint32(0):
            wait_for_cluster()
        i = uint32(cuda.threadIdx.x)
        while i < uint32(turns * fours * columns):
            c, at = uint32(i >> uint32(shift)), uint32(uint32(i & uint32(fours - 1)) << uint32(4))
            v = take16(uint32(ring + c * uint32(pitch) + at))
            source = uint32(rank * uint32(turns) + uint32(c >> uint32(log)))
            c = uint32(c & uint32(columns - 1))
            owner = uint32(c >> share)
            target = uint32(uint32(c - uint32(owner << share)) + uint32(source << share))
            at = uint32(ring + uint32(sums_offset) + target * uint32(pitch) + at)
            put16_in_block(at, owner, v[0], v[1], v[2], v[3])
            i = uint32(i + uint32(CONSUMER_THREADS))

    return exchange_wide if tile.wide_exchange else store


def sum_reducer(variant: SmallMVariant) -> Any:
    """The device function that adds up a block's part of the outputs, four of a row at a time, and writes it.

    Where a list names the rows of x, a second list behind it names the row of y for each.
    """
    tile, log = variant.tile, variant.tile.columns.bit_length() - 1
    sums_offset, reduce = tile.sums, integer_reduction(variant) if variant.integer else float_reduction()
    (load_beside, write), pitch, turns = quad_epilogue(variant.out), tile.pitch, tile.turns
    fours, shift = tile.rows // 4, (tile.rows // 4).bit_length() - 1
    targets, take4 = tile.row_list + 4 * tile.columns if variant.listed else 0, bf16x2.take4

    @inlined
    def add(
        ring: Any, rank: Any, halvings: Any, y: Any, row0: Any, m: Any, n: Any, out_args: Any
    ) -> None:  # fmt: skip
        share = uint32(uint32(log) - halvings)  # log2 of the columns that a block finishes
        i, items = uint32(cuda.threadIdx.x), uint32(uint32(fours) << share)
        apart, sources = uint32(uint32(pitch) << share), uint32(uint32(turns) << halvings)
        while i < items:
            c, q = uint32(i >> uint32(shift)), uint32(uint32(i & uint32(fours - 1)) << uint32(2))
            at = uint32(ring + uint32(sums_offset) + c * uint32(pitch) + uint32(q << uint32(2)))
            c = uint32(c + uint32(rank << share))
            bias_and_scales = load_beside(out_args, c, uint32(row0 + q), m, n)
            e, f, g, h = reduce(at, apart, sources, ring, c, q)
            if c < m:
                to = take4(uint32(ring + uint32(targets) + uint32(c << uint32(2)))) if targets else c
                write(y, to, uint32(row0 + q), n, bias_and_scales, e, f, g, h)
            i = uint32(i + uint32(CONSUMER_THREADS))

    return add


def float_reduction() -> Any:
    """The device function that adds up four sums of floats."""
    take16 = ptx.take_floats

    @inlined
    def reduce(at: Any, apart: Any, sources: Any, ring: Any, c: Any, q: Any) -> Any:
        v, source = take16(at), uint32(1)
        e, f, g, h = v[0], v[1], v[2], v[3]
        while source < sources:
            at = uint32(at + apart)
            v, source = take16(at), uint32(source + uint32(1))
            e, f, g, h = e + v[0], f + v[1], g + v[2], h + v[3]
        return e, f, g, h

    return reduce


def integer_reduction(variant: SmallMVariant) -> Any:
    """The device function that adds up four sums of integers and applies scales and zero points."""
    zeros, w_scales, x_scales = variant.zeros, variant.tile.scales, variant.tile.scales_of_x
    rows, columns = variant.tile.rows, variant.tile.columns
    take16, take, take_float, fma, mul = ptx.take16, bf16x2.take4, bf16x2.take_float, ptx.fma, ptx.mul

    @inlined
    def one(total: Any, w_scales_at: Any, x_scales_at: Any) -> Any:
        """A sum as a float; addresses of the scales of its row of w and of its row of x."""
        if zeros:
            point_x, other_w = (
                take(uint32(x_scales_at + uint32(4 * columns))),
                take(uint32(w_scales_at + uint32(8 * rows))),
            )
            other_x, point_w = (
                take(uint32(x_scales_at + uint32(8 * columns))),
                take(uint32(w_scales_at + uint32(4 * rows))),
            )
            total = int32(total - int32(uint32(point_x * other_w) + uint32(other_x * point_w)))
        return fma(float32(total), mul(take_float(x_scales_at), take_float(w_scales_at)), float32(0))

    @inlined
    def reduce(at: Any, apart: Any, sources: Any, ring: Any, c: Any, q: Any) -> Any:
        v, source = take16(at), uint32(1)
        a, b, d, e = int32(v[0]), int32(v[1]), int32(v[2]), int32(v[3])
        while source < sources:
            at = uint32(at + apart)
            v, source = take16(at), uint32(source + uint32(1))
            a, b, d, e = int32(a + v[0]), int32(b + v[1]), int32(d + v[2]), int32(e + v[3])
        w = uint32(ring + uint32(w_scales) + uint32(q << uint32(2)))
        x = uint32(ring + uint32(x_scales) + uint32(c << uint32(2)))
        a, b = one(a, w, x), one(b, uint32(w + uint32(4)), x)
        return a, b, one(d, uint32(w + uint32(8)), x), one(e, uint32(w + uint32(12)), x)

    return reduce
