"""The kernel that sorts uses (rows with an expert) by expert and cuts the work into units of equal cost."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.arguments import reader
from ..machine.jit import inner, jit
from ..machine.memory import floats_at, words_at
from .operands import Groups

groups = reader(Groups)
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
