"""The probe's report: where the weights that a kernel uses are wrong, and which it uses instead."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...arrays.array import QuantArray
from ...formats import BlockFormat
from ..blocks.operand import operand
from .feeding import Multiply, effective, pairs
from .instead import Compared, sentences
from .patterns import along, ranges

EXACT = ("ggml-cpu", "ggml-ref", "q8", "f32", "exact")  # arithmetics that keep weights as they are
NEAR, ROUGH = 1e-5, 8e-3  # of the terms: how far weights may be off in these, and in others


class Reading(NamedTuple):
    """Findings of unit vectors, in words and as ranges."""

    text: str
    where: dict[str, Any]


def read(multiply: Multiply, q: QuantArray, rows: int, arithmetic: str) -> Reading:
    """Facts about the weights that ``multiply`` really uses, by unit vectors, ``rows`` of them a call."""
    fmt = q.format
    block = fmt.block_size if isinstance(fmt, BlockFormat) else 32
    used = effective(multiply, q, rows)
    w = operand(fmt, q.blocks)
    terms = np.abs(w.scaled) + np.abs(w.dense)
    all_limits = (NEAR if arithmetic in EXACT else ROUGH) * terms + 1e-30
    right, limit = w.dense[:, used.places], all_limits[:, used.places]
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(used.weights - right) <= limit) & ~used.unwritten
    if not wrong.any():
        return _pairs(multiply, q, rows, w.dense, all_limits, block)
    n, k = np.flatnonzero(wrong.any(axis=1)), used.places[wrong.any(axis=0)]
    share = f"{int(wrong.sum())} of {wrong.size} weights that it multiplies with are not those of the tensor"
    rows_wrong = along("n", n, np.arange(len(right)))
    text = f"Fed with unit vectors: {share}, {along('k', k, used.places)}, {rows_wrong}."
    compared = Compared(np.where(wrong, used.weights, right), right, wrong, limit)
    if not np.isfinite(compared.used).all():
        return Reading(f"{text} Some are not finite.", {"k": k.tolist()})
    words = sentences(compared, w if isinstance(fmt, BlockFormat) else None, used.places, block)
    return Reading(" ".join([text, *words]), {"n": n.tolist(), "k": k.tolist()})


def _pairs(multiply: Multiply, q: QuantArray, rows: int, right: Any, limit: Any, block: int) -> Reading:
    """The reading where every weight alone is right: blocks are fed in pairs."""
    alone = "Fed with unit vectors, every weight that it multiplies with is right"
    if q.shape[1] < 2 * block:
        return Reading(f"{alone}: sums of several, or the rounding of activations, go wrong.", {})
    wrong_pairs = [pair for pair in pairs(multiply, q, rows, right, limit, block) if pair.wrong.any()]
    if not wrong_pairs:
        text = f"{alone}, alone and in pairs of blocks: the rounding of activations goes wrong, or long sums."
        return Reading(text, {})
    together = sorted({(pair.first, pair.second) for pair in wrong_pairs})
    near = all(b == a + 1 for a, b in together)
    columns = np.flatnonzero(np.any([pair.wrong for pair in wrong_pairs], axis=0))
    shown = ", ".join(f"{a} and {b}" for a, b in together[:6])
    text = (
        f"{alone}; two blocks together go wrong ({'neighbours, ' if near else ''}blocks {shown}; "
        f"n {ranges(columns)}): what one block of {block} gave counts again in another."
    )
    return Reading(text, {"blocks": together})
