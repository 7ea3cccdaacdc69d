"""The loop of ``ggmlq check``: it runs cases on a libggml, one after the other, and judges each result."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..errors import DeviceError, LibraryFailedError, UnsupportedError
from ..llama import Bridge, Measurement
from ..llama.crash import cause_of
from .cases import Case
from .diagnosing import Diagnoser
from .judge import Judgement, by_expert, candidates, judge, pieces_of
from .nearness import OTHER, product_is_nearer
from .outcome import Outcome
from .plan import Trial
from .running import Product, Settings
from .unjudged import reason

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
        if len(claims) > 1 and judgement.out and _is_nearer(result.y, x, q, ids, claims):
            judgement = Judgement(OTHER, judgement.from_exact, judgement.from_exact, 0)
        if bits.size <= SMALL:
            verdicts.append((bits, judgement))
        return judgement


def _is_nearer(y: Any, x: Any, q: QuantArray, ids: Any, claims: list[str]) -> bool:
    """True where a product, of each expert, is nearer to float64 than in the likeliest arithmetic."""
    pieces = [(y, x, q)] if ids is None else pieces_of(y, x, q, ids)
    return all(product_is_nearer(*piece, claims) for piece in pieces)


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
        failures[kernels] += outcome.verdict == "failed"
        yield replace(outcome, threads=trial.how.threads, layout=_layout(outcome, trial.how))


def _layout(outcome: Outcome, how: Settings) -> str:
    """The name of the layout; where any may be used, that of the first that took the weights."""
    return outcome.buffer if how.repack is True else how.repack or ""


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
        quote = f"; it said: {error.tail}" if error.tail else ""
        cause = cause_of(error.how, [how.repack], bridge.libraries)
        died = f"the library {error.how}{quote}{cause and f'. {cause}'}"
        text = died if error.how else str(error)
        return Outcome(case, "failed", text=text, arrays=product.arrays)
    except (UnsupportedError, DeviceError) as error:  # this device lacks the product, or the memory
        return Outcome(case, "not run", text=str(error))
    claims = [how.arithmetic] if how.arithmetic else candidates(how.backend, case.m)
    try:
        with np.errstate(all="ignore"):  # overflowing scales are intended
            outcome = _outcome(case, result, cache.judge(product, result, claims))
    except UnsupportedError as error:  # the arithmetic that is claimed does not exist for the type
        return Outcome(case, "not run", text=str(error))
    return (diagnoser or Diagnoser()).diagnosed(outcome, product, result) if outcome.bad else outcome


def _outcome(case: Case, result: Measurement, judgement: Judgement) -> Outcome:
    """The outcome by its judgement; writing or reading outside of the operands makes it wrong."""
    unequal = np.zeros(result.y.shape, np.bool_)
    for repeat in result.repeats:
        unequal |= repeat.view(np.uint32) != result.y.view(np.uint32)
    races, unwritten, leaked = (int(mask.sum()) for mask in (unequal, result.unwritten, result.leaked))
    right = judgement.ok and not (unwritten or leaked or result.strays)
    return Outcome(
        case,
        "wrong" if not right else "differs" if races else "ok",
        judgement.arithmetic,
        judgement.distance,
        judgement.from_exact,
        judgement.out,
        races,
        result.buffer,
        result.median,
        unwritten=unwritten,
        leaked=leaked,
        strays=result.strays,
        forced=result.forced,
    )
