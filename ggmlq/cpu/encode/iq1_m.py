"""Encode iq1_m: 16 sorted weights are split in three at the best borders; d is fitted to the block."""

from __future__ import annotations

import numpy as np

from ...formats.format import Bytes, Floats
from ...formats.iq1_m import DTYPE, SHIFTS
from ._iq1 import searcher

QUARTERS = np.array([12, 8, 4, 0], np.uint16)  # d's four bits go to the top of each word
search = searcher(run=16, smallest=1e-7, stretch=1.1125, refit=True)


def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Rows of floats to blocks."""
    result = search(values, imatrix)
    out = blocks.view(DTYPE)
    nibble = (result.row >> 8).astype(np.uint8) | result.down << 3
    scales = result.scale.astype(np.uint16).reshape(*out.shape, 4, 4) << SHIFTS
    quarter = result.d.view(np.uint16)[..., None] << QUARTERS & 0xF000
    out["qs"] = result.row
    out["qh"] = nibble[..., ::2] | nibble[..., 1::2] << 4
    out["scales"] = (np.bitwise_or.reduce(scales, axis=-1) | quarter).view(np.uint8)
