"""The doctor's search for the origin of NaN and infinity in y: overflow, empty blocks, padding of K."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..numbers import LARGEST_HALF, OVERFLOWS_HALF, Mask
from ..places import Pattern, by_place
from .operand import operand
from .products import looks_half
from .survey import BlockSurvey, Case

PADDING = 512  # elements: llama.cpp pads rows of quantized matrices to so many on CUDA


def not_finite(survey: BlockSurvey) -> Pattern | None:
    """The pattern with the origin of elements that are not finite; None if they should not be finite."""
    case = survey.case
    bad = survey.bad & ~np.isfinite(case.y)
    wild = ~np.isfinite(case.y)
    if not wild.any():
        return None
    overflow = _overflow(case, wild)
    if overflow is not None:
        return overflow
    if not bad.any():
        return None
    return _empty_blocks(case, bad) or _padding(case, bad) or by_place(bad)


# --- overflow -------------------------------------------------------------------------------


def _overflow(case: Case, wild: Mask) -> Pattern | None:
    """The half that overflowed, if it explains over 99 % of these elements, and not more others."""
    best: tuple[float, str] | None = None
    for name, risk in _risks(case):
        if not risk.any():
            continue
        covered = float((wild & risk).sum() / wild.sum())
        held = float((wild & risk).sum() / risk.sum())
        if covered > 0.99 and held > 0.5 and (best is None or held > best[0]):
            best = held, name
    sums = np.abs(case.x) @ np.abs(np.nan_to_num(case.q.dequantize(np.float64))).T
    if best is None and ((sums > LARGEST_HALF) | ~wild).all():
        exact = case.x @ np.nan_to_num(case.q.dequantize(np.float64)).T
        large = np.abs(exact) > LARGEST_HALF
        if np.isinf(case.y).any() and (looks_half(case.y) or (np.isinf(case.y) == large).all()):
            return Pattern("f16-accumulation", "sums beyond 65504 became infinite", True)
    if best is None:
        return None
    return Pattern("scale-f16-overflow", f"{best[1]} above 65504 became an infinite half", True)


def _risks(case: Case) -> Iterator[tuple[str, Mask]]:
    """Halves that a kernel may form, each with the elements of y in which one would overflow."""
    x, (m, n) = case.x, case.y.shape
    rows: dict[str, Any] = {"an activation": (np.abs(x) > OVERFLOWS_HALF).any(axis=1)}
    for run in (16, 32, 64, 256):
        if x.shape[1] % run == 0:
            runs = x.reshape(m, -1, run)
            scale = (np.abs(runs).max(axis=-1) / 127 > OVERFLOWS_HALF).any(axis=1)
            total = (np.abs(runs.sum(axis=-1)) > OVERFLOWS_HALF).any(axis=1)
            rows[f"a scale amax/127 of {run} activations"] = scale
            rows[f"a sum of {run} activations"] = total
            rows[f"a sum or a scale of {run} activations"] = scale | total
    for name, risk in rows.items():
        yield name, np.repeat(risk[:, None], n, axis=1)
    yield from _products(case)


def _products(case: Case) -> Iterator[tuple[str, Mask]]:
    """Scale times scale, offset times sum, and dequantized weights, as halves."""
    w = operand(case.q.format, case.q.blocks)
    m, n = case.y.shape
    large: Any = (np.abs(w.dense) > OVERFLOWS_HALF).any(axis=1)
    yield "a weight", np.repeat(large[None], m, axis=0)
    if w.values is not None or case.x.shape[1] % w.grain:
        return
    runs = case.x.reshape(m, -1, w.grain)
    scale = np.repeat(w.scale, w.group // w.grain, axis=1)
    risk = np.zeros((m, n), np.bool_)
    for g in range(runs.shape[1]):
        d = np.abs(runs[:, g]).max(axis=-1) / 127
        s = np.abs(runs[:, g].sum(axis=-1))
        risk |= np.outer(d, np.abs(scale[:, g])) > OVERFLOWS_HALF
        risk |= np.outer(s, np.abs(w.constant[:, g])) > OVERFLOWS_HALF
    yield "a product of scales, or an offset times a sum,", risk


# --- places ---------------------------------------------------------------------------------


def _empty_blocks(case: Case, bad: Mask) -> Pattern | None:
    """Blocks of zeros: a scale of 0, and 0 · (1 / 0)."""
    k = case.x.shape[1]
    for run in (32, 256, 16, 64):
        if k % run:
            continue
        empty = (case.x.reshape(len(case.x), -1, run) == 0).all(axis=-1).any(axis=1)
        if empty.any() and not empty.all() and (bad.any(axis=1) == empty).all():
            text = f"NaN in exactly the rows whose activations hold {run} zeros in a block: 0 · (1/0)"
            return Pattern("nan", text, True)
    return None


def _padding(case: Case, bad: Mask) -> Pattern | None:
    """NaN behind the end of K, where K ends inside a tile: multiplied with zeros it is NaN."""
    k = case.x.shape[1]
    if k % PADDING == 0:
        return None
    tile = next(tile for tile in (PADDING, 256, 128, 64, 32, 16, 1) if k % tile)
    rows, columns = np.flatnonzero(bad.any(axis=1)), np.flatnonzero(bad.any(axis=0))
    m, n = bad.shape
    padded = -(-k // PADDING) * PADDING
    text = f"K = {k} is padded to {padded} or to another multiple of a tile, and NaN · 0 is NaN"
    if bad.all():
        return Pattern("k-pad-nan", f"all of y is NaN: {text}", False, {"tile": tile})
    if len(columns) == 1 and columns[0] == n - 1 and len(rows) == m and n > 1:
        return Pattern("k-pad-nan", f"only the last column is NaN: {text}", False, {"tile": tile})
    if len(rows) == 1 and rows[0] == m - 1 and len(columns) == n and m > 1:
        return Pattern("k-pad-nan", f"only the last row is NaN: {text}", False, {"tile": tile})
    return None
