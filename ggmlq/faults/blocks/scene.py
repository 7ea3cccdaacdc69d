"""The doctor's scene: some rows and columns of y, with all that is needed to predict what kernels give there.

A scene holds y [M, N], the activations in all their readings, and the weights as an Operand. It predicts the
results of all ways at once, and bounds the rounding errors of float32 sums.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...formats import BlockFormat, Format
from ...reference.bound import UNIT
from ..numbers import CAP, HALF, HUGE, LEAST_HALF, SMALLEST, Index, Mask, Wide, half
from ..survey import typical
from . import readings
from .operand import Operand, operand
from .readings import Reading, Way


class Fit(NamedTuple):
    """A prediction, and how well it explains y."""

    score: float  # mean of (error / typical size)², the worst elements capped
    share: float  # of the elements within the tolerance
    way: Way
    prediction: Wide
    inside: Mask


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
        return Fit(score, float(part.mean()) if part.size else 0.0, way, prediction, inside)

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
