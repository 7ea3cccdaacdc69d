"""The doctor's scene: some rows and columns of y, with all that is needed to predict what kernels give there.

A scene holds y [M, N], the activations in all their readings, and the weights as an Operand. It predicts the
results of all ways at once, and bounds the rounding errors of float32 sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import reference
from ...arrays.array import QuantArray
from ...errors import UnsupportedError
from ...formats import BlockFormat, Format
from ...reference.bound import UNIT
from ..numbers import CAP, HALF, HUGE, LEAST_HALF, SMALLEST, Index, Mask, Wide, half
from ..survey import typical
from . import readings
from .operand import Operand, operand
from .readings import Reading, Sums, Way


class Fit(NamedTuple):
    """A prediction, and how well it explains y."""

    score: float  # mean of (error / typical size)², the worst elements capped
    share: float  # of the elements within the tolerance
    way: Way


class Scene:
    """One kernel's y [M, N] at some rows and columns."""

    def __init__(
        self, fmt: Format, raw: NDArray[np.uint8], x: Wide, y: Wide, columns: Index,
        store: float = 0.0, cast: bool = False, written: Mask | None = None,
    ) -> None:  # fmt: skip
        """``raw`` holds all rows of the weights; x, y and ``written`` are cut to the scene already."""
        self.fmt, self.raw, self.x, self.y, self.columns = fmt, raw, x, y, columns
        self.store, self.cast = store, cast
        self.blocks = raw.view(fmt.dtype)
        self.weights = operand(fmt, self.blocks[columns])
        self.sane: Mask = np.asarray(
            np.isfinite(self.weights.dense).all(axis=1)
        )  # damaged weights say nothing
        self.written: Mask = np.ones(y.shape, np.bool_) if written is None else written
        self.seen: Mask = np.isfinite(y) & self.sane & self.written
        self.wild: Mask = ~np.isfinite(y) & self.sane & self.written

    # --- what may have multiplied ---------------------------------------------------------

    @cached_property
    def readings(self) -> list[Reading]:
        """Right readings of the activations."""
        right = readings.right(self.x)
        if not isinstance(self.fmt, BlockFormat):
            return [reading for reading in right if reading.codes is None]
        return right

    @cached_property
    def _all_ways(self) -> list[Way]:
        needs_sums = bool(np.any(self.weights.constant))
        return readings.ways(self.x, self.readings, self.weights.grain, needs_sums)

    @cached_property
    def ways(self) -> list[Way]:
        """Right readings with right sums."""
        return [way for way in self._all_ways if way.fault is None]

    @cached_property
    def wrong(self) -> tuple[list[Reading], list[Way]]:
        """All readings, and the ways in which the reading or the sum is wrong."""
        wrong = readings.wrong(self.x) if isinstance(self.fmt, BlockFormat) else []
        needs_sums = bool(np.any(self.weights.constant))
        ways = readings.ways(self.x, wrong, self.weights.grain, needs_sums)
        n = len(self.readings)
        ways = [replace(way, reading=way.reading + n) for way in ways]
        return self.readings + wrong, [*(way for way in self._all_ways if way.fault), *ways]

    @cached_property
    def size(self) -> Wide:
        """The typical size of each element, were its terms of random sign."""
        size = typical(self.x, np.where(self.sane[:, None], self.weights.dense, 0))
        if not self.wild.any():
            return np.maximum(size, 1e-300)
        # Scales misread so that some are infinite are huge elsewhere.
        return np.maximum(size, np.where(self.wild, 1e-300, np.abs(self.y)))

    # --- tolerance ------------------------------------------------------------------------

    @cached_property
    def partial(self) -> tuple[Wide, Wide]:
        """For each element: the largest size of partial sums over blocks, and the sum of all magnitudes."""
        w, grain = self.weights, self.weights.grain
        constant = np.abs(w.constant)
        x, weights = (a.reshape(len(a), -1, grain) for a in (self.x, w.scaled))
        sums = np.zeros(self.y.shape)
        for g in range(x.shape[1]):
            sums += np.abs(x[:, g] @ weights[:, g].T)
        whole = np.abs(self.x) @ np.abs(w.scaled).T
        if np.any(constant):
            x_sums = x.sum(axis=-1)
            sums += np.abs(x_sums) @ constant.T
            whole += np.abs(x).sum(axis=-1) @ constant.T
        return np.nan_to_num(sums, nan=np.inf), np.nan_to_num(whole, nan=np.inf)

    def tolerance(self, prediction: Wide, floats: bool) -> Wide:
        """The distance that float32 sums in any order may have from a prediction, without rounding ties."""
        blocks, whole = self.partial
        k = self.x.shape[1]
        n = k if floats else max(k // self.weights.grain, 1)
        if floats:
            blocks = blocks + whole / np.sqrt(min(self.weights.grain, k) or 1)
        limit: Wide = UNIT * ((6 * np.sqrt(n) + 4) * blocks + n * np.abs(prediction) + 4 * whole)
        limit += SMALLEST * (k + 65536) + self.store * np.nan_to_num(np.abs(prediction))
        if self.store == HALF:
            limit += LEAST_HALF
        return np.where(blocks < HUGE, limit, np.inf)

    def moved(self, reading: Reading, way: Way, w: Operand) -> Wide:
        """The further distance where codes, scales and sums near a rounding tie may round either way."""
        total = np.zeros(self.y.shape)
        if reading.moves is not None and reading.moves.any():
            total += reading.moves @ np.abs(w.dense).T
            if way.excess is not None:
                by_grain = reading.moves.reshape(len(total), -1, w.grain).sum(axis=-1)
                total += by_grain @ np.abs(w.constant).T
        if way.moves is not None:
            total += way.moves @ np.abs(w.constant).T
        return np.nan_to_num(total, nan=np.inf)

    # --- judging --------------------------------------------------------------------------

    def scores(self, predictions: Wide, columns: Mask | None = None) -> Wide:
        """The mean squared relative error of each prediction [ways, M, N]."""
        use = self.seen if columns is None else self.seen & columns
        if not use.any():
            return np.full(len(predictions), np.inf)
        if self.wild.any():  # these must not be finite in the prediction either
            use = use | self.wild if columns is None else use | (self.wild & columns)
        error = ((self.y - predictions) / self.size)[:, use] ** 2
        if self.wild.any():
            error[self.wild[use] & ~np.isfinite(predictions[:, use])] = 0
        capped = np.minimum(np.nan_to_num(error, nan=CAP, posinf=CAP), CAP)
        mean: Wide = capped.mean(axis=1)
        return mean

    def within(self, prediction: Wide, limit: Wide) -> Mask:
        """Elements that a prediction explains to the last rounding; not finite in both counts as equal."""
        near = np.abs(self.y - prediction) <= limit
        if self.cast:  # exactly what a store in half makes of a result within float32's limits
            strict = limit - self.store * np.abs(prediction) - LEAST_HALF
            near &= (half(prediction - strict) <= self.y) & (self.y <= half(prediction + strict))
        same = ~np.isfinite(self.y) & ~np.isfinite(prediction)
        loose = ~np.isfinite(limit)  # float32 may overflow here: anything goes
        return near | same | loose | ~self.sane | ~self.written

    def judged(
        self, readings: list[Reading], way: Way, w: Operand, prediction: Wide,
        columns: Mask | None = None,
    ) -> Fit:  # fmt: skip
        """One prediction with its score and the elements it explains."""
        limit = self.tolerance(prediction, readings[way.reading].codes is None)
        limit = limit + self.moved(readings[way.reading], way, w)
        inside = self.within(prediction, limit)
        score = float(self.scores(prediction[None], columns)[0])
        part = inside if columns is None else inside[:, columns]
        return Fit(score, float(part.mean()) if part.size else 0.0, way)

    def fit(self, w: Operand, columns: Mask | None = None) -> Fit:
        """The right way that explains y best with these weights."""
        predictions = predict(self.readings, self.ways, w)
        best = int(self.scores(predictions, columns).argmin())
        return self.judged(self.readings, self.ways[best], w, predictions[best], columns)


def predict(readings: list[Reading], chosen: list[Way], w: Operand) -> Wide:
    """The results [ways, M, N] of kernels with these weights, one for each way."""
    used = sorted({way.reading for way in chosen})
    stack = np.concatenate([readings[i].values for i in used])
    base = (stack @ w.dense.T).reshape(len(used), -1, len(w.dense))
    at = {reading: i for i, reading in enumerate(used)}
    out = np.stack([base[at[way.reading]] for way in chosen])
    for i, way in enumerate(chosen):
        if way.excess is not None:
            out[i] += way.excess @ w.constant.T
        if (wraps := readings[way.reading].wraps) is not None:
            out[i] -= wraps @ w.below_zero.T
    return out


# --- right kernels, in every named arithmetic and every other usual rounding -----------------------

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
