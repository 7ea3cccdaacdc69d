"""Encode iq2_s: the search tries 19 scales for each run of 16 weights; signs are free."""

from __future__ import annotations

import numpy as np

from ...formats.format import Bytes, Floats
from ...formats.iq2_s import DTYPE, SHIFTS
from ._search import Search, searcher

search = searcher(Search(
    book="iq2_s", distances=1, run=16, tries=9, step=0.1, even_signs=False, times=2, plain=0.25,
    smallest=1e-8, again="off the book", clear=False, stretch=0.9875,
))  # fmt: skip


def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Rows of floats to blocks."""
    result = search(values, imatrix)
    out = blocks.view(DTYPE)
    high = (result.row >> 8).astype(np.uint8).reshape(*out.shape, 8, 4)
    out["d"] = result.d
    out["qs"][..., :32] = result.row
    out["qs"][..., 32:] = result.minus
    out["qh"] = np.bitwise_or.reduce(high << SHIFTS, axis=-1)
    out["scales"] = result.scale[..., ::2] | result.scale[..., 1::2] << 4
