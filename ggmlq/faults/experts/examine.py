"""The doctor's way from y of a product with experts, line by line, to a finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arrays.scaled import ScaledArray
from ...reference.metrics import nmse
from ..blocks.examine import Blocks
from ..diagnosis import Diagnosis
from ..explanation import Finding
from ..frame import Product
from ..numbers import Mask
from ..places import where
from ..report import Words, extent, plain
from ..scaled.examine import Scaled
from ..survey import Survey
from ..verdicts import correct
from .catalogue import EXPERTS
from .inputs import Lines, checked
from .orders import at_an_edge, misread_ids, once_only
from .right import Way, best, within
from .sources import NOTHING, UNSEEN, Sources, sources

EXAMINED = 3  # experts whose own products are looked at
MOST = 0.95  # of the wrong lines that an explanation explains


@dataclass(frozen=True, eq=False)
class LinesSurvey(Survey):
    """All lines compared with the right products, and the row and expert that each is really made of."""

    lines: Lines
    way: Way
    made_of: Sources

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
        g, made_of = self.lines, sources(self.lines)
        rows, experts = made_of if made_of.known.any() else (g.rows, g.experts)
        way = best(g, self.claim, np.flatnonzero(rows >= 0), rows, experts)
        p, limit = way.lines(g, g.rows, g.experts)
        return LinesSurvey(g.y, p, np.ones_like(p), limit, ~within(g.y, p, limit), g, way, made_of)

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
    y, bad, made_of = s.y, s.wrong, s.made_of
    empty = (y == 0).all(axis=1) | (~np.isfinite(y)).all(axis=1)
    seen = bad & (empty | (made_of.rows != UNSEEN))
    if (seen & (empty | ~made_of.known)).sum() < MOST * seen.sum():
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
    g, made_of = s.lines, s.made_of
    seen = s.wrong & (made_of.rows != UNSEEN)
    moved = seen & made_of.known & ((made_of.rows != g.rows) | (made_of.experts != g.experts))
    if moved.sum() < MOST * (seen & made_of.known).sum() or 2 * moved.sum() < seen.sum():
        return None
    same_row = made_of.rows == g.rows
    if same_row[moved].mean() >= MOST:
        misread = misread_ids(g, np.where(same_row, made_of.experts, NOTHING), seen)
        if misread is not None:
            return Finding("expert-ids-stride", 0.95, misread)
    if moved.sum() < MOST * seen.sum():
        return None
    pairs = [(i, int(made_of.rows[i]), int(made_of.experts[i])) for i in np.flatnonzero(moved).tolist()]
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
    steps = Counter(((made_of.experts - g.experts)[moved] % len(g.q)).tolist())
    always = f"; always {next(iter(steps))} further" if len(steps) == 1 and len(pairs) > 1 else ""
    return Finding("expert-wrong", 0.95, text + always)


def _permuted(g: Lines, pairs: Iterable[tuple[int, int, int]], bad: Mask) -> bool:
    """True if wrong lines hold each other's products."""
    there = Counter((row, expert) for _, row, expert in pairs)
    due = Counter(zip(g.rows[bad].tolist(), g.experts[bad].tolist(), strict=True))
    return (there & due).total() >= MOST * there.total()
