"""Encode iq2_xxs: the search tries 13 scales for a run of 32; each eight has an even count of minus signs.

The first scale of a run comes from a fit with codes 0 … 3 that knows no code book.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...formats._search import fit_positive
from ...formats.format import Bytes, Floats
from ...formats.iq2_xxs import DTYPE, SHIFTS
from ..machine.jit import inline
from ._program import LANES, put
from ._search import Search, searcher
from ._tiles import compiled

fit = compiled(fit_positive)  # type: ignore[arg-type]


@inline
def by_codes(runs_of: Any, top: Any) -> None:
    """Write the first scale of each run, by a fit with codes 0 … 3; a run is a lane, a block half of them."""
    runs, run = runs_of.x.shape
    x, weight = np.zeros((run, LANES), np.float32), np.zeros((run, LANES), np.float32)
    codes, scales = np.empty((run, LANES), np.uint8), np.empty((1, LANES), np.float32)
    for i in range(runs):
        for j in range(run):
            x[j, i], weight[j, i] = runs_of.x[i, j], runs_of.weight[i, j]
    put(scales, 0, fit(x, weight, codes, run, 4))
    for i in range(runs):
        runs_of.scale[i] = scales[0, i]
        if runs_of.divisor[i] > np.float32(0):
            runs_of.divisor[i] = scales[0, i] * np.float32(3)


search = searcher(Search(
    book="iq2_xxs", distances=2, run=32, tries=6, step=0.1, even_signs=True, times=1, plain=0,
    smallest=1e-15, again="all", clear=True, stretch=1, first=by_codes,
))  # fmt: skip


def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Rows of floats to blocks."""
    result = search(values, imatrix)
    out = blocks.view(DTYPE)
    signs = result.minus.reshape(*out.shape, 8, 4).astype(np.uint32) & 127
    words = np.empty((*out.shape, 8, 2), np.uint32)
    words[..., 0] = result.row.astype(np.uint8).view(np.uint32)
    words[..., 1] = np.bitwise_or.reduce(signs << SHIFTS, axis=-1) | result.scale.astype(np.uint32) << 28
    out["d"] = result.d
    out["qs"] = words.reshape(*out.shape, 16).view(np.uint16)
