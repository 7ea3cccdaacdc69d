"""A mistake tried: what y would be with it, and how far float32 sums may then be."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..readings import Wide
from .scene import Scene
from .terms import Side, terms


class Mistake(NamedTuple):
    """One candidate."""

    fault: str
    variant: str
    y: Wide
    limit: Callable[[], Wide]
    free: int = 0  # numbers fitted to y
    elements: int = 0  # on which it differs, where that is what counts


def of_scales(
    scene: Scene, fault: str, variant: str, a: Wide | None, b: Wide | None, inner: Wide | None = None
) -> Mistake:
    """Other scales, or other sums under the scales."""
    t = scene.terms
    y = t.product(inner, a, b)
    return Mistake(fault, variant, y, lambda: t.limit(y, a, b))


def of_codes(scene: Scene, fault: str, variant: str, a: Side, b: Side) -> Mistake:
    """Other codes."""
    t = terms(a, b)
    y = t.product()
    return Mistake(fault, variant, y, lambda: t.limit(y))


def scaled_parts(scene: Scene) -> Wide:
    """What each group of K adds to y, [G, M, N]."""
    t = scene.terms
    a, b = t.scales
    found: Wide = t.right * a.T[:, :, None] * b.T[:, None]
    return found
