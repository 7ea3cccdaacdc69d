"""Threads for compiled work of microseconds: they wait in compiled code and never need Python's lock.

A kernel here is compiled as ``kernel(arguments, start, stop)``: ``arguments`` is the address of a
table of int64 words (addresses and sizes), ``start`` … ``stop`` the part to do. A job is written to
a board in memory. Threads that look at the board take part after part by one atomic step each;
after a short while without work they go to sleep, and the next job wakes them. A job never waits
for a thread to wake: its caller does the parts that nobody has taken.

One job at a time: a second Python thread does its own work alone meanwhile.
"""

from __future__ import annotations

import math
import os
import queue
import threading
from array import array
from functools import cache
from typing import Any

import numpy as np
from numba import types

from ...threads import PARTS, inside_pool, num_threads
from .jit import jit
from .memory import atomic_add, atomic_load, atomic_store, call_kernel, compare_and_swap

# Words of the board; those that threads write lie in cache lines of their own.
KERNEL, ARGUMENTS, COUNT, STEP, NEXT, DONE, AWAKE = 0, 8, 16, 24, 64, 128, 192
BOARD = 256  # bytes
# NEXT holds three numbers: the job's, how many parts it has, and which is next. They are one word
# because a thread must see all three change in one step: had it the next part of one job and the
# number of parts of another, it would do a part that does not exist, or one twice.
JOB, PARTS_AT, MASK = 32, 16, (1 << 16) - 1
PATIENCE = 100_000  # looks at the board before a thread sleeps: about 0.1 ms
SIGNATURE = (types.int64, types.int64, types.int64)


@jit
def _take(board: int) -> bool:
    """Do the next part of the job on the board, if there is one left."""
    now = atomic_load(board + NEXT)
    part = now & MASK
    if part >= now >> PARTS_AT & MASK:
        return False
    kernel, arguments = atomic_load(board + KERNEL), atomic_load(board + ARGUMENTS)
    count, step = atomic_load(board + COUNT), atomic_load(board + STEP)
    # If this succeeds the job is still unfinished, so what was read belongs to it.
    if compare_and_swap(board + NEXT, now, now + 1):
        call_kernel(kernel, arguments, part * step, min((part + 1) * step, count))
        atomic_add(board + DONE, 1)
    return True


@jit
def _serve(board: int, patience: int) -> None:
    """What a thread does between two sleeps."""
    atomic_add(board + AWAKE, 1)
    idle = 0
    while idle < patience:
        idle = 0 if _take(board) else idle + 1
    atomic_add(board + AWAKE, -1)


@jit
def _do(board: int, kernel: int, arguments: int, count: int, step: int) -> None:
    """Write a job on the board, and work on it until all of it is done, whoever does it."""
    parts = (count + step - 1) // step
    atomic_store(board + KERNEL, kernel)
    atomic_store(board + ARGUMENTS, arguments)
    atomic_store(board + COUNT, count)
    atomic_store(board + STEP, step)
    atomic_store(board + DONE, 0)
    job = (atomic_load(board + NEXT) >> JOB) + 1 & 0x3FFFFFFF
    atomic_store(board + NEXT, job << JOB | parts << PARTS_AT)
    while _take(board):
        pass
    while atomic_load(board + DONE) < parts:
        pass


class _Crew:
    """The threads and their board."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self._memory = np.zeros(BOARD // 8 + 8, np.int64)
        self._board = self._memory.ctypes.data + 63 & ~63
        self._awake = self._memory[(self._board + AWAKE - self._memory.ctypes.data) // 8 :]
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._threads = 0

    def run(self, kernel: int, arguments: int, count: int, step: int, helpers: int) -> None:
        if helpers > self._threads:
            _serve.compile((types.int64, types.int64))  # here: compiling in the thread would delay its help
        for _ in range(helpers - self._threads):
            threading.Thread(target=self._work, name=f"ggmlq-crew-{self._threads}", daemon=True).start()
            self._threads += 1
        for _ in range(helpers - int(self._awake[0]) - self._bell.qsize()):
            self._bell.put(None)
        # One call: were the job begun and Python interrupted, threads would go on in memory given back.
        _do(self._board, kernel, arguments, count, step)

    def _work(self) -> None:
        while True:
            self._bell.get()
            _serve(self._board, PATIENCE)


_crew = _Crew()


def _after_fork() -> None:
    """Threads do not survive a fork."""
    globals()["_crew"] = _Crew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def _address(kernel: Any) -> int:
    """Where the machine code of a kernel is."""
    kernel.compile(SIGNATURE)
    result = kernel.overloads[SIGNATURE]
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


def share_kernel(kernel: Any, arguments: tuple[int, ...], count: int, grain: int = 1) -> None:
    """Run a kernel on ``range(count)``, in parts that are multiples of ``grain``."""
    words = array("q", arguments)  # its address takes a third of the time that NumPy's takes
    table, _ = words.buffer_info()
    threads = min(num_threads(), math.ceil(count / grain), MASK // PARTS)
    if threads > 1 and not inside_pool() and _crew.busy.acquire(blocking=False):
        step = math.ceil(count / (grain * PARTS * threads)) * grain
        try:
            _crew.run(_address(kernel), table, count, step, threads - 1)
        finally:
            _crew.busy.release()
    elif count:
        kernel(table, 0, count)
