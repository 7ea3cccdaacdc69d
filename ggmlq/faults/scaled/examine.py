"""``gq.diagnose`` of products of scaled arrays: the way from a result to a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...arrays.scaled import ScaledArray
from ..diagnosis import Diagnosis
from ..explanation import Explanation, Finding, fits, level
from ..judged import Mask
from ..no_terms import without_terms
from ..places import patterns, where, wrong_places
from ..readings import Wide
from ..verdicts import factor, of_explanations, of_pattern, race
from .codes import wrapped_somewhere
from .inputs import given
from .moved import exchanged
from .replay import blocks_of_k, explanations
from .report import report
from .scene import Scene, Survey, beside, survey
from .sums import PROMOTED as PROMOTED_AT
from .sums import cut_otherwise, truncated, truncation_limit
from .terms import grouped
from .wild import not_finite, nowhere_finite

PROMOTED = 3e-4  # mean error of sums that are cut off but promoted, over the mean of y
BY_ROW = 1e-3  # of one row of weights
LOSS = 0.02  # mean error of sums that are never promoted, at most
MOST = 0.8  # of the elements are wrong then
LIKE = 0.6  # correlation of an error with what is cut off
TELLING = 4  # elements that a mistake must explain, and a right kernel does not
FEW = 16  # elements of which all may lose the same proportion by chance, where sums are cut off


def diagnose(
    y: Any, x: Any, w: ScaledArray, *, arithmetic: Any = None, repeats: Any = (), activations: Any = None
) -> Diagnosis:
    """As :func:`ggmlq.diagnose`, for weights that are a ScaledArray."""
    with np.errstate(all="ignore"):  # wrong kernels, and kernels made wrong on purpose, overflow at will
        g = given(y, x, w, arithmetic, repeats, activations)
        if g.case.y.size == 0:
            return Diagnosis(True, "correct", 1.0, "There is nothing to judge: y is empty.")
        if not w.shape[-1]:
            return without_terms(g.case.y, g.repeats)
        found = survey(g.case)
        return report(found, _verdict(found, g.repeats, g.flipped))


def _verdict(s: Survey, repeats: list[Wide], flipped: bool) -> Finding:
    differs = race(s, repeats)
    if differs is not None:
        return differs
    if flipped:
        return _flipped(s)
    if not s.bad.any():
        return Finding("correct", 0.99 if s.y.size >= 4 else 0.9, "")
    bad = wrong_places(s)
    scene = s.scene(bad)
    good = [e for e in explanations(scene) if fits(e)]
    exact = _surely(good, scene, s.bad) or _elsewise(s)
    if exact is not None:
        return exact
    wild = s.bad & ~np.isfinite(s.y)
    if wild.any():
        return not_finite(s, scene, wild)
    scaled, promoted = _scaled(s), _promoted(s, scene)
    by_chance = promoted and s.y.size <= FEW
    if scaled is not None and level(scaled) == 2 and not by_chance:
        return of_explanations([scaled], bad)
    if promoted:
        text = "sums are cut off to 14 bits and promoted, as a tensor core of Hopper's makes them in FP8"
        return Finding("correct", 0.9, text)
    return _less_sure(s, scene, good + ([scaled] if scaled is not None and fits(scaled) else []), bad)


def _flipped(s: Survey) -> Finding:
    if not s.bad.any():
        return Finding("transposed", 0.95, "y came as [N, M]; read so, it is right", elements=s.y.size)
    return Finding("unknown", 0.5, "y came as [N, M], and is wrong either way")


def _surely(good: list[Explanation], scene: Scene, bad: Mask) -> Finding | None:
    """What explains y to the last rounding."""
    exact = [e for e in good if _exact(e, scene)]
    if not exact:
        return None
    if np.isfinite(scene.y).any():
        return of_explanations(exact, bad)
    return nowhere_finite(exact, scene, bad)


def _elsewise(s: Survey) -> Finding | None:
    """The same with x taken in another way."""
    for way in s.case.ways:
        if way is not s.way:
            other = beside(s.case, way)
            scene = other.scene(other.bad)
            found = _surely([e for e in explanations(scene) if fits(e)], scene, other.bad)
            if found is not None:
                return replace(found, detail=f"{found.detail} (beside it: {way.name})")
    return None


def _exact(e: Explanation, scene: Scene) -> bool:
    """To the last rounding, and more than a few numbers that agree by chance."""
    if level(e) < 2:
        return False
    wrong = int((~scene.within(scene.prediction, scene.limit)).sum())
    if e.fault == "no-promotion":  # it is near a right result: few elements agree by chance
        return wrong >= min(TELLING, scene.y.size) and wrong > e.free
    return wrong > e.free


def _scaled(s: Survey) -> Explanation | None:
    use = np.isfinite(s.y) & np.isfinite(s.prediction)
    return factor(s.y, s.prediction, s.size, s.limit, use, s.way.name)


# --- floats that matrix units add up in few bits ------------------------------------------------------


def _error(s: Survey | Scene) -> tuple[Wide, Wide]:
    """The magnitude of each error, and of what it is measured by."""
    return np.abs(s.y - s.prediction), np.maximum(np.abs(s.prediction), s.size)


def _promoted(s: Survey, scene: Scene) -> bool:
    """Whether errors are no larger than those of sums that are cut off and promoted in time."""
    if scene.a.s is None or scene.a.s.code.kind != "float" or not np.isfinite(s.y).all():
        return False
    error, unit = _error(s)
    if not error.sum() <= PROMOTED * unit.sum():
        return False
    near = np.abs(scene.y - scene.prediction) <= scene.limit + truncation_limit(scene)
    return bool((error.sum(axis=0) <= BY_ROW * unit.sum(axis=0)).all() and near.all())


def _cut_off(scene: Scene) -> Finding | None:
    """Errors that go with what a tensor core would cut off, though not to the last bit."""
    error = ((scene.y - scene.prediction) / scene.size).reshape(-1)
    best: tuple[float, str] | None = None
    for mistake in (*truncated(scene), *cut_otherwise(scene)):
        lost = ((mistake.y - scene.prediction) / scene.size).reshape(-1)
        both, of_lost = float(error @ lost), float(lost @ lost)
        if not (of_lost > 0 and np.isfinite(both)):
            continue
        like = both / np.sqrt(of_lost * float(error @ error))
        if like > LIKE and 0.3 < both / of_lost < 3 and (best is None or like > best[0]):
            best = like, mistake.variant
    if scene.y.size < 2 * TELLING or scene.a.s is None:
        return None
    if best is None:
        return _of_that_size(scene)
    text = f"errors go with what is lost where {best[1]} (correlation {best[0]:.2f})"
    return Finding("no-promotion", 0.75, text)


def _of_that_size(scene: Scene) -> Finding | None:
    """Nothing but small errors everywhere, where sums are long: no other mistake is known to leave these."""
    long = (
        scene.a.s is not None and scene.a.s.code.kind == "float" and grouped(scene.a, scene.b) > PROMOTED_AT
    )
    error, unit = _error(scene)
    near = error <= scene.limit + truncation_limit(scene, grouped(scene.a, scene.b))
    if not (long and near.all() and (error > scene.limit).mean() > MOST and error.sum() <= LOSS * unit.sum()):
        return None
    text = "errors are small, everywhere, and of the size that long sums in 14 bits have"
    return Finding("no-promotion", 0.5, text)


# --- by place ------------------------------------------------------------------------------------------


def _less_sure(s: Survey, scene: Scene, good: list[Explanation], bad: Mask) -> Finding:
    """Where it shows, what explains nearly all of it, or unknown."""
    if not s.y.any():
        text = "y is zero throughout: nothing was multiplied, or nothing was written"
        return Finding("unknown", 0.5, text, where(bad), int(bad.sum()))
    moved = exchanged(s, s.bad)
    if moved is not None:
        return of_pattern(moved, s.bad)
    shapes = patterns(s, s.bad) or patterns(s, bad)
    sure = [pattern for pattern in shapes if pattern.sure]
    if sure:
        return of_pattern(sure[0], bad)
    cut = _cut_off(scene)
    if cut is not None:
        return Finding(cut.fault, cut.confidence, cut.detail, where(s.bad), int(s.bad.sum()))
    if good:
        return of_explanations(sorted(good, key=lambda e: e.score), bad)
    wrapped = wrapped_somewhere(scene) if scene.y.size >= 2 * TELLING else None
    if wrapped is not None:
        text = f"{wrapped[0]}, by amounts that y does not tell"
        return Finding("no-saturation", 0.7, text, where(bad), int(bad.sum()), left=wrapped[1])
    if shapes:
        return of_pattern(shapes[0], bad)
    blocks = blocks_of_k(scene)
    places = where(bad) | ({"K-blocks": blocks} if blocks else {})
    return Finding("unknown", 0.5, "", places, int(bad.sum()))
