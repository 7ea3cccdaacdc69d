"""The doctor's right kernels: results in every named arithmetic, and in every other usual rounding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ... import reference
from ...arrays.array import QuantArray
from ...errors import UnsupportedError
from ..numbers import Mask, Wide
from .operand import Operand
from .readings import Sums, Way
from .scene import Scene, predict

SHORTLIST = 6
LOOSE = 0.02  # of the typical size: how far sums in halves may be off


@dataclass(frozen=True, eq=False)
class Right:
    """The result of one right kernel, and how much of y it explains."""

    name: str
    arithmetic: str | None  # its name in ``reference.ARITHMETICS``, where it has one
    sums: Sums  # which block sum; "none" for arithmetics that need none
    prediction: Wide
    limit: Wide
    inside: Mask
    score: float
    median: float  # of |error| / typical size

    @property
    def share(self) -> float:
        """The part of y that it explains to the last rounding."""
        return float(self.inside.mean()) if self.inside.size else 1.0

    @property
    def rank(self) -> tuple[float, float, float]:
        """Smaller is better; a named arithmetic wins where both explain y alike, or not at all."""
        share = self.share if self.share > 0.3 else 0.0
        family = self.arithmetic is None and share in (0.0, 1.0)
        return -round(share, 5), float(family), self.median


def candidates(scene: Scene, q: QuantArray, claim: str | None) -> list[Right]:
    """Every right kernel, the one that fits y best first; q holds the rows of weights of the scene."""
    rights = by_name(scene, q, claim) + by_rounding(scene)
    return sorted(rights, key=lambda right: right.rank)


# --- by name --------------------------------------------------------------------------------


def by_name(
    scene: Scene, q: QuantArray, claim: str | None, names: Iterable[str] = reference.ARITHMETICS
) -> list[Right]:
    """The right kernels in named arithmetics; one without a bound, or with a wide one, only as the claim."""
    rights = []
    for name in names:
        if reference.ONE_TYPE.get(name, q.format.name) != q.format.name and name != claim:
            continue
        try:
            how = reference.rule(q.format, name)
            x = scene.x if name == "exact" else scene.x.astype(np.float32)
            prediction = reference.linear(x, q, name)
        except UnsupportedError:
            continue
        if how.half_runs and name != claim:  # what it may be off is more than some mistakes are
            continue
        floats = how.quantizer is None
        limit = scene.tolerance(prediction, floats)
        if how.bounded:
            bound = reference.bound(x, q, name)
            limit = np.where(np.isfinite(bound), np.maximum(limit, bound), limit)
        elif name != claim:
            continue
        else:
            limit = np.maximum(limit, LOOSE * scene.size)
        sums: Sums = "none" if floats or not np.any(scene.weights.constant) else "codes"
        if sums == "codes" and how.sums == "kept" and how.quantizer is not None:
            sums_kept = how.quantizer.sums
            sums = "codes" if sums_kept in ("codes", None) else "floats"
        if sums == "floats":
            limit = limit + _other_orders(scene)
        rights.append(_right(scene, name, name, sums, prediction, limit))
    return rights


def _other_orders(scene: Scene) -> Wide:
    """The error of half(Σx) where the floats are added in another order than llama.cpp's."""
    for way in scene.ways:
        if way.sums == "floats" and way.moves is not None:
            return scene.moved(replace(scene.readings[way.reading], moves=None), way, scene.weights)
    return np.zeros(scene.y.shape)


def _right(
    scene: Scene, name: str, arithmetic: str | None, sums: Sums, prediction: Wide, limit: Wide
) -> Right:
    inside = scene.within(prediction, limit)
    relative = np.abs((scene.y - prediction) / scene.size)[scene.seen]
    relative = np.nan_to_num(relative, nan=1e9, posinf=1e9)
    median = float(np.median(relative)) if relative.size else 0.0
    score = float(scene.scores(prediction[None])[0])
    return Right(name, arithmetic, sums, prediction, limit, inside, score, median)


# --- the family -----------------------------------------------------------------------------


def by_rounding(scene: Scene) -> list[Right]:
    """The right kernels of all ways with weights in each precision; only the most promising are judged."""
    rough: list[tuple[float, float, Way, Operand, str, Wide]] = []
    for label, w, chosen in precisions(scene):
        predictions = predict(scene.readings, chosen, w)
        scores = scene.scores(predictions)
        for way, prediction, score in zip(chosen, predictions, scores, strict=True):
            floats = scene.readings[way.reading].codes is None
            share = scene.within(prediction, scene.tolerance(prediction, floats)).mean()
            rough.append((-float(share), float(score), way, w, label, prediction))
    first = sorted(rough, key=lambda r: r[:2])[:SHORTLIST]
    second = sorted(rough, key=lambda r: r[1])[:SHORTLIST]
    best = {id(r): r for r in first + second}.values()
    return [judged(scene, *r[2:]) for r in best]


def judged(scene: Scene, way: Way, w: Operand, label: str, prediction: Wide) -> Right:
    """The right kernel of one way, with its prediction compared with y."""
    reading = scene.readings[way.reading]
    limit = scene.tolerance(prediction, reading.codes is None) + scene.moved(reading, way, w)
    return _right(scene, way.name + label, None, way.sums, prediction, limit)


def precisions(scene: Scene) -> list[tuple[str, Operand, list[Way]]]:
    """Weights as float32, half, bfloat16, and with half scales: a label, the weights, and their ways."""
    readings = {way: scene.readings[way.reading] for way in scene.ways}
    weights = [("", scene.weights, [way for way in scene.ways if readings[way].weights == "f32"])]
    for kind in ("f16", "bf16"):
        ways = [way for way in scene.ways if readings[way].weights == kind]
        weights.append(("", scene.weights.kept_as(kind), ways))
    coded = [way for way in scene.ways if readings[way].codes is not None]
    w = scene.weights
    if coded and (w.group != getattr(scene.fmt, "block_size", w.group) or np.any(w.offset)):
        weights.append((", scales of the weights as halves", w.with_half_scales(), coded))
    return weights
