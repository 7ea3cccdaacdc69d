"""Encode iq3_xxs: the search tries 31 scales for a run of 32; each eight has an even count of minus signs."""

from __future__ import annotations

import numpy as np

from ...formats.format import Bytes, Floats
from ...formats.iq3_xxs import DTYPE
from ._search import Search, searcher

search = searcher(Search(
    book="iq3_xxs", distances=2, run=32, tries=15, step=0.2, even_signs=True, times=2, plain=0,
    smallest=1e-8, again="off the book", clear=True, stretch=1.0125,
))  # fmt: skip
SHIFTS = np.array([0, 7, 14, 21], np.uint32)


def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Rows of floats to blocks."""
    result = search(values, imatrix)
    out = blocks.view(DTYPE)
    out["d"] = result.d
    signs = result.minus.reshape(*out.shape, 8, 4).astype(np.uint32) & 127
    words = (signs << SHIFTS).sum(axis=-1, dtype=np.uint32) | result.scale.astype(np.uint32) << 28
    out["qs"][..., :64] = result.row
    out["qs"][..., 64:] = words.view(np.uint8)
