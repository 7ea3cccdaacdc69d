"""The doctor's way from y of a product with experts, line by line, to a finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import reference
from ...arrays.scaled import ScaledArray
from ...base.indices import evenly_spaced
from ...errors import UnsupportedError
from ...reference.metrics import nmse
from ..blocks.examine import Blocks
from ..catalogue import EXPERTS
from ..diagnosis import Diagnosis
from ..findings import Finding, correct
from ..frame import Product, Words, extent, plain
from ..numbers import Index, Mask, Wide
from ..places import where
from ..scaled.examine import Scaled
from ..scaled.scene import usual_ways
from ..survey import Survey, typical
from .lines import NOTHING, UNSEEN, Lines, Sources, at_an_edge, checked, misread_ids, once_only, sources

EXAMINED = 3  # experts whose own products are looked at
MOST = 0.95  # of the wrong lines that an explanation explains


@dataclass(frozen=True, eq=False)
class LinesSurvey(Survey):
    """All lines compared with the right products, and the row and expert that each is really made of."""

    lines: Lines
    way: Way
    origin: Sources

    @property
    def wrong(self) -> Any:
        """The mask of lines with wrong elements."""
        return self.bad.any(axis=1)

    @property
    def places(self) -> dict[str, Any]:
        """Wrong elements, and the tokens and experts that have them."""
        g, wrong = self.lines, np.flatnonzero(self.wrong)
        tokens, experts = np.unique(wrong // g.ids.shape[1]), np.unique(g.experts[wrong])
        return where(self.bad) | {"tokens": tokens[:16].tolist(), "experts": experts[:16].tolist()}


class Experts(Product[LinesSurvey]):
    """One product of tokens with experts, ids [T, U], for the doctor to diagnose."""

    catalogue = EXPERTS

    def __init__(
        self, y: Any, x: Any, q: Any, ids: Any, *, arithmetic: str | None = None, repeats: Any = ()
    ) -> None:
        self.lines, self.results = checked(y, x, q, ids, arithmetic, repeats)
        self.terms, self.claim = self.lines.q.shape[-1], arithmetic

    def survey(self) -> LinesSurvey:
        """All lines beside their products, in the arithmetic that explains those whose origin is known."""
        g, origin = self.lines, sources(self.lines)
        rows, experts = origin if origin.known.any() else (g.rows, g.experts)
        way = best(g, self.claim, np.flatnonzero(rows >= 0), rows, experts)
        p, limit = way.lines(g, g.rows, g.experts)
        return LinesSurvey(g.y, p, np.ones_like(p), limit, ~within(g.y, p, limit), g, way, origin)

    def explained(self, survey: LinesSurvey) -> Finding | Diagnosis:
        """Lines that are lost, lines that lie elsewhere, else a mistake within an expert's product."""
        if not survey.bad.any():
            return correct(survey)
        finding = _lost(survey) or _elsewhere(survey)
        if finding is None:
            return self._within(survey)
        return replace(finding, where=survey.places, elements=int(survey.bad.sum()))

    def _within(self, s: LinesSurvey) -> Diagnosis:
        """The diagnosis of the products of the experts that have most wrong lines."""
        g = self.lines
        counts = np.bincount(g.experts[s.wrong], minlength=len(g.q))
        examined: list[tuple[int, Diagnosis]] = []
        for e in np.argsort(-counts, kind="stable")[:EXAMINED].tolist():
            if counts[e]:
                at = np.flatnonzero(g.experts == e)
                kind = Scaled if isinstance(g.q, ScaledArray) else Blocks
                product = kind(g.y[at], g.x[g.rows[at]], g.q[e], arithmetic=self.claim)
                examined.append((e, product.diagnosis()))
        votes = Counter(one.fault for _, one in examined if not one.ok)
        fault = next((name for name, _ in votes.most_common() if name != "unknown"), "unknown")
        e, one = next((pair for pair in examined if pair[1].fault == fault), examined[0])
        confidence = 0.3 if one.ok else one.confidence * votes[fault] / len(examined)
        text = f"In the product of expert {e}: {one.text}"
        return replace(one, ok=False, fault=fault, confidence=confidence, text=text, where=s.places)

    def words(self, survey: LinesSurvey, finding: Finding) -> Words:
        """The report's figures, and the arithmetic of the lines."""
        near = plain(nmse(survey.y, survey.prediction))
        figures = {
            "nmse against the best arithmetic": near,
            "lines": len(survey.y),
            "lines out of bound": int(survey.wrong.sum()),
            "elements": int(survey.y.size),
            "elements out of bound": int(survey.bad.sum()),
        }
        apart = f"NMSE {near:.1e} against {survey.way.name!r}"
        right = f"The kernel is right. All {len(survey.y)} lines are their experts' products ({apart})."
        return Words(figures, right, survey.way.name, extent(finding, figures, apart))


def _lost(s: LinesSurvey) -> Finding | None:
    """The finding on lines that hold no product, but zeros, NaN or old values; None if there are none."""
    y, bad, origin = s.y, s.wrong, s.origin
    empty = (y == 0).all(axis=1) | (~np.isfinite(y)).all(axis=1)
    seen = bad & (empty | (origin.rows != UNSEEN))
    if (seen & (empty | ~origin.known)).sum() < MOST * seen.sum():
        return None
    count, zeros = int(bad.sum()), (empty & bad).sum() >= MOST * bad.sum()
    content = "they hold zeros or NaN" if zeros else "what they hold is no product"
    if once_only(s.lines.ids, bad):
        text = f"{count} lines of tokens that use an expert more than once are lost; {content}"
        return Finding("expert-duplicates", 0.95, text)
    edge = at_an_edge(s.lines, bad)
    if edge is None and not zeros:
        return None
    text = f"lost are {edge}" if edge else f"{count} of {len(bad)} lines are lost"
    return Finding("expert-tokens-dropped", 0.95 if edge else 0.85, f"{text}; {content}")


def _elsewhere(s: LinesSurvey) -> Finding | None:
    """The finding on lines that are right products of another row or expert; None if there are none."""
    g, origin = s.lines, s.origin
    seen = s.wrong & (origin.rows != UNSEEN)
    moved = seen & origin.known & ((origin.rows != g.rows) | (origin.experts != g.experts))
    if moved.sum() < MOST * (seen & origin.known).sum() or 2 * moved.sum() < seen.sum():
        return None
    same_row = origin.rows == g.rows
    if same_row[moved].mean() >= MOST:
        misread = misread_ids(g, np.where(same_row, origin.experts, NOTHING), seen)
        if misread is not None:
            return Finding("expert-ids-stride", 0.95, misread)
    if moved.sum() < MOST * seen.sum():
        return None
    pairs = [(i, int(origin.rows[i]), int(origin.experts[i])) for i in np.flatnonzero(moved).tolist()]
    if _permuted(g, pairs, s.wrong):
        home = {pair: i for i, pair in enumerate(zip(g.rows.tolist(), g.experts.tolist(), strict=True))}
        some = [(i, home[row, e]) for i, row, e in pairs if (row, e) in home][:3]
        text = "; ".join(f"line {i} has what belongs to {j}" for i, j in some)
        return Finding("expert-rows-exchanged", 0.95, f"{text} (line t·U + u)")
    line, row, expert = pairs[0]
    if same_row[moved].mean() < MOST:
        text = f"line {line} is made of row {row} of x, not of row {int(g.rows[line])}"
        return Finding("expert-rows-exchanged", 0.95, text)
    text = f"line {line} met expert {expert} in place of {int(g.experts[line])}"
    steps = Counter(((origin.experts - g.experts)[moved] % len(g.q)).tolist())
    always = f"; always {next(iter(steps))} further" if len(steps) == 1 and len(pairs) > 1 else ""
    return Finding("expert-wrong", 0.95, text + always)


def _permuted(g: Lines, pairs: Iterable[tuple[int, int, int]], bad: Mask) -> bool:
    """True if wrong lines hold each other's products."""
    there = Counter((row, expert) for _, row, expert in pairs)
    due = Counter(zip(g.rows[bad].tolist(), g.experts[bad].tolist(), strict=True))
    return (there & due).total() >= MOST * there.total()


# --- right products, in the arithmetic that fits ---------------------------------------------------

NAMES = ("ggml-cpu", "q8", "ggml-mmvq", "ggml-mmq", "f32", "ggml-ref", "bf16x", "bf16s", "bf16", "f16")
LOOSE = 0.06  # of the typical size, where an arithmetic promises nothing
SUMS = 2e-3  # of it, for codes with scales: sums of tensor cores that are cut off and promoted
COLUMNS = 64  # on which an arithmetic is chosen
LINES = 64
ENOUGH = 0.999  # of elements that lie within: no other arithmetic needs to be looked at


@dataclass(frozen=True, eq=False)
class Way:
    """One way to take activations: an arithmetic, or scaled activations."""

    name: str
    x: Any = None  # a ScaledArray or floats in place of x

    def lines(self, g: Lines, rows: Index, experts: Index, columns: Any = None) -> tuple[Wide, Wide]:
        """The products of rows with experts, and the limit of their error, for some columns."""
        n = g.q.shape[1] if columns is None else len(columns)
        y, limit = np.empty((len(rows), n)), np.empty((len(rows), n))
        for e in np.unique(experts).tolist():
            at = np.flatnonzero(experts == e)
            matrix = g.q[e] if columns is None else g.q[e][columns]
            y[at], limit[at] = self._product(g, rows[at], matrix)
        return y, limit + g.store * np.abs(y)

    def _product(self, g: Lines, rows: Index, matrix: Any) -> tuple[Wide, Wide]:
        x = (g.x if self.x is None else self.x)[rows]
        if isinstance(matrix, ScaledArray):
            y = reference.scaled_linear(x, matrix)
            return y, SUMS * _size(x, matrix)
        y, limit = reference.linear(x, matrix, self.name), reference.bound(x, matrix, self.name)
        return y, np.where(np.isfinite(limit), limit, LOOSE * _size(x, matrix))


def _size(x: Any, matrix: Any) -> Wide:
    """The typical size of products of such vectors."""
    a, w = (
        s.dequantize(np.float64) if hasattr(s, "dequantize") else np.asarray(s, float) for s in (x, matrix)
    )
    return typical(a, w)


def ways(g: Lines, claim: str | None) -> list[Way]:
    """Ways in which a right kernel may take the activations."""
    if not isinstance(g.q, ScaledArray):
        return [Way(name) for name in ([claim] if claim else NAMES) if _known(g, name)]
    return [Way(way.name, way.s) for way in usual_ways(g.x, g.q[0])[0]]


def _known(g: Lines, name: str) -> bool:
    try:
        reference.rule(g.q.format, name)
    except UnsupportedError:
        return False
    return True


def best(g: Lines, claim: str | None, known: Index, rows: Index, experts: Index) -> Way:
    """The way that explains most of some lines, for which the row and the expert are known."""
    lines = known[evenly_spaced(len(known), LINES)]
    columns = evenly_spaced(g.q.shape[1], COLUMNS)
    y = g.y[np.ix_(lines, columns)]
    ranks: list[tuple[float, float, int]] = []
    choices = ways(g, claim)
    for i, way in enumerate(choices):
        p, limit = way.lines(g, rows[lines], experts[lines], columns)
        inside, size = within(y, p, limit), np.abs(p).mean() or 1.0
        off = np.abs(y - p)
        off = off[~np.isnan(off)]  # where both are infinite none is left
        far = float(np.median(off) / size) if off.size else np.inf
        ranks.append((-round(float(inside.mean()), 2), far, i))
        if inside.mean() > ENOUGH and (limit <= LOOSE / 2 * np.maximum(np.abs(p), size)).all():
            break
    return choices[min(ranks)[2]]


def within(y: Wide, p: Wide, limit: Wide) -> Any:
    """Elements that lie within their limits, or are not finite in both."""
    return (np.abs(y - p) <= limit) | (~np.isfinite(p) & ~np.isfinite(y))
