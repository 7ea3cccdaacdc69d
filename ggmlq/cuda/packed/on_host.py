"""The size of packed weights, and the file's bytes restored from them on the host, by NumPy.

A tensor with packed weights may be moved to the host by programs that know nothing of blocks. Kernels for
CPUs read the file's order, so it is restored there, once, as to_blocks.py does it on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...formats import BlockFormat, Format
from .layout import ROWS, STEP, PackedLayout, layout_of
from .pack import LONGEST
from .to_blocks import put_together, sources

SLAB = 1 << 20  # elements that are restored at a time


def packed_shape(fmt: Format, shape: Sequence[int]) -> tuple[int, int, int] | None:
    """The shape of the fragments of an array [N, K] or [E, N, K]: fragment rows, steps, bytes of one.

    None where packed weights do not hold all bits of the blocks, and for arrays without elements.
    """
    if not isinstance(fmt, BlockFormat) or len(shape) not in (2, 3) or not all(shape):
        return None
    *experts, n, k = shape
    if k > LONGEST or sources(fmt) is None:
        return None
    count, steps = 8 * -(-n // (8 * ROWS)), 2 * -(-k // (2 * STEP))
    return prod(experts) * count, steps, layout_of(fmt).fragment_bytes


def restored_on_host(fmt: Format, shape: Sequence[int], packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The file's bytes [..., N, bytes of a row] of an array with these packed weights."""
    fragments = packed_shape(fmt, shape)
    places = sources(fmt) if isinstance(fmt, BlockFormat) else None
    assert isinstance(fmt, BlockFormat)
    assert fragments is not None
    assert places is not None
    *experts, n, k = shape
    e, blocks = prod(experts), k // fmt.block_size
    words = np.ascontiguousarray(packed).reshape(-1).view(np.uint32).reshape(e, -1)
    raw = np.empty((e, n, blocks, fmt.dtype.itemsize), np.uint8)
    length = fmt.block_size + 2 * fmt.block_size // fmt.group + 4
    rows = max(1, SLAB // (blocks * length))
    for matrix, target in zip(words, raw, strict=True):
        for first in range(0, n, rows):
            numbers = np.arange(first, min(first + rows, n))
            parts = _elements(fmt, matrix, numbers, blocks, fragments[1])
            target[first : first + rows] = put_together(places, parts).reshape(len(numbers), blocks, -1)
    return raw.reshape(*experts, n, -1)


def _elements(
    fmt: BlockFormat, words: NDArray[np.uint32], rows: NDArray[np.int64], blocks: int, steps: int
) -> Any:  # fmt: skip
    """The elements of all blocks of some rows, [blocks, elements], as ``to_blocks.elements`` has them."""
    layout, size, groups = layout_of(fmt), fmt.block_size, fmt.block_size // fmt.group
    row, b = rows[:, None, None], np.arange(blocks)[None, :, None]
    g, side, first = row & 7, row >> 3 & 1, row // ROWS * steps

    def place(column: Any) -> tuple[Any, Any]:
        return (first + column // STEP) * layout.fragment_bytes, column % STEP

    at, within = place(b * size + np.arange(size))
    lane, r = g * 4 + within // 4 % 4, within // 2 % 2 * 2 + side
    parts = [_codes(layout, words, at, lane, within // 16, r, within % 2)]
    at, within = place(b * size)
    word = np.arange(layout.halves) * layout.blocks + within // size
    halves = _load(words, at + layout.halves_at + g * layout.half_stride + word * 4)
    parts.append(halves >> 16 * side & 0xFFFF)
    i = np.arange(layout.subs * groups)
    at, within = place(b * size + i % groups * fmt.group)
    byte = (side * layout.subs + i // groups) * layout.runs + within // layout.run
    subs = _load(words, at + layout.subs_at + g * layout.sub_stride + byte // 4 * 4)
    parts.append(subs >> byte % 4 * 8 & 255)
    elements: Any = np.concatenate(parts, axis=2).reshape(len(rows) * blocks, -1)
    return elements


def _load(words: NDArray[np.uint32], at: Any) -> Any:
    """The words at these offsets in bytes."""
    return words[at // 4].astype(np.int64)


def _codes(
    layout: PackedLayout, words: NDArray[np.uint32], at: Any, lane: Any, s: Any, r: Any, e: Any
) -> Any:  # fmt: skip
    """The stored codes of fragments at ``at``: of lane 4 g + t, step s, register r, place e."""
    low, i = layout.low, 4 * (s % 2) + r
    first = at + lane * min(16, 4 * low)
    if low == 8:
        word = 2 * s + r // 2
        u = _load(words, first + word // 4 * 512 + word % 4 * 4) >> (r % 2 * 8 + 16 * e)
    elif layout.fp4:
        w = _load(words, first + 4 * s) >> 16 * e
        u = w << 3 * np.minimum(r, 2)
        last = w >> 11 & 8 | w >> 9 & 6 | w >> 13 & 1
        u = np.where(r == 3, last, u >> 12 & 8 | u >> 6 & 7)
    elif layout.levels:
        u = _load(words, first + 4 * s) >> (8 * r + 4 * e)
    elif low == 4:
        u = _load(words, first + 4 * s) >> (4 * r + 16 * e)
    else:
        u = _load(words, first + s // 2 * 4) >> (2 * i + 16 * e)
    u = u & (1 << low) - 1
    if layout.high == 2:
        w = _load(words, at + layout.high_at + lane * 8 + s // 2 * 4)
        u |= (w >> (2 * i + 16 * e) & 3) << low
    elif layout.high == 1:
        w = _load(words, at + layout.high_at + lane * 4)
        u |= (w >> (4 * s + r + 16 * e) & 1) << low
    return u
