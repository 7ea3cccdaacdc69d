"""The kernel that unpacks a file's blocks to panels of bytes during a product: for any format."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...formats import BlockFormat
from ...formats.packing import RUN
from ..machine.arguments import reader
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at
from ..machine.target import Target
from ..unpack import unpacker
from .layout import ROWS, PanelLayout, unpacked
from .operands import Operands
from .product import from_scratch

operands = reader(Operands)
CHUNK = 1024  # weights of a row unpacked at a time: 16 rows of them fit the first cache


@cache
def from_blocks(fmt: BlockFormat, rows: int, target: Target) -> Any:
    """Compiled: unpack panels ``first`` … ``stop`` from blocks uint8 [N, bytes], and multiply them."""
    layout = unpacked(fmt, target)
    fill_panel = filler(fmt, layout)

    def fill(arguments: int, panel: int, memory: Any) -> None:
        fields = operands(arguments)
        raw = bytes_at(fields.weights, fields.weight_rows, fields.weight_bytes)
        fill_panel(raw, panel * ROWS, memory)

    return from_scratch(layout, rows, target, inner(fill))


@cache
def filler(fmt: BlockFormat, layout: PanelLayout) -> Any:
    """Compiled: unpack 16 rows of blocks from row ``first`` on into one panel."""
    unpack = unpacker(fmt)
    size, nbytes, group = fmt.block_size, fmt.dtype.itemsize, fmt.group
    blocks = max(1, CHUNK // size)
    flip = np.uint32(0x80808080 if layout.zero else 0)
    pitch, codes_at, offsets_at = layout.run_bytes // 4, layout.codes_at // 4, layout.scales // 4
    groups, offset, step = layout.groups, layout.offset, layout.group

    def fill(raw: Any, first: int, panel: Any) -> None:
        count = raw.shape[1] // nbytes
        words, floats = panel.view(np.uint32), panel.view(np.float32)
        codes = np.empty(blocks * size, np.int8)
        fours = codes.view(np.uint32)
        scales = np.empty(blocks * size // group, np.float32)
        offsets = np.empty_like(scales)
        for start in range(0, count, blocks):
            stop = min(start + blocks, count)
            for r in range(min(ROWS, raw.shape[0] - first)):
                unpack(raw[first + r, start * nbytes : stop * nbytes], codes, scales, offsets)
                for run in range((stop - start) * size // RUN):
                    to = (start * size // RUN + run) * pitch + r
                    for part in range(groups):
                        g = (run * RUN + part * step) // group
                        floats[to + ROWS * part] = scales[g]
                        if offset:
                            floats[to + offsets_at + ROWS * part] = offsets[g]
                    for j in range(8):
                        words[to + codes_at + ROWS * j] = fours[run * 8 + j] ^ flip

    return jit(fill)
