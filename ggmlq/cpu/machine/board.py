"""The compiled part of ``workers.py``: threads take parts of jobs from the board, one atomic step each."""

from __future__ import annotations

from functools import cache
from typing import Any

from ...base.threads import PARTS
from .jit import inner, jit
from .job import (
    ARGUMENTS,
    AWAKE,
    BELL,
    BOARD,
    COUNT,
    DONE,
    KERNEL,
    LINE,
    LINES,
    NUMBER,
    NUMBER_AT,
    OFTEN,
    OWNED,
    PATIENCE,
    PROBLEM,
    SEGMENTS,
    STATUS,
    STEP,
    TAKEN,
    Job,
    Program,
    Service,
)  # fmt: skip
from .memory import (
    atomic_add,
    atomic_load,
    atomic_store,
    call_kernel,
    call_plainly,
    call_system,
    compare_and_swap,
    fail,
    failed,
    pause,
    reader,
    words_at,
)  # fmt: skip

job, program, service = reader(Job), reader(Program), reader(Service)
DONE_AT = 8 * Job._fields.index("done")
WAIT, WAKE, ALL = 128, 129, 1 << 20  # futex: operations of one process, and how many sleepers


@inner
def _take(board: int, me: int, problem: int) -> Any:
    """Do parts of the job on the board, first those of thread ``me``; ``problem``: a word of this thread.

    The result is the job's number, or -1 where it was just being written.
    """
    number = atomic_load(board + NUMBER)
    kernel, arguments = atomic_load(board + KERNEL), atomic_load(board + ARGUMENTS)
    count, step = atomic_load(board + COUNT), atomic_load(board + STEP)
    segments = atomic_load(board + SEGMENTS)
    if number & 1 or atomic_load(board + NUMBER) != number:
        return -1
    if me >= segments:
        return number
    parts = (count + step - 1) // step
    each = (parts + segments - 1) // segments
    for i in range(segments):
        segment = me + i if me + i < segments else me + i - segments
        line, first, did = board + LINES + LINE * segment, segment * each, 0
        last = min(each, parts - first)
        while True:
            now = atomic_load(line)
            taken = now & TAKEN if now >> NUMBER_AT == number else 0
            if taken >= last or now >> NUMBER_AT > number:
                break
            # If this succeeds the job is still unfinished, so the words above belong to it.
            if compare_and_swap(line, now, number << NUMBER_AT | taken + 1):
                if not atomic_load(board + STATUS):
                    start = (first + taken) * step
                    status = call_kernel(kernel, arguments, start, min(start + step, count), problem)
                    if failed(status) and compare_and_swap(board + STATUS, 0, status):
                        atomic_store(board + PROBLEM, atomic_load(problem))
                did += 1
        if did:
            atomic_add(board + DONE, did)
    return number


@inner
def _wait(looks: int, step_aside: int) -> None:
    """Pause between two looks; now and then leave the core to a thread that may be the one waited for."""
    pause()
    if looks % OFTEN == OFTEN - 1 and step_aside:
        call_plainly(step_aside)


@cache
def server() -> Any:
    """Compiled: take parts of jobs, and sleep between; without a futex it returns instead."""

    def serve(arguments: int, first: int, stop: int) -> None:
        fields = service(arguments)
        board, patience, seen = fields.board, fields.patience, 0
        atomic_add(board + AWAKE, 1)
        while True:
            idle = 0
            while idle < patience:
                number = atomic_load(board + NUMBER)
                if number == seen:
                    idle += 1
                    _wait(idle, fields.step_aside)
                else:
                    number = _take(board, fields.number, fields.problem)
                    if number >= 0:
                        seen, idle = number, 0
                        joins = fields.number < atomic_load(board + SEGMENTS)
                        patience = atomic_load(board + PATIENCE) if joins else 1
            bell = atomic_load(board + BELL)
            atomic_add(board + AWAKE, -1)
            if not fields.futex:
                return
            if atomic_load(board + NUMBER) == seen:  # else a job came that did not know that this one sleeps
                call_system(fields.syscall, fields.futex, board + BELL, WAIT, bell)
            atomic_add(board + AWAKE, 1)
            patience = fields.patience

    return jit(serve)


@inner
def _do(
    board: int, kernel: int, arguments: int, count: int, step: int, segments: int, patience: int,
    step_aside: int, syscall: int, futex: int,
) -> Any:  # fmt: skip
    """Write a job on the board, work on it until all of it is done; the result is its status."""
    parts, number = (count + step - 1) // step, atomic_load(board + NUMBER)
    atomic_store(board + NUMBER, number + 1)
    atomic_add(board + DONE, -atomic_load(board + DONE))  # a full fence: the words below come behind
    atomic_store(board + KERNEL, kernel)
    atomic_store(board + ARGUMENTS, arguments)
    atomic_store(board + COUNT, count)
    atomic_store(board + STEP, step)
    atomic_store(board + SEGMENTS, segments)
    atomic_store(board + PATIENCE, patience)
    atomic_store(board + STATUS, 0)
    atomic_add(board + NUMBER, 1)  # likewise: who sleeps from now on has seen the job, or is in AWAKE no more
    if futex and atomic_load(board + AWAKE) < segments - 1:
        atomic_add(board + BELL, 1)
        call_system(syscall, futex, board + BELL, WAKE, ALL)
    _take(board, 0, board + BOARD)
    looks = 0
    while atomic_load(board + DONE) < parts:
        looks += 1
        _wait(looks, step_aside)
    return atomic_load(board + STATUS)


@inner
def _tell(status: int, problem: int) -> None:
    """Raise what a kernel raised."""
    fail(status, problem)
    if status < 0:  # of code that calls Python, which no kernel here does
        raise SystemError("a kernel failed without an exception of compiled code")


@cache
def doer() -> Any:
    """Compiled: a job, done by all threads; nothing if another thread owns the board."""

    def do(arguments: int, first: int, stop: int) -> None:
        f = job(arguments)
        if not compare_and_swap(f.board + OWNED, 0, 1):
            return
        status = _do(
            f.board, f.kernel, f.arguments, f.whole, f.step, f.segments, f.patience,
            f.step_aside, f.syscall, f.futex,
        )  # fmt: skip
        problem = atomic_load(f.board + PROBLEM)
        atomic_store(f.board + OWNED, 0)
        atomic_store(arguments + DONE_AT, 1)
        _tell(status, problem)

    return jit(do)


@cache
def runner() -> Any:
    """Compiled: kernels one after the other, each by all threads; by this one where another owns the board.

    A kernel whose range is one part is done by the caller at once: the others go on looking.
    """

    def run(arguments: int, first: int, stop: int) -> None:
        f = program(arguments)
        own = f.segments > 1 and compare_and_swap(f.board + OWNED, 0, 1)
        segments, status = f.segments if own else 1, 0
        own_problem = words_at(f.calls + 32 * f.kernels, 1)  # behind the calls
        for i in range(f.kernels):
            call = words_at(f.calls + 32 * i, 4)
            kernel, table, count, grain = call[0], call[1], call[2], call[3]
            if segments == 1 or count <= grain:
                if count:
                    status = call_kernel(kernel, table, 0, count, own_problem.ctypes.data)
                    if not failed(status):
                        status = 0
                    elif own:
                        atomic_store(f.board + PROBLEM, own_problem[0])
            else:
                each = (count + grain * PARTS * segments - 1) // (grain * PARTS * segments) * grain
                status = _do(
                    f.board, kernel, table, count, each, segments, f.patience,
                    f.step_aside, f.syscall, f.futex,
                )  # fmt: skip
            if status:
                break
        problem = own_problem[0]
        if own:
            problem = atomic_load(f.board + PROBLEM)
            atomic_store(f.board + OWNED, 0)
        _tell(status, problem)

    return jit(run)


@cache
def pauser() -> Any:
    """Compiled: ``stop`` looks at a word that does not change, by which a look's time is known."""

    def look(arguments: int, first: int, stop: int) -> None:
        for i in range(first, stop):
            if atomic_load(arguments) == i + 1:
                return
            _wait(1, 0)

    return jit(look)
