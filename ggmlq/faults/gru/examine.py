"""``gq.diagnose_gru``: from the codes of a run to the first stage that went wrong, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...base.indices import evenly_spaced
from ...base.progress import Progress
from ...gru import FixedGRU
from ...reference.gru import Tensors
from ..catalogue import GRU_FAULTS
from ..diagnosis import Diagnosis
from ..findings import Finding, Mistake
from ..frame import Kind, Words
from ..numbers import Mask
from ..places import in_words, runs_of
from .machine import Candidate, Index, Machine, Run, Settings, checked
from .mistakes import candidates

MOSTLY, ENERGY = 0.7, 0.05  # explained: this share of what is wrong, or all but this of the squared error
DIRECTIONS = ("forward", "backward")
AXES = {"steps": (1, 2), "sequences": (0, 2), "units": (0, 1)}  # of [steps, sequences, units], the others


def diagnose_gru(codes: Any, f: FixedGRU, x: Any, h0: Any = None, *, batch_first: bool = False) -> Diagnosis:
    """Say whether codes are those of a GRU in integers, and if not, which stage went wrong first, and why.

    Parameters
    ----------
    codes : tuple of arrays of integers
        Codes that a program gave for x: (y, h), or (y, h, v) with the intermediates, as a call of f with
        ``return_codes=True`` gives them. y alone will do.
    f : FixedGRU
        The right GRU: its parameters and codes.
    x : array of floats
        [T, N, C], or [N, T, C] with ``batch_first``.
    h0 : array of floats, optional
        As in the call.
    batch_first : bool
        True where sequences come first, in x, y and v.

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
    return GRU(checked(codes, f, x, h0, batch_first)).diagnosis()


class GRU(Kind[list[Mask]]):
    """Codes of a GRU in integers to diagnose, with one Run for each direction."""

    catalogue = GRU_FAULTS

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs

    def survey(self) -> list[Mask]:
        """Wrong elements of each direction: every step is judged from the states observed before it."""
        return [wrong_elements(run, {}) for run in self.runs]

    def verdict(self, survey: list[Mask]) -> Finding:
        """The finding on the first direction that is wrong."""
        directions = zip(self.runs, survey, strict=True)
        tried = [_examined(run, wrong) if wrong.any() else _last(run) for run, wrong in directions]
        findings = [finding for finding in tried if finding is not None]
        if not findings:
            return Finding("correct", 0.99 if self.runs[0].y.size else 1.0, "")
        finding = replace(findings[0], elements=sum(one.elements for one in findings))
        if len(self.runs) == 1:
            return finding
        exchanged = _exchanged(*self.runs)
        if exchanged is not None:
            return replace(finding, fault="directions-exchanged", detail=exchanged, confidence=0.99, alike=())
        if len(findings) > 1:
            return replace(finding, beside=f"The other direction is wrong, too: {findings[1].fault}.")
        return finding

    def words(self, survey: list[Mask], finding: Finding) -> Words:
        """The first wrong element, and the extent of what is wrong."""
        runs, at = self.runs, finding.where
        run = runs[DIRECTIONS.index(at.get("direction", "forward"))]
        figures = {
            "elements": sum(run.y.size for run in runs),
            "elements wrong": finding.elements,
            "intermediates given": bool(run.v),
        }
        if finding.fault != "correct":
            apart = "this x cannot tell them apart; run it on longer or louder inputs."
            return Words(figures, "", "", list(_extent(run, finding)), apart=apart)
        size = f"{run.steps} steps of {run.sequences} sequences, {len(runs) * run.units} units"
        seen = ", the intermediates too" if run.v else ""
        text = f"The codes are right, all of them to the bit ({size}{seen})."
        if not run.y.size:
            return Words({}, "There is nothing to judge: no step was run.", "", ())
        return Words(figures, text, "", ())


def _extent(run: Run, finding: Finding) -> Iterator[str]:
    """Sentences about where it began and how much is wrong."""
    at = finding.where
    loose = finding.fault in ("unknown", "intermediates") and run.v
    stage = f"{at['stage']}, or what leads to it," if loose else at["stage"]
    way = f" of the {at['direction']} direction" if "direction" in at else ""
    yield f"First wrong: {stage} at step {at['step']}{way}, sequence {at['sequence']}, unit {at['unit']}."
    lengths = {"steps": run.steps, "sequences": run.sequences, "units": run.units}
    places = in_words({name: at.get(name) for name, n in lengths.items() if at.get(name) != [(0, n)]}, 4)
    yield f"{at['elements']} of {at['of']} elements are wrong{', in ' if places else ''}{places}."
    if finding.left:
        yield f"This leaves {finding.left:.0%} of what is wrong unexplained."
    if finding.fault == "unknown" and not run.v:
        yield "Pass the intermediates too, (y, h, v): they show which gate is wrong."


def _exchanged(one: Run, two: Run) -> str | None:
    """Words for the mistake of exchanged directions, if it explains both; else None."""
    turned, weights = [], []
    for a, b in ((one, two), (two, one)):
        y = b.y.reshape(b.steps, b.sequences, -1)[::-1].reshape(b.y.shape)
        x = b.formats["x"].encode(a.values).astype(np.int64)
        turned.append(replace(a, y=y))
        weights.append(replace(a, formats=b.formats, codes=b.codes, x=x))
    for words, both in (
        ("the halves of y are exchanged", turned), ("each has the weights of the other", weights),
    ):  # fmt: skip
        if not any(wrong_elements(replace(run, last=None, v={}), {}).any() for run in both):
            return words
    return None


# --- one direction ------------------------------------------------------------------------------


def _examined(run: Run, wrong: Mask) -> Finding:
    """The finding on a direction that is wrong."""
    rows = screened(run, wrong)
    machine = Machine(run, rows)
    tried = _all_tried(machine)
    tried.sort(key=lambda one: int(one.apart.sum()))  # stable: the order of candidates stays
    before = tried_on(machine, Mistake("correct", "", {}))
    hits = exact(run, tried)
    if hits:
        return _finding(run, wrong, hits, 0.99)
    part = _in_a_part(run, wrong, rows, before, tried)
    if part is not None:
        return part
    several = exact(run, grown(machine, tried) or pairs(run, rows, tried, before))
    return _finding(run, wrong, several[:1], 0.9) if several else _nearly(run, wrong, before, tried)


def _all_tried(machine: Machine) -> list[Tried]:
    """Every candidate; a bar where that takes long, as with a thousand units."""
    mistakes = list(candidates(machine.run))
    tried = []
    with Progress(len(mistakes), "looking for the mistake", "mistake") as progress:
        for mistake in mistakes:
            tried.append(tried_on(machine, mistake))
            progress.advance(1)
    return tried


def _in_a_part(run: Run, wrong: Mask, rows: Index, before: Tried, tried: list[Tried]) -> Finding | None:
    """A mistake that explains everything in the units, sequences and steps where anything is wrong."""
    shaped = wrong.reshape(run.steps, run.sequences, run.units)
    for names in (("units",), ("sequences",), ("steps",), tuple(AXES)):
        whole = np.ones_like(shaped)  # of the units, sequences or steps where anything is wrong
        for name in names:
            whole &= shaped.any(axis=AXES[name], keepdims=True)
        region = whole.reshape(wrong.shape)[rows]
        if region.all() or (before.apart & region).sum() < 3 or region.mean() < 0.01:
            continue
        near = [one.mistake for one in tried if not (one.apart & region).any()][:FEW]
        hits = [
            one for one in near if not (wrong_elements(run, one.replay) & whole.reshape(wrong.shape)).any()
        ]
        if hits:
            finding = _finding(run, wrong, hits, 0.9)
            words = f"only in some {names[0] if len(names) == 1 else 'places'}"
            return replace(finding, detail=f"{finding.detail}, {words}".lstrip(", "))
    return None


def _nearly(run: Run, wrong: Mask, before: Tried, tried: list[Tried]) -> Finding:
    """The finding of the mistake that explains most wrong elements, or that none explains enough."""
    if run.v and not wrong_elements(replace(run, v={}), {}).any():
        return _finding(run, wrong, [Mistake("intermediates", "", {})], 0.95)
    count = int(wrong.sum())
    by_error = min(tried, key=lambda one: one.error)
    if count >= FEW:
        left = int(wrong_elements(run, tried[0].mistake.replay).sum()) / count
        if left <= 1 - MOSTLY:
            return _finding(run, wrong, [tried[0].mistake], 0.7, left)
        if by_error.error <= ENERGY * before.error:
            left = int(wrong_elements(run, by_error.mistake.replay).sum()) / count
            return _finding(run, wrong, [by_error.mistake], 0.6, min(left, 1.0))
    return _finding(run, wrong, [Mistake("unknown", "", {})], 0.5)


def _last(run: Run) -> Finding | None:
    """The finding that the last state is wrong after right steps; None if it is right or absent."""
    if run.last is None:
        return None
    right = run.y[len(run.y) - run.sequences :] if run.steps else run.first
    if np.array_equal(run.last, right):
        return None
    words = "it is not that after the last step"
    if run.steps and np.array_equal(run.last, run.y[: run.sequences]):
        words = "it is that after the first step" + (", the last of x" if run.direction else "")
    elif np.array_equal(run.last, run.first):
        words = "it is h0"
    bad = run.last != right
    sequence, unit = (int(i) for i in np.argwhere(bad)[0])
    at = {"step": run.steps - 1, "sequence": sequence, "unit": unit, "stage": "h"}
    return Finding("last-state", 0.97, words, _where(run, bad, at), int(bad.sum()))


# --- a finding ----------------------------------------------------------------------------------


def _finding(
    run: Run, wrong: Mask, mistakes: list[Candidate], confidence: float, left: float = 0.0
) -> Finding:
    """The finding of the first of some mistakes, with the names of the others."""
    best = mistakes[0]
    others = dict.fromkeys(one.fault for one in mistakes if one.fault != best.fault)
    alike = [one.words for one in mistakes[1:] if one.fault == best.fault and one.words != best.words]
    words = best.words + (f" (or {alike[0]}: this x cannot tell them apart)" if alike else "")
    row = int(np.flatnonzero(wrong.any(1))[0])
    step, sequence = divmod(row, run.sequences)
    shaped = wrong.reshape(run.steps, run.sequences, run.units)[:: -1 if run.direction else 1]
    at = {
        "stage": _stage(run, row, best),
        "step": run.steps - 1 - step if run.direction else step,
        "sequence": sequence,
        "unit": int(np.flatnonzero(wrong[row])[0]),
        **{name: runs_of(np.flatnonzero(shaped.any(axis=axes))) for name, axes in AXES.items()},
    }
    return Finding(
        best.fault, confidence / (1 + len(others)), words, _where(run, wrong, at), int(wrong.sum()),
        tuple(others), left,
    )  # fmt: skip


def _where(run: Run, wrong: Mask, at: dict[str, Any]) -> dict[str, Any]:
    direction = {"direction": DIRECTIONS[run.direction]} if run.directions > 1 else {}
    return at | {"elements": int(wrong.sum()), "of": int(wrong.size)} | direction


def _stage(run: Run, row: int, mistake: Candidate) -> str:
    """The first tensor that the mistake changes for a wrong unit; without one what intermediates show."""
    machine = Machine(run, np.array([row]))
    plain, _ = machine.step({})
    if mistake.replay:
        changed, _ = machine.step(mistake.replay)
        for name in ("x", "Wx", "before", *(key for key in plain if key not in ("x", "Wx", "before"))):
            if (plain[name] != changed[name]).any():
                return "h" if name == "before" else name
    for name, seen in run.v.items():
        if (plain[name] != seen[[row]]).any():
            return name
    return "h"


# --- trials of mistakes, alone and several at once -------------------------------------------------

AT_ONCE = 1 << 21  # numbers of a tensor that are computed at a time
SCREEN, LEAST, WIDE = 64, 16, 1 << 13  # rows on which all mistakes are tried, and their numbers
BASES, FEW = 3, 12  # mistakes that are tried together with every other one, and rows for that


class Tried(NamedTuple):
    """A mistake that was tried on some rows, and the elements that it does not explain."""

    mistake: Candidate
    apart: Mask  # elements that differ with the mistake
    error: float  # squared, over the codes of h


def together(one: Candidate, other: Candidate) -> Candidate | None:
    """Two mistakes at once; None where they replace the same part."""
    if one.replay.keys() & other.replay.keys():
        return None
    name = "" if other.fault == one.fault else f"{other.fault}: "
    return Mistake(one.fault, f"{one.words}; and {name}{other.words}", {**one.replay, **other.replay})


def wrong_elements(run: Run, settings: Settings) -> Mask:
    """Elements of all rows that differ from a program with these settings ({}: from a right program)."""
    total = len(run.y)
    step = max(1, AT_ONCE // max(1, 3 * run.units))
    parts = [np.zeros((0, run.units), np.bool_)]
    for start in range(0, total, step):
        rows = np.arange(start, min(total, start + step))
        parts.append(_apart(run, rows, *Machine(run, rows).step(settings))[0])
    return np.concatenate(parts)


def _apart(run: Run, rows: Index, q: Tensors, unknown: Mask) -> tuple[Mask, float]:
    """Elements that differ from those observed, in h or an intermediate; and the squared error of h."""
    far = (q["h"] - run.y[rows]).astype(np.float64)
    far[unknown] = 0
    apart = far != 0
    for name, seen in run.v.items():
        apart |= (q[name] != seen[rows]) & ~unknown[:, None]
    return apart, float((far**2).sum())


def screened(run: Run, wrong: Mask) -> Index:
    """Rows to try mistakes on: of the first step, the first wrong ones, wrong and right ones of all steps."""
    most = int(np.clip(WIDE // max(run.units, 1), LEAST, SCREEN))
    bad = wrong.any(1)
    both = [np.flatnonzero(part) for part in (bad, ~bad)]
    spaced = [rows[evenly_spaced(len(rows), most // 2)] for rows in both]
    first = np.arange(min(run.sequences, 4))
    busiest = np.argsort(-wrong.sum(1), kind="stable")[: most // 4]
    return np.unique(np.concatenate([first, np.flatnonzero(bad)[:4], busiest, *spaced]))


def tried_on(machine: Machine, mistake: Candidate) -> Tried:
    """The trial of one mistake on the machine's rows."""
    return Tried(mistake, *_apart(machine.run, machine.rows, *machine.step(mistake.replay)))


def exact(run: Run, tried: list[Tried]) -> list[Candidate]:
    """Mistakes that explain every element of the run."""
    hits = [one.mistake for one in tried if not one.apart.any()]
    return [mistake for mistake in hits if not wrong_elements(run, mistake.replay).any()]


def grown(machine: Machine, tried: list[Tried]) -> list[Tried]:
    """A trial of one fault in several tensors at once that explains all; tensors are added one by one."""
    for fault in dict.fromkeys(one.mistake.fault for one in tried[:BASES]):
        parts = [one for one in tried if one.mistake.fault == fault]
        best = parts[0]
        while best.apart.any():
            larger = [together(best.mistake, one.mistake) for one in parts if len(one.mistake.replay) == 1]
            larger_ones = [tried_on(machine, one) for one in larger if one is not None]
            most = min(larger_ones, key=lambda one: int(one.apart.sum()), default=best)
            if most.apart.sum() >= best.apart.sum():
                break
            best = most
        else:
            return [best]
    return []


def pairs(run: Run, rows: Index, tried: list[Tried], before: Tried) -> list[Tried]:
    """The first trial of two mistakes at once that explains all rows; few wrong rows are tried first."""
    few, all_of = Machine(run, rows[before.apart.any(1)][:FEW]), Machine(run, rows)
    by_error = min(tried, key=lambda one: one.error)
    nearest: dict[str, Tried] = {}  # of each fault
    for one in tried:
        nearest.setdefault(one.mistake.fault, one)
    for first in {id(one): one for one in (*list(nearest.values())[:BASES], by_error)}.values():
        if first.apart.sum() > 0.9 * before.apart.sum() and first.error > 0.9 * before.error:
            continue
        for other in tried:
            both = together(first.mistake, other.mistake)
            if both is not None and not tried_on(few, both).apart.any():
                one = tried_on(all_of, both)
                if not one.apart.any():
                    return [one]
    return []
