"""The driver of products with experts: rows of codes, uses sorted by expert, all panels in one job.

All panels of all groups are counted through and cut into work units of equal cost, so that an expert that
half of all tokens use keeps every thread busy, and one with a single row does not hold them up.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...arrays.array import QuantArray
from ...arrays.buffers import address_of
from ...base.threads import PARTS, num_threads
from ...formats.packing import RUN
from ..encode.halves import float_rows
from ..machine.features import CACHED, prefetch_distance
from ..machine.kernels import Kernel, kernel
from ..machine.target import target
from ..machine.workers import SMALL, alone, share_kernel, share_table
from ..panels.layout import ROWS, Activations, PanelLayout, remaining_zero, start, x_run_bytes
from ..panels.multiply import X_BYTES

MANY = 32  # rows of a group that pay for expanding its panels


class Groups(NamedTuple):
    """Arguments of the kernel that sorts uses, and of every kernel that then multiplies.

    The caller has the memory of the tables, ``counts`` and all below it. It fills ``places``; the sorting
    fills the others.
    """

    ids: int  # address of int64 [uses]: the expert of each
    uses: int
    experts: int
    per: int  # uses of a row of activations
    x_rows: int  # address of the rows of activations
    row_bytes: int
    out: int  # address of float32 [uses, n]
    n: int
    runs: int  # of 32 columns: K / 32
    panels: int  # of a matrix
    line_bytes: int  # of a stored panel, or of a row of blocks
    ahead: int  # bytes ahead of which panels are prefetched, with few rows of activations; 0: not at all
    chunk: int  # rows of a group at most
    units: int
    counts: int  # address of int64 [2]: the number of groups, and rows of the expert with the most uses
    ends: int  # address of int64 [experts], of use to the sorting alone
    places: int  # address of int64 [experts]: where the panels lie, or the rows of blocks, of those in use
    groups: int  # address of int64 [G, 3]: expert, the first row in the tables, how many rows
    rows: int  # address of int64 [uses]: addresses of rows of activations, expert after expert
    outs: int  # address of int64 [uses]: addresses of their results
    cuts: (
        int  # address of int64 [units + 1]: the first panel of each work unit, of all groups counted through
    )


ADDRESSED = 8  # rows at once: their addresses stay in registers, of which there are 16
GRAIN = 16  # rows that a thread quantizes at a time
COUNTS_AT = len(Groups._fields)  # the end of the arguments in a table: the counts of the sorting come next
WORD = 8  # bytes


class Variant(NamedTuple):
    """The kernels and operands by which a rung multiplies with some experts."""

    layout: PanelLayout  # of the panels that the tiles read
    make: Callable[[QuantArray], Any]  # an expert's weights as kernels read them, uint8 [lines, line_bytes]
    line_bytes: int
    prepares: bool  # whether these stay with the expert
    few: Kernel
    many: Kernel  # where an expert has many rows


def multiply(x: Any, q: QuantArray, ids: Any, out: Any, variant_of: Callable[[QuantArray], Variant]) -> None:
    """``out[t, u] = x[…] @ q[ids[t, u]].T``, by ``Products`` that stay with the experts.

    ``variant_of(q)`` returns the kernels and operands of the rung for these experts.
    """
    if (products := q.recording(variant_of)) is None:
        products = Products(q, variant_of(q))
        q.keep_recording(variant_of, products)
    products(x, q, ids, out)


class Products:
    """The products of rows with some experts; everything that is the same in each call is computed once."""

    def __init__(self, q: QuantArray, variant: Variant) -> None:
        self._experts, self._n, k = q.shape
        self._variant, layout, kind = variant, variant.layout, target()
        self._runs, self._panels = k // RUN, -(-self._n // ROWS)
        self._row_bytes = self._runs * x_run_bytes(layout)
        self._chunk = max(64, X_BYTES // self._row_bytes // 8 * 8)
        self._ahead = prefetch_distance() if len(q) * variant.line_bytes * self._panels > CACHED else 0
        self._small = SMALL // (self._n * k)  # uses
        self._quantize = kernel("panels.make.quantizer", layout.groups, layout.offset, kind)
        self._quantizing = 1, remaining_zero(layout, kind), start(layout)
        self._sort = kernel("grouped.product.sorter")

    def __call__(self, x: Any, q: QuantArray, ids: Any, out: Any) -> None:
        """``out[t, u] = x[…] @ q[ids[t, u]].T``; rows of NaN where an id is no expert."""
        x_rows, at = self._x_rows(x)
        uses = np.ascontiguousarray(ids)
        units = 1 if uses.size <= self._small else PARTS * num_threads()
        words = self._table(uses, len(x), at, out, units)
        table = words.buffer_info()[0]
        self._sort.code.call(table, 0, 1)
        count, most = words[COUNTS_AT : COUNTS_AT + 2]
        if count:
            memory = self._place(q, words, count)
            work = self._variant.few if most < MANY else self._variant.many
            share_table(work.code, table, units, 1)
            del x_rows, uses, memory  # until here the table had addresses in them

    def _x_rows(self, x: Any) -> tuple[Any, int]:
        """Rows of activations as the tiles read them, and their address."""
        rows = float_rows(x)
        x_rows = np.empty(len(rows) * self._row_bytes, np.uint8)
        at = address_of(x_rows)
        arguments = Activations(
            address_of(rows), at, len(rows), self._runs * RUN, self._row_bytes, *self._quantizing
        )
        if len(rows) <= GRAIN:
            alone(self._quantize, arguments, len(rows))
        else:
            share_kernel(self._quantize, arguments, len(rows), GRAIN)
        return x_rows, at

    def _table(self, ids: Any, rows: int, x_rows: int, out: Any, units: int) -> array[int]:
        """The arguments of the kernels, and after them memory for the tables that they name."""
        uses, experts = ids.size, self._experts
        groups = min(experts, uses) + uses // self._chunk
        words = array("q", bytes(WORD * (COUNTS_AT + 2 + 2 * experts + 3 * groups + 2 * uses + units + 1)))
        counts = words.buffer_info()[0] + WORD * COUNTS_AT
        ends = counts + WORD * 2
        places = ends + WORD * experts
        at_groups = places + WORD * experts
        at_rows = at_groups + WORD * 3 * groups
        outs = at_rows + WORD * uses
        arguments = Groups(  # in their order: by keyword this takes microseconds of a small product
            address_of(ids), uses, experts, uses // rows, x_rows, self._row_bytes,
            address_of(out), self._n, self._runs, self._panels, self._variant.line_bytes, self._ahead,
            self._chunk, units,
            counts, ends, places, at_groups, at_rows, outs, outs + WORD * uses,
        )  # fmt: skip
        words[:COUNTS_AT] = array("q", arguments)
        return words

    def _place(self, q: QuantArray, words: array[int], count: int) -> list[Any]:
        """Write the addresses of the weights of each expert in use; the result is their memory."""
        matrices, variant = q.matrices(), self._variant
        lasting = variant.prepares and q.immutable  # so are its experts
        places = COUNTS_AT + 2 + self._experts
        groups = places + self._experts
        memory = []
        for e in words[groups : groups + 3 * count : 3]:
            weights = matrices[e].prepared_copy(variant.make) if lasting else None
            if weights is None:
                weights = self._weights_of(matrices[e])
            memory.append(weights)
            words[places + e] = address_of(weights)
        return memory

    def _weights_of(self, matrix: QuantArray) -> Any:
        """The weights of an expert as kernels read them, prepared unless they are."""
        with np.errstate(over="ignore", invalid="ignore"):  # infinities in blocks are values like others
            return (
                matrix.prepared(self._variant.make) if self._variant.prepares else self._variant.make(matrix)
            )
