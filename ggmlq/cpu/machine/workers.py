"""Threads for compiled work of microseconds: they wait in compiled code and never need Python's lock.

A kernel here is compiled as ``kernel(arguments, start, stop)``: ``arguments`` is the address of a
table of int64 words, which ``arguments.py`` gives names, and ``start`` … ``stop`` the part to do. A job
is written to a board in memory. Threads that look at the board take part after part by one atomic
step each; after a short while without work they go to sleep, and the next job wakes them. A job never
waits for a thread to wake: its caller does the parts that nobody has taken.

A kernel that raises, in whichever thread, ends the job: parts that are not begun are left out, and
the caller raises what the kernel did.

One job at a time: a second Python thread does its own work alone meanwhile. Who has the board is a
word of it, taken and given back in one call of compiled code, where no interrupt can come between.
"""

from __future__ import annotations

import math
import os
import queue
from array import array
from functools import cache
from typing import Any

import numpy as np
from numba import types

from ...threads import PARTS, Hands, inside_pool, no_memory, num_threads
from .jit import jit
from .memory import atomic_add, atomic_load, atomic_store, call_kernel, compare_and_swap, fail, failed

# Words of the board; those that threads write lie in cache lines of their own.
KERNEL, ARGUMENTS, COUNT, STEP, OWNED, STATUS, PROBLEM = 0, 8, 16, 24, 32, 40, 48
NEXT, DONE, AWAKE = 64, 128, 192
BOARD = 256  # bytes
# NEXT holds three numbers: the job's, how many parts it has, and which is next. They are one word
# because a thread must see all three change in one step: had it the next part of one job and the
# number of parts of another, it would do a part that does not exist, or one twice.
JOB, PARTS_AT, MASK = 32, 16, (1 << 16) - 1
PATIENCE = 100_000  # looks at the board before a thread sleeps: about 0.1 ms
SIGNATURE = (types.int64, types.int64, types.int64)


@jit
def _take(board: int, problem: int) -> bool:
    """Do the next part of the job on the board, if there is one left; ``problem``: a word of this thread."""
    now = atomic_load(board + NEXT)
    part = now & MASK
    if part >= now >> PARTS_AT & MASK:
        return False
    kernel, arguments = atomic_load(board + KERNEL), atomic_load(board + ARGUMENTS)
    count, step = atomic_load(board + COUNT), atomic_load(board + STEP)
    # If this succeeds the job is still unfinished, so what was read belongs to it.
    if compare_and_swap(board + NEXT, now, now + 1):
        if not atomic_load(board + STATUS):
            status = call_kernel(kernel, arguments, part * step, min((part + 1) * step, count), problem)
            if failed(status) and compare_and_swap(board + STATUS, 0, status):
                atomic_store(board + PROBLEM, atomic_load(problem))
        atomic_add(board + DONE, 1)
    return True


@jit
def _serve(board: int, patience: int, problem: int) -> None:
    """What a thread does between two sleeps."""
    atomic_add(board + AWAKE, 1)
    idle = 0
    while idle < patience:
        idle = 0 if _take(board, problem) else idle + 1
    atomic_add(board + AWAKE, -1)


@jit
def _do(board: int, kernel: int, arguments: int, count: int, step: int) -> bool:
    """Write a job on the board, and work on it until all of it is done, whoever does it.

    False, and nothing done, where the board is another's.
    """
    if not compare_and_swap(board + OWNED, 0, 1):
        return False
    parts = (count + step - 1) // step
    atomic_store(board + KERNEL, kernel)
    atomic_store(board + ARGUMENTS, arguments)
    atomic_store(board + COUNT, count)
    atomic_store(board + STEP, step)
    atomic_store(board + DONE, 0)
    atomic_store(board + STATUS, 0)
    job = (atomic_load(board + NEXT) >> JOB) + 1 & 0x3FFFFFFF
    atomic_store(board + NEXT, job << JOB | parts << PARTS_AT)
    while _take(board, board + BOARD):
        pass
    while atomic_load(board + DONE) < parts:
        pass
    status, problem = atomic_load(board + STATUS), atomic_load(board + PROBLEM)
    atomic_store(board + OWNED, 0)
    fail(status, problem)
    if status < 0:  # of code that calls Python, which no kernel here does
        raise SystemError("a kernel failed without an exception of compiled code")
    return True


class _Crew:
    """The threads and their board."""

    def __init__(self) -> None:
        self._memory = np.zeros(BOARD // 8 + 16, np.int64)  # and a word for the problems of the caller
        self._board = self._memory.ctypes.data + 63 & ~63
        self._awake = self._memory[(self._board + AWAKE - self._memory.ctypes.data) // 8 :]
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._hands = Hands(self._work)

    def run(self, kernel: int, arguments: int, count: int, step: int, helpers: int) -> bool:
        if not self._hands.any():
            _serve.compile((types.int64,) * 3)  # here: compiling in the thread would delay its help
        self._hands.hire(helpers)
        for _ in range(helpers - int(self._awake[0]) - self._bell.qsize()):
            self._bell.put(None)
        # One call: were the job begun and Python interrupted, threads would go on in memory given back.
        return bool(_do(self._board, kernel, arguments, count, step))

    def _work(self) -> None:
        problem = np.zeros(1, np.int64)
        while True:
            self._bell.get()
            _serve(self._board, PATIENCE, problem.ctypes.data)


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
    try:
        if threads > 1 and not inside_pool():
            step = math.ceil(count / (grain * PARTS * threads)) * grain
            if _crew.run(_address(kernel), table, count, step, threads - 1):
                return
        if count:
            kernel(table, 0, count)
    except MemoryError as error:
        no_memory(error, count, threads)
