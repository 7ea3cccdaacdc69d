"""The board, the memory by which threads share a job: places of its words, and tables of its kernels."""

from __future__ import annotations

from typing import NamedTuple

# Words of the board, by their bytes; those that threads write lie in cache lines of their own.
KERNEL, ARGUMENTS, COUNT, STEP, OWNED, STATUS, PROBLEM = 0, 8, 16, 24, 32, 40, 48
NEXT, DONE, AWAKE = 64, 128, 192
BOARD = 256
# NEXT holds three numbers: the job's, how many parts it has, and which is next. They are one word
# because a thread must see all three change in one step: had it the next part of one job and the
# number of parts of another, it would do a part that does not exist, or one twice.
JOB, PARTS_AT, MASK = 32, 16, (1 << 16) - 1

OFTEN = 1 << 15  # looks at a word that has not changed, some 30 µs, before a core is left to others


class Job(NamedTuple):
    """Arguments of ``doer``: a job, which the calling thread writes on the board and works on itself."""

    board: int
    kernel: int  # address of compiled code
    arguments: int  # its table
    whole: int
    step: int  # of a part
    done: int  # becomes 1, or stays 0 where another thread owns the board
    step_aside: int  # address of the function that leaves the core to other threads, or 0


class Service(NamedTuple):
    """Arguments of ``server``, which takes parts of jobs in a helping thread."""

    board: int
    patience: int  # looks at the board before it sleeps
    problem: int  # address of a word of this thread
    step_aside: int
