"""Work of a GPU timed as a CUDA graph, or behind a kernel that keeps its stream busy; and plain calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Any, NamedTuple

from ggmlq.cuda.driver.launch import Kernel, family
from ggmlq.cuda.intrinsics.assembly import instruction, only_on_a_gpu, u64
from ggmlq.cuda.intrinsics.language import cuda, uint32, uint64
from ggmlq.roofs.timing import Work, captured, launch


class Time(NamedTuple):
    """The times of one piece of work among several, in microseconds."""

    us: float  # the median
    least: float
    graph: bool  # whether it was replayed as a graph
    host: float  # spent by Python on its launches


@cache
def _stream(cupy: Any) -> Any:
    """One for all that is replayed: CuPy keeps the memory of each stream apart."""
    return cupy.cuda.Stream(non_blocking=True)


LONG = 0.02  # seconds of a round, from which three rounds are enough


def replayed(
    cupy: Any, work: Work, before: Callable[[], object], after: Callable[[], object], rounds: int = 12
) -> Time:
    """The time of work that is replayed as one CUDA graph.

    Once it runs between ``before`` and ``after``, which may poison and judge its results, and raise.
    What cannot be captured is launched while the card sleeps, so that the host's share does not count.
    """
    stream = _stream(cupy)
    cupy.cuda.Device().synchronize()  # operands may still be on their way, on another stream
    with stream:
        for run in work:  # compiles and lays out
            run()
        stream.synchronize()
        host = -time.perf_counter()
        for run in work:
            run()
        host += time.perf_counter()
        stream.synchronize()
        graph = captured(stream, work)

        def timed() -> float:
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            if graph is None:
                sleep(1.5e6 * host + 50)
            start.record()
            launch(graph, stream, work)
            end.record()
            end.synchronize()
            return float(cupy.cuda.get_elapsed_time(start, end)) * 1e-3

        before()
        first = timed()
        after()
        times = [timed() for _ in range(rounds if first < LONG else 3)]
    scale = 1e6 / len(work)
    return Time(median(times) * scale, min(times) * scale, graph is not None, host * scale)


def called(cupy: Any, work: Work, rounds: int = 12) -> Time:
    """The time of plain calls one after another, on the default stream."""
    times, host = [], []
    for _ in range(rounds + 1):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        began = time.perf_counter()
        start.record()
        launch(None, None, work)
        end.record()
        host.append(time.perf_counter() - began)
        end.synchronize()
        times.append(float(cupy.cuda.get_elapsed_time(start, end)) * 1e-3)
    scale = 1e6 / len(work)
    return Time(median(times[1:]) * scale, min(times[1:]) * scale, False, median(host[1:]) * scale)


@instruction("mov.u64 $0, %globaltimer;", u64, effect=True)
def nanoseconds() -> Any:
    """The card's clock; it ticks every microsecond or faster."""
    return only_on_a_gpu()


@family()
def sleeper() -> Kernel:
    """The kernel that sleeps until a time on the clock: a single sleep may take no time or twice as long."""
    clock = nanoseconds

    def sleep(span: Any) -> None:
        start = clock()
        while clock() - start < uint64(span):
            cuda.nanosleep(uint32(1000))

    return Kernel("sleep", sleep, uint32, threads=32)


def sleep(microseconds: float) -> None:
    """Keep the current stream busy for so long (a second at most), while work is launched behind it."""
    sleeper()((1,), (32,), int(1000 * min(microseconds, 1e6)))
