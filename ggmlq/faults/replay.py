"""Hypothesis replay: compute the product again with each mistake, and compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ..base.indices import evenly_spaced
from . import between_blocks
from .assignment import orders_taken
from .explanation import Explanation
from .misread import Mistake, mistakes
from .products import Outcome, half_sums, saturated
from .readings import LARGEST_HALF, Reading, Way, Wide
from .scene import Fit, Scene, predict
from .strides import short_rows, wrong_strides

ANY = "any rounding of the activations"
FEW_ROWS, FEW_COLUMNS = 8, 16  # a first look
KEPT = 8  # mistakes that are tried in every way
SMALL_ERROR = 1e-2  # score up to which half accumulators may be the reason
HALF_READINGS = 6  # of which they are tried


def explanations(scene: Scene, right_prediction: Wide) -> list[Explanation]:
    """Every mistake that explains some of y, best first."""
    every = [*_of_weights(scene, right_prediction), *_of_activations(scene, right_prediction)]
    every += _of_sums(scene, right_prediction)
    return sorted(every, key=lambda e: (e.score, e.fault))


def _of_weights(scene: Scene, right: Wide) -> list[Explanation]:
    """Weights misread: a first look at all mistakes, then the best ones in every way."""
    every: Iterable[Mistake] = (
        m
        for source in (
            mistakes(scene.fmt, scene.blocks, scene.columns),
            wrong_strides(scene.fmt, scene.raw, scene.columns),
            short_rows(scene.weights, scene.x.shape[1]),
        )
        for m in source
    )
    small = _smaller(scene)
    rough = sorted(_first_look(small, every), key=lambda pair: pair[0])
    found = []
    for _, mistake in rough[:KEPT]:
        if mistake.columns is not None and mistake.columns.sum() < 2:
            continue
        fit = scene.fit(mistake.weights, mistake.columns)
        e = _explanation(scene, mistake.fault, mistake.variant, fit, right, mistake.columns)
        e = replace(e, formulas=mistake.formulas)
        if mistake.missing:
            e = replace(e, where={"K-blocks": {"missing": [mistake.missing]}})
        found.append(e)
    return found


@dataclass(frozen=True, eq=False)
class _Small:
    """A few rows and columns of a scene, with a few ways."""

    scene: Scene
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]


def _smaller(scene: Scene) -> _Small:
    rows = _some(scene.y.shape[0], FEW_ROWS)
    columns = _some(scene.y.shape[1], FEW_COLUMNS)
    at = np.ix_(rows, columns)
    part = Scene(
        scene.fmt, scene.raw, scene.x[rows], scene.y[at], scene.columns[columns], scene.store,
        written=scene.written[at],
    )  # fmt: skip
    return _Small(part, rows, columns)


def _some(length: int, count: int) -> NDArray[np.int64]:
    """The first places of an axis, and some of the rest."""
    first = min(length, count // 2)
    return np.concatenate([np.arange(first), first + evenly_spaced(length - first, count - first)])


def _first_look(small: _Small, every: Iterable[Mistake]) -> Iterator[tuple[float, Mistake]]:
    """The score that each mistake leaves on a few elements, over that of the right weights."""
    scene = small.scene
    ways = _representatives(scene)
    right = predict(scene.readings, ways, scene.weights)
    whole = scene.scores(right).min()
    for mistake in every:
        columns = None if mistake.columns is None else mistake.columns[small.columns]
        if columns is not None and not columns.any():
            continue
        base = whole if columns is None else scene.scores(right, columns).min()
        w = mistake.weights.rows(small.columns)
        score = scene.scores(predict(scene.readings, ways, w), columns).min()
        yield float(score / max(base, 1e-300)), mistake


def _representatives(scene: Scene) -> list[Way]:
    """One way of each sort: plain floats, codes of short and of long runs, sums of floats."""
    chosen: dict[tuple[bool, bool, str], Way] = {}
    for way in scene.ways:
        reading = scene.readings[way.reading]
        run = reading.name.split(",")[1].split()[0] if reading.codes is not None else "floats"
        chosen.setdefault((run in ("256",), run == "floats", way.sums), way)
    return list(chosen.values())


def _explanation(
    scene: Scene, fault: str, variant: str, fit: Fit, right: Wide, columns: NDArray[np.bool_] | None = None
) -> Explanation:
    base = _null(scene, right, columns)
    seen = scene.seen if columns is None else scene.seen & columns
    return Explanation(fault, variant, fit.way.name, fit.score, base, fit.share, int(seen.sum()))


def _null(scene: Scene, right: Wide, columns: NDArray[np.bool_] | None = None) -> float:
    """The score to beat: that of the right kernel, or of zero where y is small."""
    return float(scene.scores(np.stack([right, np.zeros_like(right)]), columns).min())


def _of_activations(scene: Scene, right: Wide) -> list[Explanation]:
    """Activations or their sums misread."""
    found, ways = scene.wrong
    if not ways:
        return []
    predictions = predict(found, ways, scene.weights)
    scores = scene.scores(predictions)
    best: dict[str, int] = {}
    for i in np.argsort(scores, kind="stable"):
        best.setdefault(str(ways[i].fault), int(i))
    every = []
    for fault, i in best.items():
        fit = scene.judged(found, ways[i], scene.weights, predictions[i])
        every.append(_explanation(scene, fault, ways[i].name, fit, right))
    return every


def _of_sums(scene: Scene, right: Wide) -> list[Explanation]:
    """Sums that saturate or lose precision: on a few rows and columns only."""
    small = _smaller(scene)
    s = small.scene
    base = _null(s, right[np.ix_(small.rows, small.columns)])
    best: dict[str, Explanation] = {}
    tried = (saturated(_usual(s), s.weights), _half_outcomes(s, base), between_blocks.outcomes(s, _usual(s)))
    for outcome in chain(*tried):
        score = float(s.scores(outcome.y[None])[0])
        if outcome.fault in best and best[outcome.fault].score <= score:
            continue
        floats = "activations" in outcome.reading
        share = float(s.within(outcome.y, s.tolerance(outcome.y, floats)).mean())
        n = int(s.seen.sum())
        best[outcome.fault] = Explanation(
            outcome.fault, outcome.variant, outcome.reading, score, base, share, n
        )
    return list(best.values())


def by_algebra(scene: Scene, right: Wide) -> list[Explanation]:
    """Orders that no list holds, found from y itself; only where nothing else explains it."""
    floats = [reading for reading in scene.readings if reading.codes is None][:1]
    base = _null(scene, right)
    n = int(scene.seen.sum())
    best: dict[str, Explanation] = {}
    for found in orders_taken(scene, floats + _usual(scene)):
        if found.fault not in best or found.score < best[found.fault].score:
            shown = ", ".join(f"{i} from {j}" for i, j in enumerate(found.order) if i != j)
            text = f"places of a block taken from others: {shown[:120]}{' …' if len(shown) > 120 else ''}"
            best[found.fault] = Explanation(
                found.fault,
                text,
                "any rounding of the activations",
                found.score,
                base,
                0.0,
                n,
                len(found.order),
            )
    return sorted(best.values(), key=lambda e: e.score)


def _usual(scene: Scene) -> list[Reading]:
    """The 8-bit readings that programs really use."""
    ends = ("32 to a half scale", "32 to a float scale", "256 to a float scale")
    return [r for r in scene.readings if r.codes is not None and any(end in r.name for end in ends)]


def _half_outcomes(scene: Scene, base: float) -> Iterator[Outcome]:
    """Half accumulators cost little: tried where the error is small, or where sums overflow."""
    large = np.abs(scene.partial[0]).max(initial=0) > LARGEST_HALF
    if base > SMALL_ERROR and not large:
        return
    plain = [way for way in scene.ways if way.excess is None]
    scores = scene.scores(predict(scene.readings, plain, scene.weights))
    near = [scene.readings[plain[i].reading] for i in np.argsort(scores, kind="stable")[:HALF_READINGS]]
    for reading in near:
        yield from half_sums([reading], scene.weights)
