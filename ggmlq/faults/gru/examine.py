"""``gq.diagnose_gru``: from the codes of a run to the first stage that went wrong, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...gru import FixedGRU
from ...reference.gru import Tensors
from ..diagnosis import Diagnosis
from .candidates import candidates
from .inputs import Run, given
from .machine import Index, Machine, Settings
from .mistake import Mistake
from .report import Finding, report, right

Mask = NDArray[np.bool_]
AT_ONCE = 1 << 21  # numbers of a tensor that are computed at a time
SCREEN, LEAST, WIDE = 64, 12, 1 << 15  # rows on which all mistakes are tried, and their numbers
BASES, FEW = 3, 12  # mistakes that are tried together with every other one, and rows for that
MOSTLY, ENERGY = 0.7, 0.05  # explained: this share of what is wrong, or all but this of the squared error


class Tried(NamedTuple):
    """What a mistake makes of some rows."""

    mistake: Mistake
    apart: Mask  # elements that it does not give as they are
    error: float  # squared, over all codes


def diagnose_gru(codes: Any, f: FixedGRU, x: Any, h0: Any = None, *, batch_first: bool = False) -> Diagnosis:
    """Say whether codes are those of a GRU in integers, and if not, which stage went wrong first, and why.

    Parameters
    ----------
    codes : tuple of arrays of integers
        What a program made of x: (y, h), or (y, h, v) with the intermediates, as a call of f with
        ``return_codes=True`` gives them. y alone will do.
    f : FixedGRU
        What is right: its parameters and codes.
    x : array of floats
        [T, N, C], or [N, T, C] with ``batch_first``.
    h0 : array of floats, optional
        As in the call.
    batch_first : bool
        Whether sequences come first, in x, y and v.

    Returns
    -------
    Diagnosis
        ``where`` has the first "stage", "step", "sequence" and "unit" that went wrong.

    >>> import numpy as np, ggmlq as gq
    >>> rng = np.random.default_rng(0)
    >>> g = gq.GRU(rng.uniform(-0.5, 0.5, (12, 3)), rng.uniform(-0.5, 0.5, (12, 4)))
    >>> x = rng.uniform(-1, 1, (20, 2, 3))
    >>> f = g.observe(x) and g.fixed()
    >>> y, h = f(x, return_codes=True)
    >>> gq.diagnose_gru((y, h), f, x).ok
    True
    >>> from ggmlq.reference.gru import STAGES
    >>> stages = {**STAGES, "rRh": lambda scene, q: scene.clamped(
    ...     scene.term(q, "Rh_add_br", "rRh"), "rRh")}
    >>> wrong = gq.reference.gru(f, x, stages=stages)["h"]
    >>> gq.diagnose_gru(wrong, f, x).fault
    'reset-missing'
    """
    runs = given(codes, f, x, h0, batch_first)
    findings = [found for run in runs if (found := _examined(run)) is not None]
    if not findings:
        return right(runs)
    if len(runs) == 2 and (swapped := _exchanged(runs)) is not None:
        return report(runs, [replace(findings[0], **swapped)])
    return report(runs, findings)


def _exchanged(runs: list[Run]) -> dict[str, Any] | None:
    one, two = runs
    turned = [replace(one, y=_turned(two, two.y)), replace(two, y=_turned(one, one.y))]
    plain = {"last": None, "v": {}}
    weights = [replace(a, formats=b.formats, codes=b.codes, x=_codes_of_x(a, b), first=a.first) for a, b in
               ((one, two), (two, one))]  # fmt: skip
    for says, tried in (
        ("the halves of y are exchanged", turned),
        ("each has the weights of the other", weights),
    ):
        if not any(_wrong(replace(run, **plain), {}).any() for run in tried):
            return {"fault": "directions-exchanged", "says": says, "confidence": 0.99, "alternatives": ()}
    return None


def _turned(run: Run, y: Any) -> Any:
    return y.reshape(run.steps, run.sequences, -1)[::-1].reshape(y.shape)


def _codes_of_x(run: Run, other: Run) -> Any:
    return other.formats["x"].encode(run.values).astype(np.int64)


# --- one direction ------------------------------------------------------------------------------


def _examined(run: Run) -> Finding | None:
    """What is wrong with a direction; None where nothing is."""
    wrong = _wrong(run, {})
    if not wrong.any():
        return _last(run)
    rows = _screened(run, wrong)
    machine, plain = Machine(run, rows), Mistake("correct", "", {})
    tried = [_tried(machine, mistake) for mistake in candidates(run)]
    tried.sort(key=lambda one: int(one.apart.sum()))  # stable: the order of candidates stays
    before = _tried(machine, plain)
    exact = _exact(run, tried)
    if exact:
        return _found(run, wrong, exact, 0.99)
    parts = _in_a_part(run, wrong, rows, before, tried)
    if parts is not None:
        return parts
    pairs = _exact(run, _grown(machine, tried) or _pairs(run, rows, tried, before))
    if pairs:
        return _found(run, wrong, pairs[:1], 0.9)
    return _nearly(run, wrong, before, tried)


def _wrong(run: Run, settings: Settings) -> Mask:
    """Elements, of all rows, that are not what a mistake (none: a right program) makes of them."""
    total = len(run.y)
    step = max(1, AT_ONCE // max(1, 3 * run.units))
    parts = [np.zeros((0, run.units), np.bool_)]
    for start in range(0, total, step):
        rows = np.arange(start, min(total, start + step))
        parts.append(_apart(run, rows, *Machine(run, rows).step(settings))[0])
    return np.concatenate(parts)


def _apart(run: Run, rows: Index, q: Tensors, unknown: Mask) -> tuple[Mask, float]:
    """Which elements differ from those observed, in h or an intermediate; and the squared error of h."""
    far = (q["h"] - run.y[rows]).astype(np.float64)
    far[unknown] = 0
    found = far != 0
    for name, seen in run.v.items():
        found |= (q[name] != seen[rows]) & ~unknown[:, None]
    return found, float((far**2).sum())


def _screened(run: Run, wrong: Mask) -> Index:
    """Rows to look at: the first step, the first wrong ones, wrong and right ones over all of the run."""
    most = int(np.clip(WIDE // max(run.units, 1), LEAST, SCREEN))
    bad = wrong.any(1)
    spread = [_spread(np.flatnonzero(part), most // 2) for part in (bad, ~bad)]
    first = np.arange(min(run.sequences, 4))
    busiest = np.argsort(-wrong.sum(1), kind="stable")[: most // 4]
    return np.unique(np.concatenate([first, np.flatnonzero(bad)[:4], busiest, *spread]))


def _spread(places: Index, count: int) -> Index:
    return places[np.unique(np.linspace(0, len(places) - 1, min(count, len(places))).astype(np.intp))]


def _tried(machine: Machine, mistake: Mistake) -> Tried:
    return Tried(mistake, *_apart(machine.run, machine.rows, *machine.step(mistake.settings)))


def _exact(run: Run, tried: list[Tried]) -> list[Mistake]:
    """Those that explain every element of the run."""
    hits = [one.mistake for one in tried if not one.apart.any()]
    return [mistake for mistake in hits if not _wrong(run, mistake.settings).any()]


def _in_a_part(run: Run, wrong: Mask, rows: Index, before: Tried, tried: list[Tried]) -> Finding | None:
    """A mistake that explains everything in the units, sequences and steps where anything is wrong."""
    shaped = wrong.reshape(run.steps, run.sequences, run.units)
    units, sequences, steps = (shaped.any(axis=axes) for axes in ((0, 1), (0, 2), (1, 2)))
    for words, of_rows, of_units in (
        ("only in some units", np.ones(len(rows), np.bool_), units),
        ("only in some sequences", sequences[rows % run.sequences], np.ones_like(units)),
        ("only in some steps", steps[rows // run.sequences], np.ones_like(units)),
        ("only in some places", sequences[rows % run.sequences] & steps[rows // run.sequences], units),
    ):
        region = of_rows[:, None] & of_units
        if region.all() or (before.apart & region).sum() < 3 or region.mean() < 0.01:
            continue
        hits = [one.mistake for one in tried if not (one.apart & region).any()][:FEW]
        hits = [one for one in hits if not (_wrong(run, one.settings) & _all_of(run, wrong, words)).any()]
        if hits:
            found = _found(run, wrong, hits, 0.9)
            return replace(found, says=f"{found.says}, {words}".lstrip(", "))
    return None


def _all_of(run: Run, wrong: Mask, words: str) -> Mask:
    """The whole of the units, sequences or steps where anything is wrong."""
    shaped = wrong.reshape(run.steps, run.sequences, run.units)
    found = np.ones_like(shaped)
    for name, axes in (("units", (0, 1)), ("sequences", (0, 2)), ("steps", (1, 2))):
        if name in words or "places" in words:
            found &= shaped.any(axis=axes, keepdims=True)
    return found.reshape(wrong.shape)


def _grown(machine: Machine, tried: list[Tried]) -> list[Tried]:
    """One mistake in several tensors, those that no group has: added one by one while that explains more."""
    for fault in dict.fromkeys(one.mistake.fault for one in tried[:BASES]):
        parts = [one for one in tried if one.mistake.fault == fault]
        best = parts[0]
        while best.apart.any():
            larger = [best.mistake.with_other(one.mistake) for one in parts if len(one.mistake.settings) == 1]
            grown = [_tried(machine, one) for one in larger if one is not None]
            most = min(grown, key=lambda one: int(one.apart.sum()), default=best)
            if most.apart.sum() >= best.apart.sum():
                break
            best = most
        else:
            return [best]
    return []


def _pairs(run: Run, rows: Index, tried: list[Tried], before: Tried) -> list[Tried]:
    """The nearest mistakes, each together with every other one; a few wrong rows refuse most."""
    few, all_of = Machine(run, rows[before.apart.any(1)][:FEW]), Machine(run, rows)
    by_error = sorted(tried, key=lambda one: one.error)[:1]
    for first in {id(one): one for one in (*_apart_in_kind(tried)[:BASES], *by_error)}.values():
        if first.apart.sum() > 0.9 * before.apart.sum() and first.error > 0.9 * before.error:
            continue
        for other in tried:
            both = first.mistake.with_other(other.mistake)
            if both is not None and not _tried(few, both).apart.any():
                one = _tried(all_of, both)
                if not one.apart.any():
                    return [one]
    return []


def _apart_in_kind(tried: list[Tried]) -> list[Tried]:
    """The nearest of each fault."""
    nearest: dict[str, Tried] = {}
    for one in tried:
        nearest.setdefault(one.mistake.fault, one)
    return list(nearest.values())


def _nearly(run: Run, wrong: Mask, before: Tried, tried: list[Tried]) -> Finding:
    """The mistake that explains most of what is wrong, if one explains much."""
    if run.v and not _wrong(replace(run, v={}), {}).any():
        return _found(run, wrong, [Mistake("intermediates", "", {})], 0.95)
    count = int(wrong.sum())
    by_error = min(tried, key=lambda one: one.error)
    if count >= FEW:
        left = int(_wrong(run, tried[0].mistake.settings).sum()) / count
        if left <= 1 - MOSTLY:
            return _found(run, wrong, [tried[0].mistake], 0.7, left)
        if by_error.error <= ENERGY * before.error:
            left = int(_wrong(run, by_error.mistake.settings).sum()) / count
            return _found(run, wrong, [by_error.mistake], 0.6, min(left, 1.0))
    return _found(run, wrong, [Mistake("unknown", "", {})], 0.5)


def _last(run: Run) -> Finding | None:
    """All steps are right: is the last state, too?"""
    if run.last is None:
        return None
    want = run.y[len(run.y) - run.sequences :] if run.steps else run.first
    if np.array_equal(run.last, want):
        return None
    says = "it is not that after the last step"
    if run.steps and np.array_equal(run.last, run.y[: run.sequences]):
        says = "it is that after the first step" + (", the last of x" if run.direction else "")
    elif np.array_equal(run.last, run.first):
        says = "it is h0"
    bad = run.last != want
    row, unit = (int(i) for i in np.argwhere(bad)[0])
    at = {"step": run.steps - 1, "sequence": row, "unit": unit, "stage": "h", "elements": int(bad.sum())}
    return Finding(run.direction, "last-state", says, 0.97, at | {"of": int(bad.size)}, ())


# --- a finding ----------------------------------------------------------------------------------


def _found(run: Run, wrong: Mask, mistakes: list[Mistake], confidence: float, left: float = 0.0) -> Finding:
    best = mistakes[0]
    others = dict.fromkeys(one.fault for one in mistakes if one.fault != best.fault)
    alike = [one.says for one in mistakes[1:] if one.fault == best.fault and one.says != best.says]
    says = best.says + (f" (or {alike[0]}: this x cannot tell them apart)" if alike else "")
    row = int(np.flatnonzero(wrong.any(1))[0])
    step, sequence = divmod(row, run.sequences)
    where = {
        "stage": _stage(run, row, best, wrong[row]),
        "step": run.steps - 1 - step if run.direction else step,
        "sequence": sequence,
        "unit": int(np.flatnonzero(wrong[row])[0]),
        "elements": int(wrong.sum()),
        "of": int(wrong.size),
    } | _extent(run, wrong)  # fmt: skip
    if others:
        confidence /= 1 + len(others)
    return Finding(run.direction, best.fault, says, confidence, where, tuple(others), left)


def _extent(run: Run, wrong: Mask) -> dict[str, Any]:
    shaped = wrong.reshape(run.steps, run.sequences, run.units)
    if run.direction:
        shaped = shaped[::-1]
    return {
        name: np.flatnonzero(shaped.any(axis=axes)).tolist()
        for name, axes in (("steps", (1, 2)), ("sequences", (0, 2)), ("units", (0, 1)))
    }


def _stage(run: Run, row: int, mistake: Mistake, wrong: Mask) -> str:
    """The first tensor that the mistake changes for a wrong unit; without one what intermediates show."""
    machine = Machine(run, np.array([row]))
    plain, _ = machine.step({})
    if mistake.settings:
        changed, _ = machine.step(mistake.settings)
        for name in ("x", "Wx", "before", *(key for key in plain if key not in ("x", "Wx", "before"))):
            if (plain[name] != changed[name]).any():
                return "h" if name == "before" else name
    for name, seen in run.v.items():
        if (plain[name] != seen[[row]]).any():
            return name
    return "h"
