"""Threads of the CPU side: one pool, any number of callers.

Kernels release the global lock, so plain Python threads run them side by side. Numba's own
parallel loops are not used: some of its threading layers abort the process when two Python
threads enter them at once.

Work is cut into more parts than threads, and who is free takes the next. The caller starts with the
first part at once and never waits for a thread to wake, only for parts that one has begun; so small
work costs little, and a busy machine or another caller only means less help.
"""

from __future__ import annotations

import itertools
import math
import os
import queue
import threading
from collections.abc import Callable

from .errors import ShapeError

PARTS = 4  # for each thread: the last part to finish leaves the others idle for a quarter at most

_asked: list[int] = []  # what set_num_threads was told last
_inside = threading.local()  # work started from within the pool runs where it is


def available() -> int:
    """Cores that this process may use, or fewer where the usual variables say so."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limits = (os.environ.get(name, "") for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"))
    return max(1, min([cores, *(int(limit) for limit in limits if limit.isdecimal() and int(limit))]))


_AVAILABLE = available()


def num_threads() -> int:
    """Threads that an operation uses."""
    return min(_asked[-1], _AVAILABLE) if _asked else _AVAILABLE


def set_num_threads(n: int) -> None:
    """Use ``n`` threads from the next operation on, in the whole process.

    Never more than the cores that the process may use, nor than ``NUMBA_NUM_THREADS`` and
    ``OMP_NUM_THREADS`` allow. Products with ``f32``, ``f16`` and ``bf16`` weights follow NumPy's BLAS.
    """
    if isinstance(n, bool) or not hasattr(n, "__index__") or n.__index__() < 1:
        raise ShapeError(
            f"set_num_threads({n!r}): a number of threads is an integer of at least 1; "
            f"this process may use up to {_AVAILABLE}"
        )
    _asked[:] = [n.__index__()]


class _Job:
    """One call of ``share``: parts that any thread may take."""

    def __init__(self, work: Callable[[int, int], object], count: int, step: int) -> None:
        self._work, self._count, self._step = work, count, step
        self._parts = math.ceil(count / step)
        self._next = itertools.count()  # its next() is one step under the global lock
        self._left, self._lock = self._parts, threading.Lock()
        self._finished = threading.Lock()
        self._finished.acquire()
        self._error: list[BaseException] = []

    def run(self) -> None:
        """Take parts until none is left."""
        while (part := next(self._next)) < self._parts:
            try:
                if not self._error:
                    self._work(part * self._step, min((part + 1) * self._step, self._count))
            except BaseException as error:
                self._error.append(error)
            with self._lock:
                self._left -= 1
                last = not self._left
            if last:
                self._finished.release()

    def wait(self) -> None:
        """Until every part is done, whoever does it."""
        self._finished.acquire()
        if self._error:
            raise self._error[0]


class _Pool:
    """Threads that wait for jobs; started when they are first needed."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._threads = 0
        self._callers = 0
        self._lock = threading.Lock()

    def run(self, job: _Job, threads: int) -> None:
        with self._lock:
            self._callers += 1
            helpers = threads - self._callers  # other callers are threads at work too
            for _ in range(helpers - self._threads):
                name = f"ggmlq-{self._threads}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._threads += 1
        try:
            for _ in range(helpers):
                self._jobs.put(job)
            job.run()
            job.wait()
        finally:
            with self._lock:
                self._callers -= 1

    def _serve(self) -> None:
        _inside.pool = True
        while True:
            self._jobs.get().run()


_pool = _Pool()


def _after_fork() -> None:
    """Threads do not survive a fork."""
    globals()["_pool"] = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def inside_pool() -> bool:
    """Whether this thread is one of the pool: what it starts runs where it is."""
    return getattr(_inside, "pool", False)


def share(work: Callable[[int, int], object], count: int, grain: int = 1) -> None:
    """Call ``work(start, stop)`` on slices of ``range(count)``, each a multiple of ``grain``."""
    grains = math.ceil(count / grain)
    threads = min(num_threads(), grains)
    if threads < 2 or inside_pool():
        if count:
            work(0, count)
        return
    step = math.ceil(grains / (PARTS * threads)) * grain
    _pool.run(_Job(work, count, step), threads)
