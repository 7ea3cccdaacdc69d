"""Multiplies one layer of `ggmlq demo`: judges the product in float64, and times it, NumPy and llama.cpp."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..base.devices import namespace, on_device_of, to_host
from ..base.threads import num_threads
from ..dispatch.ladder import Rung, choose
from ..dispatch.listing import Taken, taken
from ..dispatch.problems import Linear
from ..errors import GGMLQError
from ..llama import Bridge
from ..ops import linear
from ..reference.metrics import nmse
from ..testing.oracle import Judgement, judged, tolerance
from ..testing.timing import GpuClock
from .layers import Layer, Tell

RUNS, SECONDS = 7, 0.3  # of a product, both at least: the fastest counts, for others use the machine too
MOST_RUNS = 300  # of llama.cpp
IN_A_ROW = 20  # on a GPU
LONG = 4096  # columns from which the bound grows, as the roundings of longer sums in float32 do
AGREEING = 1.1  # two times that differ by less are one
PAUSE = 0.1  # seconds, after which the threads of whoever was timed before have stopped looking for work
PATIENCE = 3.0  # seconds, after which fewer runs are enough


@dataclass(frozen=True)
class Row:
    """The figures of one layer; seconds of one product."""

    layer: Layer
    tokens: int
    choice: Taken  # the kernel, and the reason for it
    loss: float | None  # of the type, where the original is known
    judgement: Judgement
    first: float  # of the first product, which may compile and lays the weights out
    seconds: float
    numpy: float  # of float32 weights in NumPy
    theirs: float | None  # llama.cpp's

    @property
    def gflop(self) -> float:
        """Operations of one product, in 10**9."""
        return 2e-9 * self.tokens * prod(self.layer.q.shape)


def measured(layer: Layer, x: Any, device: str, ggml: Bridge | None, tell: Tell) -> Row:
    """The figures of one layer: multiply with it on a device, judge the product, and time it."""
    name, q = layer.name, layer.q.to(device)
    floats = np.asarray(layer.q, np.float32)
    loss = None if layer.original is None else float(nmse(floats, layer.original))
    with on_device_of("demo", q.raw):
        problem = Linear.here(q.format, len(x), *q.shape, device=q.device.partition(":")[0])
        here = namespace(q.raw).asarray(x)
        tell(f"{name}: the first product, which may compile")
        start = time.perf_counter()
        y = to_host(linear(here, q))
        first = time.perf_counter() - start
        tell(f"{name}: the same in float64")
        judgement = judged(y, x, layer.q, choose(problem))
        judgement = replace(judgement, bound=bound(judgement.rung, q.shape[1]))
        tell(f"{name}: timing")
        seconds = on_clock(lambda: linear(here, q), q)
    tell(f"{name}: timing NumPy's float32")
    time.sleep(PAUSE)
    numpy = settled(lambda: x @ floats.T)
    tell(f"{name}: timing llama.cpp" if ggml else f"{name}: done")
    time.sleep(PAUSE)
    theirs = None if ggml is None else their_seconds(ggml, x, layer.q, seconds)
    return Row(layer, len(x), taken([problem])[0], loss, judgement, first, seconds, numpy, theirs)


def bound(rung: Rung, columns: int) -> float:
    """The largest error of a right product with rows of so many columns."""
    return tolerance(rung) * max(1, columns / LONG)


def on_clock(work: Callable[[], object], q: QuantArray) -> float:
    """Seconds of the fastest run on a CPU; on a GPU those of one of many in a row, by its own clock."""
    if q.device == "cpu":
        return settled(work)
    clock = GpuClock(namespace(q.raw))
    replay = clock.replay([work] * IN_A_ROW)
    times = []
    for _ in range(RUNS):
        start = clock.now
        replay()
        times.append(clock.now - start)
    return min(times)


def settled(work: Callable[[], object]) -> float:
    """Seconds of the fastest run; it repeats until a second run is about as fast, or patience ends."""
    times: list[float] = []
    spent = 0.0
    while (len(times) < RUNS or spent < SECONDS or _alone(times)) and spent < PATIENCE:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
        spent += times[-1]
    return min(times)


def _alone(times: list[float]) -> bool:
    """True where no other run is as fast as the fastest, as where others use the machine."""
    fastest, second = sorted(times)[:2] if len(times) > 1 else (0.0, 1.0)
    return second > fastest * AGREEING


# --- llama.cpp --------------------------------------------------------------------------------


@contextlib.contextmanager
def peer(lib: Path | None = None) -> Iterator[Bridge | None]:
    """A context with a bridge to llama.cpp, or None if it is not installed; a named library must load."""
    with contextlib.ExitStack() as stack:
        bridge = None
        with contextlib.suppress(GGMLQError) if lib is None else contextlib.nullcontext():
            bridge = stack.enter_context(Bridge(lib))
        yield bridge


def their_seconds(ggml: Bridge, x: Any, q: QuantArray, ours: float) -> float | None:
    """llama.cpp's time for the same product in about as many runs, None if it cannot multiply so."""
    runs, many = [], min(MOST_RUNS, max(RUNS, round(SECONDS / ours)))
    for repack in (False, True):
        with contextlib.suppress(GGMLQError):  # not every type has a second layout
            runs.append(ggml.measure(x, q, threads=num_threads(), repack=repack, time_runs=many).fastest)
    time.sleep(PAUSE)
    return min(runs, default=None)
