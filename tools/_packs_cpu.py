"""Packs of the CPU's kernels (ggmlq/cpu/prebuilt): which belong in.

Those that products of blocks take where nobody names a kernel, with experts too, for any number of rows: of
rungs that are there to be read, and of other operations, the code is compiled when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from _packs import Wanted

from ggmlq.cpu.grouped.multiply import ADDRESSED
from ggmlq.cpu.linear import r5_lines
from ggmlq.cpu.machine.target import Target, best
from ggmlq.cpu.panels.layout import expanded, layout_of, rows_at_once, unpacked
from ggmlq.cpu.prebuilt.levels import LEVELS, Level
from ggmlq.cpu.unpack import has_file
from ggmlq.formats import FORMATS, BlockFormat
from ggmlq.prebuilt.packs import Origin
from ggmlq.problems import Linear


@cache
def wanted(levels: tuple[Level, ...] = LEVELS) -> tuple[Wanted, ...]:
    """All that belongs in."""
    found = [
        Wanted(Origin(f"ggmlq.cpu.{name}", case), level.folder)
        for level in levels
        for name, case in _of(best(level.features))
    ]
    return tuple(dict.fromkeys(found))


def _of(kind: Target) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Kernels by name, for a target."""
    yield "machine.board.doer", ()
    yield "machine.board.server", ()
    yield "grouped.sort.sorter", ()
    for fmt in FORMATS.values():
        if isinstance(fmt, BlockFormat):
            yield from _of_format(fmt, kind)
        elif has_file(fmt):
            yield "decode.floats", (fmt,)


def _of_format(fmt: BlockFormat, kind: Target) -> Iterator[tuple[str, tuple[Any, ...]]]:
    layout = layout_of(fmt) if kind.shuffles and kind.halves else None  # as cpu:panels has it
    read = layout or unpacked(fmt, kind)
    most = rows_at_once(read, kind)
    yield "panels.activations.quantizer", (read.groups, read.offset, kind)
    if layout is None:
        for rows in dict.fromkeys((1, most)):
            yield "panels.gather.gathered", (fmt, rows, kind)
        yield "grouped.product.gathered", (fmt, min(most, ADDRESSED), kind)
        if r5_lines.refuses(Linear(fmt, 1, 256, 256, device="cpu")) is None:
            yield "panels.lines.by_lines", (fmt, kind)
        return
    yield "panels.lay.taker", (fmt,)
    yield "panels.lay.placer", (layout,)
    for rows in dict.fromkeys((1, most)):
        yield "panels.product.direct", (layout, rows, kind)
    yield "grouped.product.direct", (layout, min(most, ADDRESSED), kind)
    if layout.offset or len(layout.planes) > 1:
        yield "grouped.product.through_bytes", (layout, min(most, ADDRESSED), kind)
        yield "panels.product.through_bytes", (layout, rows_at_once(expanded(layout, kind), kind), kind)
