"""The doctor's trials for GRUs: steps with one or more mistakes, compared with observed codes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...base.indices import evenly_spaced
from ...reference.gru import Tensors
from ..explanation import Mistake
from ..numbers import Mask
from .inputs import Run
from .machine import Candidate, Index, Machine, Settings

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
    by_error = sorted(tried, key=lambda one: one.error)[:1]
    for first in {id(one): one for one in (*_apart_in_kind(tried)[:BASES], *by_error)}.values():
        if first.apart.sum() > 0.9 * before.apart.sum() and first.error > 0.9 * before.error:
            continue
        for other in tried:
            both = together(first.mistake, other.mistake)
            if both is not None and not tried_on(few, both).apart.any():
                one = tried_on(all_of, both)
                if not one.apart.any():
                    return [one]
    return []


def _apart_in_kind(tried: list[Tried]) -> list[Tried]:
    """The nearest trial of each fault."""
    nearest: dict[str, Tried] = {}
    for one in tried:
        nearest.setdefault(one.mistake.fault, one)
    return list(nearest.values())
