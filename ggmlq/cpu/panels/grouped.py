"""Many products at once: groups of rows, each with a matrix of its own, in one job of the threads.

Rows are quantized once, whatever number of experts uses them, and stay where they are: a group is a list of
addresses. All panels of all groups are counted through and cut into pieces of equal cost, so that an expert
that half of all tokens use keeps every thread busy, and one with a single row does not hold them up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...formats import BlockFormat
from ...packing import RUN
from ...threads import PARTS, num_threads
from ..machine.arguments import reader
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, words_at
from ..machine.target import Target, target
from ..machine.workers import share_kernel
from .expand import expander
from .gather import filler
from .layout import ROWS, PanelLayout, expanded, rows_at_once, unpacked
from .multiply import RECORDS, records_of
from .product import NEAR
from .scattered import scattered_sweep

ADDRESSED = 8  # rows at once: their addresses stay in registers, of which there are 16
MANY = 32  # rows of a group that pay for expanding its panels
READ = 4  # what reading a panel costs, in rows that are multiplied with it


class Groups(NamedTuple):
    """Arguments of the kernels, as addresses and sizes."""

    groups: int  # of int64 [G, 3]: where the matrix lies, the first row in the tables, how many rows
    cuts: int  # of int64 [pieces + 1]: panels, those of all groups counted through
    rows: int  # of int64 [uses]: addresses of rows of activations, expert after expert
    outs: int  # of int64 [uses]: addresses of their results
    panels: int  # of a matrix
    nbytes: int  # of a panel as it is kept, or of a row of blocks
    n: int
    runs: int  # of 32 columns


groups = reader(Groups)


def multiply(
    x: Any, q: Any, ids: Any, out: Any, layout: PanelLayout, lie: Callable[[Any], Any],
    kernel: Callable[[int, int], Any],
) -> None:  # fmt: skip
    """``out[t, u] = x[…] @ q[ids[t, u]].T``; ``lie(matrix)``: what the kernel reads of one, as lines.

    ``layout`` is the one of the panels that the tiles read; ``kernel(rows at once, rows of the largest
    group)`` compiles what multiplies.
    """
    (experts, n, k), uses, kind = q.shape, ids.reshape(-1), target()
    records, at = records_of(x, layout)
    counts, matrices = counted(uses, experts), q.matrices()
    kept = {e: lie(matrices[e]) for e in np.flatnonzero(counts).tolist()}  # in memory until all is done
    places = np.zeros(experts, np.int64)
    for e, made in kept.items():
        places[e] = made.ctypes.data
    chunk = max(64, RECORDS // records.shape[1] // 8 * 8)
    table = np.empty((len(kept) + len(uses) // chunk, 3), np.int64)
    rows, outs = np.empty(len(uses), np.int64), np.empty(len(uses), np.int64)
    of_rows = at, records.shape[1], max(1, len(uses) // len(records))
    lines = out.reshape(len(uses), n)
    found = placed(uses, counts, places, of_rows, lines, chunk, table, rows, outs)
    cuts, panels = np.empty(PARTS * num_threads() + 1, np.int64), -(-n // ROWS)
    cut(table[:found], panels, cuts)
    given = Groups(
        table.ctypes.data, cuts.ctypes.data, rows.ctypes.data, outs.ctypes.data,
        panels, next((made.shape[1] for made in kept.values()), 0), n, k // RUN,
    )  # fmt: skip
    most = min(rows_at_once(layout, kind), ADDRESSED)
    share_kernel(kernel(most, int(counts.max())), given, len(cuts) - 1)


@jit
def counted(uses: Any, experts: int) -> Any:
    """How many uses each expert has."""
    counts = np.zeros(experts, np.int64)
    for e in uses:
        if 0 <= e < experts:
            counts[e] += 1
    return counts


@jit
def placed(
    uses: Any, counts: Any, places: Any, of_rows: Any, out: Any, chunk: int, table: Any, rows: Any, outs: Any
) -> int:
    """Fill the tables: uses sorted by expert, in groups of at most ``chunk``; how many groups there are."""
    at, row_bytes, per = of_rows
    experts, found = len(counts), 0
    ends = np.empty(experts, np.int64)
    total = 0
    for e in range(experts):
        ends[e] = total
        for first in range(0, counts[e], chunk):
            table[found, 0], table[found, 1] = places[e], total + first
            table[found, 2] = min(chunk, counts[e] - first)
            found += 1
        total += counts[e]
    for use in range(len(uses)):
        e = uses[use]
        if 0 <= e < experts:
            rows[ends[e]] = at + use // per * row_bytes
            outs[ends[e]] = out.ctypes.data + 4 * out.shape[1] * use
            ends[e] += 1
        else:
            out[use] = np.nan
    return found


@jit
def cut(table: Any, panels: int, cuts: Any) -> None:
    """Pieces of equal cost."""
    total = 0
    for g in range(len(table)):
        total += READ + table[g, 2]
    pieces, before, g = len(cuts) - 1, 0, 0
    for piece in range(pieces):
        wanted = total * piece // pieces  # in panels of all costs, times their number
        while g < len(table) and before + READ + table[g, 2] <= wanted:
            before += READ + table[g, 2]
            g += 1
        inside = 0
        if g < len(table):
            inside = (total * piece - before * pieces) * panels // (pieces * (READ + table[g, 2]))
        cuts[piece] = g * panels + inside
    cuts[pieces] = len(table) * panels


def by_panels(layout: PanelLayout, rows: int, most: int, target: Target) -> Any:
    """Compiled: panels as they are kept; ``most``: rows of the largest group."""
    direct = _direct(layout, rows, target)
    if most < MANY or not (layout.offset or len(layout.planes) > 1):
        return _over_groups(direct)
    return _over_groups(_either(direct, _expanding(layout, rows, target)))


@cache
def _either(few: Any, many: Any) -> Any:
    """The work on a group by its rows."""

    def work(given: Any, place: int, first: int, stop: int, rows: int, outs: int, m: int) -> None:
        if m < MANY:
            few(given, place, first, stop, rows, outs, m)
        else:
            many(given, place, first, stop, rows, outs, m)

    return inner(work)


@cache
def _expanding(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Panels that are expanded before many rows meet them."""
    wide, expand = expanded(layout, target), expander(layout, target)

    def fill(place: int, panel: int, made: Any, given: Any) -> None:
        expand(place + panel * given.nbytes, made.ctypes.data, given.runs)

    return _through(scattered_sweep(wide, rows, target), wide.run_bytes, inner(fill))


@cache
def _direct(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Panels as they are kept."""
    several = scattered_sweep(layout, rows, target)

    def work(given: Any, place: int, first: int, stop: int, rows: int, outs: int, m: int) -> None:
        near = max(1, NEAR // given.nbytes)
        for panel in range(first, stop, near):
            several(
                place + panel * given.nbytes, given.nbytes, min(near, stop - panel),
                rows, outs, m, panel * ROWS, given.n, given.runs,
            )  # fmt: skip

    return inner(work)


@cache
def by_blocks(fmt: BlockFormat, rows: int, target: Target) -> Any:
    """Compiled: panels made of rows of blocks uint8 [N, bytes] while they are multiplied."""
    layout = unpacked(fmt, target)
    fill_panel, several = filler(fmt, layout), scattered_sweep(layout, rows, target)

    def fill(place: int, panel: int, made: Any, given: Any) -> None:
        fill_panel(bytes_at(place, given.n, given.nbytes), panel * ROWS, made)

    return _over_groups(_through(several, layout.run_bytes, inner(fill)))


def _through(several: Any, run_bytes: int, fill: Any) -> Any:
    """The work on some panels of a group that are made by ``fill(place, panel, memory, given)``."""

    def work(given: Any, place: int, first: int, stop: int, rows: int, outs: int, m: int) -> None:
        pitch = given.runs * run_bytes
        near = max(1, NEAR // pitch)
        scratch = np.empty(near * pitch + 64, np.uint8)
        skip = -scratch.ctypes.data & 63
        for panel in range(first, stop, near):
            count = min(near, stop - panel)
            for p in range(count):
                fill(place, panel + p, scratch[skip + p * pitch : skip + (p + 1) * pitch], given)
            # the address is asked for here: an array lives until its last mention
            several(
                scratch.ctypes.data + skip, pitch, count, rows, outs, m, panel * ROWS, given.n, given.runs
            )

    return inner(work)


@cache
def _over_groups(work: Any) -> Any:
    """Compiled: pieces ``first`` … ``stop``."""

    def multiply(arguments: int, first: int, stop: int) -> None:
        given = groups(arguments)
        cuts = words_at(given.cuts, stop + 1)
        for piece in range(first, stop):
            at, end = cuts[piece], cuts[piece + 1]
            while at < end:
                group = at // given.panels
                here = at - group * given.panels
                last = min(given.panels, here + end - at)
                row = words_at(given.groups + 24 * group, 3)
                start = 8 * row[1]
                work(given, row[0], here, last, given.rows + start, given.outs + start, row[2])
                at += last - here

    return jit(multiply)
