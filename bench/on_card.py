"""Tools of programs that measure on a card: checks in processes of their own, graphs replayed and timed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ggmlq.cuda.driver import device
from ggmlq.dispatch.card import UNKNOWN


def bandwidth() -> float:
    """Bytes a second that the card's memory is taken to reach."""
    card = device.card()
    return 1e12 * (card.memory if card else UNKNOWN)


def in_processes(script: str, names: Sequence[str], guarded: bool, limit: float) -> list[str]:
    """The rungs that pass ``script --check RUNG``; one that hangs is ended after so many seconds."""
    passed = []
    for name in names:
        begun = time.perf_counter()
        command = [sys.executable, script, "--check", name]
        environment = {**os.environ, "GGMLQ_GUARD_WAITS": str(int(guarded))}
        print(f"check {name}{', waits guarded' * guarded}", flush=True)
        try:
            status: Any = subprocess.run(command, env=environment, timeout=limit, check=False).returncode
        except subprocess.TimeoutExpired:
            status = "it hangs"
        print(f"  {'ok' if status == 0 else status} ({time.perf_counter() - begun:.1f} s)", flush=True)
        passed += [name] * (status == 0)
    return passed


class Replays:
    """A CUDA graph of ``copies`` calls, which takes ``works`` in turn."""

    def __init__(self, works: Sequence[Callable[[], object]], copies: int = 1, warm: int = 12) -> None:
        cp = device.cupy()
        self.copies, self.stream = copies, cp.cuda.Stream(non_blocking=True)
        cp.cuda.Device().synchronize()  # operands were made on a stream for which this one does not wait
        with self.stream:
            for work in works:
                work()
            self.stream.synchronize()
            self.stream.begin_capture()
            for i in range(copies):
                works[i % len(works)]()
            self.graph = self.stream.end_capture()
        self.times(0, least=warm)

    def replay(self) -> None:
        self.graph.launch(self.stream)

    def times(self, seconds: float, rest: float = 0.0, least: int = 12) -> list[float]:
        """Seconds of one piece of work, of each replay, after a rest."""
        cp = device.cupy()
        time.sleep(rest)
        times, end = [], time.perf_counter() + seconds
        while len(times) < least or time.perf_counter() < end:
            first, last = cp.cuda.Event(), cp.cuda.Event()
            first.record(self.stream)
            self.replay()
            last.record(self.stream)
            last.synchronize()
            times.append(cp.cuda.get_elapsed_time(first, last) * 1e-3 / self.copies)
        return times


def in_turns(
    graphs: Mapping[str, Replays], turns: int, seconds: float, rest: float, first: int | None = None
) -> dict[str, list[float]]:
    """Seconds of each graph's piece of work, all in turns, so that none has the best of the card.

    ``first``: only so many replays of a turn count, those right after the rest.
    """
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(turns):
        for name, graph in graphs.items():
            times[name] += graph.times(seconds, rest=rest)[:first]
    return times
