"""The kernels that make panels of blocks: one splits rows into codes and scales, one lays 16 side by side."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...formats import BlockFormat
from ...formats.packing import RUN
from ..machine.arguments import reader
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at
from ..unpack import unpacker
from .layout import ROWS, SUPER, PanelLayout
from .operands import Assembly, Splitting

rows_of_blocks, rows_of_codes = reader(Splitting), reader(Assembly)


@cache
def splitter(fmt: BlockFormat) -> Any:
    """Compiled: split rows ``first`` … ``stop`` of blocks into codes, scales and offsets."""
    unpack, has_offset = unpacker(fmt), fmt.has_offset

    def split(arguments: int, first: int, stop: int) -> None:
        fields = rows_of_blocks(arguments)
        columns, groups = fields.columns, fields.groups
        for row in range(first, stop):
            raw = bytes_at(fields.raw + row * fields.row_bytes, 1, fields.row_bytes)[0]
            codes = bytes_at(fields.codes + row * columns, 1, columns)[0].view(np.int8)
            scales = floats_at(fields.scales + 4 * row * groups, 1, groups)[0]
            offsets = scales
            if has_offset:
                offsets = floats_at(fields.offsets + 4 * row * groups, 1, groups)[0]
            unpack(raw, codes, scales, offsets)

    return jit(split)


@cache
def assembler(layout: PanelLayout) -> Any:
    """Compiled: lay rows ``first`` … ``stop`` of codes and scales into panels."""
    planes = np.array([layout.planes, layout.planes_at]).T
    groups, run_bytes, head = layout.groups, layout.run_bytes, layout.head
    scales_bytes, nested, packed = layout.scales, layout.nested, layout.scale == "i4"
    apart = layout.offset and not packed

    def assemble(arguments: int, first: int, stop: int) -> None:
        fields = rows_of_codes(arguments)
        runs, width, size = fields.columns // RUN, fields.width, fields.above_bytes
        pitch = runs * groups * width
        stored = bytes_at(fields.stored, 1, 256)[0]
        for row in range(first, stop):
            panel = bytes_at(fields.panels + row // ROWS * fields.panel_bytes, 1, fields.panel_bytes)[0]
            codes = bytes_at(fields.codes + row * fields.columns, 1, fields.columns)[0].view(np.int8)
            scales = bytes_at(fields.scales + row * pitch, 1, pitch)[0]
            offsets = bytes_at(fields.offsets + row * pitch, 1, pitch)[0]
            above = bytes_at(fields.above + row * (runs // SUPER * size), 1, runs // SUPER * size)[0]
            r = row % ROWS
            for run in range(runs):
                at = run * run_bytes + (run // SUPER + 1) * head
                if nested and run % SUPER == 0:
                    for i in range(size):
                        panel[at - head + (i // 2 * ROWS + r) * 2 + i % 2] = above[run // SUPER * size + i]
                for part in range(groups):
                    g = (run * groups + part) * width
                    to = at + (ROWS * part + r) * width
                    for i in range(width):
                        panel[to + i] = scales[g + i]
                        if packed:
                            panel[to + i] |= offsets[g + i] << 4
                        elif apart:
                            panel[to + scales_bytes + i] = offsets[g + i]
                for i in range(RUN):
                    _put(panel, at, r, i, stored[codes[run * RUN + i] + 128], planes)

    return jit(assemble)


@inner
def _put(panel: Any, run: int, r: int, i: int, code: int, planes: Any) -> None:
    """Write one code of a run into its planes, given as widths and places."""
    j = i // 4
    for width, at in planes:
        count = 8 // width  # fours that share a vector
        vector = j % 4 if width == 4 else j // count
        bit = j // 4 * 4 if width == 4 else j % count * width
        panel[run + at + 64 * vector + 4 * r + i % 4] |= (code & ((1 << width) - 1)) << bit
        code >>= width
