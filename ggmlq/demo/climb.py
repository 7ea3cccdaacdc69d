"""The climb of `ggmlq ladder`: each rung judged in float64, timed beside the roofs, and told in words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import reference
from ..arrays.array import QuantArray
from ..arrays.blocks import random_weights
from ..base.devices import namespace, on_device_of, to_host
from ..base.text import count, three_digits
from ..dispatch.ladder import Rung, absent, current_card, rungs
from ..dispatch.problems import Linear
from ..errors import GGMLQError
from ..formats import FORMATS
from ..ops import linear
from ..pages import Lines, Series
from ..roofs.floors import Roofs, roofs_of
from . import table
from .measure import Tell, bound, on_clock

MOST = 5.0  # seconds of one product, by its time with fewer rows, beyond which a rung is left out
JUDGED = 64  # rows of activations, spread over all


@dataclass(frozen=True)
class Step:
    """A rung with a number of rows: its verdict and its time, or the reason why it was left out."""

    rung: Rung
    rows: int
    reason: str = ""
    error: float = 0.0
    right: bool = False
    seconds: float = 0.0
    memory: float = 0.0  # seconds that the memory takes at least
    arithmetic: float = 0.0  # seconds that the products take at least
    operations: float = 0.0
    nbytes: float = 0.0

    @property
    def share(self) -> float:
        """The share of the nearer roof that the rung reaches."""
        return max(self.memory, self.arithmetic) / self.seconds if self.seconds else 0.0

    @property
    def limit(self) -> str:
        """The nearer roof, in a word."""
        return "memory" if self.memory > self.arithmetic else "arithmetic"


def roofs_over(q: QuantArray, tell: Tell) -> Roofs:
    """The roofs of the device of q; memory is read in regions of the size of q."""
    tell("roofs: reads and products")
    return roofs_of(namespace(q.raw), q.nbytes)


def weights(name: str, n: int, k: int, device: str) -> QuantArray:
    """Random weights of a type on a device."""
    fmt = FORMATS[name]
    return QuantArray.from_bytes(random_weights(fmt, n, k), fmt, (n, k)).to(device)


def climb(
    q: QuantArray, rows: Sequence[int], names: Sequence[str], roof: Roofs, tell: Tell
) -> Iterator[Step]:
    """The steps, from the lowest rung to the highest, one number of rows after another."""
    kind = q.device.partition(":")[0]
    rate: dict[str, float] = {}  # operations a second with fewer rows
    for m in sorted(set(rows)):
        x = np.random.default_rng(m).standard_normal((m, q.shape[1]), np.float32)
        oracle = _Oracle(x, q.to("cpu"))
        for rung in rungs("linear", kind):
            if names and rung.name not in names:
                continue
            problem = Linear.here(q.format, m, *q.shape, device=kind)
            operations = 2.0 * m * q.size
            expected = operations / rate.get(rung.name, 1e99)
            reason = rung.refuses(problem) or ""
            if not reason and expected > MOST:
                reason = f"left out: it would take {expected:.0f} s, by its time with fewer rows"
            if reason:
                yield Step(rung, m, reason)
                continue
            tell(f"{rung.name}, {m} rows")
            step = _measured(rung, x, q, oracle, roof)
            rate[rung.name] = operations / step.seconds if step.seconds else 1e99
            yield step


class _Oracle:
    """The judge of products of some rows: float64 in the arithmetic of each rung, computed once."""

    def __init__(self, x: Any, q: QuantArray) -> None:
        self.at = np.unique(np.linspace(0, len(x) - 1, min(len(x), JUDGED)).astype(int))
        self.x, self.q = x[self.at], q
        self.results: dict[str, Any] = {}

    def error(self, y: Any, rung: Rung) -> float:
        """The error of the worst row of weights."""
        if rung.arithmetic not in self.results:
            self.results[rung.arithmetic] = reference.linear(self.x, self.q, rung.arithmetic)
        want = self.results[rung.arithmetic]
        return float(reference.row_errors(to_host(y)[self.at], want, self.x, self.q).max(initial=0))


def _measured(rung: Rung, x: Any, q: QuantArray, oracle: _Oracle, roof: Roofs) -> Step:
    m, nbytes, operations = len(x), q.nbytes + x.nbytes + 4.0 * len(x) * len(q), 2.0 * len(x) * q.size
    memory, arithmetic = roof.floors(rung, nbytes, operations)
    q.drop_prepared()  # a rung must not find the weights of another
    with on_device_of("ladder", q.raw):
        here = namespace(q.raw).asarray(x)
        try:
            error = oracle.error(linear(here, q, kernel=rung.name), rung)
        except GGMLQError as problem:
            return Step(rung, m, str(problem))
        if not error <= bound(rung, q.shape[1]):  # NaN is wrong, too
            return Step(rung, m, "", error, False)
        start = time.perf_counter()
        to_host(linear(here, q, kernel=rung.name))
        once = time.perf_counter() - start

        def work() -> object:
            return linear(here, q, kernel=rung.name)

        seconds = once if once > MOST / 5 else on_clock(work, q)
    return Step(rung, m, "", error, True, seconds, memory, arithmetic, operations, nbytes)


# --- words: a line for each rung as it is measured, then what each gained here ---------------

LEVEL, NEAR = 1.1, 0.6  # times that differ by less are one; a share of a roof that leaves little to gain
WIDTH = 22  # of a kernel's name
BAR = 24


def head(roof: Roofs, format: str) -> str:
    """The roofs in a line."""
    products = " · ".join(f"{name or 'cuBLAS, f16'} {rate(value)}" for name, value in roof.products.items())
    speed = three_digits(roof.read / 1e9)
    copy = f", memory is copied at {three_digits(roof.copy / 1e9)}" if roof.copy else ""
    return f"roofs: weights of {format} are read at {speed} GB/s{copy}; products: {products}"


def other_ladder(device: str) -> str:
    """A sentence about the GPU's ladder for those who climb the CPU's: how to, or why not; else nothing."""
    if device != "cpu":
        return ""
    reason = absent("linear", "cuda")
    if reason is None and current_card("cuda") is None:
        reason = "CuPy is not installed, or finds no GPU"
    return f"no GPU's ladder here: {reason}" if reason else "`--device cuda` climbs the GPU's ladder"


def columns(rows: int, against: bool) -> str:
    """The names above the lines of one number of rows."""
    title = count(rows, "row")
    than = "   × then" if against else ""
    return f"{title:{WIDTH}} {'ms':>9} {'GB/s':>7} {'rate':>13} {'of the roof':>16} {'× below':>8}{than}"


def line(step: Step, below: Step | None, then: float | None = None, against: bool = False) -> str:
    """A rung's figures, with a bar of the share of its roof that it reaches."""
    if step.reason or not step.right:
        verdict = step.reason or f"WRONG: its worst row is off by {step.error:.1e}"
        return f"{step.rung.name:{WIDTH}} {verdict}"
    ratio = below.seconds / step.seconds if below else 0.0
    gain = three_digits(ratio) if below else "–"
    than = f" {three_digits(then / step.seconds):>8}" if then else " " * 9 if against else ""
    ms, speed = three_digits(step.seconds * 1e3), three_digits(step.nbytes / step.seconds / 1e9)
    words = (
        f"{step.rung.name:{WIDTH}} {ms:>9} {speed:>7} "
        f"{rate(step.operations / step.seconds):>13} {step.share:4.0%} {step.limit:>11} {gain:>8}{than}"
    )
    room = min(table.room(len(words) + 2), BAR)
    return f"{words}  {table.bar(min(step.share, 1.0), 1.0, room)}" if room else words


def rate(value: float) -> str:
    """Operations a second in three digits."""
    unit, name = (1e12, "TFLOP/s") if value >= 0.9995e12 else (1e9, "GFLOP/s")
    return f"{three_digits(value / unit)} {name}"


def below(step: Step, steps: Sequence[Step]) -> Step | None:
    """The nearest lower rung that was timed with as many rows."""
    lower = [s for s in steps if s.rows == step.rows and s.seconds and s.rung.level < step.rung.level]
    return max(lower, key=lambda s: s.rung.level, default=None)


def lessons(steps: Sequence[Step]) -> list[str]:
    """A sentence or two for each rung that was timed: what it teaches, and whether that holds here."""
    texts = []
    for rung in dict.fromkeys(step.rung for step in steps if step.seconds):
        timed = [step for step in steps if step.rung == rung and step.seconds]
        pairs = [(step, lower) for step in timed if (lower := below(step, steps))]
        gains = [_gain(*pair) for pair in pairs if _pays(*pair)]
        losses = [_loss(*pair) for pair in pairs if not _pays(*pair)]
        here = [f"Here it is {', '.join(gains)}."] if gains else []
        texts.append(f"{rung.name}: {' '.join([rung.teaches, *here, *losses])}")
    return texts


def _pays(step: Step, lower: Step) -> bool:
    return lower.seconds >= LEVEL * step.seconds


def _gain(step: Step, lower: Step) -> str:
    gain = lower.seconds / step.seconds
    return f"{three_digits(gain)} times as fast as {lower.rung.name} with {count(step.rows, 'row')}"


def _loss(step: Step, lower: Step) -> str:
    """The verdict on a rung that does not pay, with the reason by what memory and products take at least."""
    loss = step.seconds / lower.seconds
    much = f"{three_digits(loss)} times slower than" if loss > LEVEL else "no faster than"
    verdict = f"With {count(step.rows, 'row')} it does not pay: it is {much} {lower.rung.name}."
    memory, arithmetic = three_digits(step.memory * 1e6), three_digits(step.arithmetic * 1e6)
    if lower.share >= NEAR:
        floor = three_digits(max(lower.memory, lower.arithmetic) * 1e6)
        why = f"{lower.rung.name} is near its roof: the {lower.limit} alone takes {floor} µs."
    elif step.memory > step.arithmetic:
        why = (
            f"Reading the weights takes {memory} µs at least, and the products only {arithmetic} µs: "
            "faster products gain nothing."
        )
    else:
        why = (
            f"Its products take {arithmetic} µs at least, of {three_digits(step.seconds * 1e6)}: the work "
            "around them costs the rest."
        )
    return f"{verdict} {why}"


def facts(steps: Sequence[Step], roof: Roofs, machine: Mapping[str, Any]) -> dict[str, Any]:
    """All figures as JSON has them."""
    return {
        **machine,
        "roofs": {"read": roof.read, "copy": roof.copy, "products": roof.products},
        "steps": [
            {
                "kernel": step.rung.name, "level": step.rung.level, "rows": step.rows, "reason": step.reason,
                "right": step.right, "error": step.error, "seconds": step.seconds, "share": step.share,
                "limit": step.limit, "operations": step.operations, "bytes": step.nbytes,
                "floors": {"memory": step.memory, "arithmetic": step.arithmetic},
            }
            for step in steps
        ],
    }  # fmt: skip


def roofline(steps: Sequence[Step], roof: Roofs, title: str) -> Lines:
    """The rungs under the roofs: operations a second by operations for a byte."""
    timed = [step for step in steps if step.seconds]
    points: dict[str, list[tuple[float, float]]] = {}
    for s in sorted(timed, key=lambda s: (-s.rung.level, s.rows)):
        place = (s.operations / s.nbytes, s.operations / s.seconds / 1e9)
        points.setdefault(s.rung.name, []).append(place)
    series = [Series(name, places) for name, places in points.items()]
    places = sorted(step.operations / step.nbytes for step in timed) or [1.0]
    peak = max(roof.products.values())
    ends = sorted({places[0] / 2, min(max(peak / roof.read, places[0]), 2 * places[-1]), 2 * places[-1]})
    roofs = Series("the roofs", [(at, min(at * roof.read, peak) / 1e9) for at in ends])
    note = "Left of the bend the memory limits, right of it the products do."
    axes = ("operations for a byte", "GFLOP/s")
    return Lines(title, *axes, series=[roofs, *series], log=True, decades=True, note=note)
