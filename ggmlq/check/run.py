"""The loop of ``ggmlq check``: it runs cases on a libggml, one after the other, and judges each result."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..errors import DeviceError, GGMLQError, LibraryFailedError, UnsupportedError
from ..faults import CATALOGUE, Diagnosis, diagnose
from ..faults.probe import read
from ..formats import BlockFormat
from ..llama import Bridge, Measurement
from ..llama.guards import UNWRITTEN
from ..llama.process import cause_of
from .beyond import beyond_arithmetics
from .cases import Case
from .judge import Judgement, by_expert, candidates, judge, pieces_of, reason
from .outcome import ASSERTIONS, Outcome
from .plan import Product, Settings, Trial

FAILURES = 3  # of one type in one layout; each may cost the whole time limit
SMALL = 1 << 22  # elements of weights, activations or results up to which they are kept for the next trials

Operands = tuple[Any, QuantArray, Any]


class Cache:
    """Operands and verdicts of the cases of one type: other threads mostly give the same bits again."""

    def __init__(self) -> None:
        self._type = ""
        self._operands: dict[str, Operands] = {}
        self._judged: dict[str, list[tuple[Any, Judgement]]] = {}

    def operands(self, case: Case) -> Operands:
        """Activations, weights and ids."""
        if case.format.name != self._type:
            self._type, self._operands, self._judged = case.format.name, {}, {}
        if case.file_stem in self._operands:
            return self._operands[case.file_stem]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # extreme data are intended
            operands = (*case.inputs(), case.ids())
        if max(operands[0].size, math.prod(operands[1].shape)) <= SMALL:
            self._operands[case.file_stem] = operands
        return operands

    def judge(self, product: Product, result: Measurement, claims: list[str]) -> Judgement:
        """The judgement of a result; one with the same bits as before is not judged again."""
        bits = result.y.view(np.uint32)
        verdicts = self._judged.setdefault(product.case.file_stem, [])
        for others, judgement in verdicts:
            if np.array_equal(others, bits):
                return judgement
        x, q, ids = product.x, product.q, product.ids
        judgement = (
            judge(result.y, x, q, claims, ~result.unwritten)
            if ids is None
            else by_expert(result.y, x, q, ids, claims)
        )
        if len(claims) > 1 and judgement.out:
            pieces = [(result.y, x, q)] if ids is None else pieces_of(result.y, x, q, ids)
            case, backend = product.case, product.how.backend
            batches = 1 if case.has_experts else math.prod(case.axes_of()[0][:-2])
            if name := beyond_arithmetics(pieces, claims, backend, case.m, batches):
                judgement = Judgement(name, judgement.from_exact, judgement.from_exact, 0)
        if bits.size <= SMALL:
            verdicts.append((bits, judgement))
        return judgement


def run(bridge: Bridge, trials: Iterable[Trial]) -> Iterator[Outcome]:
    """One outcome for each trial; after several failures in a layout the rest of a type there is not run."""
    failures: Counter[tuple[str, str | bool]] = Counter()
    trials = list(trials)
    cache, diagnoser = Cache(), Diagnoser(trials)
    for trial in trials:
        case, kernels = trial.case, (trial.case.format.name, trial.how.repack)
        if failures[kernels] >= FAILURES:
            text = f"{FAILURES} cases of {case.format.name} failed before; the rest is not tried"
            outcome = Outcome(case, "not run", text=text)
        else:
            try:
                outcome = run_case(bridge, case, trial.how, cache, diagnoser)
            except Exception as error:  # other cases still count
                outcome = Outcome(case, "not judged", text=reason(error))
        failures[kernels] += outcome.verdict in ("failed", "refused")
        # Where any layout may be used, its name is that of the first that took the weights.
        layout = outcome.buffer if trial.how.repack is True else trial.how.repack or ""
        yield replace(outcome, threads=trial.how.threads, layout=layout)


def run_case(
    bridge: Bridge, case: Case, how: Settings, cache: Cache | None = None, diagnoser: Diagnoser | None = None
) -> Outcome:
    """The outcome of one case: multiply, repeat, judge, and diagnose where it is wrong."""
    cache = Cache() if cache is None else cache
    try:
        product = Product(bridge, case, *cache.operands(case), how)
    except MemoryError as error:
        return Outcome(case, "not run", text=f"{case}: this machine has too little memory: {error}")
    try:
        result = product.run()
    except LibraryFailedError as error:
        if any(words in error.tail for words in ASSERTIONS):  # it is only run where supports_op says yes
            text = f"supports_op says yes, and the library ends: {error.tail}"
            return Outcome(case, "refused", text=text, arrays=product.arrays)
        quote = f"; it said: {error.tail}" if error.tail else ""
        cause = cause_of(error.how, [how.repack], bridge.libraries)
        died = f"the library {error.how}{quote}{cause and f'. {cause}'}"
        text = died if error.how else str(error)
        return Outcome(case, "failed", text=text, arrays=product.arrays)
    except (UnsupportedError, DeviceError) as error:  # this device lacks the product, or the memory
        return Outcome(case, "not run", text=str(error))
    product, result = of_numbers(product, result)
    claims = [how.arithmetic] if how.arithmetic else candidates(how.backend, case.m)
    try:
        with np.errstate(all="ignore"):  # overflowing scales are intended
            outcome = _outcome(case, result, cache.judge(product, result, claims), bridge.reports)
    except UnsupportedError as error:  # the arithmetic that is claimed does not exist for the type
        return Outcome(case, "not run", text=str(error))
    return (diagnoser or Diagnoser()).diagnosed(outcome, product, result) if outcome.bad else outcome


def of_numbers(product: Product, result: Measurement) -> tuple[Product, Measurement]:
    """The rows whose activations are numbers: what a kernel makes of NaN is nobody's promise."""
    x, ids = product.x, product.ids
    finite = np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if finite.all():
        return product, result
    repeats = tuple(one[finite] for one in result.repeats)
    some = replace(product, x=x[finite], ids=None if ids is None else ids[finite])
    return some, replace(result, y=result.y[finite], repeats=repeats)


def _outcome(case: Case, result: Measurement, judgement: Judgement, reports: str = "") -> Outcome:
    """The outcome by its judgement; writing or reading outside of the operands makes it wrong."""
    unequal = np.zeros(result.y.shape, np.bool_)
    for repeat in result.repeats:
        unequal |= repeat.view(np.uint32) != result.y.view(np.uint32)
    races, unwritten, leaked = (int(mask.sum()) for mask in (unequal, result.unwritten, result.leaked))
    right = judgement.ok and not (unwritten or leaked or result.strays or reports)
    return Outcome(
        case, "wrong" if not right else "differs" if races else "ok", judgement.arithmetic,
        judgement.distance, judgement.from_exact, judgement.out, races, result.buffer, result.median,
        unwritten=unwritten, leaked=leaked, strays=result.strays, forced=result.forced, reports=reports,
    )  # fmt: skip


# --- diagnoses: the doctor examines a few wrong results of each type and layout -------------------

NEAR = 1e-2  # distance from an arithmetic: all other arithmetics are nearer than this
SURE = 0.9  # confidence from which a name that comes twice is believed
MOST = 3  # results of one type in one layout that are diagnosed
TELLING = 64  # elements of a result from which a mistake shows
ORDINARY = ("normal", "uniform", "outliers")  # activations that hide nothing
ROWS = 8  # of weights, from which on unit vectors read them
AGAIN = 5  # runs with one thread, where runs differ


class Diagnoser:
    """The diagnoses of one run of ``ggmlq check``, which decide what is diagnosed next."""

    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self._trials = Counter((trial.case.format.name, trial.how.repack) for trial in trials)
        self._faults: dict[tuple[str, str | bool], list[tuple[str, float]]] = {}
        self._telling: Counter[tuple[str, str | bool]] = Counter()
        self._read: set[tuple[str, str | bool]] = set()

    def diagnosed(self, outcome: Outcome, product: Product, result: Measurement) -> Outcome:
        """The outcome with its diagnosis, and with all arrays for replay.

        Without a claim the diagnosis may know an arithmetic that :func:`judge` did not try: then a
        kernel that is near is right.
        """
        y, repeats = result.y, result.repeats
        arrays = {**product.arrays, "y": y, "repeats": np.array(repeats), "unwritten": result.unwritten}
        kernels = (product.case.format.name, product.how.repack)
        if outcome.reports and not (outcome.out or _beside(outcome)):
            return replace(outcome, fault="sanitizer", text=outcome.reports, arrays=arrays)
        if outcome.verdict == "wrong" and not self._is_due(kernels, product):
            return replace(outcome, fault=_fault_beside(outcome), arrays=arrays)
        try:
            diagnosis = _diagnosis(product, result)
        except Exception as error:  # it is wrong all the same
            text = f"{_observed(outcome)} It was not diagnosed: {reason(error)}".strip()
            return replace(outcome, fault=_fault_beside(outcome) or "unknown", text=text, arrays=arrays)
        near = outcome.distance < NEAR and not _beside(outcome)
        if outcome.verdict == "wrong" and diagnosis.ok and product.how.arithmetic is None and near:
            return replace(outcome, verdict="ok", text=diagnosis.text)
        if outcome.verdict == "differs" and diagnosis.ok:
            text = f"{_observed(outcome)} Each run alone is right. {_with_one_thread(product, outcome)}"
            return replace(outcome, text=text.strip(), arrays=arrays)
        fault = _fault_name(diagnosis, outcome)
        self._faults.setdefault(kernels, []).append((fault, diagnosis.confidence))
        lines = [_observed(outcome), self._report(diagnosis, fault, kernels)]
        if product.ids is not None and not product.case.has_experts:
            lines.append("An expert is a matrix of the batches here, and a token a row of one.")
        if fault == "race" and product.how.backend == "CPU":
            lines.append(_with_one_thread(product, outcome))
        unsure = fault == "unknown" or (diagnosis.confidence < SURE and not diagnosis.ok)
        if unsure and kernels not in self._read and product.ids is None and product.case.n >= ROWS:
            self._read.add(kernels)
            lines.append(_weights_read(product, outcome.arithmetic))
        return replace(outcome, fault=fault, text="\n".join(filter(None, lines)), arrays=arrays)

    def _is_due(self, kernels: tuple[str, str | bool], product: Product) -> bool:
        """True for the first wrong result, and for large ones until two diagnoses agree, at most three."""
        before = self._faults.get(kernels, [])
        telling = _is_telling(product)
        self._telling[kernels] += telling
        if not telling:
            return not before or self._trials[kernels] <= MOST
        agreed = len(before) > 1 and len({fault for fault, _ in before[-2:]}) == 1
        sure = all(confidence >= SURE for _, confidence in before[-2:]) or kernels in self._read
        return self._telling[kernels] <= MOST and not (agreed and sure)

    def _report(self, diagnosis: Diagnosis, fault: str, kernels: tuple[str, str | bool]) -> str:
        """The whole diagnosis when a type first has this fault; later only the lines on this case."""
        if diagnosis.ok and fault != "unknown":
            return CATALOGUE[fault].says  # the values are right
        if diagnosis.ok:
            return (
                f"unknown: it is nearest to {diagnosis.arithmetic}, and right within what that may do where "
                "numbers leave its range; no arithmetic of such kernels explains it."
            )
        names = [name for name, _ in self._faults[kernels]]
        if fault not in names[:-1]:
            return diagnosis.text
        return "\n".join(line for line in diagnosis.text.splitlines() if line.startswith("Here:"))


def _is_telling(product: Product) -> bool:
    """True of cases large and plain enough to show a mistake; one block of K hides what blocks share."""
    case, fmt = product.case, product.case.format
    block = fmt.block_size if isinstance(fmt, BlockFormat) else 32
    return case.m * case.n >= TELLING and case.data in ORDINARY and case.k > block


def _beside(outcome: Outcome) -> bool:
    """True where the kernel wrote too little, or read or wrote outside of its operands."""
    return bool(outcome.unwritten or outcome.leaked or outcome.strays)


def _fault_beside(outcome: Outcome) -> str:
    """The fault of a result whose values are right, which needs no diagnosis."""
    if outcome.out or not _beside(outcome):
        return ""
    return "out-of-bounds" if outcome.strays or outcome.leaked else "unwritten"


def _fault_name(diagnosis: Diagnosis, outcome: Outcome) -> str:
    """The fault of the values, or one that only the memory around them shows."""
    blind = diagnosis.ok or diagnosis.fault in ("unknown", "nan", "unwritten")
    if (outcome.leaked and outcome.leaked >= outcome.out) or (blind and (outcome.leaked or outcome.strays)):
        return "out-of-bounds"
    if outcome.unwritten and (diagnosis.ok or diagnosis.fault == "unknown"):
        return "unwritten"
    return "unknown" if diagnosis.ok else diagnosis.fault


def _diagnosis(product: Product, result: Measurement) -> Diagnosis:
    """The diagnosis of a result. With experts, zeros stand for elements that were never written."""
    has_experts = product.ids is not None
    y, *repeats = (
        np.where(one.view(np.uint32) == UNWRITTEN, np.float32(0), one) if has_experts else one
        for one in (result.y, *result.repeats)
    )
    more: dict[str, Any] = {"ids": product.ids} if has_experts else {"unwritten": result.unwritten}
    with np.errstate(all="ignore"):  # wrong results overflow at will
        return diagnose(y, product.x, product.q, arithmetic=product.how.arithmetic, repeats=repeats, **more)


def _weights_read(product: Product, arithmetic: str) -> str:
    """A sentence on the weights that the kernel really uses, read with unit vectors."""

    def multiply(x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        result = product.multiply(x)
        return result.y, result.unwritten

    try:
        return read(multiply, product.q, product.case.m, arithmetic).text
    except GGMLQError as error:
        return f"Unit vectors could not be fed: {error}"


def _with_one_thread(product: Product, outcome: Outcome) -> str:
    """A sentence that tells whether threads race: then runs with one thread are right and always the same."""
    if product.how.backend != "CPU" or product.how.threads == 1 or product.ids is not None:
        return ""
    try:
        result = product.multiply(product.x, threads=1, repeats=AGAIN)
    except GGMLQError as error:
        return f"With --threads 1 it did not run: {error}"
    if not result.same:
        return "With --threads 1 runs differ too: memory is read that was never set, no thread is to blame."
    with np.errstate(all="ignore"):
        right = judge(result.y, product.x, product.q, [outcome.arithmetic], ~result.unwritten).ok
    if right:
        return f"With --threads 1 all of {AGAIN} runs are right and the same: it is the threads that race."
    return f"With --threads 1 all of {AGAIN} runs are the same, but wrong: it is not the threads alone."


def _observed(outcome: Outcome) -> str:
    """Sentences on facts that only a run of the kernel shows, such as memory outside of the operands."""
    lines = []
    if outcome.leaked:
        lines.append(f"{outcome.leaked} elements are made of memory outside the operands.")
    lines += [f"{stray}." for stray in outcome.strays]
    lines += [outcome.reports] if outcome.reports else []
    if outcome.forced:
        lines.append(
            "The device's supports_op refuses such activations; llama.cpp multiplies so all the same."
        )
    if outcome.unequal:
        lines.append(f"{outcome.unequal} elements change from run to run.")
    return " ".join(lines)
