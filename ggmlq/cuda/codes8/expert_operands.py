"""Operands of experts' products of 8-bit codes: rows of x in the order of a plan, scales of w by expert.

Codes of w are read in place through one map, all experts one below the other. Their scales are a small
table that is prepared once, as in operands.py, but each expert begins at a multiple of 128 columns, so that
a tile finds its scales by a division. Where not all of 128 rows share a scale, the table has one for each
row. Boxes bring those, and a box must begin at a multiple of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.scaled import ScaledArray
from ...codes.tiling import expanded
from ..activations.expert_codes import CHUNK, CHUNKS, THREADS, gatherer
from ..intrinsics.wgmma8 import STEP
from ..machine import device, tensor_maps
from ..machine.tensor_maps import Box
from ..schedule import groups as sorting
from ..schedule.groups import HEAD, UsePlan
from . import operands as operands8
from .operands import IntegerTerms, Words
from .rows import CodeRows, ColumnGroups, OperandPair, zero_terms
from .variant import SCALE_ROWS, Variant

SPARE = 256  # columns behind the last expert's, where its last tile may end


class SortedRows(NamedTuple):
    """Rows of x in the order of a plan."""

    plan: Any
    use_of_row: Any  # the use of each row
    codes: Any  # uint8 [height, K]
    terms: Any  # 32 bits [columns, height]


def sort_rows(x: CodeRows, terms: Any, shared: int, ids: Any, plan_sizes: UsePlan, out: Any) -> SortedRows:
    """Sort the uses, and gather their rows and the terms of these rows: [ceil(R / shared), columns]."""
    empty, height, columns = device.cupy().empty, plan_sizes.height, terms.shape[1]
    rows, chunks = len(x.codes), x.columns // CHUNK
    threads = -(-chunks // CHUNKS)  # of a row
    codes, sorted_terms = empty((height, x.columns), np.uint8), empty((columns, height), np.float32)
    plan, places = sorting.sorted_uses(ids, plan_sizes)
    row_bytes, column_bytes = (stride % (1 << 64) for stride in terms.strides)
    gatherer()(
        (-(-rows * threads // THREADS),), (THREADS,),
        x.codes, codes, terms, row_bytes, column_bytes, sorted_terms, plan, places, out,
        x.pitch, rows, plan_sizes.uses // rows, out.shape[-1], chunks, threads, out.itemsize,
        shared, columns, height,
    )  # fmt: skip
    return SortedRows(plan, plan[HEAD + 4 * plan_sizes.slots :], codes, sorted_terms)


def map_rows(sorted_rows: SortedRows, x: CodeRows, uses: int, columns: int, box_rows: int) -> tuple[int, int]:
    """Maps of the gathered codes, and of the codes in place, which is 0 where rows have several uses."""
    height, pitch = sorted_rows.codes.shape
    gathered = tensor_maps.map_address(
        Box(sorted_rows.codes.data.ptr, height, columns, pitch, "uint8", box_rows, STEP)
    )
    return gathered, operands8.map_codes(x, columns, box_rows) if len(x.codes) == uses else 0


def map_terms(sorted_rows: SortedRows, box_rows: int) -> int:
    """The map of gathered scales of floats."""
    columns, height = sorted_rows.terms.shape
    at = sorted_rows.terms.data.ptr
    return tensor_maps.map_address(Box(at, columns, height, 4 * height, "float32", 1, box_rows, False))


# --- scales of w, prepared once ---------------------------------------------------------------


def table_columns(n: int) -> int:
    """Columns of an expert in tables."""
    return -(-n // SCALE_ROWS) * SCALE_ROWS


def shares_scales(w: ScaledArray, columns_per_scale: int) -> bool:
    """True where each ``columns_per_scale`` rows of an expert, from its first on, share a scale."""
    experts, n, _ = w.shape
    r = w.tiling.r
    return r >= experts * n or r % n == 0 or (r % columns_per_scale == 0 and n % columns_per_scale == 0)


def _rows_of_table(w: ScaledArray, columns_per_scale: int) -> NDArray[np.int64]:
    """For each column of the table, the first row of w that it stands for."""
    experts, n, _ = w.shape
    first_rows = np.minimum(np.arange(0, table_columns(n), columns_per_scale), n - 1)
    rows = (n * np.arange(experts)[:, None] + first_rows).reshape(-1)
    return np.concatenate([rows, np.repeat(rows[-1:], SPARE // columns_per_scale)])


def w_scale_table(w: ScaledArray, columns_per_scale: int, steps: int) -> Any:
    """The scales of w, float32 [steps, width], one for each ``columns_per_scale`` columns, prepared once."""
    return w.prepared(_table_maker(columns_per_scale, steps))


@cache
def _table_maker(columns_per_scale: int, steps: int) -> Callable[[ScaledArray], Any]:
    return lambda w: operands8.scale_table(w, _rows_of_table(w, columns_per_scale), steps)


def integer_terms(w: ScaledArray, groups: ColumnGroups, zeros: bool) -> IntegerTerms:
    """The terms of w that integer products need, for each column of the table, prepared once."""
    terms: IntegerTerms = w.prepared(_terms_maker(groups, zeros))
    return terms


@cache
def _terms_maker(groups: ColumnGroups, zeros: bool) -> Callable[[ScaledArray], IntegerTerms]:
    def make(w: ScaledArray) -> IntegerTerms:
        cp, matrix, rows = device.cupy(), w.matrix(), _rows_of_table(w, 1)
        scales = cp.ascontiguousarray(matrix.scales[cp.asarray(rows // matrix.over.r), 0])
        if not zeros:
            return IntegerTerms(scales, 0, 0)
        pick = cp.asarray(rows)
        points, others = (cp.ascontiguousarray(part[0][pick]) for part in zero_terms(w, groups, weights=True))
        return IntegerTerms(scales, points, others)

    return make


def x_terms(x: ScaledArray, rows_of_x: CodeRows, groups: ColumnGroups, zeros: bool) -> tuple[Any, int]:
    """The scales and zero-point terms that are gathered with rows of x, and how many rows share them."""
    if not zeros:
        return rows_of_x.scales.at[:, :1], rows_of_x.scales.rows
    cp = device.cupy()
    points, others = zero_terms(x, groups, weights=False)
    terms = cp.empty((3, len(rows_of_x.codes)), np.float32)
    terms[0] = expanded(cp, rows_of_x.scales.at[:, :1], x.tiling)[:, 0]
    words = terms.view(np.int32)
    words[1], words[2] = points[0], others[0]
    return terms.T, 1


# --- all words of a kernel --------------------------------------------------------------------


def kernel_words(
    variant: Variant, x: ScaledArray, w: ScaledArray, both: OperandPair, ids: Any, plan: UsePlan, out: Any
) -> Words:  # fmt: skip
    """The words of a product with experts: the uses are sorted, their rows gathered."""
    tile, n, columns = variant.tile, w.shape[1], min(both.x.columns, both.w.columns)
    steps, w_map = -(-columns // STEP), operands8.map_codes(both.w, columns, tile.columns)
    if variant.integer:
        terms, shared = x_terms(x, both.x, both.groups, variant.zeros)
    else:
        terms, shared = both.x.scales.at, both.x.scales.rows
    rows = sort_rows(both.x, terms, shared, ids, plan, out)
    maps = *map_rows(rows, both.x, ids.size, columns, tile.rows), w_map
    if variant.integer:
        of_x = rows.terms if variant.zeros else (rows.terms, 0, 0)
        operands = *maps, out, *of_x, *integer_terms(w, both.groups, variant.zeros)
        sizes: tuple[int, ...] = n, steps, plan.height
    else:
        table = w_scale_table(w, 1 if variant.column_scales else variant.columns_per_scale, steps)
        by_column = operands8.map_table(table, table.shape[1], tile.columns) if variant.column_scales else 0
        operands = *maps, map_terms(rows, tile.rows), by_column, table, out
        span = both.x.scales.steps if terms.shape[1] > 1 else 1 << 30
        sizes = n, steps, span, table.strides[0]
    return Words((*operands, rows.plan, rows.use_of_row), (*sizes, table_columns(n)), rows)
