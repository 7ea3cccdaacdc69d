"""Threads for compiled work of microseconds: they wait in compiled code and never need Python's lock.

A kernel here is compiled as ``kernel(arguments, start, stop)``: ``arguments`` is the address of a
table of int64 words, which ``memory.py`` gives names, and ``start`` … ``stop`` the part to do. A job
is written to a board in memory (``job.py``). Threads that look at the board take part after part by one
atomic step each; after a while without work they sleep on a word of it, and the next job wakes all of them
by one call of the system. A job never waits for a thread to wake: its caller does the parts that nobody has
taken.

If a kernel raises in any thread, the job ends: no further part begins, and the caller raises that
error.

Only one job uses the board; a second Python thread meanwhile does its work alone. The owner is a word
of the board, which one call of compiled code sets and clears, so that no interrupt comes in between.

A product that comes again is recorded: :func:`recorded` notes its kernels and their scratch memory.
"""

from __future__ import annotations

import ctypes
import math
import queue
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...base.forks import in_child
from ...base.slots import Slot, labelled
from ...base.system import LINUX, MACHINE, WIDE, WINDOWS, c_library
from ...base.threads import PARTS, Hands, inside_pool, no_memory, num_threads
from .job import AWAKE, BOARD, MAX_SEGMENTS, Job, Program, Service, System
from .kernels import Code, Kernel, compiled, kernel

_tape = threading.local()  # of a thread that records what a product runs
SMALL = 1 << 18  # products of a weight and an activation: some 10 µs, which is what waking a thread takes
SHORT, LONG = 1e-4, 2e-3  # seconds that helpers look at the board: behind a product, and behind a program
FUTEX = {"x86_64": 202, "aarch64": 98}  # the number of the system call, on Linux
LOOKS = 2000  # by which the time of a look is measured
DONE_INDEX = Job._fields.index("done")


@cache
def system() -> System:
    """The functions of the C library by which threads wait."""
    library = None if WINDOWS else c_library()

    def address(name: str) -> int:
        function = getattr(library, name, None)
        return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0

    futex = FUTEX.get(MACHINE, 0) if LINUX and WIDE else 0
    syscall = address("syscall") if futex else 0
    return System(address("sched_yield"), syscall, futex if syscall else 0)


@cache
def looks_in(seconds: float) -> int:
    """Looks at the board in some time on this machine, whose pause takes 10 to 140 clocks."""
    word, look = array("q", [0]), kernel("machine.board.pauser").code.call
    times = []
    for _ in range(3):
        start = time.perf_counter()
        look(word.buffer_info()[0], 0, LOOKS)
        times.append(time.perf_counter() - start)
    return max(LOOKS, int(seconds / min(times) * LOOKS))


class Call(NamedTuple):
    """A kernel run on ``range(length)``."""

    work: Any
    arguments: tuple[int, ...]
    length: int
    grain: int
    blocks: int  # of the recording's memory that there were before it


class Tape(NamedTuple):
    """The calls of kernels that a thread has recorded, and the memory that it took for results in between.

    ``first``: the number of that memory's first slot. ``kept``: operands that stay, such as weights.
    """

    first: int
    calls: list[Call]
    scratch: list[Any]
    kept: list[Any]
    again: dict[int, Any]  # by their bytes: blocks that one pair of kernels after the other uses


@contextmanager
def recorded(first: int) -> Iterator[Tape]:
    """Record the kernels that this thread runs inside ``with``; slots of memory start at ``first``."""
    tape = Tape(first, [], [], [], {})
    with _taped(tape):
        yield tape


def unrecorded() -> AbstractContextManager[None]:
    """Do not record work that is done only once, such as the layout of weights."""
    return _taped(None)


@contextmanager
def _taped(tape: Tape | None) -> Iterator[None]:
    before, _tape.tape = getattr(_tape, "tape", None), tape
    try:
        yield
    finally:
        _tape.tape = before


def is_recorded() -> bool:
    """True where what this thread runs is noted."""
    return getattr(_tape, "tape", None) is not None


def keep(operand: Any) -> None:
    """Note an operand that stays the same in all calls of a recording."""
    if (tape := getattr(_tape, "tape", None)) is not None:
        tape.kept.append(operand)


def scratch(shape: tuple[int, ...], dtype: Any) -> Any:
    """An empty array for results between two kernels; a recording keeps it alive."""
    memory = np.empty(shape, dtype)
    if (tape := getattr(_tape, "tape", None)) is None:
        return memory
    tape.scratch.append(memory)
    return labelled(memory, Slot(tape.first + len(tape.scratch) - 1))


def between(nbytes: int) -> Any:
    """Bytes for what one kernel leaves to the next; a recording has them once for all that need as many."""
    tape = getattr(_tape, "tape", None)
    if tape is None:
        return scratch((nbytes,), np.uint8)
    if nbytes not in tape.again:
        tape.again[nbytes] = scratch((nbytes,), np.uint8)
    return tape.again[nbytes]


class _Crew:
    """The threads and their board."""

    def __init__(self) -> None:
        self._memory = np.zeros(BOARD // 8 + 16, np.int64)  # and a word for the errors of the caller
        self._board = self._memory.ctypes.data + 63 & ~63
        self._awake = self._memory[(self._board + AWAKE - self._memory.ctypes.data) // 8 :]
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # where there is no futex
        self._hands, self._numbers = Hands(self._work), list(range(MAX_SEGMENTS - 1, 0, -1))

    def run(self, address: int, arguments: int, count: int, step: int, helpers: int) -> bool:
        """A job by all threads; False, and nothing done, if another thread owns the board."""
        do = kernel("machine.board.doer").code.call
        self._ready(helpers)
        job = array("q", Job(
            self._board, address, arguments, count, step, helpers + 1, looks_in(SHORT), 0, *system(),
        ))  # fmt: skip
        # One call begins and ends the job: an interrupt in between would free memory that threads still use.
        do(job.buffer_info()[0], 0, 0)
        return bool(job[DONE_INDEX])

    def run_all(self, calls: int, count: int, helpers: int) -> None:
        """Kernels one after the other: ``count`` of them, whose words lie at an address."""
        run = kernel("machine.board.runner").code.call
        if helpers:
            self._ready(helpers)
        words = array("q", Program(self._board, calls, count, helpers + 1, looks_in(LONG), *system()))
        run(words.buffer_info()[0], 0, 0)

    def _ready(self, helpers: int) -> None:
        """Start helpers that there are not yet, and wake them where compiled code cannot."""
        if self._hands.lack(helpers):
            _ = kernel("machine.board.server").code  # here: compiling in the thread would delay its help
            self._hands.hire(helpers)
        if not system().futex:
            for _ in range(helpers - int(self._awake[0]) - self._bell.qsize()):
                self._bell.put(None)

    def _work(self) -> None:
        number = self._numbers.pop()
        try:
            serve = kernel("machine.board.server").code.call
            error_word = np.zeros(1, np.int64)
            arguments = array("q", Service(
                self._board, number, looks_in(SHORT), error_word.ctypes.data, *system(),
            ))  # fmt: skip
            at, _ = arguments.buffer_info()
            while True:
                if not system().futex:
                    self._bell.get()
                serve(at, 0, 0)
        finally:
            self._numbers.append(number)  # for whoever is hired instead


_crew = _Crew()


def _after_fork() -> None:
    """Threads do not survive a fork."""
    globals()["_crew"] = _Crew()


in_child(_after_fork)


def share_kernel(work: Any, arguments: tuple[int, ...], count: int, grain: int = 1) -> None:
    """Run a kernel, by name or Numba's, on ``range(count)``, in parts that are multiples of ``grain``."""
    if (tape := getattr(_tape, "tape", None)) is not None:
        tape.calls.append(Call(work, arguments, count, grain, len(tape.scratch)))
    words = array("q", arguments)  # its address takes a third of the time that NumPy's takes
    share_table(
        work.code if isinstance(work, Kernel) else Code(work, 0), words.buffer_info()[0], count, grain
    )


def share_table(code: Code, table: int, count: int, grain: int) -> None:
    """Run code on ``range(count)`` with arguments that lie at an address already."""
    parts = -(-count // grain)
    threads = min(num_threads(), parts, MAX_SEGMENTS) if parts > 1 else 1
    try:
        if threads > 1 and not inside_pool():
            step = math.ceil(count / (grain * PARTS * threads)) * grain
            if _crew.run(code.address or compiled(code.call), table, count, step, threads - 1):
                return
        if count:
            code.call(table, 0, count)
    except MemoryError as error:
        no_memory(error, count, threads)


def run_program(calls: int, count: int) -> None:
    """Run ``count`` kernels, whose words lie at an address as the runner of ``board.py`` takes them."""
    threads = 1 if inside_pool() else min(num_threads(), MAX_SEGMENTS)
    try:
        _crew.run_all(calls, count, threads - 1)
    except MemoryError as error:
        no_memory(error, count, threads)


def alone(work: Kernel, arguments: tuple[int, ...], count: int) -> None:
    """Run a kernel on ``range(count)`` in this thread."""
    words = array("q", arguments)
    try:
        if count:
            work.code.call(words.buffer_info()[0], 0, count)
    except MemoryError as error:
        no_memory(error, count, 1)
