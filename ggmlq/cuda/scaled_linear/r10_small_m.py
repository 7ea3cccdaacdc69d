"""Few rows: the weights stream through all multiprocessors, a cluster of blocks splits K.

Changed: operands change places. ``wgmma`` has 64 rows of its first operand; with one row of x 63 of them
would be wasted. So weights are the first operand and x, filled up to 8, 16, 32 or 64 rows, is the second
one. A tile is 64 rows of w and all of x; K is split among up to eight blocks, so that all multiprocessors
read weights at any N. The blocks are a cluster and send their sums into each other's shared memory, where
they are added in a fixed order: no second kernel, no atomic addition.

Why it helps: time is that of reading the weights once. Copies of 8 KB, for many stages of one block or a
few of three, keep 100 KB and more a multiprocessor in flight, three times what the memory's latency needs,
and the first of them start before the predecessor has ended.

Limited by the memory, and by the overhead around a stream of three microseconds: the launch, the first
copy, the exchange of sums.
"""

from __future__ import annotations

from itertools import product as combined
from typing import Any

from ...arrays.scaled import ScaledArray
from ...dispatch.epilogue import PLAIN, Epilogue
from ...dispatch.ladder import register
from ...dispatch.problems import ScaledLinear
from ..codes8 import epilogue, small_m_consumers
from ..codes8 import operands as operands8
from ..codes8.checks import refuses_persistent
from ..codes8.rows import INTEGER_KINDS, operand_pair, zero_terms
from ..codes8.small_m import (
    CONSUMER_THREADS,
    CONSUMER_WARPGROUPS,
    SPLITS,
    THREADS,
    TILES,
    SmallMTile,
    SmallMVariant,
)
from ..codes8.small_m_sums import sum_reducer
from ..codes8.variant import CODED_OUTPUTS, FLOAT_CODES, OUTPUTS
from ..cost import codes8
from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.language import cuda, uint32, uint64
from ..intrinsics.wgmma8 import INTEGERS, STEP
from ..machine import device
from ..machine.launch import Kernel, family
from ..rings.boxed import barrier_initializer

MOST = TILES[-1].columns


def variants() -> list[tuple[SmallMVariant]]:
    """The kernel's cases: all tiles, pairs of codes and kinds of outputs; for outputs as codes a few."""
    floats = [
        SmallMVariant(t, a, b, out) for t, a, b, out in combined(TILES, FLOAT_CODES, FLOAT_CODES, OUTPUTS)
    ]
    integers = [
        SmallMVariant(t, a, b, out, zeros)
        for t, a, b, out, zeros in combined(TILES, INTEGERS, INTEGERS, OUTPUTS, (False, True))
    ]
    coded = [
        SmallMVariant(TILES[-1], code, code, out) for code, out in combined(("s8", "e4m3"), CODED_OUTPUTS)
    ]
    return [(variant,) for variant in floats + integers + coded]


@family(variants())
def kernel(variant: SmallMVariant) -> Kernel:
    """The kernel: a block for each tile of rows of w and part of K; the blocks of a tile are a cluster."""
    tile, run, add = variant.tile, small_m_consumers.specialized_block(variant), sum_reducer(variant)
    start, barriers_offset, base = (
        barrier_initializer(tile.stages, 4 * CONSUMER_WARPGROUPS // tile.turns),
        tile.barriers,
        ptx.shared_base,
    )
    rows, columns = tile.rows, tile.columns
    rank_here, arrive_at_cluster = barriers.rank_in_cluster, barriers.arrive_at_cluster
    let_successor_start = dependent_launch.let_successor_start

    def product(
        x: Any, w: Any,  # maps of codes
        y: Any,
        x_scales: Any, row_x: Any, column_x: Any,  # scales, and bytes from row to row and column to column
        w_scales: Any, row_w: Any, column_w: Any,
        points_x: Any, others_x: Any, points_w: Any, others_w: Any,  # rows.ZeroTerms
        m: Any, n: Any, steps: Any, halvings: Any,  # log2 of the blocks that share the steps
        rows_x: Any, span_x: Any, rows_w: Any, span_w: Any,  # rows and steps that share a scale
        bias: Any, scales: Any, down: Any, along: Any,  # codes8/epilogue.py
    ) -> None:  # fmt: skip
        let_successor_start()
        ring = uint32(uint32(base() + uint32(1023)) & uint32(0xFFFFFC00))
        full = uint32(ring + uint32(barriers_offset))
        thread, rank = uint32(cuda.threadIdx.x), rank_here()
        if thread == uint32(0):
            start(full)
        if halvings != uint32(0):  # a single block has no cluster
            arrive_at_cluster()
        cuda.syncthreads()
        row0 = uint32(uint32(uint32(cuda.blockIdx.x) >> halvings) * uint32(rows))
        arguments = (x_scales, row_x, column_x, rows_x, span_x, w_scales, row_w, column_w, rows_w, span_w)
        zeros = (points_x, others_x, points_w, others_w)
        run(
            ring, full, x, w, uint32(0), uint32(columns), m, row0, n, steps, arguments, zeros, rank, halvings,
        )  # fmt: skip
        if thread < uint32(CONSUMER_THREADS):
            add(ring, rank, halvings, y, row0, m, n, (bias, scales, down, along))

    return Kernel(
        f"tma few rows {variant}", product, *(uint64,) * 13, *(uint32,) * 8, *epilogue.PARAMETERS,
        threads=THREADS,
        blocks=tile.blocks, shared=tile.shared, least=(9, 0), exact=True, early=True, lto=True,
    )  # fmt: skip


def refuses(problem: ScaledLinear) -> str | None:
    if problem.m > MOST:
        return f"takes up to {MOST} rows of x"
    return refuses_persistent(problem)


@register(
    __name__, __doc__, arithmetic="codes", accumulate="int32, float32 every 128", refuses=refuses,
    narrow=True, ends=True,
)  # fmt: skip
def launch(
    x: ScaledArray, w: ScaledArray, out: Any, tile: SmallMTile | None = None, split: int = 0,
    end: Epilogue = PLAIN,
) -> None:  # fmt: skip
    """``out`` may be float16 or bfloat16, too; ``tile``, ``split``: choices to take in place of the best."""
    if not (out.size and w.shape[1]):
        out.fill(0)
        return
    operands8.prepare_stream(w)
    (m, n), both, integer = out.shape, operand_pair(x, w, STEP), w.code.kind == "integer"
    k = min(both.x.columns, both.w.columns)
    zeros, shape = (
        x.zeros is not None or w.zeros is not None,
        codes8.CodesShape.on(device.card_of(device.current()), m, n, k),
    )
    tile, split, _ = codes8.small_m(shape, *codes8.named_choices(tile, split, TILES, SPLITS))
    x_code, w_code = (INTEGER_KINDS[s.code.name] if integer else s.code.name for s in (x, w))
    variant = SmallMVariant(tile, x_code, w_code, epilogue.output_kind(out, end), zeros)
    tiles, steps = -(-n // tile.rows), -(-k // STEP)
    points: tuple[Any, ...] = (0, 0, 0, 0)
    if zeros:
        terms = operands8.integer_terms(w, both.groups, True)
        points = (*zero_terms(x, both.groups, weights=False), terms.points, terms.others)
    a, b = both.x.scales, operands8.prepared_w_scales(w, both.w)
    kernel(variant)(
        (tiles * split,), (THREADS,),
        operands8.map_codes(both.x, k, tile.columns), operands8.map_codes(both.w, k, tile.rows), out,
        a.at, a.row, a.column, b.at, b.row, b.column, *points,
        m, n, steps, split.bit_length() - 1, a.rows, a.steps, b.rows, b.steps,
        *epilogue.epilogue_arguments(end), cluster=split,
    )  # fmt: skip
