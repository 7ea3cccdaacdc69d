"""Many tokens of 8-bit codes: sorted by expert on the device, boxes of codes for the tensor cores.

Changed: as cuda:grouped does for blocks, but for codes with scales. One block, or a few, give every use a row
of a tile (schedule/groups.py); rows of codes and their scales are copied there (activations/expert_codes.py);
and the persistent blocks of scaled_linear's cuda:persistent take the tiles of all experts from the plan
(codes8/grouped.py). Results go straight to the rows of the uses. Where each row of x has one use and ids
are in order, rows are not copied but fetched from x. The host waits for nothing, and neither the number of
launches nor the size of a grid depends on the ids.

An expert's uses are the rows of tiles, 64 to 256 of them, and its last tile is filled in part. So the
height of tiles is chosen by the mean number of uses an expert has. Floats: scales of 128 columns of K, or
of a multiple; integers: scales that do not vary along K.

Limited, by estimate: with few uses an expert by empty rows, for 64 rows of x come from the L2 with 128 of w;
with many uses by the copy of the rows, each of which is read once and written once a use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ...arrays.scaled import ScaledArray
from ...dispatch.experts import refuses_blocks
from ...dispatch.ladder import register
from ...dispatch.problems import ExpertLinear, Operand, ScaledLinear
from ..codes8 import expert_operands
from ..codes8 import operands as operands8
from ..codes8.checks import refuses_persistent
from ..codes8.grouped import (
    COLUMN_SCALE_TILES,
    FLOAT_TILES,
    INTEGER_TILES,
    ZERO_POINT_TILES,
    float_kernel,
    integer_kernel,
)
from ..codes8.rows import INTEGER_KINDS, operand_pair
from ..codes8.variant import SCALE_ROWS, OutputKind, Variant
from ..intrinsics.wgmma8 import STEP
from ..machine import device
from ..rings.boxed import BoxTile
from ..schedule import groups
from ..schedule.waves import RatedTile


@lru_cache(4096)
def tile_for(
    shares: Sequence[RatedTile], tokens: int, used: int, experts: int, n: int, count: int
) -> BoxTile:
    """The tile with which ``count`` multiprocessors finish first, if uses are spread by chance."""

    def time(rated: RatedTile) -> float:
        slots = experts * groups.expected_slots(tokens, used, experts, rated.tile.rows)
        tiles = slots * -(-n // rated.tile.columns)
        return max(tiles / count, 1) * rated.tile.rows * rated.tile.columns / rated.efficiency

    return min(shares, key=time).tile


def refuses(problem: ExpertLinear) -> str | None:
    if (refused := refuses_blocks(problem)) is not None:
        return refused
    assert isinstance(problem.weights, Operand)
    assert problem.x is not None
    uses = problem.t * problem.u
    if not 0 < problem.e <= groups.MOST:
        return f"takes 1 to {groups.MOST} experts"
    if uses * max(problem.k, 16) >= 1 << 36:
        return "takes up to 2**36 codes of activations"
    rows = uses + min(uses, problem.e) * 256  # of a plan, at most
    operand_shape = problem.x, problem.weights, rows, problem.e * problem.n, problem.k
    return refuses_persistent(ScaledLinear(*operand_shape, device=problem.device, card=problem.card))


@register(
    __name__, __doc__, arithmetic="codes", accumulate="int32, float32 every 128", refuses=refuses,
    narrow=True,
)  # fmt: skip
def launch(x: ScaledArray, q: ScaledArray, ids: Any, out: Any, tile: BoxTile | None = None) -> None:
    """``tile``: one to take in place of the best."""
    (floats if q.code.kind == "float" else integers)(x, q, ids, out, tile)


def floats(x: ScaledArray, q: ScaledArray, ids: Any, out: Any, tile: BoxTile | None) -> None:
    """Multiply FP8 codes: sort the uses, gather their rows, launch the kernel for floats."""
    (experts, n, _), both = q.shape, operand_pair(x, q, STEP)
    column_scales = not expert_operands.shares_scales(q, SCALE_ROWS)
    tile = tile or _best(COLUMN_SCALE_TILES if column_scales else FLOAT_TILES, ids, experts, n)
    output = OutputKind(str(out.dtype))
    variant = Variant(tile, x.code.name, q.code.name, output, boxed=False, column_scales=column_scales)
    plan, x_scales = _plan(tile, ids, experts), both.x.scales
    rows = expert_operands.sort_rows(both.x, x_scales.at, x_scales.rows, ids, plan, out)
    columns, span = (
        min(both.x.columns, both.w.columns),
        x_scales.steps if x_scales.at.shape[1] > 1 else 1 << 30,
    )
    steps = -(-columns // STEP)
    table = expert_operands.w_scale_table(q, 1 if column_scales else variant.columns_per_scale, steps)
    column_scales_map = operands8.map_table(table, table.shape[1], tile.columns) if column_scales else 0
    float_kernel(variant)(
        _grid(tile, plan, n), (variant.threads,),
        *expert_operands.map_rows(rows, both.x, ids.size, columns, tile.rows),
        operands8.map_codes(both.w, columns, tile.columns),
        expert_operands.map_terms(rows, tile.rows), column_scales_map, table, out, rows.plan, rows.use_of_row,
        n, steps, span, table.strides[0], expert_operands.table_columns(n),
    )  # fmt: skip


def integers(x: ScaledArray, q: ScaledArray, ids: Any, out: Any, tile: BoxTile | None) -> None:
    """Multiply integer codes: sort the uses, gather their rows, launch the kernel for integers."""
    (experts, n, _), both = q.shape, operand_pair(x, q, STEP)
    zeros = x.zeros is not None or q.zeros is not None
    tile = tile or _best(ZERO_POINT_TILES if zeros else INTEGER_TILES, ids, experts, n)
    output = OutputKind(str(out.dtype))
    variant = Variant(
        tile, INTEGER_KINDS[x.code.name], INTEGER_KINDS[q.code.name], output, boxed=False, zeros=zeros
    )
    plan, w_scales = _plan(tile, ids, experts), expert_operands.integer_terms(q, both.groups, zeros)
    terms, shared = expert_operands.x_terms(x, both.x, both.groups, zeros)
    rows = expert_operands.sort_rows(both.x, terms, shared, ids, plan, out)
    columns = min(both.x.columns, both.w.columns)
    integer_kernel(variant)(
        _grid(tile, plan, n), (variant.threads,),
        *expert_operands.map_rows(rows, both.x, ids.size, columns, tile.rows),
        operands8.map_codes(both.w, columns, tile.columns),
        out, *(rows.terms if zeros else (rows.terms, 0, 0)), *w_scales, rows.plan, rows.use_of_row,
        n, -(-columns // STEP), plan.height, expert_operands.table_columns(n),
    )  # fmt: skip


def _best(shares: Sequence[RatedTile], ids: Any, experts: int, n: int) -> BoxTile:
    return tile_for(tuple(shares), *ids.shape, experts, n, device.multiprocessors())


def _plan(tile: BoxTile, ids: Any, experts: int) -> groups.UsePlan:
    return groups.UsePlan(ids.size, experts, tile.rows)


def _grid(tile: BoxTile, plan: groups.UsePlan, n: int) -> tuple[int]:
    return (min(plan.slots * -(-n // tile.columns), device.multiprocessors()),)
