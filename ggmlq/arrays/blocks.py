"""Random blocks of any format: random bytes, so that every code occurs, but with sane scales."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..formats import Format
from ..formats.format import Blocks

LARGEST = 1e5
PERIOD = 1024  # columns from which weights repeat
SMALLEST = 1e-30  # of a block's largest value: products of less are flushed to zero by matrix units


def random_blocks(fmt: Format, rows: int, n: int, seed: int = 0) -> Blocks:
    """[rows, n] blocks of random bytes whose scales are finite and of ordinary size.

    Float fields are found by their dtype, so no format needs its own rule here. Blocks that a
    format calls invalid, or whose values are huge or tiny all the same, are drawn again.
    """
    rng = np.random.default_rng(seed)
    blocks = _draw(fmt, rows * n, rng)
    while (bad := _wild(fmt, blocks)).any():
        blocks[bad] = _draw(fmt, int(bad.sum()), rng)
    return blocks.reshape(rows, n)


def random_weights(fmt: Format, n: int, k: int) -> NDArray[np.uint8]:
    """Rows [n, bytes] of random blocks that repeat along them, where sizes matter and not values."""
    few = random_blocks(fmt, n, max(min(k, PERIOD) // fmt.block_size, 1)).view(np.uint8).reshape(n, -1)
    return np.ascontiguousarray(np.tile(few, (1, -(-k // PERIOD)))[:, : fmt.row_bytes(k)])


def _wild(fmt: Format, blocks: Blocks) -> NDArray[np.bool_]:
    if fmt.dtype.kind == "i":  # plain integers: any value will do
        return np.zeros(len(blocks), np.bool_)
    values = np.abs(fmt.decode(blocks)).reshape(len(blocks), fmt.block_size)
    most = values.max(axis=1, initial=0)
    tame: NDArray[np.bool_] = (most <= LARGEST) & ((most >= SMALLEST) | (most == 0))  # NaN is not
    with np.errstate(invalid="ignore"):  # arm64 tells of a NaN that is converted
        return fmt.invalid(blocks) | ~tame


def _draw(fmt: Format, n: int, rng: np.random.Generator) -> Blocks:
    blocks: Blocks = rng.integers(0, 256, n * fmt.dtype.itemsize, np.uint8).view(fmt.dtype)
    for name in fmt.dtype.names or ():
        if fmt.dtype[name].kind == "f":
            blocks[name] = rng.normal(0, 0.1, blocks[name].shape)
    return blocks
