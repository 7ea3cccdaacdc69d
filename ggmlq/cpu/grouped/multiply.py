"""The driver of products with experts: rows of codes, uses sorted by expert, all panels in one job.

All panels of all groups are counted through and cut into work units of equal cost, so that an expert that
half of all tokens use keeps every thread busy, and one with a single row does not hold them up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...arrays.array import QuantArray
from ...arrays.buffers import address_of
from ...base.threads import PARTS, num_threads
from ...formats.packing import RUN
from ..machine.features import CACHED, prefetch_distance
from ..machine.kernels import Kernel, kernel
from ..machine.tables import Address, address
from ..machine.target import target
from ..machine.workers import SMALL, is_recorded, keep, scratch, share_kernel
from ..panels.layout import ROWS, PanelLayout
from ..panels.multiply import X_BYTES, coding, x_rows_of

MANY = 32  # rows of a group that pay for expanding its panels


class Groups(NamedTuple):
    """Arguments of the kernel that sorts uses, and of every kernel that then multiplies.

    The caller has the memory of the tables, ``counts`` and all below it. It fills ``places``; the sorting
    fills the others.
    """

    ids: Address  # int64 [uses]: the expert of each
    uses: int
    experts: int
    per: int  # uses of a row of activations
    x_rows: Address  # rows of activations
    row_bytes: int
    out: Address  # float32 [uses, n]
    n: int
    runs: int  # of 32 columns: K / 32
    panels: int  # of a matrix
    line_bytes: int  # of a stored panel, or of a row of blocks
    ahead: int  # bytes ahead of which panels are prefetched, with few rows of activations; 0: not at all
    chunk: int  # rows of a group at most
    units: int
    counts: Address  # int64 [2]: the number of groups, and rows of the expert with the most uses
    ends: Address  # int64 [experts], of use to the sorting alone
    places: Address  # int64 [experts]: where the panels lie, or the rows of blocks, of those in use
    groups: Address  # int64 [G, 3]: expert, the first row in the tables, how many rows
    rows: Address  # int64 [uses]: addresses of rows of activations, expert after expert
    outs: Address  # int64 [uses]: addresses of their results
    cuts: Address  # int64 [units + 1]: the first panel of each work unit, of all groups counted through


ADDRESSED = 8  # rows at once: their addresses stay in registers, of which there are 16
WORD = 8  # bytes
COUNTS = 2  # words in front of the tables


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
        self._variant, self._coding = variant, coding(variant.layout, target())
        self._runs, self._panels = k // RUN, -(-self._n // ROWS)
        self._row_bytes = self._runs * self._coding.run_bytes
        self._chunk = max(64, X_BYTES // self._row_bytes // 8 * 8)
        self._ahead = prefetch_distance() if len(q) * variant.line_bytes * self._panels > CACHED else 0
        self._small = SMALL // (self._n * k)  # uses
        self._sort = kernel("grouped.product.sorter")

    def __call__(self, x: Any, q: QuantArray, ids: Any, out: Any) -> None:
        """``out[t, u] = x[…] @ q[ids[t, u]].T``; rows of NaN where an id is no expert."""
        x_rows, at = x_rows_of(x, self._coding)
        uses = np.ascontiguousarray(ids)
        units = 1 if uses.size <= self._small else PARTS * num_threads()
        tables, arguments = self._tables(uses, len(x), at, out, units)
        share_kernel(self._sort, arguments, 1)
        memory = self._place(q, tables)
        few = is_recorded() or tables[1] < MANY
        share_kernel(self._variant.few if few else self._variant.many, arguments, units)
        del x_rows, uses, memory  # until here the tables had addresses in them

    def _tables(self, ids: Any, rows: int, x_rows: int, out: Any, units: int) -> tuple[Any, Groups]:
        """Memory for the tables of the kernels, which begins with ``counts``, and their arguments."""
        uses, experts = ids.size, self._experts
        groups = min(experts, uses) + uses // self._chunk
        tables = scratch((COUNTS + 2 * experts + 3 * groups + 2 * uses + units + 1,), np.int64)
        counts = address(tables)
        ends = counts + WORD * COUNTS
        places = ends + WORD * experts
        at_groups = places + WORD * experts
        at_rows = at_groups + WORD * 3 * groups
        outs = at_rows + WORD * uses
        return tables, Groups(  # in their order: by keyword this takes microseconds of a small product
            address(ids), uses, experts, uses // rows, x_rows, self._row_bytes,
            address(out), self._n, self._runs, self._panels, self._variant.line_bytes, self._ahead,
            self._chunk, units,
            counts, ends, places, at_groups, at_rows, outs, outs + WORD * uses,
        )  # fmt: skip

    def _place(self, q: QuantArray, tables: Any) -> list[Any]:
        """Write the addresses of the weights of each expert in use; the result is their memory.

        A recording meets other ids when it is repeated: there it is all experts.
        """
        matrices, variant = q.matrices(), self._variant
        lasting = variant.prepares and q.immutable  # so are its experts
        places = COUNTS + self._experts
        groups = places + self._experts
        used = range(self._experts)
        if not is_recorded():
            used = tables[groups : groups + 3 * tables[0] : 3].tolist()
        memory = []
        for e in used:
            weights = matrices[e].prepared_copy(variant.make) if lasting else None
            if weights is None:
                weights = self._weights_of(matrices[e])
            memory.append(weights)
            tables[places + e] = address_of(weights)
        keep(memory)
        return memory

    def _weights_of(self, matrix: QuantArray) -> Any:
        """The weights of an expert as kernels read them, prepared unless they are."""
        with np.errstate(over="ignore", invalid="ignore"):  # infinities in blocks are values like others
            return (
                matrix.prepared(self._variant.make) if self._variant.prepares else self._variant.make(matrix)
            )
