"""The launch of cuda:wgmma: a tile for the rows, K split where there are few tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ..epilogue.results import result_of
from ..epilogue.split_sums import FOUR, add_partials
from ..machine import device
from ..machine.launch import Kernel
from ..machine.recorded import between
from ..packed.layout import TILE_ROWS
from ..packed.pack import packed_weights
from ..schedule.split_k import split_of

BUDGET = 220 << 10  # bytes of shared memory that the blocks of a multiprocessor share on Hopper


def launch_tiles(
    kernel: Callable[..., Kernel], tiles: Sequence[Any], x: Any, q: QuantArray, out: Any
) -> None:
    """Launch ``kernel(layout, tile)`` with the smallest tile that holds all rows; add up partial sums.

    ``x``: the activations as the kernel reads them.
    """
    w, (m, n), k = packed_weights(q), out.shape, q.shape[1]
    tile = next((tile for tile in tiles if tile.columns >= m), tiles[-1])
    down, across, steps = -(-n // TILE_ROWS), -(-m // tile.columns), w.fragments.shape[1]
    beside = device.resident_blocks(tile.blocks, tile.shared(w.layout))
    splits = split_of(down * across, beside, steps)
    wide = n if splits == 1 else -(-n // FOUR) * FOUR
    to = out if splits == 1 else between((splits, m, wide), np.float32)
    grid, sizes = (down, across, splits), (m, wide, k, steps)
    kernel(w.layout, tile)(grid, (tile.threads,), w.fragments, x, to, *sizes)
    if splits > 1:
        add_partials(to, result_of(out, None), m, n)
