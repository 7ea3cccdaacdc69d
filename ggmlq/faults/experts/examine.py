"""``gq.diagnose`` of products with experts: the way from a result to a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...reference.metrics import nmse
from ..diagnosis import Diagnosis
from ..explanation import Finding
from ..no_terms import without_terms
from ..places import where
from ..readings import Wide
from ..report import described, plain
from .catalogue import EXPERTS
from .inputs import Lines, given
from .orders import at_an_edge, once_only, read_so
from .right import Way, best, within
from .sources import NOTHING, UNSEEN, Sources, sources

Mask = NDArray[np.bool_]
Single = Callable[..., Diagnosis]  # the doctor of one matrix
EXAMINED = 3  # experts whose own products are looked at
MOST = 0.95  # of the wrong lines that an explanation explains


def diagnose(
    y: Any, x: Any, q: Any, ids: Any, single: Single, *, arithmetic: str | None = None, repeats: Any = ()
) -> Diagnosis:
    """As :func:`ggmlq.diagnose`, for ids [T, U] of experts; ``single`` examines the product of one."""
    g, others = given(y, x, q, ids, arithmetic, repeats)
    if not g.y.size:
        return Diagnosis(True, "correct", 1.0, "There is nothing to judge: y is empty.")
    if not g.q.shape[-1]:
        return without_terms(g.y, others)
    with np.errstate(all="ignore"):  # wrong kernels overflow at will
        made = sources(g)
        of = made if made.known.any() else Sources(g.rows, g.experts)
        way = best(g, arithmetic, np.flatnonzero(of.known), *of)
        p, limit = way.lines(g, g.rows, g.experts)
        wrong = ~within(g.y, p, limit)
        found = _race(g, others, limit) or _verdict(g, made, way, wrong, single, arithmetic)
        return found if isinstance(found, Diagnosis) else _report(g, found, way, p, wrong)


def _race(g: Lines, others: list[Wide], limit: Wide) -> Finding | None:
    differs = np.zeros(g.y.shape, np.bool_)
    for other in others:
        differs |= ~((np.abs(other - g.y) <= 2 * limit) | (other == g.y) | (np.isnan(other) & np.isnan(g.y)))
    if not differs.any():
        return None
    text = f"{int(differs.sum())} of {differs.size} elements differ between {1 + len(others)} runs"
    return Finding("race", 0.98, text, where(differs), int(differs.sum()))


def _verdict(
    g: Lines, made: Sources, way: Way, wrong: Mask, single: Single, claim: str | None
) -> Finding | Diagnosis:
    bad: Any = wrong.any(axis=1)
    if not bad.any():
        return Finding("correct", 0.99 if g.y.size >= 4 else 0.9, "")
    found = _lost(g, made, bad) or _elsewhere(g, made, bad)
    if found is not None:
        return replace(found, where=where(wrong) | _lines(g, bad), elements=int(wrong.sum()))
    return _within(g, wrong, bad, single, claim)


def _lost(g: Lines, made: Sources, bad: Mask) -> Finding | None:
    """Lines that hold no product: zeros, NaN, what was there before."""
    empty = (g.y == 0).all(axis=1) | (~np.isfinite(g.y)).all(axis=1)
    seen = bad & (empty | (made.rows != UNSEEN))
    lost = seen & (empty | ~made.known)
    if lost.sum() < MOST * seen.sum():
        return None
    zeros = (empty & bad).sum() >= MOST * bad.sum()
    content = "they hold zeros or NaN" if zeros else "what they hold is no product"
    if once_only(g.ids, bad):
        text = f"{int(bad.sum())} lines of tokens that use an expert more than once are lost; {content}"
        return Finding("expert-duplicates", 0.95, text)
    edge = at_an_edge(g, bad)
    if edge is not None:
        return Finding("expert-tokens-dropped", 0.95, f"lost are {edge}; {content}")
    if zeros:
        return Finding(
            "expert-tokens-dropped", 0.85, f"{int(bad.sum())} of {len(bad)} lines are lost; {content}"
        )
    return None


def _elsewhere(g: Lines, made: Sources, bad: Mask) -> Finding | None:
    """Lines that are right products of another row or another expert."""
    other = (made.rows != g.rows) | (made.experts != g.experts)
    seen = bad & (made.rows != UNSEEN)
    moved = seen & made.known & other
    if moved.sum() < MOST * (seen & made.known).sum() or 2 * moved.sum() < seen.sum():
        return None
    same_row = made.rows[moved] == g.rows[moved]
    if same_row.mean() >= MOST:
        how = read_so(g, np.where(made.rows == g.rows, made.experts, NOTHING), seen)
        if how is not None:
            return Finding("expert-ids-stride", 0.95, how)
    if moved.sum() < MOST * seen.sum():
        return None
    if _permuted(g, made, moved, bad):
        pairs = [f"line {i} has what belongs to {j}" for i, j in _some(g, made, moved)]
        text = "; ".join(pairs) + " (line t·U + u)"
        return Finding("expert-rows-exchanged", 0.95, text, alike=())
    if same_row.mean() >= MOST:
        return Finding("expert-wrong", 0.95, _which(g, made, moved))
    line = int(np.flatnonzero(moved)[0])
    text = f"line {line} is made of row {int(made.rows[line])} of x, not of row {int(g.rows[line])}"
    return Finding("expert-rows-exchanged", 0.95, text)


def _permuted(g: Lines, made: Sources, moved: Mask, bad: Mask) -> bool:
    """Whether wrong lines hold each other's products."""
    there = Counter(zip(made.rows[moved].tolist(), made.experts[moved].tolist(), strict=True))
    due = Counter(zip(g.rows[bad].tolist(), g.experts[bad].tolist(), strict=True))
    return bool((there & due).total() >= MOST * moved.sum())


def _some(g: Lines, made: Sources, moved: Mask) -> list[tuple[int, int]]:
    home = {pair: i for i, pair in enumerate(zip(g.rows.tolist(), g.experts.tolist(), strict=True))}
    lines = np.flatnonzero(moved).tolist()
    pairs = [(i, home.get((int(made.rows[i]), int(made.experts[i])), -1)) for i in lines]
    return [pair for pair in pairs if pair[1] >= 0][:3]


def _which(g: Lines, made: Sources, moved: Mask) -> str:
    steps = Counter(((made.experts - g.experts)[moved] % len(g.q)).tolist())
    step, times = steps.most_common(1)[0]
    line = int(np.flatnonzero(moved)[0])
    first = f"line {line} met expert {int(made.experts[line])} in place of {int(g.experts[line])}"
    return f"{first}; always {step} further" if times == moved.sum() and times > 1 else first


def _within(g: Lines, wrong: Mask, bad: Mask, single: Single, claim: str | None) -> Diagnosis:
    """The doctor of single matrices, asked about the experts that have most wrong lines."""
    counts = np.bincount(g.experts[bad], minlength=len(g.q))
    found: list[tuple[int, Diagnosis]] = []
    for e in np.argsort(-counts, kind="stable")[:EXAMINED].tolist():
        mine = np.flatnonzero(g.experts == e)
        if counts[e]:
            found.append((e, single(g.y[mine], g.x[g.rows[mine]], g.q[e], arithmetic=claim)))
    votes = Counter(one.fault for _, one in found if not one.ok)
    fault = next((name for name, _ in votes.most_common() if name != "unknown"), "unknown")
    e, one = next((pair for pair in found if pair[1].fault == fault), found[0])
    text = f"In the product of expert {e}: {one.text}"
    share = votes[fault] / max(len(found), 1)
    return replace(
        one, ok=False, fault=fault, confidence=one.confidence * share if not one.ok else 0.3, text=text,
        where=where(wrong) | _lines(g, bad),
    )  # fmt: skip


def _lines(g: Lines, bad: Mask) -> dict[str, Any]:
    """Tokens and experts with wrong lines, where they are few."""
    u = g.ids.shape[1]
    tokens, experts = np.unique(np.flatnonzero(bad) // u), np.unique(g.experts[bad])
    return {"tokens": tokens[:16].tolist(), "experts": experts[:16].tolist()}


def _report(g: Lines, finding: Finding, way: Way, p: Wide, wrong: Mask) -> Diagnosis:
    figures = {
        "nmse against the best arithmetic": plain(nmse(g.y, p)),
        "lines": len(g.y),
        "lines out of bound": int(wrong.any(axis=1).sum()),
        "elements": int(wrong.size),
        "elements out of bound": int(wrong.sum()),
    }
    near = f"NMSE {figures['nmse against the best arithmetic']:.1e} against {way.name!r}"
    if finding.fault == "correct":
        text = f"The kernel is right. All {len(g.y)} lines are their experts' products ({near})."
    else:
        fault = EXPERTS[finding.fault]
        text = described(fault, finding, figures, near, (fault.wrong, fault.right))
    return Diagnosis(
        finding.fault == "correct", finding.fault, finding.confidence, text, finding.where, figures, way.name,
        finding.alike,
    )  # fmt: skip
