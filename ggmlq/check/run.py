"""Run cases on a library, one after the other, and judge each result."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..array import QuantArray
from ..errors import DeviceError, LibraryFailedError, UnsupportedError
from ..llama import Bridge, Measurement
from ..llama.product import UNWRITTEN
from .cases import Case
from .judge import Judgement, by_expert, candidates, judge
from .outcome import Outcome

NEAR = 1e-2  # from an arithmetic: further than any other arithmetic is
FAILURES = 3  # of one type; each may cost the whole time limit


@dataclass(frozen=True)
class Settings:
    """How every case is run."""

    device: str
    backend: str  # the device's: it decides which arithmetic is tried first
    threads: int = 1
    repack: bool | str = False
    repeats: int = 3
    time_runs: int = 0
    arithmetic: str | None = None  # what the kernels claim


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
    given = {"x": x, "raw": q.raw} if ids is None else {"x": x, "raw": q.raw, "ids": ids}
    try:
        result = bridge.measure(
            x, q, how.device, threads=how.threads, repack=how.repack, repeats=how.repeats,
            time_runs=how.time_runs, ids=ids,
        )  # fmt: skip
    except LibraryFailedError as error:
        said = f"; it said: {error.tail}" if error.tail else ""
        text = f"the library {error.how}{said}" if error.how else str(error)
        return Outcome(case, "failed", text=text, arrays=given)
    except (UnsupportedError, DeviceError) as error:  # not here, or not so much memory
        return Outcome(case, "not run", text=str(error))
    claims = [how.arithmetic] if how.arithmetic else candidates(how.backend, case.m)
    try:
        with np.errstate(all="ignore"):  # overflowing scales are meant
            judged = judge(result.y, x, q, claims) if ids is None else by_expert(result.y, x, q, ids, claims)
            outcome = _outcome(case, result, judged)
    except UnsupportedError as error:  # no kernel can claim that
        return Outcome(case, "not run", text=str(error))
    return _diagnosed(outcome, result, x, q, how, given) if outcome.bad else outcome


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


def _diagnosed(
    outcome: Outcome,
    result: Measurement,
    x: NDArray[np.float32],
    q: QuantArray,
    how: Settings,
    given: dict[str, Any],
) -> Outcome:
    """The same outcome with what is wrong, and with all arrays for whoever wants to look.

    Without a claim the diagnosis may know an arithmetic that :func:`judge` did not try: then a
    kernel that is near is right. What it never wrote is diagnosed as zero, which is how such memory looks.
    """
    import ggmlq

    y, *repeats = (_zero_where_unwritten(one) for one in (result.y, *result.repeats))
    with np.errstate(all="ignore"):  # wrong results overflow at will
        found = ggmlq.diagnose(y, x, q, arithmetic=how.arithmetic, repeats=repeats, ids=given.get("ids"))
    another = found.ok and how.arithmetic is None and outcome.distance < NEAR
    if outcome.verdict == "wrong" and another:
        return replace(outcome, verdict="ok", text=found.text)
    arrays = {**given, "y": y, "repeats": np.array(repeats), "unwritten": result.unwritten}
    if found.ok and outcome.verdict == "differs":
        text = f"{_observed(outcome, result)} Each run alone is right."
        return replace(outcome, text=text, arrays=arrays)
    told = "" if found.ok else found.text
    text = "\n".join(filter(None, [_observed(outcome, result), told]))
    return replace(outcome, fault="unknown" if found.ok else found.fault, text=text, arrays=arrays)


def _zero_where_unwritten(y: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(y.view(np.uint32) == UNWRITTEN, np.float32(0), y)


def _observed(outcome: Outcome, result: Measurement) -> str:
    """What only whoever ran the kernel can know."""
    said = []
    if result.unwritten.any():
        rows, columns = np.nonzero(result.unwritten.reshape(-1, result.y.shape[-1]))
        said.append(
            f"{len(rows)} elements were never written: rows {rows.min()} to {rows.max()}, "
            f"columns {columns.min()} to {columns.max()}."
        )
    if outcome.out and np.isfinite(outcome.distance):
        said.append(f"{outcome.out} of {result.y.size} elements are out of bound of {outcome.arithmetic}.")
    if outcome.unequal:
        said.append(
            f"{outcome.unequal} elements change from run to run: a race, or sums in an order that "
            "varies (atomic additions)."
        )
    return " ".join(said)
