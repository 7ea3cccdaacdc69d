"""Encode iq2_xs: 19 scales a run of 16, an even number of minus signs in every eight."""

from __future__ import annotations

import numpy as np

from ...formats.format import Bytes, Floats
from ...formats.iq2_xs import DTYPE
from ._search import Search, searcher

search = searcher(Search(
    book="iq2_xs", wanted=2, run=16, tries=9, step=0.1, even_signs=True, times=1, plain=0,
    smallest=1e-15, again="off the book", clear=True, stretch=1,
))  # fmt: skip


def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Rows of floats to blocks."""
    found = search(values, imatrix)
    out = blocks.view(DTYPE)
    out["d"] = found.d
    out["qs"] = found.row | found.minus.astype(np.uint16) << 9
    out["scales"] = found.scale[..., ::2] | found.scale[..., 1::2] << 4
