"""The product with each mistake, compared with y: which explain it, and how well."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..explanation import EXACT, Explanation
from . import codes, scales, sums, zeros
from .mistake import Mistake, scaled_parts
from .scene import Scene

KEPT = 8  # mistakes that are judged in full
FAMILIES = (scales.mistakes, zeros.mistakes, codes.mistakes, codes.unsaturated, sums.mistakes, scales.beyond)


def explanations(scene: Scene) -> list[Explanation]:
    """Every mistake that explains some of y, best first; of those alike the plainest first."""
    right = min(scene.score(scene.prediction), scene.score(np.zeros_like(scene.y)))
    tried: list[tuple[float, int, Mistake]] = []
    for i, mistake in enumerate(_every(scene)):
        score = scene.score(mistake.y)
        if score <= right / 2:
            tried = sorted([*tried, (score, i, mistake)], key=lambda t: t[:2])[:KEPT]
    found = [(_judged(scene, mistake, score, right), i) for score, i, mistake in tried]
    exact = sorted(((e, i) for e, i in found if e.share >= EXACT), key=lambda pair: pair[1])
    return [e for e, _ in exact] + [e for e, _ in found if e.share < EXACT]


def _every(scene: Scene) -> Iterator[Mistake]:
    for family in FAMILIES:
        yield from family(scene)


def _judged(scene: Scene, mistake: Mistake, score: float, right: float) -> Explanation:
    limit = scene.stored(mistake.limit(), mistake.y) + scene.moved
    inside = scene.within(mistake.y, limit)
    share = float(inside.mean()) if inside.size else 0.0
    elements = int(np.isfinite(limit).sum())
    return Explanation(mistake.fault, mistake.variant, "", score, right, share, elements, mistake.free)


def blocks_of_k(scene: Scene) -> dict[str, object]:
    """Which groups of K are missing or scaled: y - right = Σ c_g · part_g, solved for c."""
    parts, t = scaled_parts(scene), scene.terms
    usable = np.isfinite(scene.y) & np.isfinite(scene.prediction)
    if len(parts) < 2 or usable.sum() < 3 * len(parts):
        return {}
    a = (parts / scene.size)[:, usable].T
    b = ((scene.y - scene.prediction) / scene.size)[usable]
    if not np.isfinite(a).all():
        return {}
    c, *_ = np.linalg.lstsq(a, b, rcond=None)
    if ((b - a @ c) ** 2).sum() > 0.02 * max((b**2).sum(), 1e-300):
        return {}
    ends = np.append(t.starts[1:], t.starts[-1] + int(t.lengths[-1]))
    ranges = list(zip(t.starts.tolist(), ends.tolist(), strict=True))
    found: dict[str, object] = {}
    for value, name in ((-1.0, "missing"), (1.0, "counted twice")):
        at = [ranges[i] for i in np.flatnonzero(np.abs(c - value) < 0.05)]
        if at:
            found[name] = at
    other = (np.abs(c) > 0.05) & (np.abs(c + 1) >= 0.05) & (np.abs(c - 1) >= 0.05)
    if other.any():
        some = np.flatnonzero(other)[:16]
        found["scaled"] = {f"{ranges[i][0]} to {ranges[i][1]}": round(float(1 + c[i]), 4) for i in some}
    return found
