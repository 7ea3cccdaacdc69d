"""Encode iq3_s: the search tries 19 scales for each run of 32; signs are free.

A run of zeros misplaces what follows it: ggml writes the rows and the signs of the next run where
those of the zeros belong, while ninth bits and scales stay in their places. Such a block does not
decode to what went in. The bytes here are ggml's all the same, with a warning.
"""

from __future__ import annotations

import warnings

import numpy as np

from ...formats.format import Bytes, Floats
from ...formats.iq3_s import DTYPE
from ._search import Search, searcher

search = searcher(Search(
    book="iq3_s", distances=3, run=32, tries=9, step=0.2, even_signs=False, times=2, plain=0,
    smallest=2.0**-149, again="all if one is off", clear=False, stretch=1.033,
))  # fmt: skip


def encode(values: Floats, imatrix: Floats | None, blocks: Bytes) -> None:
    """Rows of floats to blocks."""
    result = search(values, imatrix)
    out = blocks.view(DTYPE)
    places = np.argsort(~result.live, axis=-1, kind="stable")[..., None]
    if (places[..., 0] != np.arange(8)).any():
        warnings.warn(
            "quantize(x, 'iq3_s'): x has runs of 32 zeros before other values of their block; ggml's encoder "
            "misplaces what follows them, and the bytes here are ggml's: these blocks will not decode to "
            "what went in; take 'iq3_xxs' or 'q3_K' for x",
            RuntimeWarning,
            stacklevel=2,
        )
    rows = np.take_along_axis(result.row.reshape(*out.shape, 8, 8), places, axis=-2)
    minus = np.take_along_axis(result.minus.reshape(*out.shape, 8, 4), places, axis=-2)
    out["d"] = result.d
    out["qs"] = rows.reshape(*out.shape, 64)
    out["qh"] = np.packbits(result.row >> 8, axis=-1, bitorder="little")
    out["signs"] = minus.reshape(*out.shape, 32)
    out["scales"] = result.scale[..., ::2] | result.scale[..., 1::2] << 4
