"""Mistakes in zero points that the doctor imitates: a term of the identity left out, negated, of another sum.

Σ (qa - za)(qb - zb)  =  Σ qa·qb  -  za·Σqb  -  zb·Σqa  +  n·za·zb
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..numbers import Wide
from .mistake import Tried, with_scales
from .scene import Scene
from .terms import Terms

MISSING, SIGN, TWICE = "zero-missing", "zero-sign", "zero-twice"
FACTORS: tuple[tuple[str, str, tuple[float, float, float]], ...] = (
    (MISSING, "the zero point of x is never taken off", (0, 1, 0)),
    (MISSING, "the term za·Σqb is absent", (0, 1, 1)),
    (MISSING, "the zero point of w is never taken off", (1, 0, 0)),
    (MISSING, "the term zb·Σqa is absent", (1, 0, 1)),
    (MISSING, "no zero point is taken off", (0, 0, 0)),
    (MISSING, "the terms za·Σqb and zb·Σqa are absent", (0, 0, 1)),
    (MISSING, "the term n·za·zb is absent", (1, 1, 0)),
    (SIGN, "the zero point of x is added", (-1, 1, -1)),
    (SIGN, "za·Σqb is added", (-1, 1, 1)),
    (SIGN, "the zero point of w is added", (1, -1, -1)),
    (SIGN, "zb·Σqa is added", (1, -1, 1)),
    (SIGN, "both zero points are added", (-1, -1, 1)),
    (SIGN, "n·za·zb is taken off", (1, 1, -1)),
    (SIGN, "all three terms have the other sign", (-1, -1, -1)),
    (TWICE, "the zero point of x is taken off twice", (2, 1, 2)),
    (TWICE, "the zero point of w is taken off twice", (1, 2, 2)),
    (TWICE, "both zero points are taken off twice", (2, 2, 4)),
)


def mistakes(scene: Scene) -> Iterator[Tried]:
    """Results y with each mistake in zero points."""
    t = scene.terms
    present = [bool(term is not None and np.any(term)) for term in t.corrections]
    if not any(present):
        return
    seen = set()
    for fault, variant, factors in FACTORS:
        shown = tuple(f for f, here in zip(factors, present, strict=True) if here)
        if shown in seen or all(f == 1 for f in shown):
            continue
        seen.add(shown)
        yield with_scales(scene.terms, fault, variant, inner=t.inner(factors))
    for variant, inner in _exchanged_sums(t):
        yield with_scales(scene.terms, "zero-other-sum", variant, inner=inner)


def _exchanged_sums(t: Terms) -> Iterator[tuple[str, Wide]]:
    """The sums if a zero point is multiplied with the code sum of its own operand."""
    (za, zb), (sum_a, sum_b) = t.zeros, t.sums
    first, second, both = (0.0 if term is None else term for term in t.corrections)
    first_wrong = 0.0 if za is None else (za * sum_a).T[:, :, None]
    second_wrong = 0.0 if zb is None else (zb * sum_b).T[:, None]
    if za is not None:
        yield "za·Σqa in the place of za·Σqb", t.dots - first_wrong - second + both
    if zb is not None:
        yield "zb·Σqb in the place of zb·Σqa", t.dots - first - second_wrong + both
    if za is not None and zb is not None:
        yield "each zero point times the sum of its own operand", t.dots - first_wrong - second_wrong + both
