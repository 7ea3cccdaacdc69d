"""Encode iq1_s: 32 sorted weights are split in three at the best borders."""

from __future__ import annotations

import numpy as np

from ...formats.format import Bytes, Floats
from ...formats.iq1_s import DTYPE, SHIFTS
from ._iq1 import searcher

search = searcher(run=32, smallest=1e-12, stretch=1.125, refit=False)


def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Rows of floats to blocks."""
    result = search(values, imatrix)
    out = blocks.view(DTYPE)
    high = (result.row >> 8).astype(np.uint16).reshape(*out.shape, 8, 4)
    top = result.scale.astype(np.uint16) | result.down[..., ::4].astype(np.uint16) << 3
    out["d"] = result.d
    out["qs"] = result.row
    out["qh"] = np.bitwise_or.reduce(high << SHIFTS, axis=-1) | top << 12
