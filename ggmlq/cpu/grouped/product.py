"""The kernels of products with experts: the panels of each expert times its group of rows, in work units."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...formats import BlockFormat
from ..machine.arguments import reader
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, words_at
from ..machine.target import Target
from ..panels.expand import expander
from ..panels.gather import filler
from ..panels.layout import ROWS, PanelLayout, expanded, unpacked
from ..panels.product import NEAR
from .operands import MANY, Groups
from .scattered import scattered_sweep

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
