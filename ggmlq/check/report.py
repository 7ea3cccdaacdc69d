"""What the user reads: a line a case, a summary by type, and files for replay."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import GGMLQError
from ..text import table
from .outcome import Outcome

HEADER = (
    f"{'type':8} {'M×N×K':>15} {'data':9} {'arithmetic':10} {'nmse':>8} {'to exact':>8} {'out':>6}  verdict"
)


def line(outcome: Outcome) -> str:
    """A case in one line; a failed one with what is known about it below."""
    case = outcome.case
    text = (
        f"{case.format.name:8} {case.shape:>15} {case.data:9} {outcome.arithmetic or '-':10} "
        f"{_figure(outcome.distance):>8} {_figure(outcome.from_exact):>8} "
        f"{outcome.out if outcome.arithmetic else '-':>6}  {_verdict(outcome)}"
    )
    if not outcome.bad:
        return text
    below = [wrapped(paragraph) for paragraph in outcome.text.splitlines()]
    below += [f"    again: ggmlq check {outcome.again}"]  # to be copied: never wrapped
    below += [f"    saved: {outcome.saved}"] if outcome.saved else []
    return "\n".join([text, *below])


def _verdict(outcome: Outcome) -> str:
    times = "" if math.isnan(outcome.seconds) else f", {_duration(outcome.seconds)}"
    match outcome.verdict:
        case "wrong":
            return f"WRONG: {outcome.fault}{times}"
        case "differs":
            return f"DIFFERS from run to run{times}"
        case "failed":
            return "FAILED"
        case other:
            return f"{other}{times}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1e}"


def wrapped(text: str) -> str:
    """A paragraph below its line."""
    return textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    ")


def summary(outcomes: Sequence[Outcome]) -> str:
    """A row a type."""
    rows = []
    for name in dict.fromkeys(o.case.format.name for o in outcomes if o.verdict != "not run"):
        mine = [outcome for outcome in outcomes if outcome.case.format.name == name]
        judged = [outcome for outcome in mine if outcome.arithmetic]
        count = {verdict: sum(o.verdict == verdict for o in mine) for verdict in
                 ("ok", "wrong", "differs", "failed", "not run")}  # fmt: skip
        used = ", ".join(dict.fromkeys(o.arithmetic for o in judged)) or "-"
        worst = _worst(outcome.distance for outcome in judged)
        exact = _worst(outcome.from_exact for outcome in judged)
        faults = ", ".join(dict.fromkeys(o.fault for o in mine if o.fault))
        rows.append([name, *count.values(), used, _figure(worst), _figure(exact), faults])
    header = ["type", "ok", "wrong", "differs", "failed", "not run", "arithmetic", "worst nmse", "to exact",
              "faults"]  # fmt: skip
    return table(header, rows)


def _worst(figures: Iterable[float]) -> float:
    return max((figure for figure in figures if not math.isnan(figure)), default=math.nan)


def reasons(outcomes: Sequence[Outcome]) -> list[str]:
    """Why cases did not run: for each type the first reason."""
    idle: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.verdict == "not run":
            idle.setdefault(outcome.case.format.name, []).append(outcome)
    return [
        f"{name} in {len(of_type)} cases, the first: {of_type[0].text}" if of_type[1:] else of_type[0].text
        for name, of_type in idle.items()
    ]


def save(folder: Path, outcome: Outcome, claim: str | None) -> Outcome:
    """A bad case as an npz that `ggmlq check --replay` and `ggmlq diagnose` read."""
    case = outcome.case
    path = folder / f"{case.stem}.npz"
    facts: dict[str, Any] = {
        "format": np.array(case.format.name),
        "shape": np.array(case.lengths),
        "data": np.array(case.data),
        "seed": np.array(case.seed),
        "arithmetic": np.array(outcome.arithmetic),  # the one that it was measured by
        "claim": np.array(claim or ""),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **facts, **outcome.arrays)
    except OSError as error:
        raise GGMLQError(
            f"--save {folder}: cannot write {path.name}: {error}; name another folder"
        ) from error
    return replace(outcome, saved=str(path), arrays={})
