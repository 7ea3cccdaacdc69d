"""The doctor's findings on NaN and infinities in y where the product of scaled arrays is finite."""

from __future__ import annotations

import numpy as np

from ..explanation import Explanation, Finding
from ..numbers import Mask
from ..places import by_place, where
from ..verdicts import from_explanations, from_pattern
from .scene import ScaledSurvey, Scene
from .terms import Side

CLIPPED = 3  # largest codes a tile: scales computed from the data leave one or two


def not_finite(s: ScaledSurvey, scene: Scene, wild: Mask) -> Finding:
    """The finding that largest codes became NaN, if all lost rows (columns) hold some; else one by place."""
    pattern = by_place(wild)
    for axis, side in ((0, scene.a), (1, scene.b)):
        lost = np.flatnonzero(wild.any(axis=1 - axis))
        held = _ends(s, side, axis)
        if held is None or not np.take(wild, lost, axis=axis).all() or wild.all():
            continue
        if pattern.fault != "nan" and held.sum() != len(lost):  # a tail, whatever it holds
            continue
        elsewhere = ~wild & s.bad
        if held[lost].all() and not elsewhere.any():
            name, confidence = ("rows", "columns")[axis], 0.95 if held.sum() == len(lost) else 0.8
            text = f"the {name} that are not finite hold codes at the end of the range of {side.name}"
            return Finding("no-saturation", confidence, text, where(wild), int(wild.sum()), ("nan",))
    return from_pattern(pattern, wild)


def _ends(s: ScaledSurvey, side: Side, axis: int) -> Mask | None:
    """Rows of an operand with codes at an end of the range."""
    if side.s is None or side.s.code.kind != "float":
        return None
    m = side.s.matrix()
    values = np.abs(m.code.decode(m.codes))
    lost: Mask = (values == m.code.max).any(axis=1)
    return lost


def nowhere_finite(good: list[Explanation], scene: Scene, bad: Mask) -> Finding:
    """The finding where all of y is NaN or infinite: the likelier of the mistakes that explain it."""
    clipped = any(_clipped(side) for side in (scene.a, scene.b))
    wanted = "no-saturation" if clipped else "code-misread"
    good = sorted(good, key=lambda e: e.fault != wanted)
    finding = from_explanations(good, bad)
    alike = tuple(dict.fromkeys((*finding.alike, "nan")))
    return Finding(finding.fault, 0.4, finding.detail, finding.where, finding.elements, alike)


def _clipped(side: Side) -> bool:
    if side.s is None or side.s.code.kind != "float":
        return False
    tiles = len(np.unique(side.tiles)) * side.grid.shape[1]
    return bool((np.abs(side.values) == side.s.code.max).sum() > CLIPPED * tiles)
