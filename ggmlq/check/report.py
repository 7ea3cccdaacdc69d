"""The text report of ``ggmlq check``: a line a case, a summary by type, and files for replay."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.text import table
from ..errors import GGMLQError
from .outcome import IDLE, Outcome, verdicts_of

TypeRow = tuple[str, list[int], str, float, float, str]
ALIKE = 5  # wrong cases of a type and layout that have a line without being diagnosed
NAMES = 8  # of types that are listed for one reason
HEADER = (
    f"{'type':8} {'M×N×K':>15} {'data':9} {'arithmetic':10} {'nmse':>8} {'to exact':>8} {'out':>6}  verdict"
)


def line(outcome: Outcome) -> str:
    """The report on a case: one line, and below it the diagnosis of a bad case."""
    case = outcome.case
    text = (
        f"{case.format.name:8} {case.shape:>15} {case.data:9} {outcome.arithmetic or '-':10} "
        f"{figure(outcome.distance):>8} {figure(outcome.from_exact):>8} "
        f"{outcome.out if outcome.arithmetic else '-':>6}  {_verdict(outcome)}"
    )
    if not outcome.bad:
        return text
    below = [wrapped(paragraph) for paragraph in outcome.text.splitlines()]
    if below and not outcome.text.startswith("Here:"):  # the same fault as of a case above
        below.append(f"    again: ggmlq check {outcome.repeat_options}")  # to be copied: never wrapped
    below += [f"    saved: {outcome.saved}"] if outcome.saved else []
    return "\n".join([text, *below])


def _verdict(outcome: Outcome) -> str:
    seconds = outcome.seconds
    duration = f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
    times = "" if math.isnan(seconds) else f", {duration}"
    match outcome.verdict:
        case "wrong":
            return f"WRONG{': ' if outcome.fault else ''}{outcome.fault}{times}{_way(outcome)}"
        case "differs":
            return f"DIFFERS from run to run{times}{_way(outcome)}"
        case "failed" | "refused":
            return f"{outcome.verdict.upper()}{_way(outcome)}"
        case other:
            return f"{other}{times}{_way(outcome)}"


def _way(outcome: Outcome) -> str:
    return f" ({outcome.way})" if outcome.way else ""


class Lines:
    """A printer of outcomes as they come; right ones of a type and layout share a line.

    Wrong ones that were not diagnosed share one too, beyond the first few. With ``every`` each has its own.
    """

    def __init__(self, say: Callable[[str], None], *, every: bool) -> None:
        self._say, self._every = say, every
        self._right: list[Outcome] = []
        self._alike: list[Outcome] = []  # wrong, and not diagnosed
        self._threads: int | None = None  # the usual number: only others are printed

    def add(self, outcome: Outcome) -> None:
        """Count an outcome and print its line."""
        self._threads = outcome.threads if self._threads is None else self._threads
        if outcome.threads == self._threads:
            outcome = replace(outcome, threads=0)
        previous = [*self._right[-1:], *self._alike[-1:]]
        if previous and _kernels(previous[0]) != _kernels(outcome):
            self.close()
        if outcome.verdict == "ok" and not self._every:
            self._right.append(outcome)
        elif outcome.verdict == "wrong" and not outcome.text and not self._every:
            self._alike.append(outcome)
            if len(self._alike) <= ALIKE:
                self._say(line(outcome))
        elif outcome.verdict not in IDLE:
            self._say(line(outcome))

    def close(self) -> None:
        """Print the lines that were held back, and begin anew."""
        if len(self._alike) > ALIKE:
            more = self._alike[ALIKE:]
            self._say(
                f"{more[0].case.format.name:8} {f'{len(more)} more cases':>15} WRONG (--verbose lists them)"
            )
        if self._right:
            self._say(_folded(self._right))
        self._right, self._alike = [], []


def _kernels(outcome: Outcome) -> tuple[str, str]:
    return outcome.case.format.name, outcome.layout


def _folded(right: Sequence[Outcome]) -> str:
    """Cases that are right, in the columns of a single one."""
    if len(right) == 1:
        return line(right[0])
    first, used = right[0], ", ".join(dict.fromkeys(o.arithmetic for o in right if o.arithmetic))
    worst, exact = _worst(o.distance for o in right), _worst(o.from_exact for o in right)
    count = f"{len(right)} cases"
    return (
        f"{first.case.format.name:8} {count:>15} {'':9} {used or '-':10} {figure(worst):>8} "
        f"{figure(exact):>8} {0:>6}  ok{f' ({first.layout})' if first.layout else ''}"
    )


def figure(value: float | None) -> str:
    """A figure of a table; a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.1e}"


def wrapped(text: str) -> str:
    """A paragraph, indented below its line."""
    return textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    ")


def summary(outcomes: Sequence[Outcome]) -> str:
    """A table with a row for each type."""
    verdicts = verdicts_of(outcomes)
    names = dict.fromkeys(o.case.format.name for o in outcomes if o.verdict not in IDLE)
    rows = [[name, *counts, used or "-", figure(worst), figure(exact), faults]
            for name, counts, used, worst, exact, faults in by_type(outcomes, names)]  # fmt: skip
    return table(["type", *verdicts, "arithmetic", "worst nmse", "to exact", "faults"], rows)


def by_type(outcomes: Sequence[Outcome], names: Iterable[str]) -> Iterator[TypeRow]:
    """Each type with counts by verdict, arithmetics, the worst distance, that to exact, and faults."""
    verdicts = verdicts_of(outcomes)
    for name in names:
        cases = [outcome for outcome in outcomes if outcome.case.format.name == name]
        judged = [outcome for outcome in cases if outcome.arithmetic]
        counts = [sum(o.verdict == verdict for o in cases) for verdict in verdicts]
        used = ", ".join(dict.fromkeys(o.arithmetic for o in judged))
        worst, exact = _worst(o.distance for o in judged), _worst(o.from_exact for o in judged)
        yield name, counts, used, worst, exact, votes(cases)


def votes(outcomes: Sequence[Outcome]) -> str:
    """The faults, each with the number of diagnosed cases that have it."""
    named = Counter(o.fault for o in outcomes if o.fault)
    shares = [f"{fault} in {count}" for fault, count in named.most_common()]
    return f"{', '.join(shares)} of {named.total()} diagnosed" if named else ""


def last_sentence(outcomes: Sequence[Outcome]) -> str:
    """The last sentence: the number of cases that ran, and how they went."""
    ran = [o for o in outcomes if o.verdict not in IDLE]
    bad, unjudged = sum(o.bad for o in ran), sum(o.verdict == "not judged" for o in outcomes)
    idle = len(outcomes) - len(ran) - unjudged
    cases = f"{len(ran)} case{'' if len(ran) == 1 else 's'}"
    verdict = "all right" if not bad else f"{bad} of them not right"
    rest = f"; {idle} more could not run" if idle else ""
    rest += f"; {unjudged} more could not be judged" if unjudged else ""
    return f"{cases}, {verdict}{rest}." if ran else f"No case ran of {len(outcomes)}."


def _worst(figures: Iterable[float]) -> float:
    return max((figure for figure in figures if not math.isnan(figure)), default=math.nan)


def reasons(outcomes: Sequence[Outcome], verdict: str = "not run") -> list[str]:
    """The reasons why cases did not run, or were not judged, each once, with its types."""
    idle: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.verdict == verdict:
            idle.setdefault(outcome.text.split(": ", 1)[-1], []).append(outcome)
    lines = []
    for reason, alike in idle.items():
        names = list(dict.fromkeys(o.case.format.name for o in alike))
        shown = ", ".join(names[:NAMES]) + (f" and {len(names) - NAMES} more" if len(names) > NAMES else "")
        lines.append(alike[0].text if len(alike) == 1 else f"{shown} in {len(alike)} cases: {reason}")
    return lines


@contextmanager
def saving(folder: Path, name: str) -> Iterator[Path]:
    """The path of a file that ``--save`` writes, in a folder that is made for it."""
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield path
    except OSError as error:
        raise GGMLQError(f"--save {folder}: cannot write {name}: {error}; name another folder") from error


def save(folder: Path, outcome: Outcome, claim: str | None) -> Outcome:
    """A bad case as an npz that `ggmlq check --replay` and `ggmlq diagnose` read."""
    case = outcome.case
    facts: dict[str, Any] = {
        "format": np.array(case.format.name),
        "shape": np.array(case.lengths),
        "data": np.array(case.data),
        "seed": np.array(case.seed),
        "arithmetic": np.array(outcome.arithmetic),  # the one that it was measured by
        "claim": np.array(claim or ""),
    }
    with saving(folder, f"{case.file_stem}.npz") as path:
        np.savez_compressed(path, **facts, **outcome.arrays)
    return replace(outcome, saved=str(path), arrays={})


# --- what wrong cases of a type share and right ones do not ---------------------------------------

ENOUGH = 2  # right cases and wrong cases that a difference needs, at least
MULTIPLES = (32, 16, 8, 4)


def contrasts(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each type that has both right and wrong cases, where they differ in something."""
    names = dict.fromkeys(o.case.format.name for o in outcomes if o.verdict == "wrong")
    lines = []
    for name in names:
        cases = [o for o in outcomes if o.case.format.name == name and o.verdict in ("ok", "wrong")]
        differences = list(_differences(cases))
        if differences:
            lines.append(f"{name}: {'; '.join(differences)}.")
    return lines


def _differences(outcomes: list[Outcome]) -> Iterator[str]:
    """Traits that all wrong cases share and no right one has: layouts first, then traits within a layout."""
    layouts = dict.fromkeys(o.layout for o in outcomes if o.verdict == "wrong")
    others = {o.layout for o in outcomes} - set(layouts)
    if len(layouts) == 1 and others:
        yield f"wrong only in {next(iter(layouts)) or 'the plain layout'}"
    for layout in layouts:
        within = [o for o in outcomes if o.layout == layout]
        beside = f"{layout or 'the plain layout'} is " if len(layouts) > 1 else ""
        yield from (f"{beside}{text}" for text in _within(within))


def _within(outcomes: list[Outcome]) -> Iterator[str]:
    """The conditions on which cases of one layout are wrong."""
    wrong, right = ([o for o in outcomes if o.verdict == verdict] for verdict in ("wrong", "ok"))
    if not wrong or not right:
        return
    yield from _from_on("threads", lambda o: o.threads, wrong, right, "how rows are divided among threads")
    yield from _from_on("rows of activations", lambda o: o.case.m, wrong, right, "the kernel for many rows")
    short = [o for o in right if _blocks(o) == 1]
    if len(short) >= ENOUGH and min(map(_blocks, wrong)) > 1:
        yield "right where K is one block: something goes wrong between blocks, or only in later ones"
    for step in MULTIPLES:
        tails = all(o.case.n % step for o in wrong) and not any(o.case.n % step for o in right)
        if tails and len(right) >= ENOUGH <= len(wrong):
            yield f"wrong only where N is no multiple of {step}"
            break
    kinds = {o.case.data for o in wrong}
    others = {o.case.data for o in right} - kinds
    if len(kinds) == 1 and "normal" in others and kinds != {"normal"}:
        yield f"wrong only with {next(iter(kinds))} activations"
    if "constant" in others and "normal" in kinds:
        yield (
            "right where all activations of a row are alike (constant): no term is lost, but codes or sums "
            "meet those of other places"
        )


def _from_on(
    name: str, size: Callable[[Outcome], int], wrong: list[Outcome], right: list[Outcome], why: str
) -> Iterator[str]:
    """A sentence where cases are wrong from a size on and right below it."""
    least, most = min(map(size, wrong)), max(map(size, right))
    if most < least and len(wrong) >= ENOUGH <= len(right):
        yield f"wrong from {least} {name} on, right up to {most}: {why}"


def _blocks(outcome: Outcome) -> int:
    return outcome.case.k // max(outcome.case.format.block_size, 1)
