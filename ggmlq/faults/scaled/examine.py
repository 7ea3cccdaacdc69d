"""The doctor's way from y of a product of scaled arrays to a finding, and to the words of the report."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from ...arrays.scaled import ScaledArray
from ...reference.metrics import nmse
from ..catalogue import SCALED
from ..findings import EXACT, Explanation, Finding, correct, factor, from_explanations, from_pattern
from ..frame import Product, Words, counted, extent, plain
from ..numbers import BF16, Mask, Wide
from ..places import blocks_of_k, by_place, exchanged, patterns, where, wrong_places
from . import codes, scales
from .codes import PROMOTED as PROMOTED_AT
from .codes import cut_otherwise, truncated, truncation_limit, wrapped_somewhere
from .scales import Tried
from .scene import ScaledSurvey, Scene, beside, checked, survey
from .terms import Side, grouped

PROMOTED = 3e-4  # mean error of sums that are cut off but promoted, over the mean of y
BY_ROW = 1e-3  # of one row of weights
LOSS = 0.02  # mean error of sums that are never promoted, at most
MOST = 0.8  # part of the elements that is wrong then, at least
LIKE = 0.6  # correlation of an error with what is cut off
TELLING = 4  # elements that a mistake must explain, and a right kernel does not
FEW = 16  # elements of which all may lose the same proportion by chance, where sums are cut off


class Scaled(Product[ScaledSurvey]):
    """One product with a ScaledArray of weights, for the doctor to diagnose."""

    catalogue = SCALED

    def __init__(
        self, y: Any, x: Any, q: ScaledArray, *, arithmetic: Any = None, repeats: Any = (),
        activations: Any = None,
    ) -> None:  # fmt: skip
        with np.errstate(all="ignore"):  # scales of a wrong kernel's operands may overflow, too
            self.case, self.results = checked(y, x, q, arithmetic, repeats, activations)
        self.terms = q.shape[-1]

    def survey(self) -> ScaledSurvey:
        """All of y beside the product, with x taken in the way that explains most."""
        return survey(self.case)

    def explained(self, survey: ScaledSurvey) -> Finding:
        """Mistakes that explain y to the last rounding come first, then NaN, then what is near."""
        s = survey
        if not s.bad.any():
            return correct(s)
        bad = wrong_places(s)
        scene = s.scene(bad)
        good = [e for e in explanations(scene) if e.fits]
        exact = _surely(good, scene, s.bad) or _in_another_way(s)
        if exact is not None:
            return exact
        wild = s.bad & ~np.isfinite(s.y)
        if wild.any():
            return not_finite(s, scene, wild)
        scaled, promoted = factor(s, s.way.name), _promoted(s, scene)
        by_chance = promoted and s.y.size <= FEW
        if scaled is not None and scaled.level == 2 and not by_chance:
            return from_explanations([scaled], bad)
        if promoted:
            text = "sums are cut off to 14 bits and promoted, as a tensor core of Hopper's makes them in FP8"
            return Finding("correct", 0.9, text)
        return _less_sure(s, scene, good + ([scaled] if scaled is not None and scaled.fits else []), bad)

    def words(self, survey: ScaledSurvey, finding: Finding) -> Words:
        """The report's figures, and the way in which the kernel takes x."""
        s = survey
        error, size = np.abs(s.y - s.prediction), np.abs(s.prediction).sum()
        near = plain(nmse(s.y, s.prediction))
        mean = plain(error.sum() / size if size else error.sum())
        figures = {"nmse against exact": near, "mean error over mean": mean, **counted(s)}
        apart = f"NMSE {near:.1e} against the exact product of {s.way.name}"
        return Words(figures, _right(s, finding, figures), "codes", extent(finding, figures, apart))


def _right(s: ScaledSurvey, finding: Finding, figures: dict[str, Any]) -> str:
    m, n = s.y.shape
    text = (
        f"The kernel is right. All {m}×{n} elements are the product of {s.way.name}, but for the rounding of "
        f"{finding.detail or 'float32 sums'} (mean error {figures['mean error over mean']:.1e} of the mean)."
    )
    if s.case.cast:
        kind = "bfloat16" if s.case.store == BF16 else "half"
        text += f" y came as float32, but is stored as {kind}: each element is rounded to one at the end."
    wild = figures["elements not finite"]
    if wild:
        text += f" {wild} elements are not finite, as in the product itself."
    loose = int((~np.isfinite(s.limit)).sum())
    if loose:
        text += f" {loose} elements lie where float32 overflows: of them nothing can be told."
    return text


def _surely(good: list[Explanation], scene: Scene, bad: Mask) -> Finding | None:
    """The finding of the mistake that explains y to the last rounding; None if there is none."""
    exact = [e for e in good if _exact(e, scene)]
    if not exact:
        return None
    return from_explanations(exact, bad) if np.isfinite(scene.y).any() else nowhere_finite(exact, scene, bad)


def _in_another_way(s: ScaledSurvey) -> Finding | None:
    """The finding of the mistake that explains y to the last rounding if x is taken in another way."""
    for way in s.case.ways:
        if way is not s.way:
            other = beside(s.case, way)
            scene = other.scene(other.bad)
            finding = _surely([e for e in explanations(scene) if e.fits], scene, other.bad)
            if finding is not None:
                return replace(finding, detail=f"{finding.detail} (beside it: {way.name})")
    return None


def _exact(e: Explanation, scene: Scene) -> bool:
    """True if an explanation holds to the last rounding, on too many elements to agree by chance."""
    wrong = int((~scene.within(scene.prediction, scene.limit)).sum())
    near_right = e.fault == "no-promotion"  # few elements agree by chance
    enough = wrong >= min(TELLING, scene.y.size) if near_right else True
    return e.level == 2 and enough and wrong > e.free


# --- mistakes, tried one by one --------------------------------------------------------------------------

KEPT = 8  # mistakes that are judged in full
FAMILIES = (scales.mistakes, scales.zero_points, codes.mistakes, codes.unsaturated, codes.sums, scales.beyond)


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


# --- floats that matrix units add up in few bits ------------------------------------------------------


def _error(s: ScaledSurvey | Scene) -> tuple[Wide, Wide]:
    """The magnitude of each error, and the size by which it is measured."""
    return np.abs(s.y - s.prediction), np.maximum(np.abs(s.prediction), s.size)


def _promoted(s: ScaledSurvey, scene: Scene) -> bool:
    """True if errors are no larger than those of FP8 sums that are cut off, but promoted in time."""
    if not scene.in_floats or not np.isfinite(s.y).all():
        return False
    error, unit = _error(s)
    if not error.sum() <= PROMOTED * unit.sum():
        return False
    near = np.abs(scene.y - scene.prediction) <= scene.limit + truncation_limit(scene)
    return bool((error.sum(axis=0) <= BY_ROW * unit.sum(axis=0)).all() and near.all())


def _cut_off(scene: Scene) -> Finding | None:
    """The finding that errors correlate with what a tensor core would cut off; None if they do not."""
    if scene.y.size < 2 * TELLING or scene.a.s is None:
        return None
    best: tuple[float, str] | None = None
    for mistake in (*truncated(scene), *cut_otherwise(scene)):
        share, like = scene.resemblance(mistake.replay.y)
        if like > LIKE and 0.3 < share < 3 and (best is None or like > best[0]):
            best = like, mistake.words
    if best is None:
        return _loss_of_that_size(scene)
    text = f"errors go with what is lost where {best[1]} (correlation {best[0]:.2f})"
    return Finding("no-promotion", 0.75, text)


def _loss_of_that_size(scene: Scene) -> Finding | None:
    """The finding for small errors everywhere in long sums, which no other known mistake leaves."""
    group = grouped(scene.a, scene.b)
    error, unit = _error(scene)
    near = error <= scene.limit + truncation_limit(scene, group)
    long = scene.in_floats and group > PROMOTED_AT
    if not (long and near.all() and (error > scene.limit).mean() > MOST and error.sum() <= LOSS * unit.sum()):
        return None
    text = "errors are small, everywhere, and of the size that long sums in 14 bits have"
    return Finding("no-promotion", 0.5, text)


# --- by place ------------------------------------------------------------------------------------------


def _less_sure(s: ScaledSurvey, scene: Scene, good: list[Explanation], bad: Mask) -> Finding:
    """The finding by weaker signs: moved columns, nearly all of the error, tails by place, or unknown."""
    if not s.y.any():
        text = "y is zero throughout: nothing was multiplied, or nothing was written"
        return Finding("unknown", 0.5, text, where(bad), int(bad.sum()))
    moved = exchanged(s, s.bad)
    if moved is not None:
        return from_pattern(moved, s.bad)
    shapes = patterns(s, s.bad) or patterns(s, bad)
    if shapes and shapes[0].sure:
        return from_pattern(shapes[0], bad)
    cut = _cut_off(scene)
    if cut is not None:
        return replace(cut, where=where(s.bad), elements=int(s.bad.sum()))
    if good:
        return from_explanations(sorted(good, key=lambda e: e.score), bad)
    wrapped = wrapped_somewhere(scene) if scene.y.size >= 2 * TELLING else None
    if wrapped is not None:
        text = f"{wrapped[0]}, by amounts that y does not tell"
        return Finding("no-saturation", 0.7, text, where(bad), int(bad.sum()), left=wrapped[1])
    if shapes:
        return from_pattern(shapes[0], bad)
    t = scene.terms
    error, usable = (scene.y - scene.prediction) / scene.size, np.isfinite(scene.y + scene.prediction)
    ends = np.append(t.starts, t.starts[-1] + int(t.lengths[-1]))
    blocks = blocks_of_k(t.parts / scene.size, error, usable, ends)
    return Finding("unknown", 0.5, "", where(bad) | ({"K-blocks": blocks} if blocks else {}), int(bad.sum()))


# --- NaN and infinities where the product is finite ------------------------------------------------

CLIPPED = 3  # largest codes a tile: scales computed from the data leave one or two


def not_finite(s: ScaledSurvey, scene: Scene, wild: Mask) -> Finding:
    """The finding that largest codes became NaN, if all lost rows (columns) hold some; else one by place."""
    pattern = by_place(wild)
    for axis, side in ((0, scene.a), (1, scene.b)):
        lost = np.flatnonzero(wild.any(axis=1 - axis))
        at_ends = _ends(s, side, axis)
        if at_ends is None or not np.take(wild, lost, axis=axis).all() or wild.all():
            continue
        if pattern.fault != "nan" and at_ends.sum() != len(lost):  # a tail, whatever it holds
            continue
        elsewhere = ~wild & s.bad
        if at_ends[lost].all() and not elsewhere.any():
            name, confidence = ("rows", "columns")[axis], 0.95 if at_ends.sum() == len(lost) else 0.8
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
