"""The board, the memory by which threads share jobs: places of its words, and tables of its kernels.

    NUMBER          of the job; odd while its words are written, so a thread that reads them knows that they
                    belong together
    KERNEL … SEGMENTS   the job: code, table, range, range of a part, threads that may take part
    DONE            parts that are done; the job is over when all are
    AWAKE, BELL     helpers that look at the board, and the word on which the others sleep
    LINES           a cache line of each thread: the job's number, and how many of the thread's own parts are
                    taken

A thread takes its own parts first: of a step that comes again these are the same each time, so its caches
have their weights. Then it takes what others have not begun, so a job never waits for a thread to wake.
"""

from __future__ import annotations

from typing import NamedTuple

# Words of the board, by their bytes; those that threads write lie in cache lines of their own.
KERNEL, ARGUMENTS, COUNT, STEP, SEGMENTS, STATUS, PROBLEM = 0, 8, 16, 24, 32, 40, 48
NUMBER, PATIENCE = 64, 72
OWNED, DONE, AWAKE, BELL, LINES = 128, 192, 256, 320, 384
LINE, MAX_SEGMENTS = 64, 512
BOARD = LINES + LINE * MAX_SEGMENTS
TAKEN = (1 << 16) - 1  # of a thread's line: how many of its parts are taken; above it, the job's number
NUMBER_AT = 16

OFTEN = 1 << 10  # pauses, some 40 µs, before a core is left to others


class System(NamedTuple):
    """Addresses of functions of the C library, 0 where the system has none."""

    step_aside: int  # sched_yield
    syscall: int
    futex: int  # the number of the call


class Job(NamedTuple):
    """Arguments of ``doer``: a job, which the calling thread writes on the board and works on itself."""

    board: int
    kernel: int  # address of compiled code
    arguments: int  # its table
    whole: int
    step: int  # of a part
    segments: int  # threads that may take part, the caller among them
    patience: int  # looks at the board, behind this job, before helpers sleep
    done: int  # becomes 1, or stays 0 where another thread owns the board
    step_aside: int  # as of ``System``
    syscall: int
    futex: int


class Program(NamedTuple):
    """Arguments of ``runner``: kernels one after the other, with the helpers awake from first to last."""

    board: int
    calls: int  # address of int64 [kernels, 4]: code, its table, its range, and the grain of its parts
    kernels: int
    segments: int
    patience: int
    step_aside: int
    syscall: int
    futex: int


class Service(NamedTuple):
    """Arguments of ``server``, which takes parts of jobs in a helping thread."""

    board: int
    number: int  # of the thread: the caller of a job is 0
    patience: int  # looks at the board before it sleeps for the first time
    problem: int  # address of a word of this thread
    step_aside: int
    syscall: int
    futex: int
