"""The kernels that multiply panels with rows of activations: loops around the tile of ``tile.py``."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...formats import BlockFormat
from ...formats.packing import RUN
from ..machine.intrinsics import intrinsic_of
from ..machine.jit import inner, jit
from ..machine.memory import bytes_at, floats_at, reader
from ..machine.numba_names import cgutils
from ..machine.simd import I64
from ..machine.target import Target
from ..unpack import unpacker
from .layout import ROWS, Operands, PanelLayout, batch, expanded, unpacked
from .tile import Panel, tile

operands = reader(Operands)
NEAR = 256 << 10  # bytes of panels that meet the same few rows of activations: the second cache holds both


@cache
def sweep(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Compiled: ``count`` panels times all rows of codes, in batches of at most ``rows``.

    ``several(panels address, bytes of a panel, count, x_rows uint8 [M, bytes], out float32 [M, N],
    first column, runs, bytes ahead)``
    """
    most, together = rows, inner(batch)
    by_most, by_eight, by_four, by_two, by_one = (
        tile(layout, min(n, rows), target) for n in (rows, 8, 4, 2, 1)
    )

    def several(
        panels: int, pitch: int, count: int, x_rows: Any, out: Any, column: int, runs: int, ahead: int
    ) -> None:
        m, n = out.shape
        edge = np.empty((most, ROWS), np.float32)  # a tile that reaches beyond the last column
        row = 0
        while row < m:
            done = together(m - row, most)
            x = x_rows.ctypes.data + row * x_rows.shape[1]
            for p in range(count):
                panel, first = panels + p * pitch, column + p * ROWS
                whole = first + ROWS <= n
                to = out.ctypes.data + 4 * (row * n + first) if whole else edge.ctypes.data
                line = 4 * n if whole else 4 * ROWS
                if done == most:
                    by_most(panel, x, to, line, runs, ahead)
                elif done == 8:
                    by_eight(panel, x, to, line, runs, ahead)
                elif done == 4:
                    by_four(panel, x, to, line, runs, ahead)
                elif done == 2:
                    by_two(panel, x, to, line, runs, ahead)
                else:
                    by_one(panel, x, to, line, runs, ahead)
                if not whole:  # loops: Numba compiles seconds of messages into a copy between slices
                    for r in range(done):
                        for i in range(n - first):
                            out[row + r, first + i] = edge[r, i]
            row += done

    return jit(several)


@cache
def direct(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Compiled: panels ``first`` … ``stop``, read as they are stored, times all activations."""
    several = sweep(layout, rows, target)

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        panels, panel_bytes = fields.weights, fields.weight_bytes
        x_rows = bytes_at(fields.x_rows, fields.m, fields.row_bytes)
        out = floats_at(fields.out, fields.m, fields.n)
        near = max(1, NEAR // panel_bytes)
        for panel in range(first, stop, near):
            count = min(near, stop - panel)
            first_panel = panels + panel * panel_bytes
            several(first_panel, panel_bytes, count, x_rows, out, panel * ROWS, fields.runs, fields.ahead)

    return jit(multiply)


@cache
def through_bytes(layout: PanelLayout, rows: int, target: Target) -> Any:
    """Compiled: panels ``first`` … ``stop``, each expanded before it is multiplied."""
    wide = expanded(layout, target)
    expand = expander(layout, target)

    def fill(arguments: int, panel: int, memory: Any) -> None:
        fields = operands(arguments)
        expand(fields.weights + panel * fields.weight_bytes, memory.ctypes.data, fields.runs)

    return from_scratch(wide, rows, target, inner(fill))


def from_scratch(layout: PanelLayout, rows: int, target: Target, fill: Any) -> Any:
    """Compiled: panels ``first`` … ``stop``, made by ``fill(arguments, panel, memory)``, then multiplied."""
    several, run_bytes = sweep(layout, rows, target), layout.run_bytes

    def multiply(arguments: int, first: int, stop: int) -> None:
        fields = operands(arguments)
        x_rows = bytes_at(fields.x_rows, fields.m, fields.row_bytes)
        out = floats_at(fields.out, fields.m, fields.n)
        pitch = fields.runs * run_bytes
        near = max(1, NEAR // pitch)
        scratch = np.empty(near * pitch + 64, np.uint8)
        skip = -scratch.ctypes.data & 63
        for panel in range(first, stop, near):
            count = min(near, stop - panel)
            for p in range(count):
                fill(arguments, panel + p, scratch[skip + p * pitch : skip + (p + 1) * pitch])
            # the address is asked for here: an array lives until its last mention
            several(scratch.ctypes.data + skip, pitch, count, x_rows, out, panel * ROWS, fields.runs, 0)

    return jit(multiply)


# --- The expansion of a stored panel to bytes and float32, which pays where many rows of activations use
# it


@cache
def expander(layout: PanelLayout, target: Target) -> Any:
    """An intrinsic that expands a panel: (its address, that of the expanded one, number of runs)."""
    wide = expanded(layout, target)
    return intrinsic_of(lambda builder, *words: _emit(Panel(builder, layout, target), wide, *words), 3)


def _emit(panel: Panel, to: PanelLayout, source: Any, target: Any, runs: Any) -> None:
    b, store = panel.b, panel.simd.store
    with cgutils.for_range(b, runs, intp=I64) as loop:
        here = panel.run_at(source, loop.index)
        there = b.add(target, b.mul(loop.index, I64(to.run_bytes)))
        for group in range(to.groups):
            scale, offset = panel.scale(here, group)
            store(scale, b.add(there, I64(4 * ROWS * group)))
            if to.offset:
                store(offset, b.add(there, I64(to.scales + 4 * ROWS * group)))
        for j in range(8):
            store(panel.codes(here, j), b.add(there, I64(to.codes_at + 64 * j)))


# --- The kernel that unpacks a file's blocks to panels of bytes during a product: for any format ---

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
