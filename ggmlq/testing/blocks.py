"""Random bytes as blocks: every code and sub-scale occurs, and only the scales are kept sane."""

from __future__ import annotations

import numpy as np

from ..formats import Format
from ..formats.format import Blocks


def random_blocks(fmt: Format, rows: int, n: int, seed: int = 0) -> Blocks:
    """[rows, n] blocks of random bytes whose scales are finite and of ordinary size.

    Float fields are found by their dtype, so no format needs its own rule here; what else a
    format forbids it says itself, and such blocks are drawn again.
    """
    rng = np.random.default_rng(seed)
    blocks = _draw(fmt, rows * n, rng)
    while (bad := fmt.invalid(blocks)).any():
        blocks[bad] = _draw(fmt, int(bad.sum()), rng)
    return blocks.reshape(rows, n)


def _draw(fmt: Format, n: int, rng: np.random.Generator) -> Blocks:
    blocks: Blocks = rng.integers(0, 256, n * fmt.dtype.itemsize, np.uint8).view(fmt.dtype)
    for name in fmt.dtype.names or ():
        if fmt.dtype[name].kind == "f":
            blocks[name] = rng.normal(0, 0.1, blocks[name].shape)
    if fmt.dtype.kind == "f":
        blocks[...] = rng.normal(0, 1, n)
    return blocks
