"""Blocks of K that the doctor finds missing or scaled: y - right = Σ c_b · part_b, solved for c."""

from __future__ import annotations

import numpy as np


from .numbers import NEAR, Index, Mask, Wide
from .places import runs_of

SHOWN = 16


def blocks_of_k(parts: Wide, error: Wide, usable: Mask, ends: Index, most: float = NEAR) -> dict[str, object]:
    """Blocks of K that are missing, counted twice or scaled; none if they leave over ``most`` of the error.

    ``parts`` [blocks, M, N] are the terms of each block, ``ends`` its first column and the end of the last.
    """
    if len(parts) < 2 or usable.sum() < 3 * len(parts):
        return {}
    a, b = parts[:, usable].T, error[usable]
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return {}
    c, *_ = np.linalg.lstsq(a, b, rcond=None)
    if ((b - a @ c) ** 2).sum() > most * max((b**2).sum(), 1e-300):
        return {}
    ranges: dict[str, object] = {}
    near = {name: np.abs(c - value) < 0.05 for name, value in (("missing", -1.0), ("counted twice", 1.0))}
    for name, which in near.items():
        if which.any():
            ranges[name] = [(int(ends[i]), int(ends[j])) for i, j in runs_of(np.flatnonzero(which))]
    other = np.flatnonzero((np.abs(c) >= 0.05) & ~near["missing"] & ~near["counted twice"])
    if len(other):
        ranges["scaled"] = {f"{ends[i]} to {ends[i + 1]}": round(float(1 + c[i]), 4) for i in other[:SHOWN]}
    return ranges
