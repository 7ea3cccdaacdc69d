"""``gq.diagnose``: is this kernel right, and if not, which mistake is it?"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..errors import UnsupportedError
from .diagnosis import Diagnosis
from .experts.examine import diagnose as examine_experts
from .explanation import NEAR, Explanation, Finding, fits, level
from .inputs import given
from .judged import Mask
from .no_terms import without_terms
from .nonfinite import not_finite
from .places import Pattern, k_blocks, patterns, where, wrong_places
from .products import looks_half
from .replay import by_algebra, explanations
from .report import report
from .scaled.examine import diagnose as examine_scaled
from .survey import Case, Survey, sample, survey
from .verdicts import factor, never_written, of_explanations, of_pattern, race

PART_OF_A_TILE = 256  # of K: as much as the tiles of most kernels
ROUNDING = 1e-3  # score below which an error may be one of rounding


def diagnose(
    y: Any,
    x: Any,
    q: QuantArray | ScaledArray,
    *,
    arithmetic: str | None = None,
    repeats: Any = (),
    activations: Any = None,
    ids: Any = None,
    unwritten: Any = None,
) -> Diagnosis:
    """Say whether a kernel's result is right, and if not, which mistake explains it.

    Parameters
    ----------
    y : array of floats
        What the kernel gave for ``x @ q.T``, [..., N], on any device.
    x : array of floats
        The activations, [..., K]; with scaled weights a ScaledArray too.
    q : QuantArray or ScaledArray
        The weights, [N, K].
    arithmetic : str, optional
        The arithmetic that the kernel claims, a name in ``gq.reference.ARITHMETICS``. Without a
        claim any right arithmetic will do, and the text names it.
    repeats : sequence of arrays
        Further results of the same kernel on the same operands; they expose races.
    activations : (code, tile) or (code, tile, scales), optional
        With scaled weights: how the kernel quantizes floats x. By default as
        :func:`ggmlq.scaled_linear` does, or in another usual tile, or not at all.
    ids : array of integers, optional
        [T, U]: y is that of :func:`ggmlq.expert_linear`, with q [E, N, K] and x [T, K] or [T, U, K].
    unwritten : array of bool, optional
        Elements of y that the kernel never wrote, for whoever filled y before and knows them. They are a
        fault of their own, and the rest is judged without them; not with ``ids`` or scaled weights.

    >>> import numpy as np, ggmlq as gq
    >>> rng = np.random.default_rng(0)
    >>> q = gq.quantize(rng.standard_normal((16, 128), np.float32), "q4_0")
    >>> x = rng.standard_normal((8, 128), np.float32)
    >>> gq.diagnose(x @ q.T, x, q).fault
    'correct'
    >>> forgot = x @ (np.asarray(q) + 8 * q.blocks["d"].astype(np.float32).repeat(32, axis=1)).T
    >>> gq.diagnose(forgot, x, q).fault
    'offset-missing'
    """
    if unwritten is not None and (ids is not None or isinstance(q, ScaledArray)):
        raise UnsupportedError(
            "diagnose(y, x, q, unwritten=…): with ids, or with weights that are a ScaledArray, elements that "
            "were never written cannot be told apart; leave it out"
        )
    if ids is not None:
        if activations is not None:
            raise UnsupportedError(
                f"diagnose(y, x, q, ids=…): activations={activations!r}; with experts all usual ways of "
                "quantizing x are tried; leave it out"
            )
        return examine_experts(y, x, q, ids, diagnose, arithmetic=arithmetic, repeats=repeats)
    if isinstance(q, ScaledArray):
        more = {"arithmetic": arithmetic, "repeats": repeats, "activations": activations}
        return examine_scaled(y, x, q, **more)
    if activations is not None:
        raise UnsupportedError(
            f"diagnose(y, x, q): activations={activations!r} with {q!r}; it says how floats are quantized "
            "beside a ScaledArray; leave it out, or pass arithmetic="
        )
    g = given(y, x, q, arithmetic, repeats, unwritten)
    if g.case.y.size == 0:
        return Diagnosis(True, "correct", 1.0, "There is nothing to judge: y is empty.")
    if not g.case.x.shape[1]:
        return without_terms(g.case.y, g.repeats)
    with np.errstate(all="ignore"):  # wrong kernels, and kernels made wrong on purpose, overflow at will
        found = survey(g.case, arithmetic)
        verdict = race(found, g.repeats) or _verdict(found.written, g.flipped, arithmetic)
        return report(found.written, verdict, arithmetic)


def _verdict(s: Survey, flipped: bool, claim: str | None) -> Finding:
    rest = _of_values(s, flipped, claim)
    return rest if s.case.unwritten is None else never_written(s.case.unwritten, rest)


def _of_values(s: Survey, flipped: bool, claim: str | None) -> Finding:
    if flipped:
        return _flipped(s)
    if not s.bad.any():
        return _right(s, claim)
    beyond = (s.bad & ~np.isfinite(s.y)).any()  # what the right arithmetic makes infinite too tells nothing
    pattern = not_finite(s) if beyond else None
    if pattern is not None:
        misread = None if pattern.sure else _misread(s)
        if misread is not None:
            return misread
        if pattern.fault == "scale-f16-overflow" and claim is not None and not s.bad.any():
            return Finding("correct", 0.9, pattern.variant)
        return of_pattern(pattern, s.bad & ~np.isfinite(s.y))
    return _wrong(s, claim)


# --- right ----------------------------------------------------------------------------------


def _right(s: Survey, claim: str | None) -> Finding:
    overflow = not_finite(s)
    if overflow is not None and (claim is None or claim != s.best.arithmetic):
        return of_pattern(overflow, ~np.isfinite(s.y))
    claimed = next((right for right in s.others if right.arithmetic == claim), None) if claim else None
    if claimed is not None and {claimed.sums, s.best.sums} == {"codes", "floats"}:
        differs = ~claimed.inside
        text = f"the result is that of {s.best.name}, {claim} is claimed"
        return Finding("sum-of-codes-vs-floats", 0.95, text, where(differs), int(differs.sum()))
    return Finding("correct", 0.99 if s.y.size >= 4 else 0.9, "")


def _flipped(s: Survey) -> Finding:
    if not s.bad.any():
        return Finding("transposed", 0.95, "y came as [N, M]; read so, it is right", elements=s.y.size)
    return Finding("unknown", 0.5, "y came as [N, M], and is wrong either way")


# --- wrong ----------------------------------------------------------------------------------


def _wrong(s: Survey, claim: str | None) -> Finding:
    if not s.y.any():
        return _nothing(s)
    bad = wrong_places(s)
    rows, columns = sample(s.case, bad)
    scene = s.case.scene(rows, columns)
    tried = explanations(scene, s.prediction[np.ix_(rows, columns)])
    scaled = _scaled(s, bad)
    if scaled is not None:
        tried.append(scaled)
    good = sorted((e for e in tried if fits(e)), key=lambda e: (-level(e), e.score))
    if good and level(good[0]) == 2:
        return of_explanations(good, bad)
    shapes = patterns(s, bad)
    sure = [pattern for pattern in shapes if pattern.sure]
    if good and not sure:
        return _only_blocks(s, bad, good[0].gain / 10) or of_explanations(good, bad)
    if sure:
        return of_pattern(sure[0], bad)
    good = [e for e in by_algebra(scene, s.prediction[np.ix_(rows, columns)]) if fits(e)]
    if good:
        return of_explanations(good, bad)
    return _less_sure(s, bad, shapes, claim)


def _misread(s: Survey) -> Finding | None:
    """A mistake that explains the finite elements, and predicts which ones are not finite."""
    if (s.bad & np.isfinite(s.y)).sum() < 4:
        return None
    rows, columns = sample(s.case, s.bad)
    tried = explanations(s.case.scene(rows, columns), s.prediction[np.ix_(rows, columns)])
    good = sorted((e for e in tried if fits(e)), key=lambda e: (-level(e), e.score))
    return of_explanations(good, s.bad) if good else None


def _nothing(s: Survey) -> Finding:
    """Y is zero throughout: no place tells why."""
    text = "y is zero throughout: nothing was multiplied, or nothing was written"
    if s.case.x.shape[1] <= PART_OF_A_TILE:
        return Finding("k-tail-dropped", 0.35, f"{text}; all of K may be a partial tile", where(s.bad),
                       int(s.bad.sum()), ("m-tail", "n-tail"))  # fmt: skip
    return Finding("unknown", 0.5, text, where(s.bad), int(s.bad.sum()))


def _scaled(s: Survey, bad: Mask) -> Explanation | None:
    """One constant factor, fitted to all of y."""
    use = np.isfinite(s.y) & np.isfinite(s.prediction)
    tried = [factor(s.y, prediction, s.size, s.limit, use, name) for name, prediction in s.alternatives]
    found = [e for e in tried if e is not None]
    if found:
        return min(found, key=lambda e: e.score)
    at = np.ix_(*sample(s.case, bad))
    return factor(s.y[at], s.prediction[at], s.size[at], s.limit[at], use[at], s.best.name)


def _blocks_of_k(s: Survey, bad: Mask, most: float = NEAR) -> dict[str, object]:
    rows, columns = np.flatnonzero(bad.any(axis=1))[:24], np.flatnonzero(bad.any(axis=0))[:24]
    found = k_blocks(s.case, s, rows, columns, most)
    return {"K-blocks": found} if found else {}


def _only_blocks(s: Survey, bad: Mask, most: float) -> Finding | None:
    """Blocks of K that are missing, where that leaves far less of the error than a mistake that is near."""
    places = where(bad) | _blocks_of_k(s, bad, most)
    if set(cast(dict[str, object], places.get("K-blocks", {}))) != {"missing"}:
        return None
    return _missing(places, s.case) or Finding("unknown", 0.5, "", places, int(bad.sum()))


def _less_sure(s: Survey, bad: Mask, shapes: list[Pattern], claim: str | None) -> Finding:
    """What remains: conventions of sums, half precision, tails by place, blocks of K, or unknown."""
    if claim is not None and _claims_other_sum(s, claim):
        return Finding("sum-of-codes-vs-floats", 0.7, f"the result is nearest to {s.best.name}", where(bad))
    if s.case.store == 0 and looks_half(s.y) and s.best.score < ROUNDING:
        text = "every element of y is exactly a half"
        return Finding("f16-accumulation", 0.7, text, where(bad), int(bad.sum()))
    if shapes:
        return of_pattern(shapes[0], bad)
    places = where(bad) | _blocks_of_k(s, bad)
    missing = _missing(places, s.case)
    if missing is not None:
        return missing
    return Finding("unknown", 0.5, "", places, int(bad.sum()))


def _missing(places: dict[str, Any], case: Case) -> Finding | None:
    """A tail of K that the linear algebra found."""
    blocks = places.get("K-blocks", {})
    if set(blocks) == {"missing"} and len(blocks["missing"]) == 1:
        start, end = blocks["missing"][0]
        if end == case.x.shape[1]:
            text = f"elements {start} to {end} of K are missing from the sums"
            return Finding("k-tail-dropped", 0.85, text, places)
    return None


def _claims_other_sum(s: Survey, claim: str) -> bool:
    claimed = [right for right in s.others if right.arithmetic == claim]
    if not claimed or claimed[0].sums not in ("codes", "floats"):
        return False
    same = min(right.score for right in s.others if right.sums == claimed[0].sums)
    other = min((r.score for r in s.others if r.sums not in ("none", claimed[0].sums)), default=np.inf)
    return bool(other < 1e-4 and other < 0.02 * same)
