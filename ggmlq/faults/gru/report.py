"""A finding about a GRU in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..diagnosis import Diagnosis
from ..places import runs_of
from .catalogue import GRU_FAULTS
from .inputs import Run

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class Finding:
    """What is wrong with a direction."""

    direction: int
    fault: str
    says: str
    confidence: float
    where: dict[str, Any]
    alternatives: tuple[str, ...]
    left: float = 0.0  # share of the wrong elements that stays unexplained


def right(runs: list[Run]) -> Diagnosis:
    """Nothing is wrong."""
    run = runs[0]
    size = f"{run.steps} steps of {run.sequences} sequences, {len(runs) * run.units} units"
    if not run.y.size:
        return Diagnosis(True, "correct", 1.0, "There is nothing to judge: no step was run.")
    seen = ", the intermediates too" if run.v else ""
    text = f"The codes are right, all of them to the bit ({size}{seen})."
    return Diagnosis(True, "correct", 0.99, text, figures=_figures(runs, 0))


def report(runs: list[Run], findings: list[Finding]) -> Diagnosis:
    """The diagnosis that the user gets: of the first direction that is wrong, and whether both are."""
    best = findings[0]
    run, fault, at = runs[best.direction], GRU_FAULTS[best.fault], dict(best.where)
    lines = [f"{fault.id}: {fault.says}"]
    if best.says:
        lines.append(f"Here: {best.says}.")
    if fault.wrong:
        lines += [f"Wrong: {fault.wrong}", f"Right: {fault.right}"]
    if fault.look:
        lines.append(f"Look at {fault.look}.")
    way = f" of the {DIRECTIONS[best.direction]} direction" if len(runs) > 1 else ""
    lines.append(
        f"First wrong: {_stage(best, run)} at step {at['step']}{way}, sequence {at['sequence']}, "
        f"unit {at['unit']}."
    )
    lines.append(_extent(best, run))
    if best.left:
        lines.append(f"This leaves {best.left:.0%} of what is wrong unexplained.")
    if best.alternatives:
        lines.append(
            f"{' and '.join(best.alternatives)} would give the same codes: this x cannot tell them apart; "
            "run it on longer or louder inputs."
        )
    if best.fault == "unknown" and not run.v:
        lines.append("Pass the intermediates too, (y, h, v): they show which gate is wrong.")
    if len(findings) > 1:
        lines.append(f"The other direction is wrong, too: {findings[1].fault}.")
    where = {key: runs_of(v) if isinstance(v, list) else v for key, v in at.items()}
    if len(runs) > 1:
        where["direction"] = DIRECTIONS[best.direction]
    wrong = sum(one.where["elements"] for one in findings)
    figures = _figures(runs, wrong)
    return Diagnosis(
        False, best.fault, best.confidence, "\n".join(lines), where, figures, "", best.alternatives
    )


def _stage(best: Finding, run: Run) -> str:
    stage = best.where["stage"]
    if best.fault in ("unknown", "intermediates") and run.v:
        return f"{stage}, or what leads to it,"
    return str(stage)


def _extent(best: Finding, run: Run) -> str:
    at = best.where
    text = f"{at['elements']} of {at['of']} elements are wrong"
    said = []
    for name, count in (("steps", run.steps), ("sequences", run.sequences), ("units", run.units)):
        runs = runs_of(at.get(name, []))
        if runs and runs != [(0, count)]:
            shown = ", ".join(f"{a}" if b == a + 1 else f"{a} to {b - 1}" for a, b in runs[:4])
            said.append(f"{name} {shown}{' …' if len(runs) > 4 else ''}")
    return f"{text}, in {'; '.join(said)}." if said else f"{text}."


def _figures(runs: list[Run], wrong: int) -> dict[str, Any]:
    return {
        "elements": sum(run.y.size for run in runs),
        "elements wrong": wrong,
        "intermediates given": bool(runs[0].v),
    }
