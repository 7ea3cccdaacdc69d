"""Threads of the CPU side: one pool, any number of callers.

Kernels release the global lock, so plain Python threads run them side by side. Numba's own
parallel loops are not used: some of its threading layers abort the process when two Python
threads enter them at once.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

_asked: list[int] = []  # what set_num_threads was told last
_inside = threading.local()  # work started from within the pool runs where it is


def available() -> int:
    """Cores that this process may use, or fewer where the usual variables say so."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limits = (os.environ.get(name, "") for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"))
    return max(1, min([cores, *(int(limit) for limit in limits if limit.isdecimal() and int(limit))]))


def num_threads() -> int:
    """Threads that an operation uses."""
    return _asked[-1] if _asked else available()


def set_num_threads(n: int) -> None:
    """Use ``n`` threads from the next operation on."""
    _asked[:] = [n]


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="ggmlq")


def share(work: Callable[[int, int], object], count: int, grain: int = 1) -> None:
    """Call ``work(start, stop)`` on slices of ``range(count)``, each a multiple of ``grain``."""
    grains = math.ceil(count / grain)
    threads = min(num_threads(), grains)
    if threads < 2 or getattr(_inside, "pool", False):
        work(0, count)
        return
    step = math.ceil(grains / threads) * grain
    slices = [(start, min(start + step, count)) for start in range(0, count, step)]
    others: list[Future[None]] = [_pool(threads).submit(_within, work, *s) for s in slices[1:]]
    try:
        work(*slices[0])
    finally:
        for other in others:
            other.exception()
    for other in others:
        other.result()


def _within(work: Callable[[int, int], object], start: int, stop: int) -> None:
    _inside.pool = True
    try:
        work(start, stop)
    finally:
        _inside.pool = False
