"""The loop of ``ggmlq check --ops``: seeded cases of operations on a libggml, judged by their oracles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.text import printable, table
from ..errors import DeviceError, GGMLQError, LibraryFailedError, UnsupportedError
from ..faults.nodes import NODES
from ..llama import Bridge
from ..reference.nodes import NOT_COVERED, OPERATIONS, PRODUCTS
from .attention import Habits
from .nodes import ATTENTION, NodeVerdict, diagnosed, judge_node, operands, sentence
from .opcases import CASES
from .opcases_large import LARGE, free, needs
from .opcontrast import Traits, contrasts, traits
from .sketch import OpCase
from .testfile import node_line

THREADS = (1, 2, 5)  # also more than some tensors have rows, and than they divide into
NO_ANSWER = "gave no answer"
FAILURES = 3  # deaths of the library at one operation, after which its other cases are left
SMALL = 1 << 26  # bytes of a case whose data is made once for all numbers of threads
DIAGNOSED = 3  # wrong cases of an operation that are diagnosed
REFUSED = ("GGML_ASSERT(", ": fatal error")  # in the last words of a library: it does not take such tensors


Judged = dict[bytes, NodeVerdict]  # by the bytes of a result


@dataclass(frozen=True)
class OpOutcome:
    """The outcome of one case with some number of threads."""

    op: str
    case: str
    threads: int
    verdict: str  # ok, wrong, differs (between runs), failed, not run
    share: float = 0.0  # of the limit that the worst element uses up
    out: int = 0
    judged: int = 0
    fault: str = ""
    text: str = ""
    seed: int = 0
    line: str | None = None  # for test-backend-ops --test-file
    traits: Traits = field(default_factory=dict)
    how: str = ""  # the arithmetic of an attention

    @property
    def bad(self) -> bool:
        """True for a wrong result, another one in each run, and a death."""
        return self.verdict in ("wrong", "differs", "failed")

    @property
    def hung(self) -> bool:
        """True where the library gave no answer: each such case takes the whole time that it is given."""
        return self.fault == "hang"

    def facts(self) -> dict[str, Any]:
        """The record as JSON has it."""
        share = self.share if np.isfinite(self.share) else None
        return {
            "op": self.op, "case": self.case, "threads": self.threads, "seed": self.seed,
            "verdict": self.verdict, "of_limit": share, "out_of_bound": self.out, "judged": self.judged,
            "fault": self.fault or None, "text": self.text or None, "arithmetic": self.how or None,
        }  # fmt: skip


def named(text: str) -> list[str]:
    """The operations of ``--ops``: names with commas, or all that have cases."""
    if text.lower() == "all":
        return sorted(CASES)
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    for name in names:
        if name in PRODUCTS:
            raise UnsupportedError(f"--ops {name}: products are checked without --ops; leave it out")
        if name not in CASES:
            why = f"{name} {NOT_COVERED[name]}" if name in NOT_COVERED else f"{name} is none of ggml's"
            raise UnsupportedError(f"--ops {text}: {why}; choose of all, {', '.join(sorted(CASES))}")
    return names


def run_ops(
    bridge: Bridge, ops: Sequence[str], device: str, backend: str, *, seed: int = 0,
    threads: Iterable[int] = THREADS, repeats: int = 2, large: bool = False, arithmetic: str = "",
) -> Iterator[OpOutcome]:  # fmt: skip
    """One outcome for each case and number of threads; ``large``: also of large ones.

    ``arithmetic``: attention claims to be computed in it.
    """
    habits = Habits()
    for op in ops:
        failures, examined = 0, 0
        more = LARGE[op](seed) if large and op in LARGE else ()
        for case in (*CASES[op](seed), *more):
            judged: Judged = {}
            arrays = case.arrays() if needs(case) < SMALL else None
            refusal, known = "", Traits()
            for count in threads:
                if refusal:
                    yield OpOutcome(op, str(case), count, "not run", text=refusal, seed=seed)
                    continue
                if failures >= FAILURES:
                    text = f"the library died or hung at cases of {op} before"
                    yield OpOutcome(op, str(case), count, "not run", text=text, seed=seed)
                    continue
                outcome = run_case(
                    bridge, case, device, backend, count, repeats, examined < DIAGNOSED, judged, habits,
                    arithmetic, arrays,
                )  # fmt: skip
                known |= outcome.traits
                if outcome.verdict == "failed":
                    outcome = replace(outcome, traits={**known, "threads": count} if known else {})
                refusal = outcome.text if outcome.verdict == "not run" else ""
                failures += 0 if outcome.verdict != "failed" else FAILURES - 1 if outcome.hung else 1
                examined += outcome.verdict == "wrong"
                yield outcome


def run_case(
    bridge: Bridge, case: OpCase, device: str, backend: str, threads: int, repeats: int, examine: bool = True,
    judged: Judged | None = None, habits: Habits | None = None, arithmetic: str = "",
    arrays: Sequence[NDArray[Any]] | None = None,
) -> OpOutcome:  # fmt: skip
    """The outcome of one case: compute, judge, diagnose where it is wrong.

    ``judged`` has the verdicts on results of the same case, whose bits are not judged twice; ``habits`` the
    arithmetics that other cases of attention had; ``arrays`` its data, if that was made before.
    """
    outcome = OpOutcome(case.op, str(case), threads, "ok", seed=case.seed)
    room = free()
    if room is not None and needs(case) > room:
        text = f"it takes {needs(case) / 2**30:.0f} GiB of memory, {room / 2**30:.0f} GiB are free"
        return replace(outcome, verdict="not run", text=text)
    try:
        data = case.arrays() if arrays is None else arrays
        ran = bridge.node(case.program, data, device, threads=threads, repeats=repeats)
    except LibraryFailedError as error:
        if any(words in error.tail for words in REFUSED):
            return replace(outcome, verdict="not run", text=f"the library refuses it: {error.tail}")
        fault = "hang" if NO_ANSWER in str(error) else "crash"
        return replace(outcome, verdict="failed", fault=fault, text=str(error))
    except (UnsupportedError, DeviceError) as error:
        return replace(outcome, verdict="not run", text=str(error))
    if ran.node.op != case.op:
        text = f"{case.program.steps[-1].function} of this library ends with {ran.node.op}"
        return replace(outcome, verdict="not run", text=text)
    try:
        these = operands(ran.node)
    except GGMLQError as error:
        return replace(outcome, verdict="not run", text=str(error))
    outcome = replace(outcome, line=node_line(ran.node, str(case)), traits=traits(ran.node, threads))
    quick = backend != "CPU"
    bits = ran.node.arrays["y"].tobytes()
    verdicts = {} if judged is None else judged
    verdict = verdicts.get(bits) or judge_node(
        these, quick=quick, threads=threads, habits=habits, arithmetic=arithmetic
    )
    verdicts[bits] = verdict
    outcome = replace(outcome, share=verdict.share, out=verdict.out, judged=verdict.judged)
    if these.op == ATTENTION:
        outcome = replace(outcome, how=verdict.how)
    first = ran.node.arrays["y"]
    if not verdict.out and not ran.strays:
        if all(np.array_equal(first, other) for other in ran.repeats):
            return outcome
        return replace(outcome, verdict="differs", fault="race", text="two runs differ, both within bounds")
    text = " ".join(str(stray) + "." for stray in ran.strays)
    if not verdict.out:
        return replace(outcome, verdict="wrong", fault="stray-writes", text=text)
    text = f"{sentence(verdict)} {text}".strip()
    if not examine:
        return replace(outcome, verdict="wrong", fault="", text=text)
    try:
        diagnosis = diagnosed(these, quick=quick, verdict=verdict)
    except GGMLQError as error:
        return replace(
            outcome, verdict="wrong", fault="unknown", text=f"{text} It was not diagnosed: {error}"
        )
    if diagnosis.fault == "unknown" and _is_right_apart(bridge, case, device, threads, quick):
        text += f"\nnode-in-place: {NODES['node-in-place'].says}"
        return replace(outcome, verdict="wrong", fault="node-in-place", text=text)
    fault = diagnosis.fault
    if fault == "unknown" and ran.strays:
        fault = "node-blocks" if ran.node.tensors["y"]["block"] > 1 else "stray-writes"
    return replace(outcome, verdict="wrong", fault=fault, text=f"{text}\n{diagnosis.text}")


def _is_right_apart(bridge: Bridge, case: OpCase, device: str, threads: int, quick: bool) -> bool:
    """True for a case with its result over a source that is right where the result has its own memory."""
    if case.program.over is None:
        return False
    ran = bridge.node(replace(case.program, over=None), case.arrays(), device, threads=threads)
    return not judge_node(operands(ran.node), quick=quick).out


def line(outcome: OpOutcome) -> str:
    """A case as a line, with what is wrong below it."""
    verdict = f"{outcome.verdict.upper()}{f': {outcome.fault}' if outcome.fault else ''}"
    head = f"{verdict}  {outcome.case}, threads {outcome.threads}"
    return printable("\n".join([head, *(f"    {text}" for text in outcome.text.splitlines())]))


def summary(outcomes: Sequence[OpOutcome]) -> str:
    """A row for each operation."""
    rows = []
    for op in dict.fromkeys(o.op for o in outcomes):
        members = [o for o in outcomes if o.op == op]
        counts = Counter(o.verdict for o in members)
        faults = Counter(o.fault for o in members if o.fault)
        share = max((o.share for o in members if o.verdict == "ok"), default=0.0)
        rows.append([
            op, len(members), counts["wrong"] + counts["differs"], counts["failed"], counts["not run"],
            f"{share:.2f}", ", ".join(name for name, _ in faults.most_common()),
        ])  # fmt: skip
    return table(["op", "cases", "wrong", "died", "not run", "of limit", "faults"], rows)


def shared(outcomes: Sequence[OpOutcome]) -> list[str]:
    """Sentences on what the wrong cases of each operation share."""
    lines = []
    for op in dict.fromkeys(o.op for o in outcomes if o.bad):
        members = [o for o in outcomes if o.op == op and o.traits]
        wrong, right = (
            [o.traits for o in members if o.bad],
            [o.traits for o in members if o.verdict == "ok"],
        )
        lines += [f"{op}: {text}" for text in contrasts(wrong, right)]
    return lines


def arithmetics(outcomes: Sequence[OpOutcome]) -> list[str]:
    """A sentence on the arithmetics in which attention was computed."""
    counts = Counter(o.how for o in outcomes if o.how and not o.bad)
    if not counts:
        return []
    each = ", ".join(f"{name or 'none that is known'} {count}" for name, count in counts.most_common())
    return [f"{ATTENTION}: right cases by arithmetic: {each}"]


def reasons(outcomes: Sequence[OpOutcome]) -> list[str]:
    """The reasons why cases did not run, each once, with how many there are."""
    counts = Counter((o.op, o.text) for o in outcomes if o.verdict == "not run")
    return [f"not run: {op}, {count} cases: {text}" for (op, text), count in counts.items()]


def last_sentence(outcomes: Sequence[OpOutcome]) -> str:
    """The end of the report."""
    bad = [o for o in outcomes if o.bad]
    ops = list(dict.fromkeys(o.op for o in bad))
    ran = sum(o.verdict != "not run" for o in outcomes)
    missing = sorted(OPERATIONS.keys() - CASES.keys())
    rest = f"; without cases: {', '.join(missing)}" if len({o.op for o in outcomes}) == len(CASES) else ""
    if bad:
        return f"{len(bad)} of {ran} cases are wrong, of {', '.join(ops)}{rest}"
    return f"all {ran} cases are right, of {len({o.op for o in outcomes})} operations{rest}"
