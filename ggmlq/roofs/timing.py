"""Measures work by a GPU's own clock, for benchmarks and the demo, and the peak rates of the GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

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


def read_rate(cupy: Any, most: int = 4 << 30) -> float:
    """GB/s at which this card reads its memory, the median of nine."""
    from . import probes

    free, _ = cupy.cuda.Device().mem_info
    memory = cupy.zeros(min(most, free // 4), "u1")
    return 1e-9 * probes.read(memory) / _best(GpuClock(cupy), lambda: probes.read(memory), 9)


def roofs(cupy: Any, m: int, n: int, k: int, rounds: int = 9) -> dict[str, float]:
    """The rates of this card in this minute: GB/s of a copy, TFLOP/s of cuBLAS on halves."""
    clock = GpuClock(cupy)
    source = cupy.random.standard_normal(8192 * 14336, dtype=cupy.float32)  # no power of two: banks
    target = cupy.empty_like(source)
    x, w = (cupy.random.standard_normal((r, k), dtype=cupy.float32).astype("f2") for r in (m, n))
    y = cupy.empty((m, n), "f2")
    copy = _best(clock, lambda: cupy.copyto(target, source), rounds)
    product = _best(clock, lambda: cupy.matmul(x, w.T, out=y), rounds)
    return {
        "copy_GBps": round(2e-9 * source.nbytes / copy),
        "cublas_f16_TFLOPS": round(2e-12 * m * n * k / product, 1),
    }


def _best(clock: GpuClock, work: Callable[[], object], rounds: int) -> float:
    run = clock.replay([work] * 10)
    times = []
    for _ in range(rounds):
        before = clock.now
        run()
        times.append(clock.now - before)
    return sorted(times)[rounds // 2]
