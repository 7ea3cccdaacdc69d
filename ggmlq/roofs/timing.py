"""Measures work by a GPU's own clock, for benchmarks and the demo, and the peak rates of the GPU."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from typing import Any, NamedTuple

Work = Sequence[Callable[[], object]]


class GpuClock:
    """A timer of pytest-benchmark whose time passes only while measured work runs on the GPU."""

    def __init__(self, cupy: Any) -> None:
        self.cupy, self.now = cupy, 0.0

    def __call__(self) -> float:
        """The seconds so far; each call adds a nanosecond, since pytest-benchmark waits for the next tick."""
        self.now += 1e-9
        return self.now

    def replay(self, work: list[Callable[[], object]]) -> Callable[[], None]:
        """A function that runs all of ``work`` once; a call of it takes the mean time of one.

        Work is captured as a CUDA graph where it can be (cuBLAS through CuPy cannot), so that the
        host's share of a launch does not count.
        """
        cp = self.cupy
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            for run in work:
                run()
            stream.synchronize()
            graph = captured(stream, work)

        def timed() -> None:
            start, end = cp.cuda.Event(), cp.cuda.Event()
            with stream:
                start.record()
                launch(graph, stream, work)
                end.record()
            end.synchronize()
            self.now += cp.cuda.get_elapsed_time(start, end) * 1e-3 / len(work)

        return timed


def captured(stream: Any, work: Work) -> Any:
    """The work as a CUDA graph, or None where it cannot be one: cuBLAS through CuPy."""
    stream.begin_capture()
    try:
        for run in work:
            run()
    except NotImplementedError:
        stream.end_capture()
        return None
    except BaseException:
        with contextlib.suppress(Exception):  # the capture is spoilt, and must end all the same
            stream.end_capture()
        raise
    return stream.end_capture()


def launch(graph: Any, stream: Any, work: Work) -> None:
    """Launch the graph, or run the work itself if there is none."""
    if graph is not None:
        graph.launch(stream)
        return
    for run in work:
        run()


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
    from . import probes

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
                probes.sleep(1.5e6 * host + 50)
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


def read_rate(cupy: Any, most: int = 4 << 30) -> float:
    """GB/s at which this card reads its memory, the median of nine."""
    from . import probes

    free, _ = cupy.cuda.Device().mem_info
    memory = cupy.zeros(min(most, free // 4), "u1")
    size = probes.read(memory)
    return 1e-3 * size / replayed(cupy, [lambda: probes.read(memory)], int, int, rounds=9).us


def roofs(cupy: Any, m: int, n: int, k: int, rounds: int = 9) -> dict[str, float]:
    """The rates of this card in this minute: GB/s of a copy, TFLOP/s of cuBLAS on halves."""
    source = cupy.random.standard_normal(8192 * 14336, dtype=cupy.float32)  # no power of two: banks
    target = cupy.empty_like(source)
    x, w = (cupy.random.standard_normal((r, k), dtype=cupy.float32).astype("f2") for r in (m, n))
    y = cupy.empty((m, n), "f2")
    copy = replayed(cupy, [lambda: cupy.copyto(target, source)] * 10, int, int, rounds).us
    product = replayed(cupy, [lambda: cupy.matmul(x, w.T, out=y)] * 10, int, int, rounds).us
    return {
        "copy_GBps": round(2e-3 * source.nbytes / copy),
        "cublas_f16_TFLOPS": round(2e-6 * m * n * k / product, 1),
    }
