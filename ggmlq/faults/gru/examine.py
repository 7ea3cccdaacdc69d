"""``gq.diagnose_gru``: from the codes of a run to the first stage that went wrong, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...base.progress import Progress
from ...gru import FixedGRU
from ..diagnosis import Diagnosis
from .candidates import candidates
from .inputs import Run, given
from .machine import Index, Machine
from .mistake import Mistake
from .report import Finding, report, right
from .search import FEW, Mask, Tried, exact, grown, pairs, screened, tried_on, wrong_elements

MOSTLY, ENERGY = 0.7, 0.05  # explained: this share of what is wrong, or all but this of the squared error


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
    plain: dict[str, Any] = {"last": None, "v": {}}
    weights = [replace(a, formats=b.formats, codes=b.codes, x=_codes_of_x(a, b), first=a.first) for a, b in
               ((one, two), (two, one))]  # fmt: skip
    for says, tried in (
        ("the halves of y are exchanged", turned),
        ("each has the weights of the other", weights),
    ):
        if not any(wrong_elements(replace(run, **plain), {}).any() for run in tried):
            return {"fault": "directions-exchanged", "says": says, "confidence": 0.99, "alternatives": ()}
    return None


def _turned(run: Run, y: Any) -> Any:
    return y.reshape(run.steps, run.sequences, -1)[::-1].reshape(y.shape)


def _codes_of_x(run: Run, other: Run) -> Any:
    return other.formats["x"].encode(run.values).astype(np.int64)


# --- one direction ------------------------------------------------------------------------------


def _examined(run: Run) -> Finding | None:
    """What is wrong with a direction; None where nothing is."""
    wrong = wrong_elements(run, {})
    if not wrong.any():
        return _last(run)
    rows = screened(run, wrong)
    machine, plain = Machine(run, rows), Mistake("correct", "", {})
    tried = _all_tried(machine)
    tried.sort(key=lambda one: int(one.apart.sum()))  # stable: the order of candidates stays
    before = tried_on(machine, plain)
    hits = exact(run, tried)
    if hits:
        return _found(run, wrong, hits, 0.99)
    parts = _in_a_part(run, wrong, rows, before, tried)
    if parts is not None:
        return parts
    several = exact(run, grown(machine, tried) or pairs(run, rows, tried, before))
    if several:
        return _found(run, wrong, several[:1], 0.9)
    return _nearly(run, wrong, before, tried)


def _all_tried(machine: Machine) -> list[Tried]:
    """Every candidate; a bar where that takes long, as with a thousand units."""
    mistakes = list(candidates(machine.run))
    progress, tried = Progress(len(mistakes), "looking for the mistake", "mistake"), []
    try:
        for mistake in mistakes:
            tried.append(tried_on(machine, mistake))
            progress.advance(1)
    finally:
        progress.close()
    return tried


def _in_a_part(run: Run, wrong: Mask, rows: Index, before: Tried, tried: list[Tried]) -> Finding | None:
    """A mistake that explains everything in the units, sequences and steps where anything is wrong."""
    shaped = wrong.reshape(run.steps, run.sequences, run.units)
    units, sequences, steps = (np.asarray(shaped.any(axis=axes)) for axes in ((0, 1), (0, 2), (1, 2)))
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
        hits = [
            one for one in hits if not (wrong_elements(run, one.settings) & _all_of(run, wrong, words)).any()
        ]
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


def _nearly(run: Run, wrong: Mask, before: Tried, tried: list[Tried]) -> Finding:
    """The mistake that explains most of what is wrong, if one explains much."""
    if run.v and not wrong_elements(replace(run, v={}), {}).any():
        return _found(run, wrong, [Mistake("intermediates", "", {})], 0.95)
    count = int(wrong.sum())
    by_error = min(tried, key=lambda one: one.error)
    if count >= FEW:
        left = int(wrong_elements(run, tried[0].mistake.settings).sum()) / count
        if left <= 1 - MOSTLY:
            return _found(run, wrong, [tried[0].mistake], 0.7, left)
        if by_error.error <= ENERGY * before.error:
            left = int(wrong_elements(run, by_error.mistake.settings).sum()) / count
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
