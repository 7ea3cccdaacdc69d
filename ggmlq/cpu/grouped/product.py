"""The kernels of products with experts: the panels of each expert times its group of rows, in work units."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...formats import BlockFormat
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at, reader, words_at
from ..machine.simd import I64
from ..machine.target import Target
from ..panels.layout import ROWS, PanelLayout, expanded, unpacked, x_run_bytes
from ..panels.product import NEAR, expander, filler
from ..panels.tile import Tile
from .multiply import MANY, Groups

groups = reader(Groups)


@cache
def direct(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Compiled: work units ``first`` … ``stop`` of stored panels, times ``rows`` activations at once."""
    return _over_groups(_stored(layout, rows, target))


@cache
def through_bytes(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Compiled: work units of stored panels, which are expanded first for groups of many rows."""
    few, many = _stored(layout, rows, target), _expanding(layout, rows, target)

    def work(fields: Any, place: int, first: int, stop: int, rows: int, outs: int, m: int) -> None:
        if m < MANY:
            few(fields, place, first, stop, rows, outs, m)
        else:
            many(fields, place, first, stop, rows, outs, m)

    return _over_groups(inner(work))


@cache
def from_blocks(fmt: BlockFormat, rows: int, target: Target) -> Any:
    """Compiled: work units of blocks uint8 [N, bytes], which become panels during the product."""
    layout = unpacked(fmt, target)
    fill_panel = filler(fmt, layout)

    def fill(place: int, panel: int, memory: Any, fields: Any) -> None:
        fill_panel(bytes_at(place, fields.n, fields.line_bytes), panel * ROWS, memory)

    return _over_groups(_filled(inner(fill), layout, rows, target))


@cache
def _stored(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Compiled: stored panels ``first`` … ``stop`` times the rows of a group."""
    several = scattered_sweep(layout, rows, target)

    def work(fields: Any, place: int, first: int, stop: int, rows: int, outs: int, m: int) -> None:
        near = max(1, NEAR // fields.line_bytes)
        for panel in range(first, stop, near):
            several(
                place + panel * fields.line_bytes, fields.line_bytes, min(near, stop - panel),
                rows, outs, m, panel * ROWS, fields.n, fields.runs, fields.ahead,
            )  # fmt: skip

    return inner(work)


def _expanding(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Compiled: panels times the rows of a group, each expanded first."""
    wide, expand = expanded(layout, target), expander(layout, target)

    def fill(place: int, panel: int, memory: Any, fields: Any) -> None:
        expand(place + panel * fields.line_bytes, memory.ctypes.data, fields.runs)

    return _filled(inner(fill), wide, rows, target)


def _filled(fill: Any, layout: PanelLayout, rows: int, target: Target) -> Any:
    """Compiled: panels times the rows of a group, each made by ``fill(place, panel, memory, fields)``."""
    several, run_bytes = scattered_sweep(layout, rows, target), layout.run_bytes

    def work(fields: Any, place: int, first: int, stop: int, rows: int, outs: int, m: int) -> None:
        pitch = fields.runs * run_bytes
        near = max(1, NEAR // pitch)
        scratch = np.empty(near * pitch + 64, np.uint8)
        skip = -scratch.ctypes.data & 63
        for panel in range(first, stop, near):
            count = min(near, stop - panel)
            for p in range(count):
                fill(place, panel + p, scratch[skip + p * pitch : skip + (p + 1) * pitch], fields)
            # the address is asked for here: an array lives until its last mention
            several(
                scratch.ctypes.data + skip,
                pitch,
                count,
                rows,
                outs,
                m,
                panel * ROWS,
                fields.n,
                fields.runs,
                0,
            )

    return inner(work)


def _over_groups(work: Any) -> Any:
    """Compiled: work units ``first`` … ``stop``, group by group."""

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = groups(arguments)
        cuts = words_at(fields.cuts, stop + 1)
        for unit in range(first, stop):
            at, end = cuts[unit], cuts[unit + 1]
            while at < end:
                group = at // fields.panels
                here = at - group * fields.panels
                last = min(fields.panels, here + end - at)
                row = words_at(fields.groups + 24 * group, 3)
                place = words_at(fields.places, row[0] + 1)[row[0]]
                start = 8 * row[1]
                work(fields, place, here, last, fields.rows + start, fields.outs + start, row[2])
                at += last - here

    return jit(multiply)


# --- The register tile of panels for rows of activations that lie anywhere: addresses come from a table ---
#
# Rows of an expert are those of the tokens that use it, and results go back to these. Nothing has to be
# copied together: eight addresses stay in registers beside the sums.

FEWER = (1, 2, 3, 4)  # rows of the tiles for what is left: an expert often has few
ARGUMENTS = ("panel", "rows", "outs", "column", "runs", "ahead")


@cache
def scattered_tile(layout: PanelLayout, rows: int, target: Target) -> Any:
    """An intrinsic that takes ARGUMENTS, tables of addresses among them, and writes 16 floats a row."""
    return Scattered.intrinsic(ARGUMENTS, layout, rows, target)


class Scattered(Tile):
    """Emits the product of one panel with a few rows, wherever they are."""

    def __init__(
        self, builder: Any, layout: PanelLayout, rows: int, target: Target, words: dict[str, Any]
    ) -> None:
        super().__init__(builder, layout, rows, target, words)
        self.starts = [self._entry("rows", r) for r in self.rows]
        self.results = [builder.add(self._entry("outs", r), words["column"]) for r in self.rows]

    def _entry(self, table: str, row: int) -> Any:
        return self.simd.load(self.b.add(self.at[table], I64(8 * row)), I64)

    def x_run(self, run: Any, row: int) -> Any:
        return self.b.add(self.starts[row], self.b.mul(run, I64(x_run_bytes(self.layout))))

    def result(self, panel: int, row: int) -> Any:
        return self.results[row]


@cache
def scattered_sweep(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Compiled: ``count`` panels times ``m`` rows, ``rows`` of them at a time.

    ``several(panels address, bytes of a panel, count, rows and outs: addresses of tables, m, first column,
    n, runs, ahead)``
    """
    one, two, three, four, most = (scattered_tile(layout, min(n, rows), target) for n in (*FEWER, rows))
    at_once = rows
    fewer = len(FEWER)

    def several(
        panels: int,
        pitch: int,
        count: int,
        rows: int,
        outs: int,
        m: int,
        column: int,
        n: int,
        runs: int,
        ahead: int,
    ) -> None:
        edge = np.empty((at_once, ROWS), np.float32)  # a tile that reaches beyond the last column
        edges = np.empty(at_once, np.int64)
        for r in range(at_once):
            edges[r] = edge.ctypes.data + 4 * ROWS * r
        row = 0
        while row < m:
            done = at_once if m - row >= at_once else min(m - row, fewer)
            for p in range(count):
                panel, first = panels + p * pitch, column + p * ROWS
                whole = first + ROWS <= n
                x, to = rows + 8 * row, outs + 8 * row if whole else edges.ctypes.data
                by = 4 * first if whole else 0
                if done == at_once:
                    most(panel, x, to, by, runs, ahead)
                elif done == 4:
                    four(panel, x, to, by, runs, ahead)
                elif done == 3:
                    three(panel, x, to, by, runs, ahead)
                elif done == 2:
                    two(panel, x, to, by, runs, ahead)
                else:
                    one(panel, x, to, by, runs, ahead)
                if not whole:
                    for r in range(done):
                        line = floats_at(words_at(outs, m)[row + r], 1, n)[0]
                        for i in range(n - first):  # see product.py: no copy between slices
                            line[first + i] = edge[r, i]
            row += done

    return jit(several)


# --- The kernel that sorts uses (rows with an expert) by expert and cuts the work into units of equal
# cost

READ = 4  # the cost of reading a panel, in rows that are multiplied with it
GROUP_WORDS = 3  # words of a group


@cache
def sorter() -> Any:
    """Compiled: fill the tables of ``Groups``; the range does not matter."""

    def sort(arguments: int, first: int, stop: int) -> None:
        fields = groups(arguments)
        ids, ends = words_at(fields.ids, fields.uses), words_at(fields.ends, fields.experts)
        _count(ids, ends)
        counts = words_at(fields.counts, 2)
        counts[0], counts[1] = _group(ends, fields.chunk, fields.groups)
        _place(fields, ids, ends)
        rows = words_at(fields.groups, GROUP_WORDS * counts[0])[2::GROUP_WORDS]
        cut(rows, fields.panels, words_at(fields.cuts, fields.units + 1))

    return jit(sort)


@inner
def _count(ids: Any, counts: Any) -> None:
    """Count the uses of each expert."""
    for e in range(len(counts)):
        counts[e] = 0
    for e in ids:
        if 0 <= e < len(counts):
            counts[e] += 1


@inner
def _group(ends: Any, chunk: int, groups: int) -> Any:
    """Write groups of at most ``chunk`` rows, and first places over counts: (number of groups, most rows)."""
    number, total, most = 0, 0, 0
    for e in range(len(ends)):
        count, ends[e] = ends[e], total
        most = max(most, count)
        for first in range(0, count, chunk):
            group = words_at(groups + 8 * GROUP_WORDS * number, GROUP_WORDS)
            group[0], group[1], group[2] = e, total + first, min(chunk, count - first)
            number += 1
        total += count
    return number, most


@inner
def _place(fields: Any, ids: Any, ends: Any) -> None:
    """Put each use among its expert's; write NaN where an id is no expert."""
    rows, outs = words_at(fields.rows, fields.uses), words_at(fields.outs, fields.uses)
    out = floats_at(fields.out, fields.uses, fields.n)
    for use in range(fields.uses):
        e = ids[use]
        if 0 <= e < fields.experts:
            rows[ends[e]] = fields.x_rows + use // fields.per * fields.row_bytes
            outs[ends[e]] = fields.out + 4 * fields.n * use
            ends[e] += 1
        else:
            for i in range(fields.n):
                out[use, i] = np.nan


@inner
def cut(rows: Any, panels: int, cuts: Any) -> None:
    """Cut the panels of all groups into work units of equal cost, by the rows of each group."""
    total = 0
    for g in range(len(rows)):
        total += READ + rows[g]
    units, before, g = len(cuts) - 1, 0, 0
    for unit in range(units):
        share = total * unit // units  # the cost before the unit, by the panels of a matrix
        while g < len(rows) and before + READ + rows[g] <= share:
            before += READ + rows[g]
            g += 1
        inside = 0
        if g < len(rows):
            inside = (total * unit - before * units) * panels // (units * (READ + rows[g]))
        cuts[unit] = g * panels + inside
    cuts[units] = len(rows) * panels
