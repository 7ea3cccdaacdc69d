"""Times of kernels, measured where ``auto`` has no table: with the operands of a first product, or ahead.

Where a product of blocks meets a CPU or card that is in no table, :func:`chosen` times the two or three
kernels that could be fastest, in turns, with the operands of that product: about a millisecond each. The
times are remembered for the shape and the bucket of rows (dispatch/tuned.py), and the next product of that
kind takes the fastest. ``ggmlq tune`` does the same ahead, for a list of cases, with random weights.

Nothing is timed for a kernel or an arithmetic that the caller names, for rows that shall not depend on the
rows beside them, while a CUDA graph is recorded, for
small products, and where ``tuned.is_on`` says no. The code for GPUs has not been run on one.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..arrays.blocks import random_blocks
from ..base.devices import cuda_device, is_host, namespace
from ..base.terminal import is_terminal
from ..base.text import printable
from ..dispatch import ladder, tuned
from ..dispatch.ladder import CHOICES, Problem, Rung
from ..dispatch.problems import Linear
from ..dispatch.tuned import Case
from ..formats import FORMATS, BlockFormat
from .plan import TEMPLATES

LEAST_WORK = 1 << 23  # products of numbers, from which a case is worth timing: some 30 µs
MOST_TIMED, MOST_ON_CARD = 64, 512  # rows of activations that are timed, of a case with more; on a GPU
TURNS, ENOUGH, LONG = 3, 1e-3, 1e-2  # turns of all kernels; seconds of a turn; of one that has no third
AHEAD = 9  # turns of ``ggmlq tune``
_BUSY = threading.Lock()


def chosen(
    problem: Problem, operands: Sequence[Any], kernel: str, arithmetic: str | None, invariant: bool = False
) -> Rung:
    """The rung for a product: by times, if they are to be had, or as ``ladder.choose`` says."""
    rung = ladder.choose(problem, kernel, arithmetic, invariant)
    if (
        invariant
        or kernel != "auto"
        or arithmetic is not None
        or type(problem) is not Linear
        or not tuned.is_on()
    ):
        return rung
    if not _is_open(problem) or not _BUSY.acquire(blocking=False):
        return rung
    try:
        x, q = operands
        most = MOST_TIMED if problem.device == "cpu" else MOST_ON_CARD
        with nullcontext() if problem.device == "cpu" else cuda_device().aside():
            times = times_of(ladder.contenders(problem), problem, x[:most], q)
        case = _remember(problem, times)
    finally:
        _BUSY.release()
    if is_terminal(sys.stderr):
        shown = ", ".join(f"{name} {us:.0f} µs" for name, us in times.items())
        words = f"ggmlq: timed for {case.format} {case.n}×{case.k} with up to {case.rows} rows: {shown}"
        print(printable(words), file=sys.stderr, flush=True)
    return ladder.choose(problem)


def _is_open(problem: Linear) -> bool:
    """True for a product whose kernels are to be timed."""
    if not isinstance(problem.format, BlockFormat) or problem.m * problem.n * problem.k < LEAST_WORK:
        return False
    if problem.card is not None and not problem.card.here:
        return False
    if len(ladder.contenders(problem)) < 2 or tuned.is_known(problem):
        return False
    if problem.device == "cpu":
        return True
    gpu = cuda_device()
    return gpu.works_aside() or not gpu.capturing(gpu.current())


def _remember(problem: Linear, times: dict[str, float]) -> Case:
    """Keep the times of a product's case, and choose anew."""
    case = tuned.case_of(problem)
    tuned.remember(import_module(CHOICES[problem.device]).processor(problem), {case: dict(times)})
    TEMPLATES.clear()
    return case


def times_of(
    names: Sequence[str], problem: Linear, x: Any, q: QuantArray, turns: int = TURNS
) -> dict[str, float]:  # fmt: skip
    """Microseconds of kernels for a problem, by products of q with x, which may be some of its rows."""
    by_name = {rung.name: rung for rung in ladder.rungs("linear", problem.device)}
    out = namespace(q.memory).empty((len(x), problem.n), np.float32)
    clock = _host_clock if is_host(q.memory) else _device_clock
    times = dict.fromkeys(names, math.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        for name in names:
            by_name[name].launch(x, q, out)  # loads its code and prepares the weights
        for turn in range(turns):
            for name in names:
                if turn < 2 or times[name] < LONG * 1e6:
                    times[name] = min(times[name], clock(by_name[name], x, q, out))
    return {name: float(f"{us * problem.m / len(x):.4g}") for name, us in times.items()}


def _host_clock(rung: Rung, x: Any, q: QuantArray, out: Any) -> float:
    """Microseconds of a product on the host, the shortest of those that fit into ``ENOUGH``."""
    best, begun = math.inf, time.perf_counter()
    while True:
        start = time.perf_counter()
        rung.launch(x, q, out)
        stop = time.perf_counter()
        best = min(best, stop - start)
        if stop - begun > ENOUGH:
            return best * 1e6


def _device_clock(rung: Rung, x: Any, q: QuantArray, out: Any) -> float:
    """Microseconds of a product on the current GPU, by its own clock, on the current stream."""
    cuda = cuda_device().cupy().cuda
    start, stop = cuda.Event(), cuda.Event()
    start.record()
    for _ in range(TURNS):
        rung.launch(x, q, out)
    stop.record()
    stop.synchronize()
    return float(cuda.get_elapsed_time(start, stop)) * 1e3 / TURNS


# --- ahead ----------------------------------------------------------------------------------


def ahead(cases: Sequence[Case], device: str) -> Iterator[tuple[Case, dict[str, float]]]:
    """The times of cases on a device with random weights, one after the other; each is remembered.

    Cases with one possible kernel have its time alone.
    """
    q: QuantArray | None = None
    for case in cases:
        if q is None or (q.format.name, *q.shape) != case[:3]:
            q = _random(case, device)
        x = np.random.default_rng(0).standard_normal((case.rows, case.k), np.float32)
        rows = x if is_host(q.memory) else cuda_device().cupy().asarray(x)
        kind = device.partition(":")[0]
        problem = Linear.here(FORMATS[case.format], case.rows, case.n, case.k, device=kind)
        times = times_of(import_module(CHOICES[kind]).candidates(problem), problem, rows, q, AHEAD)
        yield _remember(problem, times), times


def _random(case: Case, device: str) -> QuantArray:
    """Weights of a case: random blocks, repeated, as their values do not matter for the time."""
    fmt = FORMATS[case.format]
    some = random_blocks(fmt, min(case.n, 64), case.k // fmt.block_size, seed=1)
    raw = np.resize(some, (case.n, some.shape[1]))
    q = QuantArray.from_bytes(raw.tobytes(), fmt, (case.n, case.k))
    return q if device == "cpu" else q.to(device)
