"""The whole of y against the best right kernel: which elements are wrong, and where to look closer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..arrays.array import QuantArray
from .judged import Index, Mask
from .nearest import distance, sources
from .readings import Wide, half
from .right import Right, candidates, judged, named, precisions
from .scene import HALF, Scene, predict

ROWS, COLUMNS = 32, 64  # of a scene; fewer where K is long
WORK = 1 << 22  # elements of activations and weights of a scene
FEW = 0.1  # of y may be wrong beside a store in half
FAR = 0.03  # of the typical size: more than half accumulators cost
SLAB = 1 << 24  # products M·N·K judged at a time

LOOKED_AT = 8  # rows by which an arithmetic is chosen where y is out of order
CHOSEN = 3  # arithmetics that are tried on all of y
DEAR = 1 << 30  # operations that choosing one may cost
PAIRS = 1 << 20  # entries of a table of distances between columns


@dataclass(frozen=True, eq=False)
class Case:
    """What is to be judged: a kernel's result with its operands, on the host."""

    y: Wide  # [M, N]
    x: Wide  # [M, K] values of float32
    q: QuantArray  # [N, K]
    store: float = 0.0  # how much rounding the store of y itself cost, relatively
    cast: bool = False  # y was stored as half, though it came as float32
    unwritten: Mask | None = None  # [M, N]: elements that the kernel never wrote; nothing is judged by them

    def scene(self, rows: Index, columns: Index) -> Scene:
        """Some rows and columns of it."""
        raw = np.ascontiguousarray(self.q.raw)
        at = np.ix_(rows, columns)
        written = None if self.unwritten is None else ~self.unwritten[at]
        return Scene(self.q.format, raw, self.x[rows], self.y[at], columns, self.store, self.cast, written)

    @cached_property
    def all_rows(self) -> Index:
        return np.arange(self.y.shape[0])

    @cached_property
    def all_columns(self) -> Index:
        return np.arange(self.y.shape[1])


@dataclass(frozen=True, eq=False)
class Survey:
    """A case with its best right kernel, over all elements."""

    case: Case
    best: Right  # on the sampled scene
    others: list[Right]  # further right kernels, best first
    prediction: Wide  # [M, N] of the best one
    size: Wide  # [M, N]: the typical size of an element
    limit: Wide  # [M, N]: how far a right kernel may be
    bad: Mask  # [M, N]: not explained

    @property
    def y(self) -> Wide:
        return self.case.y

    @property
    def written(self) -> Survey:
        """The same with right values where nothing was written: all that is wrong is what was written."""
        if self.case.unwritten is None:
            return self
        y = np.where(self.case.unwritten, self.prediction, self.y)
        return replace(self, case=replace(self.case, y=y))

    @property
    def alternatives(self) -> list[tuple[str, Wide]]:
        """What other right kernels give for all of y, where it was looked at as a whole."""
        shape = self.y.shape
        return [(right.name, right.prediction) for right in self.others if right.prediction.shape == shape]

    def fitting(self, axis: int) -> list[Wide]:
        """What right kernels give whose columns (or rows) stand in y, wherever they stand."""
        case = self.case
        looked = [case.all_rows, case.all_columns]
        looked[1 - axis] = _few(looked[1 - axis])
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
        return [everywhere(case, judged(scene, way, w, label, p)) for _, label, way, w, p in ranked[:CHOSEN]]


def survey(case: Case, prefer: str | None = None) -> Survey:
    """Find the right kernel that explains most of y, and what it leaves unexplained."""
    written = case.y if case.unwritten is None else case.y[~case.unwritten]
    if case.store == 0 and _may_be_cast(written):
        found = _survey(replace(case, store=HALF, cast=True), prefer)
        if found.bad.mean() < FEW and (_relative(found)[found.bad] > FAR).all():
            return found  # sums kept in half are off by little, but in many places
    return _survey(case, prefer)


def _relative(s: Survey) -> Wide:
    with np.errstate(invalid="ignore", over="ignore"):
        error: Wide = np.abs(s.case.y - s.prediction) / s.size
    return error


def _may_be_cast(y: Wide) -> bool:
    """Whether y holds nothing but halves: a right result may have been stored as half."""
    return bool(y.any() and np.isfinite(y).all() and (half(y) == y).all())


def _survey(case: Case, prefer: str | None) -> Survey:
    rows, columns = sample(case, None)
    scene = case.scene(rows, columns)
    q = case.q[columns]
    found = candidates(scene, q, prefer)
    best = found[0]
    claimed = [right for right in found if prefer and right.arithmetic == prefer]
    if claimed and claimed[0].share >= best.share:
        best = claimed[0]
    whole = len(rows) == case.y.shape[0] and len(columns) == case.y.shape[1]
    if whole:
        return Survey(case, best, found, best.prediction, scene.size, best.limit, ~best.inside)
    return _over_all(case, best, found)


def everywhere(case: Case, best: Right) -> Wide:
    """What a right kernel, found on a scene, gives for the whole case."""
    return _over_all(case, best, [best]).prediction


def _over_all(case: Case, best: Right, found: list[Right]) -> Survey:
    """The same kernel on every row and column, slab by slab."""
    shape = case.y.shape
    prediction, size, limit = (np.empty(shape) for _ in range(3))
    bad = np.empty(shape, np.bool_)
    k = case.x.shape[1]
    tall = max(1, min(shape[0], SLAB // (k * 64)))
    wide = max(64, SLAB // (k * tall))
    for top in range(0, shape[0], tall):
        rows = case.all_rows[top : top + tall]
        for left in range(0, shape[1], wide):
            columns = case.all_columns[left : left + wide]
            scene, q = case.scene(rows, columns), case.q[columns]
            same = _again(scene, q, best)
            at = np.ix_(rows, columns)
            prediction[at], size[at], limit[at] = same.prediction, scene.size, same.limit
            bad[at] = ~same.inside
    return Survey(case, best, found, prediction, size, limit, bad)


def _again(scene: Scene, q: QuantArray, best: Right) -> Right:
    if best.arithmetic is not None:
        return named(scene, q, best.arithmetic, [best.arithmetic])[0]
    return by_name(scene, best.name)


def by_name(scene: Scene, name: str) -> Right:
    """One of the family again, on another scene."""
    for label, w, chosen in precisions(scene):
        for way in chosen:
            if way.name + label == name:
                return judged(scene, way, w, label, predict(scene.readings, [way], w)[0])
    raise AssertionError(name)


def sample(case: Case, bad: Mask | None) -> tuple[Index, Index]:
    """Rows and columns to look at: all of a small case, otherwise ends, some between, and bad ones."""
    return spread(case.y.shape, case.x.shape[1], bad)


def spread(shape: tuple[int, ...], k: int, bad: Mask | None) -> tuple[Index, Index]:
    """Rows and columns of y to look at, fewer where K is long."""
    (m, n), k = shape, max(k, 1)
    none = np.zeros((m, n), np.bool_) if bad is None else bad
    rows = _some(m, min(ROWS, max(8, WORK // (k * 32))), np.flatnonzero(none.any(axis=1)))
    columns = _some(n, min(COLUMNS, max(16, WORK // (k * 16))), np.flatnonzero(none.any(axis=0)))
    return rows, columns


def _some(n: int, most: int, places: Index) -> Index:
    if n <= most:
        return np.arange(n)
    ends = [np.arange(most // 8), np.arange(n - most // 8, n)]
    if len(places):
        ends.append(places[np.linspace(0, len(places) - 1, most // 2).astype(np.int64)])
    spread = np.linspace(0, n - 1, most).astype(np.int64)
    taken = np.unique(np.concatenate(ends))
    rest = np.setdiff1d(spread, taken)
    room = min(most - len(taken), len(rest))
    if room > 0:
        taken = np.union1d(taken, rest[np.linspace(0, len(rest) - 1, room).astype(np.int64)])
    return taken


def _few(places: Index) -> Index:
    if len(places) <= LOOKED_AT:
        return places
    return np.linspace(0, len(places) - 1, LOOKED_AT).astype(np.int64)
