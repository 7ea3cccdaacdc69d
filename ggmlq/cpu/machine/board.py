"""The compiled part of ``workers.py``: threads take parts of a job from the board, one atomic step each."""

from __future__ import annotations

from functools import cache
from typing import Any

from .jit import inner, jit
from .job import (
    ARGUMENTS,
    AWAKE,
    BOARD,
    COUNT,
    DONE,
    JOB,
    KERNEL,
    MASK,
    NEXT,
    OFTEN,
    OWNED,
    PARTS_AT,
    PROBLEM,
    STATUS,
    STEP,
    Job,
    Service,
)  # fmt: skip
from .memory import (
    atomic_add,
    atomic_load,
    atomic_store,
    call_kernel,
    call_plainly,
    compare_and_swap,
    fail,
    failed,
    reader,
)  # fmt: skip

job, service = reader(Job), reader(Service)
DONE_AT = 8 * Job._fields.index("done")


@inner
def _take(board: int, problem: int) -> bool:
    """Do the next part of the job on the board, if there is one left; ``problem``: a word of this thread."""
    now = atomic_load(board + NEXT)
    part = now & MASK
    if part >= now >> PARTS_AT & MASK:
        return False
    kernel, arguments = atomic_load(board + KERNEL), atomic_load(board + ARGUMENTS)
    count, step = atomic_load(board + COUNT), atomic_load(board + STEP)
    # If this succeeds the job is still unfinished, so the words above belong to it.
    if compare_and_swap(board + NEXT, now, now + 1):
        if not atomic_load(board + STATUS):
            status = call_kernel(kernel, arguments, part * step, min((part + 1) * step, count), problem)
            if failed(status) and compare_and_swap(board + STATUS, 0, status):
                atomic_store(board + PROBLEM, atomic_load(problem))
        atomic_add(board + DONE, 1)
    return True


@inner
def _wait(looks: int, step_aside: int) -> None:
    """Pause between two looks; now and then leave the core to a thread that may be the one waited for."""
    if looks % OFTEN == OFTEN - 1 and step_aside:
        call_plainly(step_aside)


@cache
def server() -> Any:
    """Compiled: take parts of jobs until none has come for a while; the kernel's range does not matter."""

    def serve(arguments: int, first: int, stop: int) -> None:
        fields = service(arguments)
        atomic_add(fields.board + AWAKE, 1)
        idle = 0
        while idle < fields.patience:
            idle = 0 if _take(fields.board, fields.problem) else idle + 1
            _wait(idle, fields.step_aside)
        atomic_add(fields.board + AWAKE, -1)

    return jit(serve)


@cache
def doer() -> Any:
    """Compiled: write a job on the board, and work on it until all threads have done all of it.

    It does nothing if another thread owns the board.
    """

    def do(arguments: int, first: int, stop: int) -> None:
        fields = job(arguments)
        board = fields.board
        if not compare_and_swap(board + OWNED, 0, 1):
            return
        parts = (fields.whole + fields.step - 1) // fields.step
        atomic_store(board + KERNEL, fields.kernel)
        atomic_store(board + ARGUMENTS, fields.arguments)
        atomic_store(board + COUNT, fields.whole)
        atomic_store(board + STEP, fields.step)
        atomic_store(board + DONE, 0)
        atomic_store(board + STATUS, 0)
        number = (atomic_load(board + NEXT) >> JOB) + 1 & 0x3FFFFFFF
        atomic_store(board + NEXT, number << JOB | parts << PARTS_AT)
        while _take(board, board + BOARD):
            pass
        looks = 0
        while atomic_load(board + DONE) < parts:
            looks += 1
            _wait(looks, fields.step_aside)
        status, problem = atomic_load(board + STATUS), atomic_load(board + PROBLEM)
        atomic_store(board + OWNED, 0)
        atomic_store(arguments + DONE_AT, 1)
        fail(status, problem)
        if status < 0:  # of code that calls Python, which no kernel here does
            raise SystemError("a kernel failed without an exception of compiled code")

    return jit(do)
