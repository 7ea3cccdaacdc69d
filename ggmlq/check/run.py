"""Run cases on a library, one after the other, and judge each result."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from ..errors import DeviceError, LibraryFailedError, UnsupportedError
from ..llama import Bridge, Measurement
from .cases import Case
from .diagnosing import diagnosed
from .judge import Judgement, by_expert, candidates, judge
from .outcome import Outcome
from .running import Product, Settings

FAILURES = 3  # of one type; each may cost the whole time limit


def run(bridge: Bridge, cases: Iterable[Case], how: Settings) -> Iterator[Outcome]:
    """One outcome a case; a type whose kernels failed several times is left alone."""
    failures: Counter[str] = Counter()
    for case in cases:
        if failures[case.format.name] >= FAILURES:
            text = f"{FAILURES} cases of {case.format.name} failed before; the rest is not tried"
            yield Outcome(case, "not run", text=text)
            continue
        outcome = run_case(bridge, case, how)
        failures[case.format.name] += outcome.verdict == "failed"
        yield outcome


def run_case(bridge: Bridge, case: Case, how: Settings) -> Outcome:
    """Multiply, repeat, judge; where it is wrong, diagnose."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # extreme data is meant
            (x, q), ids = case.inputs(), case.ids()
    except MemoryError as error:
        return Outcome(case, "not run", text=f"{case}: this machine has too little memory: {error}")
    product = Product(bridge, case, x, q, ids, how)
    try:
        result = product.run()
    except LibraryFailedError as error:
        said = f"; it said: {error.tail}" if error.tail else ""
        text = f"the library {error.how}{said}" if error.how else str(error)
        return Outcome(case, "failed", text=text, arrays=product.arrays)
    except (UnsupportedError, DeviceError) as error:  # not here, or not so much memory
        return Outcome(case, "not run", text=str(error))
    claims = [how.arithmetic] if how.arithmetic else candidates(how.backend, case.m)
    try:
        with np.errstate(all="ignore"):  # overflowing scales are meant
            judged = judge(result.y, x, q, claims) if ids is None else by_expert(result.y, x, q, ids, claims)
            outcome = _outcome(case, result, judged)
    except UnsupportedError as error:  # no kernel can claim that
        return Outcome(case, "not run", text=str(error))
    return diagnosed(outcome, product, result) if outcome.bad else outcome


def _outcome(case: Case, result: Measurement, judged: Judgement) -> Outcome:
    unequal = np.zeros(result.y.shape, np.bool_)
    for repeat in result.repeats:
        unequal |= repeat.view(np.uint32) != result.y.view(np.uint32)
    races = int(unequal.sum())
    return Outcome(
        case,
        "wrong" if not judged.ok else "differs" if races else "ok",
        judged.arithmetic,
        judged.distance,
        judged.from_exact,
        judged.out,
        races,
        result.buffer,
        result.median,
    )
