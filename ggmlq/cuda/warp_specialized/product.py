"""A product of strips by blocks that fill the card: which problems, which tile, how many parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...dispatch.card import older_than
from ...dispatch.problems import Linear
from ...formats import BlockFormat
from ..machine import device
from ..machine.launch import Kernel
from ..packed.layout import ROWS, STRIPS
from ..packed.pack import LONGEST, strips
from ..schedule.split_k import ADDERS, adder, parts_of

BUDGET = 220 << 10  # bytes of shared memory that the blocks of a multiprocessor share on Hopper
LEAST = (8, 0)
MOST = 65535 * 64  # rows of activations: a grid has 65535 rows of blocks


def refuses(problem: Linear) -> str | None:
    """Why such products do not serve a problem, or None."""
    if not isinstance(problem.format, BlockFormat):
        return "is written for blocks"
    if problem.m > MOST or problem.k > LONGEST or problem.m * problem.k >= 1 << 32:
        return f"takes up to {MOST} rows, {LONGEST} columns and 2**32 elements of activations"
    return older_than(problem.card, LEAST)


def launch_tiles(
    kernel: Callable[..., Kernel], tiles: Sequence[Any], given: Any, q: QuantArray, out: Any
) -> None:
    """Launch ``kernel(format, tile)`` of the lowest tile that holds all rows, and add up its parts.

    ``given``: the activations as the kernel reads them.
    """
    w, (m, n), k = strips(q), out.shape, q.shape[1]
    tile = next((tile for tile in tiles if tile.columns >= m), tiles[-1])
    down, across, steps = -(-n // (STRIPS * ROWS)), -(-m // tile.columns), w.records.shape[1]
    beside = device.resident_blocks(tile.blocks, tile.shared(w.layout))
    parts = parts_of(down * across, beside, steps)
    to = out if parts == 1 else device.cupy().empty((parts, m, n), np.float32)
    grid, sizes = (down, across, parts), (m, n, k, steps)
    kernel(q.format, tile)(grid, (tile.threads,), w.records, given, to, *sizes)
    if parts > 1:
        adder()((-(-m * n // ADDERS),), (ADDERS,), to, out, parts, m * n)
