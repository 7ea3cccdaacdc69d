"""The walk of many products: rows to records, uses sorted by expert, panels of all experts in one job.

All panels of all groups are counted through and cut into pieces of equal cost, so that an expert that half of
all tokens use keeps every thread busy, and one with a single row does not hold them up.
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
from ..machine.features import CACHED, far
from ..machine.kernels import Kernel, kernel
from ..machine.recorded import SMALL
from ..machine.target import target
from ..machine.workers import alone, share_kernel, share_table
from ..panels.layout import ROWS, PanelLayout, record_bytes, remaining_zero, start
from ..panels.multiply import RECORDS
from ..panels.operands import Activations
from .operands import MANY, Groups

ADDRESSED = 8  # rows at once: their addresses stay in registers, of which there are 16
GRAIN = 16  # rows that a thread quantizes at a time
TOLD = len(Groups._fields)  # where in a table its arguments end: what the sorting tells comes next
WORD = 8  # bytes


class Way(NamedTuple):
    """How a rung multiplies with some experts."""

    layout: PanelLayout  # of the panels that the tiles read
    make: Callable[[QuantArray], Any]  # what the kernels read of an expert, uint8 [lines, line_bytes]
    line_bytes: int
    keeps: bool  # whether that stays with the expert
    few: Kernel
    many: Kernel  # where an expert has many rows


def multiply(x: Any, q: QuantArray, ids: Any, out: Any, way_of: Callable[[QuantArray], Way]) -> None:
    """``out[t, u] = x[…] @ q[ids[t, u]].T``, by the walk that is kept with the experts.

    ``way_of(q)`` says how to multiply with them.
    """
    if (walk := q.plan(way_of)) is None:
        walk = Walk(q, way_of(q))
        q.keep_plan(way_of, walk)
    walk(x, q, ids, out)


class Walk:
    """All products of rows with some experts: what is the same each time is worked out once."""

    def __init__(self, q: QuantArray, way: Way) -> None:
        self._experts, self._n, k = q.shape
        self._way, layout, kind = way, way.layout, target()
        self._runs, self._panels = k // RUN, -(-self._n // ROWS)
        self._row_bytes = self._runs * record_bytes(layout)
        self._chunk = max(64, RECORDS // self._row_bytes // 8 * 8)
        self._far = far() if len(q) * way.line_bytes * self._panels > CACHED else 0
        self._small = SMALL // (self._n * k)  # uses
        self._quantize = kernel("panels.activations.quantizer", layout.groups, layout.offset, kind)
        self._of_rows = 1, remaining_zero(layout, kind), start(layout)
        self._sort = kernel("grouped.sort.sorter")

    def __call__(self, x: Any, q: QuantArray, ids: Any, out: Any) -> None:
        """``out[t, u] = x[…] @ q[ids[t, u]].T``; rows of NaN where an id is no expert."""
        records, at = self._records(x)
        uses = np.ascontiguousarray(ids)
        pieces = 1 if uses.size <= self._small else PARTS * num_threads()
        words = self._table(uses, len(x), at, out, pieces)
        table = words.buffer_info()[0]
        self._sort.code.call(table, 0, 1)
        found, most = words[TOLD : TOLD + 2]
        if found:
            memory = self._place(q, words, found)
            work = self._way.few if most < MANY else self._way.many
            share_table(work.code, table, pieces, 1)
            del records, uses, memory  # which had to lie where the table says until here

    def _records(self, x: Any) -> tuple[Any, int]:
        """Rows of activations as the tiles read them, and their address."""
        rows = np.ascontiguousarray(x, np.float32)
        records = np.empty(len(rows) * self._row_bytes, np.uint8)
        at = address_of(records)
        given = Activations(
            address_of(rows), at, len(rows), self._runs * RUN, self._row_bytes, *self._of_rows
        )
        if len(rows) <= GRAIN:
            alone(self._quantize, given, len(rows))
        else:
            share_kernel(self._quantize, given, len(rows), GRAIN)
        return records, at

    def _table(self, ids: Any, rows: int, records: int, out: Any, pieces: int) -> array[int]:
        """The arguments of the kernels, and after them memory for the tables that they name."""
        uses, experts = ids.size, self._experts
        groups = min(experts, uses) + uses // self._chunk
        words = array("q", bytes(WORD * (TOLD + 2 + 2 * experts + 3 * groups + 2 * uses + pieces + 1)))
        told = words.buffer_info()[0] + WORD * TOLD
        ends = told + WORD * 2
        places = ends + WORD * experts
        at_groups = places + WORD * experts
        at_rows = at_groups + WORD * 3 * groups
        outs = at_rows + WORD * uses
        given = Groups(  # in their order: by keyword this takes microseconds of a small product
            address_of(ids), uses, experts, uses // rows, records, self._row_bytes,
            address_of(out), self._n, self._runs, self._panels, self._way.line_bytes, self._far,
            self._chunk, pieces,
            told, ends, places, at_groups, at_rows, outs, outs + WORD * uses,
        )  # fmt: skip
        words[:TOLD] = array("q", given)
        return words

    def _place(self, q: QuantArray, words: array[int], found: int) -> list[Any]:
        """Write where it lies what kernels read of each expert in use; that memory."""
        matrices, way = q.matrices(), self._way
        lasting = way.keeps and q.lasting  # so are its experts
        places = TOLD + 2 + self._experts
        groups = places + self._experts
        memory = []
        for e in words[groups : groups + 3 * found : 3]:
            made = matrices[e].kept(way.make) if lasting else None
            if made is None:
                made = self._made(matrices[e])
            memory.append(made)
            words[places + e] = address_of(made)
        return memory

    def _made(self, matrix: QuantArray) -> Any:
        """What kernels read of an expert, made now unless it is there."""
        with np.errstate(over="ignore", invalid="ignore"):  # infinities in blocks are values like others
            return matrix.prepared(self._way.make) if self._way.keeps else self._way.make(matrix)
