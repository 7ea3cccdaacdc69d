"""Packed weights of q4_0 made by NumPy, for kernels on an emulated card."""

from __future__ import annotations

import numpy as np

from ggmlq.cuda.packed.layout import layout_of


def pack_q4_0(q):
    """Fragments and layout of an array of q4_0, as the head of ggmlq/cuda/packed/pack.py draws them."""
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
