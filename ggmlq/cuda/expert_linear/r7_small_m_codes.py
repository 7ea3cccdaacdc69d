"""A few tokens of 8-bit codes: one kernel, whose blocks read ids themselves and stream an expert's weights.

Changed: nothing is sorted and no row is copied. The kernel is that of scaled_linear's cuda:small_m, with
blocks for each use of an expert: those of a use find the other uses of its expert among the ids
(codes8/small_m_uses.py), serve up to eight of them, and end at once where an earlier use serves them
already. Rows of codes are fetched in place, a box a row, and so are their scales. So a projection of a
mixture is one launch, where cuda:grouped_codes has three kernels that wait for each other.

Limited by the latency of the first weights, which are unknown until the ids are read, and by the memory.
"""

from __future__ import annotations

from itertools import product as combined
from math import ceil
from typing import Any, NamedTuple

from ...arrays.scaled import ScaledArray
from ...dispatch.ladder import register
from ...dispatch.problems import ExpertLinear
from ..codes8 import operands as operands8
from ..codes8 import small_m, small_m_consumers, small_m_uses
from ..codes8.rows import INTEGER_KINDS, operand_pair, zero_terms
from ..codes8.small_m import CONSUMER_THREADS, CONSUMER_WARPGROUPS, SPLITS, THREADS, SmallMTile, SmallMVariant
from ..codes8.small_m_sums import sum_reducer
from ..codes8.variant import FLOAT_CODES, OUTPUTS, OutputKind
from ..cost import codes8
from ..intrinsics import barrier as barriers
from ..intrinsics import dependent_launch, ptx
from ..intrinsics.language import cuda, uint32, uint64
from ..intrinsics.wgmma8 import INTEGERS, STEP
from ..machine import device
from ..machine.launch import Kernel, family
from ..rings.boxed import barrier_initializer
from ..schedule.uses import NO_EXPERT
from .r6_grouped_codes import refuses as refused

COLUMNS = small_m.TILES[0].columns  # uses that a block serves
TILES = tuple(tile for tile in small_m.TILES if tile.columns == COLUMNS)


def variants() -> list[tuple[SmallMVariant, int]]:
    """Every tile, pair of codes and kind of outputs, with the ids that a lane reads."""
    floats = [
        SmallMVariant(t, a, b, out, listed=True)
        for t, a, b, out in combined(TILES, FLOAT_CODES, FLOAT_CODES, OUTPUTS)
    ]
    integers = [
        SmallMVariant(t, a, b, out, zeros, listed=True)
        for t, a, b, out, zeros in combined(TILES, INTEGERS, INTEGERS, OUTPUTS, (False, True))
    ]
    return [
        (variant, ids_per_lane) for variant in floats + integers for ids_per_lane in small_m_uses.IDS_PER_LANE
    ]


@family(variants())
def kernel(variant: SmallMVariant, ids_per_lane: int) -> Kernel:
    """The kernel: block (tile of an expert's w, part of K; use); the blocks of a tile are a cluster."""
    tile, run, add = variant.tile, small_m_consumers.specialized_block(variant), sum_reducer(variant)
    write_list, read_list, write_nan = (
        small_m_uses.use_list_writer(tile, ids_per_lane),
        small_m_uses.use_list_reader(tile),
        small_m_uses.nan_writer(variant),
    )
    start, barriers_offset, base = (
        barrier_initializer(tile.stages, 4 * CONSUMER_WARPGROUPS // tile.turns),
        tile.barriers,
        ptx.shared_base,
    )
    rows, list_offset = tile.rows, tile.row_list
    rank_here, arrive_at_cluster, take_turn = (
        barriers.rank_in_cluster, barriers.arrive_at_cluster, dependent_launch.take_turn,
    )  # fmt: skip

    def product(
        x: Any, w: Any,  # maps of codes; a box of x is one row
        y: Any,  # [uses, n]
        ids: Any,  # int64 [uses]
        x_scales: Any, row_x: Any, column_x: Any,  # scales, and bytes from row to row and column to column
        w_scales: Any, row_w: Any, column_w: Any,
        points_x: Any, others_x: Any, points_w: Any, others_w: Any,  # rows.ZeroTerms
        uses: Any, per: Any, experts: Any,  # uses of a row of x
        n: Any, steps: Any, halvings: Any,  # log2 of the blocks that share the steps
        rows_x: Any, span_x: Any, rows_w: Any, span_w: Any,  # rows and steps that share a scale
    ) -> None:  # fmt: skip
        take_turn()
        ring = uint32(uint32(base() + uint32(1023)) & uint32(0xFFFFFC00))
        full = uint32(ring + uint32(barriers_offset))
        thread, rank, use = uint32(cuda.threadIdx.x), rank_here(), uint32(cuda.blockIdx.y)
        if thread < uint32(32):
            write_list(ring, ids, use, uses, per, experts, thread)
            if thread == uint32(0):
                start(full)
        cuda.syncthreads()
        served, expert = read_list(ring)
        row0 = uint32(uint32(uint32(cuda.blockIdx.x) >> halvings) * uint32(rows))
        if expert == uint32(NO_EXPERT):
            if rank == uint32(0):
                write_nan(y, use, row0, n)
            return
        if served == uint32(0):
            return
        if halvings != uint32(0):  # a single block has no cluster
            arrive_at_cluster()
        arguments = (x_scales, row_x, column_x, rows_x, span_x, w_scales, row_w, column_w, rows_w, span_w)
        zeros = (points_x, others_x, points_w, others_w)
        below = uint32(expert * n)
        first_w_row, end, listed = uint32(below + row0), uint32(below + n), uint32(ring + uint32(list_offset))
        run(
            ring,
            full,
            x,
            w,
            listed,
            served,
            served,
            first_w_row,
            end,
            steps,
            arguments,
            zeros,
            rank,
            halvings,
        )
        if thread < uint32(CONSUMER_THREADS):
            nothing = uint64(0)
            add(ring, rank, halvings, y, row0, served, n, (nothing, nothing, nothing, nothing))

    return Kernel(
        f"tma few rows of experts {variant}, {32 * ids_per_lane} uses", product, *(uint64,) * 14,
        *(uint32,) * 10,
        threads=THREADS, blocks=tile.blocks, shared=tile.shared + small_m_uses.list_bytes(tile), least=(9, 0),
        exact=True, early=True, lto=True,
    )  # fmt: skip


class Cut(NamedTuple):
    """A tile, and the number of blocks that share K."""

    tile: SmallMTile
    split: int


def cut_for(tokens: int, used: int, experts: int, n: int, k: int) -> Cut:
    """The cut with the lowest estimate for the weights of all used experts, if uses are spread by chance."""
    touched = max(experts * (1 - max(1 - used / experts, 0) ** tokens), tokens * used / COLUMNS)
    shape = codes8.CodesShape.on(device.card_of(device.current()), COLUMNS, n * ceil(touched), k)
    plan = codes8.small_m(shape, TILES, SPLITS)
    return Cut(plan.tile, plan.splits)


def refuses(problem: ExpertLinear) -> str | None:
    if (why := refused(problem)) is not None:
        return why
    if problem.t * problem.u > small_m_uses.MOST:
        return f"takes up to {small_m_uses.MOST} uses of experts"
    return None


@register(
    __name__, __doc__, arithmetic="codes", accumulate="int32, float32 every 128", refuses=refuses,
    narrow=True,
)  # fmt: skip
def launch(x: ScaledArray, q: ScaledArray, ids: Any, out: Any, cut: Cut | None = None) -> None:
    """``cut``: one to take in place of the best."""
    (experts, n, _), both, integer = q.shape, operand_pair(x, q, STEP), q.code.kind == "integer"
    k, zeros = min(both.x.columns, both.w.columns), x.zeros is not None or q.zeros is not None
    tokens, used = ids.shape
    tile, split = cut or cut_for(tokens, used, experts, n, k)
    x_code, w_code = (INTEGER_KINDS[s.code.name] if integer else s.code.name for s in (x, q))
    variant = SmallMVariant(tile, x_code, w_code, OutputKind(str(out.dtype)), zeros, listed=True)
    points: tuple[Any, ...] = (0, 0, 0, 0)
    if zeros:
        terms = operands8.integer_terms(q, both.groups, True)
        points = (*zero_terms(x, both.groups, weights=False), terms.points, terms.others)
    a, b = both.x.scales, operands8.prepared_w_scales(q, both.w)
    ids_per_lane = next(
        ids_per_lane for ids_per_lane in small_m_uses.IDS_PER_LANE if ids.size <= 32 * ids_per_lane
    )
    kernel(variant, ids_per_lane)(
        (-(-n // tile.rows) * split, ids.size), (THREADS,),
        operands8.map_codes(both.x, k, 1), operands8.map_codes(both.w, k, tile.rows), out, ids,
        a.at, a.row, a.column, b.at, b.row, b.column, *points,
        ids.size, ids.size // len(both.x.codes), experts,
        n, -(-k // STEP), split.bit_length() - 1, a.rows, a.steps, b.rows, b.steps, cluster=split,
    )  # fmt: skip
