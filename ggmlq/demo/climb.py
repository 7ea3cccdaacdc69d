"""Climbs the ladder of `ggmlq ladder`: judges each rung in float64, then times it beside the roofs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import reference
from ..arrays.array import QuantArray
from ..arrays.blocks import random_weights
from ..base.devices import namespace, on_device_of, to_host
from ..dispatch.ladder import Rung, rungs
from ..dispatch.problems import Linear
from ..errors import GGMLQError
from ..formats import FORMATS
from ..ops import linear
from ..testing.floors import Roofs, roofs_of
from .layers import Tell
from .measure import bound, on_clock

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
