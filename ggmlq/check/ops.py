"""The loop of ``ggmlq check --ops``: seeded cases of operations on a libggml, judged by their oracles."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.system import free_memory
from ..base.text import meant
from ..errors import DeviceError, GGMLQError, LibraryFailedError, UnsupportedError
from ..faults import NODES
from ..llama import Bridge
from ..llama.program import Node, Ran
from ..reference.nodes import ATTENTIONS, NOT_COVERED, PRODUCTS
from .judge import reason
from .nodes import (
    ATTENTION,
    Habits,
    NodeVerdict,
    Operands,
    diagnosed,
    judge_node,
    judge_product,
    node_line,
    operands,
    sentence,
)
from .opcases import CASES, LARGE
from .outcome import ASSERTIONS, BAD
from .sketch import OpCase
from .testfile import FileCase

THREADS = (1, 2, 5)  # also more than some tensors have rows, and than they divide into
NO_ANSWER = "gave no answer"
FAILURES = 3  # deaths of the library at one operation, after which its other cases are left
SMALL = 1 << 26  # bytes of a case whose data is made once for all numbers of threads
DIAGNOSED = 3  # wrong cases of an operation that are diagnosed


AnyCase = OpCase | FileCase
Judged = dict[bytes, NodeVerdict]  # by the bytes of a result
Traits = dict[str, Any]  # of a case, by a name in words
WORDS = {
    "s0": "the first source", "s1": "the second source", "s2": "the third source", "q": "queries",
    "k": "keys", "v": "values", "m": "the mask", "y": "the result",
}  # fmt: skip


def traits(node: Node, threads: int) -> Traits:
    """Lengths, types and gaps of a node's operands, and special values in them."""
    facts: Traits = {"threads": threads}
    for name, tensor in node.tensors.items():
        of = WORDS.get(name, name)
        for axis, length in enumerate(tensor["ne"]):
            facts[f"ne{axis} of {of}"] = length
        facts[f"type of {of}"] = tensor["type"]
        facts[f"gaps in {of}"] = _has_gaps(tensor)
        if name != "y" and tensor["type"] in ("f32", "f16"):
            facts[f"NaN in {of}"] = bool(np.isnan(node.strided(name)).any())
    if node.op == ATTENTION and "m" in node.tensors:
        facts["rows that see nothing"] = bool(np.isneginf(node.strided("m")).all(axis=-1).any())
    return facts


def _has_gaps(tensor: dict[str, Any]) -> bool:
    """True where elements do not lie one behind the other in their order."""
    block = tensor.get("block", 1)
    dense = tensor["nb"][0] * (tensor["ne"][0] // block)
    for length, stride in list(zip(tensor["ne"], tensor["nb"], strict=True))[1:]:
        if length > 1 and stride != dense:
            return True
        dense *= length
    return False


@dataclass(frozen=True)
class OpOutcome:
    """The outcome of one case with some number of threads."""

    op: str
    case: str
    threads: int
    verdict: str  # ok, wrong, differs (between runs), failed, refused, not run, not judged
    share: float = 0.0  # of the limit that the worst element uses up
    out: int = 0
    judged: int = 0
    fault: str = ""
    text: str = ""
    seed: int = 0
    line: str | None = None  # for test-backend-ops --test-file
    traits: Traits = field(default_factory=dict)
    how: str = ""  # the arithmetic of an attention
    examined: bool = False  # by the doctor, for all wrong cases that are like it
    node: Node | None = field(default=None, repr=False)  # of a wrong case, for --save
    options: str = ""  # how it was run, as options of the command
    saved: str = ""
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        """True for a wrong result, another one in each run, a death, and a refusal of what is supported."""
        return self.verdict in BAD

    @property
    def again(self) -> str:
        """The options that repeat this outcome."""
        return f"--case {shlex.quote(self.case)} --threads {self.threads}{self.way}"

    @property
    def way(self) -> str:
        """The options that repeat how it was run and judged: in one arithmetic, where others of it were."""
        held = self.bad and self.how in ATTENTIONS and "--arithmetic" not in self.options
        return self.options + (f" --arithmetic {self.how}" if held else "")

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
            "seconds": self.seconds, "saved": self.saved or None, "again": self.again,
        }  # fmt: skip


@dataclass(frozen=True)
class How:
    """The settings that all cases of a run share."""

    bridge: Bridge
    device: str
    backend: str
    repeats: int = 2
    arithmetic: str = ""  # that attention claims to be computed in
    habits: Habits = field(default_factory=Habits)  # arithmetics that other cases of attention had

    @property
    def quick(self) -> bool:
        """True of a GPU."""
        return self.backend != "CPU"


@dataclass(frozen=True)
class Finding:
    """A wrong result, to be diagnosed."""

    case: AnyCase
    ran: Ran
    these: Operands | None  # of a product none
    verdict: NodeVerdict

    @property
    def telling(self) -> tuple[bool, int]:
        """A rank: where some elements are right, and of many, the mistake shows."""
        return 0 < self.verdict.out < self.verdict.judged, self.verdict.judged


def named(text: str) -> list[str]:
    """The operations of ``--ops``: names with commas, or all that have cases."""
    if text.lower() == "all":
        return sorted(CASES)
    return [_known(name, f"--ops {text}") for name in text.split(",") if name.strip()]


def _known(name: str, option: str) -> str:
    """The name of an operation that has cases."""
    name = name.strip().upper()
    if name in PRODUCTS:
        raise UnsupportedError(f"{option}: products are checked without --ops; leave it out")
    if name not in CASES:
        why = f"{name} {NOT_COVERED[name]}" if name in NOT_COVERED else f"{name} is none of ggml's"
        raise UnsupportedError(f"{option}: {why}; choose of all, {', '.join(sorted(CASES))}")
    return name


def case_of(text: str, seed: int) -> OpCase:
    """The case that a report calls so: ``CLAMP(ne=[17,5,3,2], rows apart)``."""
    name = _known(text.partition("(")[0], f"--case {text!r}")
    every = [case for table in (CASES, LARGE) if name in table for case in table[name](seed)]
    for case in every:
        if _letters(str(case)) == _letters(text):
            return case
    near = meant(text, [str(case) for case in every], f"as in {every[0]}, or all by --ops {name}")
    own = "; test-backend-ops' own strings are of products, its --test-file of any operation"
    raise UnsupportedError(f"--case {text!r}: {name} has no such case; {near}{own if 'type' in text else ''}")


def _letters(text: str) -> str:
    return "".join(text.split()).lower()


def cases_of(ops: Iterable[str], seed: int = 0, large: bool = False) -> Iterator[OpCase]:
    """The cases of some operations; ``large``: also of large ones."""
    for op in ops:
        yield from CASES[op](seed)
        yield from LARGE[op](seed) if large and op in LARGE else ()


def run_ops(
    bridge: Bridge, cases: Iterable[AnyCase], device: str, backend: str, *, threads: Iterable[int] = THREADS,
    repeats: int = 2, arithmetic: str = "", options: str = "", until: float = math.inf,
) -> Iterator[list[OpOutcome]]:  # fmt: skip
    """The outcomes of each operation, one a case and number of threads.

    ``arithmetic``: attention claims to be computed in it. ``options``: of the command, that repeat a case.
    ``until``: the time at which no further case is begun; the cases of an operation may come in parts then.
    """
    how, parts = How(bridge, device, backend, repeats, arithmetic), dict[str, Part]()
    for case in cases:
        if case.op not in parts and until == math.inf:  # the operation before is complete
            yield from (part.examined() for part in parts.values())
            parts = {}
        if time.monotonic() > until:
            break
        part = parts.setdefault(case.op, Part(how, tuple(threads), options))
        part.run(case)
    yield from (part.examined() for part in parts.values())


class Part:
    """The outcomes of one operation, and the wrong ones among them that the doctor may examine."""

    def __init__(self, how: How, threads: Sequence[int], options: str) -> None:
        self._how, self._threads, self._options = how, threads, options
        self._failures, self._outcomes, self._findings = 0, list[OpOutcome](), dict[int, Finding]()

    def run(self, case: AnyCase) -> None:
        """Run a case with each number of threads."""
        trial, is_new = Trial(self._how, case), True
        for count in self._threads:
            if self._failures >= FAILURES:
                text = f"the library died or hung at cases of {case.op} before"
                self._outcomes.append(_of(case, count, "not run", text))
                continue
            start = time.perf_counter()
            outcome, finding = trial.run(count)
            took = time.perf_counter() - start
            self._failures += 0 if outcome.verdict != "failed" else FAILURES - 1 if outcome.hung else 1
            if finding is not None and is_new:
                self._findings[len(self._outcomes)], is_new = finding, False
            self._outcomes.append(replace(outcome, options=self._options, seconds=took))

    def examined(self) -> list[OpOutcome]:
        """All outcomes, a few of them with a diagnosis."""
        return examined(self._how, self._outcomes, self._findings)


def examined(how: How, outcomes: list[OpOutcome], findings: dict[int, Finding]) -> list[OpOutcome]:
    """The outcomes of an operation with diagnoses of a few wrong ones, which differ in their traits.

    ``findings``: by the number of their outcome, one a case.
    """
    outcomes, left, seen, unnamed = list(outcomes), dict(findings), set[str](), set[str]()
    for number, finding in findings.items():
        outcomes[number] = replace(outcomes[number], node=finding.ran.node)
    for _ in range(DIAGNOSED):
        traits = {at: _features(outcomes[at]) for at in left}
        new = {at: (len(traits[at] - seen), len(traits[at] & unnamed)) for at in left}
        at = max(left, key=lambda i: (new[i], left[i].telling), default=None)
        if at is None or not any(new[at]):
            break
        plain, one = outcomes[at], diagnosed_case(how, outcomes[at], left.pop(at))
        unnamed |= traits[at] - seen if one.fault == "unknown" else set()
        seen |= traits[at]
        for i, other in enumerate(outcomes):  # of other threads, with the same elements out of bound
            alike = (other.case, other.verdict, other.text) == (plain.case, plain.verdict, plain.text)
            if alike:
                outcomes[i] = replace(other, fault=one.fault, text=one.text, examined=True)
    return outcomes


def _features(outcome: OpOutcome) -> set[str]:
    """Traits that tell a case from others of its operation: types, gaps, and the words of its name."""
    words = outcome.case[len(outcome.op) + 1 : -1].split(", ")
    named = {re.sub(r"[\d\W]+", " ", word) for word in words if "=" not in word} - {" "}
    facts = {f"{name} {value}" for name, value in outcome.traits.items() if name.startswith(("type", "gaps"))}
    return {outcome.op} | named | facts


class Trial:
    """One case with each number of threads, which share data, verdicts, and reasons why it does not run."""

    def __init__(self, how: How, case: AnyCase) -> None:
        self._how, self._case = how, case
        self._judged: Judged = {}
        self._arrays: Sequence[NDArray[Any]] | None = None
        self._traits: Traits = {}
        self._same: OpOutcome | None = None  # of every number of threads

    def run(self, threads: int) -> tuple[OpOutcome, Finding | None]:
        """The outcome with some number of threads; an error of ours is one, too."""
        if self._same is not None:
            return replace(self._same, threads=threads), None
        case, is_small = self._case, self._case.needs < SMALL
        try:
            if self._arrays is None and is_small:
                self._arrays = case.arrays()
            outcome, finding = judged_case(self._how, case, threads, self._judged, self._arrays)
        except Exception as error:  # other cases still count
            outcome, finding = _of(case, threads, "not judged", reason(error)), None
        self._traits |= outcome.traits
        if outcome.verdict == "failed" and self._traits:
            outcome = replace(outcome, traits={**self._traits, "threads": threads})
        if outcome.verdict in ("not run", "refused"):
            self._same = outcome
        if finding is not None and not is_small:  # it is not kept
            return replace(diagnosed_case(self._how, outcome, finding), examined=True), None
        return outcome, finding


def _of(case: AnyCase, threads: int, verdict: str, text: str = "", fault: str = "") -> OpOutcome:
    return OpOutcome(case.op, str(case), threads, verdict, text=text, fault=fault, seed=case.seed)


def run_case(
    bridge: Bridge, case: AnyCase, device: str, backend: str, threads: int, repeats: int
) -> OpOutcome:
    """The outcome of one case: compute, judge, diagnose where it is wrong."""
    how = How(bridge, device, backend, repeats)
    outcome, finding = judged_case(how, case, threads)
    return outcome if finding is None else diagnosed_case(how, outcome, finding)


def judged_case(
    how: How, case: AnyCase, threads: int, judged: Judged | None = None,
    arrays: Sequence[NDArray[Any]] | None = None,
) -> tuple[OpOutcome, Finding | None]:  # fmt: skip
    """The outcome of one case, and where it is wrong what the doctor needs.

    ``judged`` has the verdicts on results of the same case, whose bits are not judged twice; ``arrays`` its
    data, if that was made before.
    """
    room = free_memory()
    if room is not None and case.needs > room:
        text = f"it takes {case.needs / 2**30:.0f} GiB of memory, {room / 2**30:.0f} GiB are free"
        return _of(case, threads, "not run", text), None
    try:
        data = case.arrays() if arrays is None else arrays
        ran = how.bridge.node(
            case.program, data, how.device, threads=threads, repeats=how.repeats, pool=case.pool
        )
    except LibraryFailedError as error:
        return _died(how, case, threads, error), None
    except (UnsupportedError, DeviceError) as error:
        return _of(case, threads, "not run", str(error)), None
    if ran.node.op != case.op:
        text = f"the function of {case.op} in this library ends with {ran.node.op}"
        return _of(case, threads, "not run", text), None
    if case.op in PRODUCTS:
        return _judged(how, case, threads, ran, None, {} if judged is None else judged)
    try:
        these = operands(ran.node)
    except GGMLQError as error:
        return _of(case, threads, "not run", str(error)), None
    return _judged(how, case, threads, ran, these, {} if judged is None else judged)


def _died(how: How, case: AnyCase, threads: int, error: LibraryFailedError) -> OpOutcome:
    """The outcome where the library ended its process, or gave no answer.

    An assertion refuses the case. Where the device has said that it supports such tensors, that is a mistake:
    a program that believes it dies. Where the library asserts as the graph is made, nobody has asked yet.
    """
    if not any(words in error.tail for words in ASSERTIONS):
        fault = "hang" if NO_ANSWER in str(error) else "crash"
        return _of(case, threads, "failed", str(error), fault)
    try:
        is_taken = how.bridge.takes_node(case.program, how.device)
    except GGMLQError:
        is_taken = False
    if is_taken:
        return _of(case, threads, "refused", f"supports_op says yes, and the library ends: {error.tail}")
    return _of(case, threads, "not run", f"the library refuses it: {error.tail}")


def _judged(
    how: How, case: AnyCase, threads: int, ran: Ran, these: Operands | None, verdicts: Judged
) -> tuple[OpOutcome, Finding | None]:
    outcome = replace(_of(case, threads, "ok"), line=node_line(ran.node, str(case)))
    first = ran.node.arrays["y"]
    bits = first.tobytes()
    verdict = verdicts.get(bits)
    if verdict is None and these is not None:
        verdict = judge_node(
            these, quick=how.quick, threads=threads, habits=how.habits, arithmetic=how.arithmetic
        )
    elif verdict is None:
        verdict = judge_product(ran.node, how.backend)
    verdicts[bits] = verdict
    outcome = replace(
        outcome, share=verdict.share, out=verdict.out, judged=verdict.judged,
        traits=traits(ran.node, threads), how=verdict.how if case.op in (ATTENTION, *PRODUCTS) else "",
    )  # fmt: skip
    reports = how.bridge.reports
    if not (verdict.out or ran.strays or reports):
        if all(np.array_equal(first, other) for other in ran.repeats):
            return outcome, None
        return replace(
            outcome, verdict="differs", fault="race", text="two runs differ, both within bounds"
        ), None
    said = [sentence(verdict)] if verdict.out else []
    text = " ".join(filter(None, [*said, *(f"{stray}." for stray in ran.strays), reports]))
    fault = "" if verdict.out else "stray-writes" if ran.strays else "sanitizer"
    return replace(outcome, verdict="wrong", fault=fault, text=text), Finding(case, ran, these, verdict)


def diagnosed_case(how: How, outcome: OpOutcome, finding: Finding) -> OpOutcome:
    """A wrong outcome with its fault, and what the doctor says."""
    if not finding.verdict.out:
        return outcome
    if finding.these is None:
        return replace(
            outcome, fault="unknown", text=f"{outcome.text} Name it as MUL_MAT(…) for a diagnosis."
        )
    these, strays, text = finding.these, finding.ran.strays, outcome.text
    try:
        diagnosis = diagnosed(these, quick=how.quick, verdict=finding.verdict)
        if diagnosis.fault == "unknown" and _is_right_apart(how, finding.case, outcome.threads):
            text += f"\nnode-in-place: {NODES['node-in-place'].says}"
            return replace(outcome, fault="node-in-place", text=text)
    except Exception as error:  # it is wrong all the same
        return replace(outcome, fault="unknown", text=f"{text} It was not diagnosed: {reason(error)}")
    fault = diagnosis.fault
    if fault == "unknown" and strays:
        fault = "node-blocks" if finding.ran.node.tensors["y"]["block"] > 1 else "stray-writes"
    return replace(outcome, fault=fault, text=f"{text}\n{diagnosis.text}")


def _is_right_apart(how: How, case: AnyCase, threads: int) -> bool:
    """True for a case with its result over a source that is right where the result has its own memory."""
    if isinstance(case, FileCase) or case.program.over is None:
        return False
    ran = how.bridge.node(replace(case.program, over=None), case.arrays(), how.device, threads=threads)
    return not judge_node(operands(ran.node), quick=how.quick).out
