"""Encode iq2_xs: the search tries 19 scales for a run of 16; each eight has an even count of minus signs."""

from __future__ import annotations

import numpy as np

from ...formats.format import Bytes, Floats
from ...formats.iq2_xs import DTYPE
from ._search import Search, searcher

search = searcher(Search(
    book="iq2_xs", distances=2, run=16, tries=9, step=0.1, even_signs=True, times=1, plain=0,
    smallest=1e-15, again="off the book", clear=True, stretch=1,
))  # fmt: skip


def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Rows of floats to blocks."""
    result = search(values, imatrix)
    out = blocks.view(DTYPE)
    out["d"] = result.d
    out["qs"] = result.row | result.minus.astype(np.uint16) << 9
    out["scales"] = result.scale[..., ::2] | result.scale[..., 1::2] << 4
