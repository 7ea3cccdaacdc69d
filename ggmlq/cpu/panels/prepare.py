"""Weights laid out as panels once, from the bytes of their blocks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...array import QuantArray
from ...formats import BlockFormat
from ...formats.format import Bytes
from ...formats.scalars import bfloat16_bits
from ...packing import RUN, halves
from ...threads import share
from ..machine.jit import jit
from ..unpack import unpacker
from .layout import ROWS, SUPER, PanelLayout, layout_of

SLAB = 1 << 18  # weights laid out at a time: their codes stay in the cache


def panels(q: QuantArray) -> Bytes:
    """uint8 [N / 16, bytes of a panel]; rows beyond N are zeros."""
    n, k = q.shape
    layout = layout_of(q.format)
    assert layout is not None
    count = -(-n // ROWS)
    nbytes = layout.panel_bytes(k // RUN)
    memory = np.empty(count * nbytes + 64, np.uint8)
    skip = -memory.ctypes.data % 64
    made = memory[skip : skip + count * nbytes].reshape(count, nbytes)
    grain = max(1, SLAB // (ROWS * max(k, 1)))
    share(lambda first, stop: _lay(q, layout, made, first, stop, grain), count, grain)
    made.flags.writeable = False
    return made


def _lay(q: QuantArray, layout: PanelLayout, made: Bytes, first: int, stop: int, grain: int) -> None:
    """Panels ``first`` … ``stop``, slab by slab."""
    assert isinstance(q.format, BlockFormat)
    take, place = taker(q.format), placer(layout)
    for start in range(first, stop, grain):
        part = slice(start, min(start + grain, stop))
        raw = q[start * ROWS : part.stop * ROWS].raw  # not .blocks: these may be big-endian
        blocks = np.ascontiguousarray(raw).view(q.format.dtype)
        above = np.zeros((blocks.shape[0], blocks.shape[1], 0), np.float16)
        if layout.nested:  # with d = 1 the scales are the integers under it
            blocks = blocks.copy()
            names = halves(q.format)[: 1 + layout.offset]
            above = np.stack([blocks[name] for name in names], axis=-1)
            for name in names:
                blocks[name] = 1
        codes, scales, offsets = take(blocks.view(np.uint8).reshape(len(blocks), -1))
        if q.format.group > RUN:
            scales = scales.repeat(q.format.group // RUN, axis=1)
        made[part] = 0
        place(
            codes, _stored(scales, layout), _stored(offsets, layout),
            above.view(np.uint8).reshape(*above.shape[:2], 2 * above.shape[2]), made[part], _index(layout),
        )  # fmt: skip


@cache
def taker(fmt: BlockFormat) -> Any:
    """Compiled: rows of blocks uint8 [n, bytes] to codes, scales and offsets [n, …]."""
    unpack = unpacker(fmt)
    size, nbytes, group, has_offset = fmt.block_size, fmt.dtype.itemsize, fmt.group, fmt.has_offset

    def take(raw: Any) -> Any:
        n, count = raw.shape[0], raw.shape[1] // nbytes
        codes = np.empty((n, count * size), np.int8)
        scales = np.empty((n, count * size // group), np.float32)
        offsets = np.empty((n, count * size // group if has_offset else 0), np.float32)
        for row in range(n):
            unpack(raw[row], codes[row], scales[row], offsets[row])
        return codes, scales, offsets

    return jit(take)


def _stored(scales: Any, layout: PanelLayout) -> Any:
    """Scales as the panel holds them, as bytes [n, groups, width]."""
    kind: Any = {"f32": np.float32, "f16": np.float16, "i8": np.int8, "i4": np.uint8}.get(layout.scale)
    values = bfloat16_bits(scales) if kind is None else scales.astype(kind)
    return values.view(np.uint8).reshape(*scales.shape, values.itemsize)


def _index(layout: PanelLayout) -> Any:
    """What is stored for each code, by code + 128."""
    codes = np.arange(-128, 128)
    if not layout.table:
        return ((codes + layout.zero) & 255).astype(np.uint8)
    return np.abs(codes[:, None] - np.array(layout.table)).argmin(axis=1).astype(np.uint8)


@cache
def placer(layout: PanelLayout) -> Any:
    """Compiled: codes and scales of rows to panels of zeros."""
    planes = np.array([layout.planes, layout.planes_at]).T
    groups, run_bytes, head = layout.groups, layout.run_bytes, layout.head
    scales_bytes, nested, packed = layout.scales, layout.nested, layout.scale == "i4"

    def place(codes: Any, scales: Any, offsets: Any, above: Any, made: Any, index: Any) -> None:
        width = scales.shape[2]
        for row in range(codes.shape[0]):
            panel, r = made[row // ROWS], row % ROWS
            for run in range(codes.shape[1] // RUN):
                at = run * run_bytes + (run // SUPER + 1) * head
                if nested and run % SUPER == 0:
                    for i in range(above.shape[2]):
                        panel[at - head + (i // 2 * ROWS + r) * 2 + i % 2] = above[row, run // SUPER, i]
                for part in range(groups):
                    g = run * groups + part
                    to = at + (ROWS * part + r) * width
                    for i in range(width):
                        panel[to + i] = scales[row, g, i]
                        if packed:
                            panel[to + i] |= offsets[row, g, i] << 4
                        elif offsets.shape[1]:
                            panel[to + scales_bytes + i] = offsets[row, g, i]
                for i in range(RUN):
                    _put(panel, at, r, i, index[codes[row, run * RUN + i] + 128], planes)

    return jit(place)


@jit
def _put(panel: Any, run: int, r: int, i: int, code: int, planes: Any) -> None:
    """One code of a run into its planes (widths, and where they begin)."""
    j = i // 4
    for width, at in planes:
        each = 8 // width  # fours that share a vector
        vector = j % 4 if width == 4 else j // each
        bit = j // 4 * 4 if width == 4 else j % each * width
        panel[run + at + 64 * vector + 4 * r + i % 4] |= (code & ((1 << width) - 1)) << bit
        code >>= width
