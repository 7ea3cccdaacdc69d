"""Packed weights made by NumPy, for kernels on an emulated card: q4_0 at once, other types code by code."""

from __future__ import annotations

import numpy as np

from ggmlq.cuda.layouts.layout import STEP, half_addresses, layout_of, stored_codes
from ggmlq.cuda.layouts.pack import place_fp4


def pack_q4_0(q):
    """Fragments and layout of an array of q4_0, as the head of ggmlq/cuda/layouts/pack.py draws them."""
    n, k = q.shape
    layout, fmt = layout_of(q.format), q.format
    count, steps = 8 * -(-n // 128), 2 * -(-k // 128)
    codes = np.zeros((count * 16, steps * 64), np.uint32)
    scales = np.zeros((count * 16, steps * 2), np.float16)
    codes[:n, :k] = fmt.unpack(q.blocks).codes.reshape(n, k).astype(np.int64) + 8
    scales[:n, : k // 32] = q.blocks["d"].reshape(n, -1)
    # fragment row, half, g, fragment, step, t, pair, element -> a word of g, t and step
    codes = codes.reshape(count, 2, 8, steps, 4, 4, 2, 2).transpose(0, 3, 2, 5, 4, 6, 1, 7)
    places = 8 * np.arange(2)[:, None, None] + 4 * np.arange(2)[:, None] + 16 * np.arange(2)
    words = (codes << places.astype(np.uint32)).sum((-3, -2, -1), dtype=np.uint32)
    halves = scales.reshape(count, 2, 8, steps, 2).transpose(0, 3, 2, 4, 1)
    parts = (np.ascontiguousarray(part).reshape(count, steps, -1).view(np.uint8) for part in (words, halves))
    return np.concatenate([*parts], -1), layout


def pack_blocks(q):
    """Fragments and layout of an array of blocks, as the head of ggmlq/cuda/layouts/pack.py draws them."""
    (n, k), fmt, layout = q.shape, q.format, layout_of(q.format)
    count, steps = 8 * -(-n // 128), 2 * -(-k // 128)
    codes = np.zeros((count * 16, steps * STEP), np.uint32)
    raw = q.raw.reshape(n, k // fmt.block_size, -1)
    if fmt.index is None:
        codes[:n, :k] = stored_codes(layout)[fmt.unpack(q.blocks).codes.reshape(n, k).view(np.uint8)]
    else:
        each = [[fmt.index(block, i) for block in row for i in range(fmt.block_size)] for row in raw]
        codes[:n, :k] = each
    # fragment row, side, g, fragment, step, t, pair, element -> the order of lanes and registers
    codes = codes.reshape(count, 2, 8, steps, 4, 4, 2, 2).transpose(0, 3, 2, 5, 4, 6, 1, 7)
    words = words_of(layout, codes.reshape(count, steps, 32, 4, 4, 2))
    fragments = np.zeros((count, steps, layout.fragment_bytes), np.uint8)
    low = words[..., : layout.low].reshape(count, steps, 32, -1, min(layout.low, 4)).swapaxes(2, 3)
    fragments[..., : layout.high_at] = np.ascontiguousarray(low).view(np.uint8).reshape(count, steps, -1)
    high = np.ascontiguousarray(words[..., layout.low :]).view(np.uint8)
    fragments[..., layout.high_at : layout.halves_at] = high.reshape(count, steps, -1)
    for row in range(n):
        for step in range(-(-k // STEP)):
            put_numbers(fmt, layout, raw[row], row, step, k, fragments)
    return fragments, layout


def words_of(layout, codes):
    """A lane's words of a fragment; codes: [..., step, register, element]."""
    words = np.zeros((*codes.shape[:-3], layout.bits), np.uint32)
    for s, r, e in np.ndindex(4, 4, 2):
        u, at = codes[..., s, r, e], 16 * e
        if layout.low == 8:
            words[..., 2 * s + r // 2] |= u << np.uint32(r % 2 * 8 + at)
        elif layout.fp4:
            words[..., s] |= np.vectorize(lambda v, r=r: place_fp4.py_func(np.uint32(v), r))(u) << np.uint32(
                at
            )
        elif layout.levels:
            words[..., s] |= u << np.uint32(4 * (2 * r + e))
        elif layout.low == 4:
            words[..., s] |= (u & 15) << np.uint32(4 * r + at)
        else:
            words[..., s // 2] |= (u & 3) << np.uint32(2 * (s % 2 * 4 + r) + at)
        if layout.high == 2:
            words[..., layout.low + s // 2] |= (u >> layout.low) << np.uint32(2 * (s % 2 * 4 + r) + at)
        elif layout.high == 1:
            words[..., layout.low] |= (u >> layout.low) << np.uint32(4 * s + r + at)
    return words


def put_numbers(fmt, layout, blocks, row, step, k, fragments):
    """Put the halves and the bytes of one row of a fragment where they belong."""
    side, g, size = row // 8 % 2, row % 8, fmt.block_size
    to = fragments[row // 16, step]
    for part, at in enumerate(half_addresses(fmt)[: layout.halves]):
        for b in range(layout.blocks):
            column = step * STEP + b * size
            if column < k:
                place = layout.halves_at + g * layout.half_stride + 4 * (part * layout.blocks + b) + 2 * side
                to[place : place + 2] = blocks[column // size][at : at + 2]
    for part, sub in enumerate([fmt.scales.sub, fmt.scales.low][: layout.subs]):
        for run in range(layout.runs):
            column = step * STEP + run * layout.run
            if column < k:
                byte = sub(blocks[column // size], column % size // fmt.group)
                at = side * layout.subs * layout.runs + part * layout.runs + run
                to[layout.subs_at + g * layout.sub_stride + at] = byte
