"""The doctor's survey of a product with blocks: all of y compared with the best right kernel.

The best one is chosen on a sample of rows and columns, then compared with all of y, slab by slab.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import reference
from ...arrays.array import QuantArray
from ...base.devices import to_host
from ...base.indices import evenly_spaced
from ...errors import NonFiniteError, ShapeError, UnsupportedError
from ...ops.operands import check_linear
from ..frame import CALL, Results, results
from ..numbers import HALF, Index, Mask, Wide, half
from ..places import distance, sources
from ..survey import Part, Survey, by_slabs, sampled
from .scene import Right, Scene, by_name, candidates, judged, precisions, predict

FEW = 0.1  # of y may be wrong beside a store in half
FAR = 0.03  # of the typical size: more than half accumulators cost
SLAB = 1 << 24  # products M·N·K judged at a time

LOOKED_AT = 8  # rows by which an arithmetic is chosen where y is out of order
CHOSEN = 3  # arithmetics that are tried on all of y
DEAR = 1 << 30  # operations that choosing one may cost
PAIRS = 1 << 20  # entries of a table of distances between columns


@dataclass(frozen=True, eq=False)
class Case:
    """A kernel's result with its operands, on the host."""

    y: Wide  # [M, N]
    x: Wide  # [M, K] values of float32
    q: QuantArray  # [N, K]
    store: float = 0.0  # how much rounding the store of y itself cost, relatively
    cast: bool = False  # y was stored as half, though it came as float32
    unwritten: Mask | None = None  # [M, N]: elements that the kernel never wrote; nothing is judged by them

    def scene(self, rows: Index, columns: Index) -> Scene:
        """The scene of some rows and columns."""
        raw = np.ascontiguousarray(self.q.raw)
        at = np.ix_(rows, columns)
        written = None if self.unwritten is None else ~self.unwritten[at]
        return Scene(self.q.format, raw, self.x[rows], self.y[at], columns, self.store, self.cast, written)


@dataclass(frozen=True, eq=False)
class BlockSurvey(Survey):
    """A case compared with its best right kernel, over all elements."""

    case: Case
    best: Right  # on the sampled scene
    others: list[Right]  # further right kernels, best first

    @property
    def written(self) -> BlockSurvey:
        """A survey like this one, with right values where nothing was written."""
        if self.case.unwritten is None:
            return self
        y = np.where(self.case.unwritten, self.prediction, self.y)
        return replace(self, y=y, case=replace(self.case, y=y))

    @property
    def alternatives(self) -> list[Wide]:
        """Results of other right kernels, if they were computed for all of y."""
        return [right.prediction for right in self.others if right.prediction.shape == self.y.shape]

    def fitting(self, axis: int) -> list[Wide]:
        """Results of right kernels whose columns (axis 1) or rows (axis 0) appear in y, at any place."""
        case = self.case
        looked = [np.arange(n) for n in case.y.shape]
        looked[1 - axis] = evenly_spaced(case.y.shape[1 - axis], LOOKED_AT)
        if len(looked[0]) * len(looked[1]) * case.x.shape[1] * 64 > DEAR or case.y.shape[axis] ** 2 > PAIRS:
            return []
        scene = case.scene(looked[0], looked[1])
        ranked = []
        for label, w, ways in precisions(scene):
            for way, p in zip(ways, predict(scene.readings, ways, w), strict=True):
                y, best, size = (a if axis == 1 else a.T for a in (scene.y, p, scene.size))
                source = sources(y, best, size)
                at = np.arange(len(source))
                error = distance(y, best, size, np.arange(len(y)), at, source)
                ranked.append((float(np.median(np.nan_to_num(error, nan=1e9))), label, way, w, p))
        ranked.sort(key=lambda r: r[0])
        return [
            _over_all(case, judged(scene, way, w, label, p), []).prediction
            for _, label, way, w, p in ranked[:CHOSEN]
        ]


def survey(case: Case, prefer: str | None = None) -> BlockSurvey:
    """The survey with the right kernel that explains most of y, which may have been stored as half."""
    written = case.y if case.unwritten is None else case.y[~case.unwritten]
    halves = written.any() and np.isfinite(written).all() and (half(written) == written).all()
    if case.store == 0 and halves:
        cast = _survey(replace(case, store=HALF, cast=True), prefer)
        relative = np.abs(case.y - cast.prediction) / cast.size
        if cast.bad.mean() < FEW and (relative[cast.bad] > FAR).all():
            return cast  # sums kept in half are off by little, but in many places
    return _survey(case, prefer)


def _survey(case: Case, prefer: str | None) -> BlockSurvey:
    rows, columns = sample(case, None)
    scene = case.scene(rows, columns)
    rights = candidates(scene, case.q[columns], prefer)
    best = rights[0]
    claimed = [right for right in rights if prefer and right.arithmetic == prefer]
    if claimed and claimed[0].share >= best.share:
        best = claimed[0]
    if (len(rows), len(columns)) == case.y.shape:
        return BlockSurvey(case.y, best.prediction, scene.size, best.limit, ~best.inside, case, best, rights)
    return _over_all(case, best, rights)


def _over_all(case: Case, best: Right, others: list[Right]) -> BlockSurvey:
    """The survey with this right kernel computed for all of y."""
    m, k = case.x.shape
    tall = max(1, min(m, SLAB // (k * 64)))

    def judge(rows: Index, columns: Index) -> Part:
        scene = case.scene(rows, columns)
        right = _again(scene, case.q[columns], best)
        return right.prediction, scene.size, right.limit, ~right.inside

    part = by_slabs(case.y.shape, tall, max(64, SLAB // (k * tall)), judge)
    return BlockSurvey(case.y, *part, case, best, others)


def _again(scene: Scene, q: QuantArray, best: Right) -> Right:
    """The same right kernel, by its name, on another scene."""
    if best.arithmetic is not None:
        return by_name(scene, q, best.arithmetic, [best.arithmetic])[0]
    way, w, label = next(
        (way, w, label)
        for label, w, ways in precisions(scene)
        for way in ways
        if way.name + label == best.name
    )
    return judged(scene, way, w, label, predict(scene.readings, [way], w)[0])


def sample(case: Case, bad: Mask | None) -> tuple[Index, Index]:
    """Rows and columns of a case to look at more closely."""
    return sampled(case.y.shape, case.x.shape[1], bad)


# --- operands, checked and on the host -------------------------------------------------------------


def checked(
    y: Any, x: Any, q: QuantArray, arithmetic: str | None, repeats: Any, unwritten: Any
) -> tuple[Case, Results]:
    """The case and all results; errors say what does not fit."""
    if arithmetic is not None and arithmetic not in reference.ARITHMETICS:
        raise UnsupportedError(
            f"{CALL} with arithmetic={arithmetic!r}: there is no such arithmetic; a kernel may "
            f"claim {', '.join(map(repr, reference.ARITHMETICS))}; or leave it out"
        )
    q = q.to("cpu") if isinstance(q, QuantArray) else q
    x = check_linear(CALL, to_host(x), q)
    if arithmetic is not None:
        reference.rule(q.format, arithmetic)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).astype(np.float32).astype(np.float64)
    if not np.isfinite(rows).all():
        at = [int(i) for i in np.argwhere(~np.isfinite(rows))[0]]
        raise NonFiniteError(
            f"{CALL}: x{at} is {rows[tuple(at)]}; activations must be finite, a product with NaN "
            "shows nothing; dump x again, or replace what is not finite"
        )
    r = results(y, repeats, (*x.shape[:-1], q.shape[0]), len(rows))
    mask = None if unwritten is None else _mask(unwritten, r)
    return Case(r.y, rows, q, r.store, unwritten=mask), r


def _mask(unwritten: Any, r: Results) -> Mask | None:
    """The mask of elements that were never written, in the order of y; None if there are none."""
    mask = np.asarray(to_host(unwritten))
    mask = mask.T if r.flipped else mask
    if mask.dtype != np.bool_ or mask.size != r.y.size:
        raise ShapeError(
            f"{CALL}: unwritten is {mask.dtype} of {mask.shape}, y has shape {r.y.shape}; pass a mask of "
            "booleans, one for each element of y"
        )
    return mask.reshape(r.y.shape) if mask.any() else None
