"""Encode iq2_xxs: 13 scales a run of 32, an even number of minus signs in every eight.

The first scale comes from a search with four plain steps in place of the code book's levels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...formats.format import Bytes, Floats
from ...formats.iq2_xxs import DTYPE, SHIFTS
from ..jit import inline
from ._search import Search, search
from ._steps import steps


def by_steps(levels: int) -> Any:
    """The first scale, of a run whose levels are four steps."""

    @inline
    def first(part, largest):
        scale = steps(part.x, part.weight, levels + 1)
        return scale * np.float32(levels), scale

    return first


HOW = Search(
    book="iq2_xxs", wanted=2, run=32, tries=6, step=0.1, even_signs=True, spread=1, plain=0,
    smallest=1e-15, again="all", clear=True, first=by_steps,
)  # fmt: skip


def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Rows of floats to blocks."""
    found = search(HOW, values, imatrix)
    out = blocks.view(DTYPE)
    signs = found.minus.reshape(*out.shape, 8, 4).astype(np.uint32) & 127
    words = np.empty((*out.shape, 8, 2), np.uint32)
    words[..., 0] = found.row.astype(np.uint8).view(np.uint32)
    words[..., 1] = np.bitwise_or.reduce(signs << SHIFTS, axis=-1) | found.scale.astype(np.uint32) << 28
    out["d"] = found.d
    out["qs"] = words.reshape(*out.shape, 16).view(np.uint16)
