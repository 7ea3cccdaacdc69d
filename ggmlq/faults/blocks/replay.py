"""The doctor's trials for blocks: the product is computed again with each mistake, and compared with y."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import numpy as np

from ...base.indices import evenly_spaced
from ...formats import BlockFormat
from ..findings import Explanation, Mistake
from ..numbers import LARGEST_HALF, Index, Mask, Wide
from .formulas import low_bits
from .operand import Operand
from .readings import Reading, Way
from .scene import Fit, Scene, predict
from .sums import between_blocks, half_sums, saturated
from .tables import levels
from .weights import mistakes, short_rows, wrong_strides

FEW_ROWS, FEW_COLUMNS = 8, 16  # a first look
KEPT = 8  # mistakes that are tried in every way
SMALL_ERROR = 1e-2  # score up to which half accumulators may be the reason
SLIP = 0.1  # of a fitted entry of a table, from a whole or a half number
HALF_READINGS = 6  # readings with which half accumulators are tried


def explanations(scene: Scene, right: Wide) -> list[Explanation]:
    """Explanations by mistakes of each family, best first; ``right`` is the best right kernel's result."""
    families: tuple[Callable[[Scene, Wide], list[Explanation]], ...] = (_weights, _activations, _sums)
    every = [e for family in families for e in family(scene, right)]
    if not any(e.fits and e.level == 2 for e in every):
        every += _tables(scene, right)
    return sorted(every, key=lambda e: (e.score, e.fault))


# --- weights misread --------------------------------------------------------------------------


def _weights(scene: Scene, right: Wide) -> list[Explanation]:
    """Explanations by misread weights: all are tried on few elements, then the best ones in every way."""
    every = chain(
        mistakes(scene.fmt, scene.blocks, scene.columns),
        wrong_strides(scene.fmt, scene.raw, scene.columns),
        short_rows(scene.weights, scene.x.shape[1]),
    )
    small, _, columns = _smaller(scene)
    rough = sorted(_first_look(small, columns, every), key=lambda pair: pair[0])
    return [
        _explanation(scene, mistake, scene.fit(mistake.replay, mistake.columns), right)
        for _, mistake in rough[:KEPT]
        if mistake.columns is None or mistake.columns.sum() >= 2
    ]


def _smaller(scene: Scene) -> tuple[Scene, Index, Index]:
    """A scene of a few rows and columns of another, and which they are."""
    rows, columns = (_some(n, count) for n, count in zip(scene.y.shape, (FEW_ROWS, FEW_COLUMNS), strict=True))
    at = np.ix_(rows, columns)
    part = Scene(
        scene.fmt, scene.raw, scene.x[rows], scene.y[at], scene.columns[columns], scene.store,
        written=scene.written[at],
    )  # fmt: skip
    return part, rows, columns


def _some(length: int, count: int) -> Index:
    """The first places of an axis, and some of the rest."""
    first = min(length, count // 2)
    return np.concatenate([np.arange(first), first + evenly_spaced(length - first, count - first)])


def _first_look(
    scene: Scene, chosen: Index, every: Iterable[Mistake[Operand]]
) -> Iterator[tuple[float, Mistake[Operand]]]:
    """The score that each mistake leaves on a few elements (columns ``chosen``), over the right ones'."""
    ways = _representatives(scene)
    right = predict(scene.readings, ways, scene.weights)
    whole = scene.scores(right).min()
    for mistake in every:
        columns = None if mistake.columns is None else mistake.columns[chosen]
        if columns is not None and not columns.any():
            continue
        base = whole if columns is None else scene.scores(right, columns).min()
        w = mistake.replay.rows(chosen)
        score = scene.scores(predict(scene.readings, ways, w), columns).min()
        yield float(score / max(base, 1e-300)), mistake


def _representatives(scene: Scene) -> list[Way]:
    """One way of each sort: plain floats, codes of short and of long runs, sums of floats."""
    chosen: dict[tuple[bool, bool, str], Way] = {}
    for way in scene.ways:
        reading = scene.readings[way.reading]
        run = reading.name.split(",")[1].split()[0] if reading.codes is not None else "floats"
        chosen.setdefault((run == "256", run == "floats", way.sums), way)
    return list(chosen.values())


def _explanation(scene: Scene, mistake: Mistake[Operand], fit: Fit, right: Wide) -> Explanation:
    base = _null(scene, right, mistake.columns)
    seen = scene.seen if mistake.columns is None else scene.seen & mistake.columns
    return Explanation(
        mistake.fault, mistake.words, fit.way.name, fit.score, base, fit.share, int(seen.sum()),
        where=mistake.where, formulas=mistake.formulas,
    )  # fmt: skip


def _null(scene: Scene, right: Wide, columns: Mask | None = None) -> float:
    """The score to beat: that of the right kernel or of zeros, whichever is better."""
    return float(scene.scores(np.stack([right, np.zeros_like(right)]), columns).min())


def _tables(scene: Scene, right: Wide) -> list[Explanation]:
    """Explanations by other entries in the table that codes name: they are fitted to y."""
    fmt, w = scene.fmt, scene.weights
    split = levels(fmt, scene.blocks[scene.columns], w) if isinstance(fmt, BlockFormat) else None
    if split is None or scene.seen.sum() < 4 * len(split.table):
        return []
    scale = split.signs * w.scale.repeat(w.group, axis=1)
    parts = np.stack([np.where(split.numbers == v, scale, 0) for v in range(len(split.table))])
    mistakes = []
    for reading in [*[r for r in scene.readings if r.codes is None][:1], *_usual(scene)]:
        features = np.einsum("mk,vnk->vmn", reading.values, parts, optimize=True)
        flat = (features / scene.size)[:, scene.seen].T
        fitted, *_ = np.linalg.lstsq(flat, (scene.y / scene.size)[scene.seen], rcond=1e-9)
        values = np.where(np.abs(fitted - np.rint(2 * fitted) / 2) < SLIP, np.rint(2 * fitted) / 2, fitted)
        off = np.flatnonzero(np.abs(values - split.table) > SLIP)
        if not len(off) or len(off) > len(split.table) - 2:
            continue
        words = ", ".join(f"{split.table[v]:g} is {values[v]:.4g}" for v in off[:FEW_COLUMNS])
        stored = split.signs * values[split.numbers] + w.zero
        mistakes.append(Mistake("code-book", f"entries of the table: {words}", w.but(stored=stored)))
    return [_explanation(scene, m, scene.fit(m.replay), right) for m in mistakes]


# --- activations and sums ---------------------------------------------------------------------


def _activations(scene: Scene, right: Wide) -> list[Explanation]:
    """Explanations by misread activations or block sums."""
    readings, ways = scene.wrong
    if not ways:
        return []
    predictions = predict(readings, ways, scene.weights)
    best: dict[str, int] = {}
    for i in np.argsort(scene.scores(predictions), kind="stable"):
        best.setdefault(str(ways[i].fault), int(i))
    return [
        _explanation(
            scene,
            Mistake(fault, ways[i].name, scene.weights),
            scene.judged(readings, ways[i], scene.weights, predictions[i]),
            right,
        )
        for fault, i in best.items()
    ]


def _sums(scene: Scene, right: Wide) -> list[Explanation]:
    """Explanations by sums that saturate, lose precision or carry over, on a few rows and columns alone."""
    s, rows, columns = _smaller(scene)
    base, usual = _null(s, right[np.ix_(rows, columns)]), _usual(s)
    best: dict[str, Explanation] = {}
    for m in chain(saturated(usual, s.weights), _halves(s, base), between_blocks(s, usual)):
        score = float(s.scores(m.replay[None])[0])
        if m.fault in best and best[m.fault].score <= score:
            continue
        share = float(s.within(m.replay, s.tolerance(m.replay, "activations" in m.beside)).mean())
        best[m.fault] = Explanation(m.fault, m.words, m.beside, score, base, share, int(s.seen.sum()))
    return list(best.values())


def by_algebra(scene: Scene, right: Wide) -> list[Explanation]:
    """Explanations by orders of elements that are in no list, found from y by linear algebra."""
    floats = [reading for reading in scene.readings if reading.codes is None][:1]
    base, n = _null(scene, right), int(scene.seen.sum())
    best: dict[str, Explanation] = {}
    for fault, order, score in orders_taken(scene, floats + _usual(scene)):
        if fault not in best or score < best[fault].score:
            shown = ", ".join(f"{i} from {j}" for i, j in enumerate(order) if i != j)
            text = f"places of a block taken from others: {shown[:120]}{' …' if len(shown) > 120 else ''}"
            way = "any rounding of the activations"
            best[fault] = Explanation(fault, text, way, score, base, 0.0, n, len(order))
    return sorted(best.values(), key=lambda e: e.score)


def _usual(scene: Scene) -> list[Reading]:
    """The 8-bit readings that programs really use."""
    ends = ("32 to a half scale", "32 to a float scale", "256 to a float scale")
    return [r for r in scene.readings if r.codes is not None and any(end in r.name for end in ends)]


def _halves(scene: Scene, base: float) -> Iterator[Mistake[Wide]]:
    """Half accumulators, which cost little: tried where the error is small, or where sums overflow."""
    large = np.abs(scene.partial[0]).max(initial=0) > LARGEST_HALF
    if base > SMALL_ERROR and not large:
        return
    plain = [way for way in scene.ways if way.excess is None]
    scores = scene.scores(predict(scene.readings, plain, scene.weights))
    near = [scene.readings[plain[i].reading] for i in np.argsort(scores, kind="stable")[:HALF_READINGS]]
    for reading in near:
        yield from half_sums([reading], scene.weights)


# --- an order that is in no list, by linear algebra ------------------------------------------------
# If place i of every block gets the code (bit, scale) of place π(i), then y is a sum of features:
# Σ F[i, π(i)], one feature a place, each linear in the outputs. π is found place by place, from the
# right order on, as long as the error falls. Many outputs see the same π, so a few hundred are enough.

ROUNDS = 12
EVIDENCE = 6  # outputs a place that must be there to believe an order
FEATURES = 1 << 24


def orders_taken(scene: Scene, readings: list[Reading]) -> Iterator[tuple[str, Index, float]]:
    """Fault, order and score of each order of codes, high bits or sub-scales that explains y better."""
    fmt = scene.fmt
    if not isinstance(fmt, BlockFormat):
        return
    seen = scene.seen.reshape(-1)
    for reading in readings:
        for fault, base, features in _questions(fmt, scene, reading):
            places = len(features)
            if places < 2 or seen.sum() < EVIDENCE * places:
                continue
            size = scene.size.reshape(-1)[seen]
            target = (scene.y - base).reshape(-1)[seen] / size
            flat = features.reshape(*features.shape[:2], -1)[..., seen] / size
            if not (np.isfinite(flat).all() and np.isfinite(target).all()):
                continue
            order, score = _descend(flat, target)
            if (order != np.arange(places)).any():
                yield fault, order, score


def _questions(fmt: BlockFormat, scene: Scene, reading: Reading) -> Iterator[tuple[str, Wide, Wide]]:
    """Questions: a fault, the certain part of y [M, N], and features [places, candidates, M, N]."""
    w, x = scene.weights, reading.values
    n, k = w.stored.shape
    m, block = len(x), fmt.block_size
    groups = block // w.group
    scale = w.scale.repeat(w.group, axis=1).reshape(n, -1, block)
    codes = (w.stored - w.zero).reshape(n, -1, block)
    offset = x @ w.offset.repeat(w.group, axis=1).T
    runs = x.reshape(m, -1, block)
    split = low_bits(fmt)
    high = 2**split * (w.stored // 2**split).reshape(codes.shape)
    low = x @ ((codes - high) * scale).reshape(n, k).T - offset
    if groups == 1 and block**2 * m * n <= FEATURES:
        yield "nibble-order", -offset, _pairs(runs, scale * codes)
        if split:
            yield "high-bits", low, _or_none(_pairs(runs, scale * high))
    if block == 256:
        yield "nibble-order", -offset, _planes(runs, scale, codes)
        if split:
            yield "high-bits", low, _or_none(_planes(runs, scale, high))
    if groups > 1 and groups**2 * m * n <= FEATURES:
        by_group = (x.reshape(m, -1, groups, w.group), codes.reshape(n, -1, groups, w.group))
        dots = np.einsum("mbgi,nbgi->gmnb", *by_group, optimize=True)
        features = np.einsum("gmnb,nbh->ghmn", dots, w.scale.reshape(n, -1, groups), optimize=True)
        yield "sub-scale-order", -offset, features


def _or_none(features: Wide) -> Wide:
    """One more candidate: nothing, a bit that is never set."""
    return np.concatenate([features, np.zeros_like(features[:, :1])], axis=1)


def _planes(x: Wide, scale: Wide, codes: Wide) -> Wide:
    """Features [planes, planes, M, N]: planes of 32 elements with the codes of another plane."""
    x, scale, codes = (a.reshape(*a.shape[:2], -1, 32) for a in (x, scale, codes))
    parts = [
        np.stack([np.einsum("mbi,nbi->mn", x[:, :, p], scale[:, :, p] * codes[:, :, q], optimize=True)
                  for q in range(codes.shape[2])])
        for p in range(codes.shape[2])
    ]  # fmt: skip
    return np.stack(parts)


def _pairs(x: Wide, w: Wide) -> Wide:
    """Sums [places of x, places of w, M, N] of x[m, b, i] · w[n, b, j] over blocks."""
    m, n, places = len(x), len(w), x.shape[2]
    left = x.transpose(2, 0, 1).reshape(places * m, -1)
    right = w.transpose(2, 0, 1).reshape(places * n, -1)
    return (left @ right.T).reshape(places, m, places, n).transpose(0, 2, 1, 3)


def _descend(features: Wide, target: Wide) -> tuple[Index, float]:
    """The order, place by place, that leaves the least of the target; and how much it leaves."""
    places = len(features)
    order = np.arange(places)
    left = target - features[order, order].sum(axis=0)
    for _ in range(ROUNDS):
        before = order.copy()
        for i in range(places):
            without = left + features[i, order[i]]
            error = ((without - features[i]) ** 2).sum(axis=1)
            order[i] = int(error.argmin())
            left = without - features[i, order[i]]
        if (order == before).all():
            break
    return order, float((left**2).mean())
