"""Operands of 8-bit products as Hopper's copy engine fetches them: maps of codes, scales in order of steps;
all words of a kernel.

Scales of x are a matrix [groups of K, M] of floats whose rows begin at multiples of 16 bytes: as
quantize_scaled(..., order="columns") may leave them, or gathered by a small kernel. Scales of w are a small
table that is prepared once and stays with the array.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....arrays.scaled import ScaledArray
from ....codes.tiling import expanded
from ....dispatch.epilogue import PLAIN, Epilogue
from ...driver import device, tensor_maps
from ...driver.launch import Kernel, family
from ...driver.tensor_maps import Box
from ...intrinsics import hopper, ptx
from ...intrinsics.hopper import BOX_ROWS as ROWS_OF_BOX
from ...intrinsics.language import cuda, uint32, uint64
from ...intrinsics.wgmma import STEP
from ...layouts import groups as sorting
from ...layouts.groups import CHUNK, CHUNKS, GATHER_THREADS, HEAD, UsePlan, code_gatherer
from .rows import CodeRows, ColumnGroups, OperandPair, ScaleView, code_kind, making, operand_pair, zero_terms
from .tiles import SCALE_ROWS, SIZES, OutputKind, Variant, columns_of_box

THREADS = 256  # of a block that gathers scales
AHEAD = 1  # steps that kernels read ahead of the last one
WIDEST = 768  # a multiple of every tile's columns: tables are filled up to one
SPARE = 256  # columns behind the last expert's in a table, where its last tile may end


def map_codes(rows: CodeRows, columns: int, box_rows: int) -> int:
    """The map of an operand's codes, in boxes of ``box_rows`` rows and one step."""
    at = rows.codes.data.ptr
    return tensor_maps.map_address(Box(at, len(rows.codes), columns, rows.pitch, "uint8", box_rows, STEP))


def prepare_stream(w: ScaledArray) -> None:
    """Wait once for the work that made w: some kernels read its codes before their predecessor ends."""
    w.prepared(_stream_is_ready)


def _stream_is_ready(w: ScaledArray) -> bool:
    return True  # preparing waits for the stream


def prepared_w_scales(w: ScaledArray, rows: CodeRows) -> ScaleView:
    """The scales of w as floats, prepared once."""
    if w.scale == "float32":
        return rows.scales
    values = w.prepared(_values)
    row, column = values.strides
    return rows.scales._replace(at=values, row=row, column=column)


def _values(w: ScaledArray) -> Any:
    return device.cupy().ascontiguousarray(w.matrix().scales)


class Outputs(NamedTuple):
    """The kind of a kernel's outputs, who writes them, and their address."""

    out: OutputKind
    boxed: bool  # the copy engine writes them
    at: int  # the address of a map, or of the outputs


def outputs(out: Any, end: Epilogue = PLAIN) -> Outputs:
    """The outputs of a kernel that writes ``out``, a C-contiguous array of floats of 16 or 32 bits, or of
    codes.
    """
    kind, at, (m, n) = str(out.dtype), out.data.ptr, out.shape
    if end.code is not None or tensor_maps.refuses(at, pitch := n * SIZES[kind]):
        return Outputs(output_kind(out, end), False, at)
    return Outputs(
        OutputKind(kind),
        True,
        tensor_maps.map_address(Box(at, m, n, pitch, kind, ROWS_OF_BOX, columns_of_box(kind))),
    )


def output_kind(out: Any, end: Epilogue) -> OutputKind:
    """The kind of outputs of a call: the code of its epilogue, or else the floats of ``out``."""
    if end.code is None:
        return OutputKind(str(out.dtype))
    return OutputKind(end.code.name, end.scales.shape[1] > 1)


def epilogue_words(end: Epilogue) -> tuple[Any, ...]:
    """The words of a kernel's epilogue: bias, scales, bytes from row to row and from column to column."""
    bias = 0 if end.bias is None else end.bias
    if end.scales is None:
        return bias, 0, 0, 0
    (rows, columns), (down, along) = end.scales.shape, end.scales.strides
    return bias, end.scales, down if rows > 1 else 0, along if columns > 1 else 0


# --- scales of x ------------------------------------------------------------------------------


class XScales(NamedTuple):
    """The map of the scales of x."""

    map: int
    span: int  # steps that share a scale
    owner: Any  # the array that they lie in


def x_scales_map(x: CodeRows, box_rows: int) -> XScales:
    """The scales of x as [groups, M], read in place if their rows are aligned."""
    view, m = x.scales, len(x.codes)
    groups = view.at.shape[1]
    at, pitch, owner = view.at.data.ptr, view.column if groups > 1 else _round_up(4 * m), view.at
    if view.rows != 1 or (view.row != 4 and m > 1) or tensor_maps.refuses(at, pitch) or pitch < 4 * m:
        owner = device.cupy().empty((groups, _round_up(4 * m) // 4), np.float32)
        at, pitch = owner.data.ptr, owner.strides[0]
        grid = -(-m // THREADS), groups
        scale_gatherer()(grid, (THREADS,), view.at, view.row, view.column, owner, m, view.rows, pitch // 4)
    address = tensor_maps.map_address(Box(at, groups, m, pitch, "float32", 1, box_rows, False))
    return XScales(address, view.steps if groups > 1 else 1 << 30, owner)


def _round_up(size: int) -> int:
    """The next multiple of 16."""
    return -(-size // 16) * 16


@family()
def scale_gatherer() -> Kernel:
    """The kernel that copies scales of any strides and tiles to [groups, rows of x]."""
    start_dependent = hopper.take_turn

    def gather(
        scales: Any, row: Any, column: Any,  # address, and bytes between rows and between columns
        to: Any,  # float32 [groups, pitch]
        m: Any,
        rows: Any,  # rows of x that share a scale
        pitch: Any,
    ) -> None:  # fmt: skip
        start_dependent()
        i, group = uint32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x), uint32(cuda.blockIdx.y)
        if i < m:
            at = scales + uint32(i // rows) * row + group * column
            ptx.store_float(to + (uint64(group) * pitch + i) * 4, ptx.load_float(at))

    return Kernel("gather scales", gather, *(uint64,) * 4, *(uint32,) * 3, threads=THREADS, early=True)


# --- scales of w, prepared once ------------------------------------------------------------------
#
# Codes of w are read in place; of experts through one map, all one below the other. Scales are a small table.
# There each expert begins at a multiple of SCALE_ROWS columns, so that a tile finds its scales by a division.
# Where not all rows of a tile share a scale, the table has one for each row. Boxes bring those, and a box
# must begin at a multiple of 16 bytes.


def shares_scales(w: ScaledArray, columns_per_scale: int) -> bool:
    """True where each ``columns_per_scale`` rows of w, or of each expert from its first on, share a scale."""
    *experts, n, _ = w.shape
    r = w.tiling.r
    if r >= n * prod(experts) or (experts and r % n == 0):
        return True
    return r % columns_per_scale == 0 and (not experts or n % columns_per_scale == 0)


def table_columns(n: int) -> int:
    """Columns of an expert in tables."""
    return -(-n // SCALE_ROWS) * SCALE_ROWS


def rows_of_table(shape: tuple[int, ...], columns_per_scale: int) -> NDArray[np.int64]:
    """For each column of a table, the first row of w, of this shape, that it stands for.

    A table ends with whole tiles: behind the last column it repeats the last row.
    """
    *experts, n, _ = shape
    if not experts:
        return np.minimum(np.arange(0, -(-n // WIDEST) * WIDEST, columns_per_scale), n - 1)
    first_rows = np.minimum(np.arange(0, table_columns(n), columns_per_scale), n - 1)
    rows = (n * np.arange(experts[0])[:, None] + first_rows).reshape(-1)
    return np.concatenate([rows, np.repeat(rows[-1:], SPARE // columns_per_scale)])


def w_scale_table(w: ScaledArray, columns_per_scale: int, steps: int) -> Any:
    """The scales of w as float32 [steps, width], one for each ``columns_per_scale`` columns, prepared once.

    It ends with steps that kernels read ahead. Groups that were filled up have more steps than K says.
    """
    return w.prepared(making(_scale_table, columns_per_scale, steps))


def _scale_table(columns_per_scale: int, steps: int, w: ScaledArray) -> Any:
    cp, matrix, rows = device.cupy(), w.matrix(), rows_of_table(w.shape, columns_per_scale)
    over, k = matrix.over, matrix.codes.shape[1]
    columns = np.minimum(np.arange(steps + AHEAD) * STEP, k - 1) // over.c
    table = cp.empty((len(columns), len(rows)), np.float32)  # a single step has a pitch that maps take, too
    table[...] = matrix.scales[cp.asarray(rows // over.r)][:, cp.asarray(columns)].T
    return table


def map_table(table: Any, n: int, box_columns: int) -> int:
    """The map of a table [steps, n or more] that has a scale for each row of an operand."""
    box = Box(table.data.ptr, len(table), n, table.strides[0], "float32", 1, box_columns, False)
    return tensor_maps.map_address(box)


class IntegerTerms(NamedTuple):
    """The terms of each row of w that integer products need, filled up to whole tiles."""

    scales: Any
    points: Any  # int32: rows.ZeroTerms; 0 without zero points
    others: Any


def integer_terms(w: ScaledArray, groups: ColumnGroups, zeros: bool, flat: bool = False) -> IntegerTerms:
    """The terms of w for each column of a table, prepared once; ``flat``: experts follow without a gap."""
    terms: IntegerTerms = w.prepared(making(_integer_terms, groups, zeros, flat))
    return terms


def _integer_terms(groups: ColumnGroups, zeros: bool, flat: bool, w: ScaledArray) -> IntegerTerms:
    *above, k = w.shape
    cp, matrix, rows = device.cupy(), w.matrix(), rows_of_table((prod(above), k) if flat else w.shape, 1)
    scales = cp.ascontiguousarray(matrix.scales[cp.asarray(rows // matrix.over.r), 0])
    if not zeros:
        return IntegerTerms(scales, 0, 0)
    pick = cp.asarray(rows)
    points, others = (cp.ascontiguousarray(part[0][pick]) for part in zero_terms(w, groups, weights=True))
    return IntegerTerms(scales, points, others)


# --- all words of a kernel -----------------------------------------------------------------------


class CodesProduct(NamedTuple):
    """A product, or one of experts, as the launches of Hopper's kernels take it."""

    x: ScaledArray
    w: ScaledArray
    both: OperandPair
    k: int  # columns, those that fill up groups included
    kinds: tuple[str, str]  # names of both codes in variants
    integer: bool
    zeros: bool  # zero points of either
    column_scales: bool  # floats: each row of w has its own scale

    @classmethod
    def of(cls, x: ScaledArray, w: ScaledArray) -> CodesProduct:
        """The product of x with w, or with experts."""
        both, integer = operand_pair(x, w, STEP), w.code.kind == "integer"
        return cls(
            x, w, both, min(both.x.columns, both.w.columns), (code_kind(x), code_kind(w)), integer,
            x.zeros is not None or w.zeros is not None, not (integer or shares_scales(w, SCALE_ROWS)),
        )  # fmt: skip


class Words(NamedTuple):
    """The words of a kernel, in the order of kernel.py or small_m.py."""

    operands: tuple[Any, ...]
    sizes: tuple[int, ...]
    owner: Any = None  # an array that operands point to


def kernel_words(variant: Any, product: CodesProduct, y: Any) -> Words:
    """The words of the kernels for many rows of x, but for a schedule's own.

    ``y``: the outputs, or the address of their map.
    """
    x, w, both, k, tile = product.x, product.w, product.both, product.k, variant.tile
    n = len(both.w.codes)
    codes, steps = (map_codes(both.x, k, tile.box_rows), map_codes(both.w, k, tile.columns)), -(-k // STEP)
    sizes, x_scales = (len(both.x.codes), n, steps), both.x.scales
    if variant.integer:
        terms = integer_terms(w, both.groups, variant.zeros)
        points = zero_terms(x, both.groups, weights=False) if variant.zeros else (0, 0)
        operands = *codes, y, x_scales.at, x_scales.row, terms.scales, *points, terms.points, terms.others
        return Words(operands, (*sizes, x_scales.rows))
    scales = x_scales_map(both.x, tile.rows)
    table = w_scale_table(w, 1 if variant.column_scales else variant.columns_per_scale, steps)
    column_scales_map = map_table(table, n, tile.columns) if variant.column_scales else 0
    operands = *codes, scales.map, column_scales_map, table, y
    return Words(operands, (*sizes, scales.span, table.strides[0]), scales.owner)


def small_m_words(variant: Any, product: CodesProduct, box_rows: int, out: Any) -> Words:
    """The words of the kernels for few rows of x; of ``sizes``, only those about scales."""
    x, w, both, k, points = product.x, product.w, product.both, product.k, (0, 0, 0, 0)
    if variant.zeros:
        terms = integer_terms(w, both.groups, True, flat=True)  # as the rows of all experts lie
        points = *zero_terms(x, both.groups, weights=False), terms.points, terms.others
    a, b = both.x.scales, prepared_w_scales(w, both.w)
    codes = map_codes(both.x, k, box_rows), map_codes(both.w, k, variant.tile.rows)
    operands = *codes, out, a.at, a.row, a.column, b.at, b.row, b.column, *points
    return Words(operands, (a.rows, a.steps, b.rows, b.steps))


# --- experts: rows of x in the order of a plan ----------------------------------------------------


class SortedRows(NamedTuple):
    """Rows of x in the order of a plan."""

    plan: Any
    use_of_row: Any  # the use of each row
    codes: CodeRows  # uint8 [height, K], with the scales of x
    terms: Any  # 32 bits [columns, height]


def sort_rows(x: CodeRows, terms: Any, shared: int, ids: Any, plan_sizes: UsePlan, out: Any) -> SortedRows:
    """Sort the uses, and gather their rows and the terms of these rows: [ceil(R / shared), columns]."""
    empty, height, columns = device.cupy().empty, plan_sizes.height, terms.shape[1]
    rows, chunks = len(x.codes), x.columns // CHUNK
    threads = -(-chunks // CHUNKS)  # of a row
    codes, sorted_terms = empty((height, x.columns), np.uint8), empty((columns, height), np.float32)
    plan, places = sorting.sorted_uses(ids, plan_sizes)
    row_bytes, column_bytes = (stride % (1 << 64) for stride in terms.strides)
    code_gatherer()(
        (-(-rows * threads // GATHER_THREADS),), (GATHER_THREADS,),
        x.codes, codes, terms, row_bytes, column_bytes, sorted_terms, plan, places, out,
        x.pitch, rows, plan_sizes.uses // rows, out.shape[-1], chunks, threads, out.itemsize,
        shared, columns, height,
    )  # fmt: skip
    rows_of_plan = x._replace(codes=codes, pitch=x.columns)
    return SortedRows(plan, plan[HEAD + 4 * plan_sizes.slots :], rows_of_plan, sorted_terms)


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


def expert_words(variant: Variant, product: CodesProduct, ids: Any, plan: UsePlan, out: Any) -> Words:
    """The words of a product with experts: the uses are sorted, their rows gathered."""
    x, w, both, columns, tile = product.x, product.w, product.both, product.k, variant.tile
    n = w.shape[1]
    steps, w_map = -(-columns // STEP), map_codes(both.w, columns, tile.columns)
    if variant.integer:
        terms, shared = x_terms(x, both.x, both.groups, variant.zeros)
    else:
        terms, shared = both.x.scales.at, both.x.scales.rows
    rows = sort_rows(both.x, terms, shared, ids, plan, out)
    in_place = map_codes(both.x, columns, tile.rows) if len(both.x.codes) == ids.size else 0
    maps = map_codes(rows.codes, columns, tile.rows), in_place, w_map
    if variant.integer:
        of_x = rows.terms if variant.zeros else (rows.terms, 0, 0)
        operands = *maps, out, *of_x, *integer_terms(w, both.groups, variant.zeros)
        sizes: tuple[int, ...] = n, steps, plan.height
    else:
        table = w_scale_table(w, 1 if variant.column_scales else variant.columns_per_scale, steps)
        by_column = map_table(table, table.shape[1], tile.columns) if variant.column_scales else 0
        operands = *maps, map_table(rows.terms, plan.height, tile.rows), by_column, table, out
        span = both.x.scales.steps if terms.shape[1] > 1 else 1 << 30
        sizes = n, steps, span, table.strides[0]
    return Words((*operands, rows.plan, rows.use_of_row), (*sizes, table_columns(n)), rows)
