"""The doctor's way from y of a product with blocks to a finding, and to the words of the report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...arrays.array import QuantArray
from ...reference.metrics import nmse
from ..catalogue import CATALOGUE
from ..explanation import Explanation, Finding
from ..frame import Product
from ..k_blocks import blocks_of_k
from ..numbers import NEAR, Mask
from ..places import Pattern, in_words, patterns, where, wrong_places
from ..report import Words, counted, extent, plain
from ..verdicts import correct, factor, from_explanations, from_pattern
from .formulas import formulas
from .inputs import checked
from .nonfinite import not_finite
from .products import looks_half
from .replay import by_algebra, explanations
from .survey import BlockSurvey, sample, survey
from .telling_input import telling_input

PART_OF_A_TILE = 256  # of K: as much as the tiles of most kernels
ROUNDING = 1e-3  # score, or NMSE, below which an error may be one of rounding


class Blocks(Product[BlockSurvey]):
    """One product of activations with a matrix of blocks, for the doctor to diagnose."""

    def __init__(
        self, y: Any, x: Any, q: QuantArray, *, arithmetic: str | None = None, repeats: Any = (),
        unwritten: Any = None,
    ) -> None:  # fmt: skip
        self.case, self.results = checked(y, x, q, arithmetic, repeats, unwritten)
        self.terms, self.claim = self.case.x.shape[1], arithmetic

    def survey(self) -> BlockSurvey:
        """All of y beside the right kernel that explains most of it."""
        return survey(self.case, self.claim)

    def explained(self, survey: BlockSurvey) -> Finding:
        """The finding on the elements that the kernel wrote, and on those that it never wrote."""
        finding = _explained(survey.written, self.claim)
        unwritten = self.case.unwritten
        return finding if unwritten is None else _never_written(unwritten, finding)

    def words(self, survey: BlockSurvey, finding: Finding) -> Words:
        """The report's figures, the nearest right kernel, and formulas in the letters of the format."""
        s = survey.written
        case, fault = s.case, CATALOGUE[finding.fault]
        exact = case.x @ case.q.dequantize(np.float64).T
        near = plain(nmse(s.y, s.prediction))
        figures = {"nmse against the best arithmetic": near, "nmse against exact": plain(nmse(s.y, exact))}
        figures |= counted(s)
        name = f"the arithmetic {s.best.arithmetic!r}" if s.best.arithmetic else s.best.name
        apart = f"NMSE {near:.1e} against {name}" if near < ROUNDING else ""  # far off, it tells nothing
        return Words(
            figures, _right(s, finding, figures, name, self.claim), s.best.arithmetic or s.best.name,
            extent(finding, figures, apart),
            formulas(fault, case.q.format) if finding.formulas is None else finding.formulas(),
            "this input cannot tell them apart. Run the kernel on another one; `ggmlq diagnose --make-input "
            "FILE` writes one that can.",
            telling_input(case.q) if finding.alike else None,
        )  # fmt: skip


def _right(s: BlockSurvey, finding: Finding, figures: dict[str, Any], name: str, claim: str | None) -> str:
    m, n = s.y.shape
    text = (
        f"The kernel is right. All {m}×{n} elements are those of {name}, but for the rounding "
        f"of float32 sums (NMSE {figures['nmse against the best arithmetic']:.1e} against it, "
        f"{figures['nmse against exact']:.1e} against exact arithmetic on the same blocks)."
    )
    if s.case.cast:
        text += " y came as float32, but is stored as half: each element is rounded to one at the end."
    if claim is not None and s.best.arithmetic != claim:
        text += f" It does not multiply in the claimed arithmetic {claim!r}, though."
    wild = figures["elements not finite"]
    if wild:
        why = finding.detail or "it overflows"
        text += f" {wild} elements are not finite, as in that arithmetic itself: {why}."
    return text


# --- right, not finite, never written ---------------------------------------------------------


def _explained(s: BlockSurvey, claim: str | None) -> Finding:
    if not s.bad.any():
        return _no_fault(s, claim)
    wild = s.bad & ~np.isfinite(s.y)  # what the right arithmetic makes infinite too tells nothing
    pattern = not_finite(s) if wild.any() else None
    if pattern is None:
        return _wrong(s, claim)
    misread = None if pattern.sure else _misread(s)
    return misread or from_pattern(pattern, wild)


def _no_fault(s: BlockSurvey, claim: str | None) -> Finding:
    """The finding where no element is bad: right, unless halves overflowed, or the claim is of other sums."""
    overflow = not_finite(s)
    if overflow is not None and (claim is None or claim != s.best.arithmetic):
        return from_pattern(overflow, ~np.isfinite(s.y))
    claimed = next((right for right in s.others if right.arithmetic == claim), None) if claim else None
    if claimed is not None and {claimed.sums, s.best.sums} == {"codes", "floats"}:
        differs = ~claimed.inside
        text = f"the result is that of {s.best.name}, {claim} is claimed"
        return Finding("sum-of-codes-vs-floats", 0.95, text, where(differs), int(differs.sum()))
    return correct(s)


def _misread(s: BlockSurvey) -> Finding | None:
    """A mistake that explains the finite elements, and predicts which ones are not finite."""
    if (s.bad & np.isfinite(s.y)).sum() < 4:
        return None
    rows, columns = sample(s.case, s.bad)
    good = _fitting(explanations(s.case.scene(rows, columns), s.prediction[np.ix_(rows, columns)]))
    return from_explanations(good, s.bad) if good else None


def _fitting(tried: list[Explanation]) -> list[Explanation]:
    """Explanations that fit, the best first."""
    return sorted((e for e in tried if e.fits), key=lambda e: (-e.level, e.score))


def _never_written(unwritten: Mask, rest: Finding) -> Finding:
    """The finding where some elements were never written; ``rest`` is the finding on the others."""
    count, shape = int(unwritten.sum()), unwritten.shape
    text = f"{count} of {unwritten.size} elements of y were never written"
    for axis, name in ((0, "rows"), (1, "columns")):
        lines: Any = unwritten.all(axis=1 - axis)
        n, tail = shape[axis], int(lines.sum())
        if 0 < tail < n and lines[-tail:].all() and count == unwritten.size // n * tail:
            text += f": the last {tail} of {n} {name}" if tail > 1 else f": the last of {n} {name}"
    if rest.fault not in ("correct", "unknown"):
        return replace(rest, beside=f"Beside that, {text}: {in_words(where(unwritten))}.")
    if rest.fault == "unknown" and not unwritten.all():
        text += f"; {rest.elements} others are wrong, by no mistake of this list"
    return Finding("unwritten", 0.98, text, where(unwritten), count)


# --- wrong ------------------------------------------------------------------------------------


def _wrong(s: BlockSurvey, claim: str | None) -> Finding:
    if not s.y.any():
        return _nothing(s)
    bad = wrong_places(s)
    rows, columns = sample(s.case, bad)
    scene, right = s.case.scene(rows, columns), s.prediction[np.ix_(rows, columns)]
    scaled = _scaled(s)
    good = _fitting(explanations(scene, right) + ([scaled] if scaled is not None else []))
    if good and good[0].level == 2:
        return from_explanations(good, bad)
    shapes = patterns(s, bad)
    if shapes and shapes[0].sure:
        return from_pattern(shapes[0], bad)
    if good:
        return _blocks_alone(s, bad, good[0].gain / 10) or from_explanations(good, bad)
    good = [e for e in by_algebra(scene, right) if e.fits]
    return from_explanations(good, bad) if good else _less_sure(s, bad, shapes, claim)


def _nothing(s: BlockSurvey) -> Finding:
    """The finding for a y of zeros alone, where no place tells why."""
    text, count = "y is zero throughout: nothing was multiplied, or nothing was written", int(s.bad.sum())
    if s.case.x.shape[1] > PART_OF_A_TILE:
        return Finding("unknown", 0.5, text, where(s.bad), count)
    text += "; all of K may be a partial tile"
    return Finding("k-tail-dropped", 0.35, text, where(s.bad), count, ("m-tail", "n-tail"))


def _scaled(s: BlockSurvey) -> Explanation | None:
    """The explanation by one constant factor, with the right kernel that makes it fit best."""
    whole = [right for right in s.others if right.prediction.shape == s.y.shape]
    tried = [e for right in whole if (e := factor(s, right.name, right.prediction)) is not None]
    return min(tried, key=lambda e: e.score) if tried else factor(s, s.best.name)


def _blocks(s: BlockSurvey, bad: Mask, most: float = NEAR) -> dict[str, Any]:
    """Blocks of K that are missing or scaled, found from some of the wrong rows and columns."""
    rows, columns = np.flatnonzero(bad.any(axis=1))[:24], np.flatnonzero(bad.any(axis=0))[:24]
    scene, k = s.case.scene(rows, columns), s.case.x.shape[1]
    run = max(scene.weights.grain, -(-k // 64 // 32) * 32)
    if k % run:
        return {}
    x, w = (a.reshape(len(a), -1, run) for a in (scene.x, scene.weights.dense))
    parts = np.einsum("mbk,nbk->bmn", x, w) / scene.size
    error = (scene.y - s.prediction[np.ix_(rows, columns)]) / scene.size
    blocks = blocks_of_k(parts, error, scene.seen, np.arange(0, k + 1, run), most)
    return {"K-blocks": blocks} if blocks else {}


def _blocks_alone(s: BlockSurvey, bad: Mask, most: float) -> Finding | None:
    """The finding that blocks of K are missing, if that leaves at most ``most`` of the error; else None."""
    places = where(bad) | _blocks(s, bad, most)
    if set(places.get("K-blocks", {})) != {"missing"}:
        return None
    return _missing_tail(places, s) or Finding("unknown", 0.5, "", places, int(bad.sum()))


def _missing_tail(places: dict[str, Any], s: BlockSurvey) -> Finding | None:
    """The finding that the end of K is missing, if the blocks of K show just that; else None."""
    blocks = places.get("K-blocks", {})
    if set(blocks) == {"missing"} and len(blocks["missing"]) == 1:
        start, end = blocks["missing"][0]
        if end == s.case.x.shape[1]:
            text = f"elements {start} to {end} of K are missing from the sums"
            return Finding("k-tail-dropped", 0.85, text, places)
    return None


def _less_sure(s: BlockSurvey, bad: Mask, shapes: list[Pattern], claim: str | None) -> Finding:
    """The finding by weaker signs: conventions of sums, half precision, tails, blocks of K, or unknown."""
    if claim is not None and _claims_other_sum(s, claim):
        return Finding("sum-of-codes-vs-floats", 0.7, f"the result is nearest to {s.best.name}", where(bad))
    if s.case.store == 0 and looks_half(s.y) and s.best.score < ROUNDING:
        text = "every element of y is exactly a half"
        return Finding("f16-accumulation", 0.7, text, where(bad), int(bad.sum()))
    if shapes:
        return from_pattern(shapes[0], bad)
    places = where(bad) | _blocks(s, bad)
    return _missing_tail(places, s) or Finding("unknown", 0.5, "", places, int(bad.sum()))


def _claims_other_sum(s: BlockSurvey, claim: str) -> bool:
    claimed = [right for right in s.others if right.arithmetic == claim]
    if not claimed or claimed[0].sums not in ("codes", "floats"):
        return False
    same = min(right.score for right in s.others if right.sums == claimed[0].sums)
    other = min((r.score for r in s.others if r.sums not in ("none", claimed[0].sums)), default=np.inf)
    return bool(other < 1e-4 and other < 0.02 * same)
