"""Time on a GPU's own clock, for pytest-benchmark, and the roofs that figures are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class GpuClock:
    """A timer of pytest-benchmark whose time passes only while measured work runs on the GPU."""

    def __init__(self, cupy: Any) -> None:
        self.cupy, self.now = cupy, 0.0

    def __call__(self) -> float:
        """Seconds; a nanosecond passes with each look, for those who wait for the next tick."""
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
            for each in work:
                each()
            stream.synchronize()
            run = self._graph(stream, work)

        def timed() -> None:
            start, end = cp.cuda.Event(), cp.cuda.Event()
            with stream:
                start.record()
                run()
                end.record()
            end.synchronize()
            self.now += cp.cuda.get_elapsed_time(start, end) * 1e-3 / len(work)

        return timed

    def _graph(self, stream: Any, work: list[Callable[[], object]]) -> Callable[[], None]:
        def plain() -> None:
            for each in work:
                each()

        stream.begin_capture()
        try:
            plain()
        except NotImplementedError:
            stream.end_capture()
            return plain
        graph = stream.end_capture()
        return lambda: graph.launch(stream)


def roofs(cupy: Any, m: int, n: int, k: int, rounds: int = 9) -> dict[str, float]:
    """What this card gives in this minute: GB/s of a copy, TFLOP/s of cuBLAS on halves."""
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
