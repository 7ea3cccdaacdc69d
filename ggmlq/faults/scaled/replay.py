"""The doctor's trials for scaled arrays: y with each mistake is computed and compared with the kernel's y."""

from __future__ import annotations

from itertools import chain

import numpy as np

from ..findings import EXACT, Explanation
from . import codes, scales, sums, zeros
from .mistake import Tried
from .scene import Scene

KEPT = 8  # mistakes that are judged in full
FAMILIES = (scales.mistakes, zeros.mistakes, codes.mistakes, codes.unsaturated, sums.mistakes, scales.beyond)


def explanations(scene: Scene) -> list[Explanation]:
    """The best 8 explanations of y by mistakes: exact ones first, of these the plainest; then by score."""
    right = min(scene.score(scene.prediction), scene.score(np.zeros_like(scene.y)))
    best: list[tuple[float, int, Tried]] = []
    for i, mistake in enumerate(chain.from_iterable(family(scene) for family in FAMILIES)):
        score = scene.score(mistake.replay.y)
        if score <= right / 2:
            best = sorted([*best, (score, i, mistake)], key=lambda t: t[:2])[:KEPT]
    judged = [(_judged(scene, mistake, score, right), i) for score, i, mistake in best]
    exact = sorted(((e, i) for e, i in judged if e.share >= EXACT), key=lambda pair: pair[1])
    return [e for e, _ in exact] + [e for e, _ in judged if e.share < EXACT]


def _judged(scene: Scene, mistake: Tried, score: float, right: float) -> Explanation:
    y, limit = mistake.replay.y, mistake.replay.limit()
    limit = scene.stored(limit, y) + scene.moved
    inside = scene.within(y, limit)
    share = float(inside.mean()) if inside.size else 0.0
    elements = int(np.isfinite(limit).sum())
    return Explanation(mistake.fault, mistake.words, "", score, right, share, elements, mistake.free)
