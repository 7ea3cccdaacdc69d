"""The text report of ``ggmlq check --ops``: a line a case with its threads, and a summary by operation."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from ..base.text import count, printable, table
from ..reference.nodes import OPERATIONS
from .nodes import ATTENTION
from .opcases import CASES
from .ops import DIAGNOSED, OpOutcome, Traits
from .outcome import IDLE

NAMES = 24  # of further wrong cases that a line repeats


def line(outcome: OpOutcome, threads: Sequence[int] = ()) -> str:
    """A case as a line, with what is wrong below it; ``threads``: all numbers that went alike."""
    verdict = f"{outcome.verdict.upper()}{f': {outcome.fault}' if outcome.fault else ''}"
    head = f"{verdict}  {outcome.case}, threads {', '.join(map(str, threads or [outcome.threads]))}"
    below = outcome.text.splitlines()
    below += [f"again: ggmlq check {outcome.again}"] if outcome.bad else []
    below += [f"saved: {outcome.saved}"] if outcome.saved else []
    return printable("\n".join([head, *(f"    {text}" for text in below)]))


def lines(outcomes: Sequence[OpOutcome], every: bool = False) -> Iterator[str]:
    """Lines on one operation: its bad cases that were examined, then the names of the others.

    ``every``: a line for each case, also for the right ones.
    """
    groups: dict[tuple[str, str], list[OpOutcome]] = {}
    for outcome in outcomes:
        if outcome.bad or every:
            groups.setdefault((outcome.case, outcome.verdict), []).append(outcome)
    counts, faults, rest = Counter[tuple[str, str]](), set[str](), dict[str, OpOutcome]()
    for (case, verdict), members in groups.items():
        first = next((o for o in members if o.examined), members[0])
        alike = verdict, first.text if verdict == "refused" else ""
        counts[alike] += 1
        most = 1 if verdict == "refused" else DIAGNOSED
        if every or first.examined or (verdict != "wrong" and counts[alike] <= most):
            shown = _without_the_known(first) if first.fault in faults else first
            faults.add(first.fault)
            yield line(shown, [o.threads for o in members])
        else:
            rest[case] = first
    if rest:
        ways: dict[str, list[str]] = {}
        for case, outcome in list(rest.items())[:NAMES]:
            ways.setdefault(outcome.way, []).append(f"--case {shlex.quote(case)}")
        more = f" (--verbose lists {len(rest) - NAMES} others)" if len(rest) > NAMES else ""
        yield printable(f"{count(len(rest), 'more case')} like these{more}")
        yield from (printable(f"    again: ggmlq check {' '.join(some)}{way}") for way, some in ways.items())


def _without_the_known(outcome: OpOutcome) -> OpOutcome:
    """An outcome with what its diagnosis says of this case alone: a case above has the same fault."""
    first, *others = outcome.text.splitlines() or [""]
    return replace(outcome, text="\n".join([first, *(o for o in others if o.startswith("Here:"))]))


def summary(outcomes: Sequence[OpOutcome]) -> str:
    """A row for each operation."""
    rows = []
    for op in dict.fromkeys(o.op for o in outcomes):
        members = [o for o in outcomes if o.op == op]
        counts = Counter(o.verdict for o in members)
        faults = Counter(o.fault for o in members if o.fault)
        share = max((o.share for o in members if o.verdict == "ok"), default=0.0)
        rows.append([
            op, len(members), counts["wrong"] + counts["differs"], counts["failed"], counts["refused"],
            counts["not run"], counts["not judged"], f"{share:.2f}",
            ", ".join(name for name, _ in faults.most_common()),
        ])  # fmt: skip
    header = ["op", "cases", "wrong", "died", "refused", "not run", "not judged", "of limit", "faults"]
    return table(header, rows)


def shared(outcomes: Sequence[OpOutcome]) -> list[str]:
    """Sentences on what the wrong cases of each operation share."""
    texts = []
    for op in dict.fromkeys(o.op for o in outcomes if o.bad):
        members = [o for o in outcomes if o.op == op and o.traits]
        wrong, right = (
            [o.traits for o in members if o.bad],
            [o.traits for o in members if o.verdict == "ok"],
        )
        texts += [f"{op}: {text}" for text in contrasts(wrong, right)]
    return texts


def arithmetics(outcomes: Sequence[OpOutcome]) -> list[str]:
    """A sentence on the arithmetics in which attention was computed."""
    counts = Counter(o.how for o in outcomes if o.how and not o.bad)
    if not counts:
        return []
    each = ", ".join(f"{name or 'none that is known'} {n}" for name, n in counts.most_common())
    return [f"{ATTENTION}: right cases by arithmetic: {each}"]


def reasons(outcomes: Sequence[OpOutcome]) -> list[str]:
    """The reasons why cases did not run or were not judged, each once, with how many there are."""
    counts = Counter((o.verdict, o.op, o.text) for o in outcomes if o.verdict in IDLE)
    return [f"{verdict}: {op}, {count(n, 'case')}: {text}" for (verdict, op, text), n in counts.items()]


def last_sentence(outcomes: Sequence[OpOutcome]) -> str:
    """The end of the report."""
    refused = [o for o in outcomes if o.verdict == "refused"]
    unjudged = [o for o in outcomes if o.verdict == "not judged"]
    wrong = [o for o in outcomes if o.bad and o.verdict != "refused"]
    ran = sum(o.verdict not in (*IDLE, "refused") for o in outcomes)
    if wrong:
        parts = [f"{len(wrong)} of {ran} cases are wrong, of {_ops(wrong)}"]
    elif ran:
        operations = count(len({o.op for o in outcomes}), "operation")
        parts = [f"all {ran} cases are right, of {operations}"]
    else:
        parts = [f"no case ran, of {_ops(outcomes)}"]
    if refused:
        parts.append(f"{count(len(refused), 'case')} refused though supports_op says yes, of {_ops(refused)}")
    if unjudged:
        parts.append(f"{count(len(unjudged), 'case')} not judged, of {_ops(unjudged)}")
    missing = sorted(OPERATIONS.keys() - CASES.keys())
    if missing and len({o.op for o in outcomes}) == len(CASES):
        parts.append(f"without cases: {', '.join(missing)}")
    return "; ".join(parts)


def _ops(outcomes: Sequence[OpOutcome]) -> str:
    return ", ".join(dict.fromkeys(o.op for o in outcomes))


# --- traits that all wrong cases of an operation have, and no right one ---------------------------

MULTIPLES = (64, 32, 16, 8, 4)
ENOUGH = 2  # wrong cases, and right ones, that a sentence needs
MOST_SENTENCES = 1  # on an operation
Holds = Callable[[Traits], bool]


def contrasts(wrong: Sequence[Traits], right: Sequence[Traits]) -> list[str]:
    """Sentences that hold for all wrong cases and for no right one."""
    if len(wrong) < ENOUGH or len(right) < ENOUGH:
        return []
    every = (
        text for text, holds in _sentences(wrong, right)
        if all(map(holds, wrong)) and not any(map(holds, right))
    )  # fmt: skip
    return list(islice(every, MOST_SENTENCES))


def _sentences(wrong: Sequence[Traits], right: Sequence[Traits]) -> Iterator[tuple[str, Holds]]:
    """All that might separate the cases, the plainest first."""
    names = [name for name in wrong[0] if all(name in facts for facts in (*wrong, *right))]
    yield "wrong only with several threads", lambda facts: facts["threads"] > 1
    for name in names:
        value = wrong[0][name]
        if isinstance(value, bool):
            yield f"wrong only with {name}", _equal(name, True)
        elif name.startswith("type"):
            yield f"wrong only where the {name} is {value}", _equal(name, value)
    for name in ("threads", *names):
        if name.startswith(("ne", "threads")):
            yield from _lengths(name, [facts[name] for facts in right])


def _equal(name: str, value: Any) -> Holds:
    return lambda facts: bool(facts[name] == value)


def _no_multiple(name: str, step: int) -> Holds:
    return lambda facts: facts[name] % step != 0


def _lengths(name: str, right: Sequence[int]) -> Iterator[tuple[str, Holds]]:
    low, high = min(right), max(right)
    if low == high:
        yield f"right only where {name} is {low}", lambda facts: facts[name] != low
    samples = ", ".join(map(str, sorted(set(right))[:4]))
    for step in MULTIPLES:
        text = f"right where {name} is a multiple of {step} ({samples}), wrong elsewhere"
        yield text, _no_multiple(name, step)
    yield f"right up to {name} = {high}, wrong above", lambda facts: facts[name] > high
    yield f"right from {name} = {low} on, wrong below", lambda facts: facts[name] < low
