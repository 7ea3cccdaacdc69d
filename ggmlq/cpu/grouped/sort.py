"""Uses sorted by expert, and the work on them cut into pieces of equal cost."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..machine.arguments import reader
from ..machine.jit import inner, jit
from ..machine.memory import floats_at, words_at
from .operands import Groups

groups = reader(Groups)
READ = 4  # what reading a panel costs, in rows that are multiplied with it
OF_GROUP = 3  # words


@cache
def sorter() -> Any:
    """Compiled: the tables of ``Groups``; the range does not matter."""

    def sort(arguments: int, first: int, stop: int) -> None:
        fields = groups(arguments)
        ids, ends = words_at(fields.ids, fields.uses), words_at(fields.ends, fields.experts)
        _count(ids, ends)
        told = words_at(fields.told, 2)
        told[0], told[1] = _group(ends, fields.chunk, fields.groups)
        _place(fields, ids, ends)
        rows = words_at(fields.groups, OF_GROUP * told[0])[2::OF_GROUP]
        cut(rows, fields.panels, words_at(fields.cuts, fields.pieces + 1))

    return jit(sort)


@inner
def _count(ids: Any, counts: Any) -> None:
    """How many uses each expert has."""
    for e in range(len(counts)):
        counts[e] = 0
    for e in ids:
        if 0 <= e < len(counts):
            counts[e] += 1


@inner
def _group(ends: Any, chunk: int, groups: int) -> Any:
    """The groups, of at most ``chunk`` rows; counts become the first places. How many, and the most rows."""
    found, total, most = 0, 0, 0
    for e in range(len(ends)):
        count, ends[e] = ends[e], total
        most = max(most, count)
        for first in range(0, count, chunk):
            group = words_at(groups + 8 * OF_GROUP * found, OF_GROUP)
            group[0], group[1], group[2] = e, total + first, min(chunk, count - first)
            found += 1
        total += count
    return found, most


@inner
def _place(fields: Any, ids: Any, ends: Any) -> None:
    """Each use to its expert's; rows of NaN where an id is no expert."""
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
    """Pieces of equal cost, by the rows of each group."""
    total = 0
    for g in range(len(rows)):
        total += READ + rows[g]
    pieces, before, g = len(cuts) - 1, 0, 0
    for piece in range(pieces):
        wanted = total * piece // pieces  # in panels of all costs, times their number
        while g < len(rows) and before + READ + rows[g] <= wanted:
            before += READ + rows[g]
            g += 1
        inside = 0
        if g < len(rows):
            inside = (total * piece - before * pieces) * panels // (pieces * (READ + rows[g]))
        cuts[piece] = g * panels + inside
    cuts[pieces] = len(rows) * panels
