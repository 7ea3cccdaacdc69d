"""Run tasks on an executor until all are done; the tasks of a worker that died are done again.

A process that dies ends its whole pool, and the pool does not say which task it ran: one of the first that
were not done yet. These are tried again in a new pool. A task that was among them twice is then tried alone,
so that a third loss is its own: the error names an input that kills each worker, and not the tasks that only
ran beside it. dask and others name the task themselves, and start workers anew.

A task may run twice, even while a worker that was given up still lives: so a task must give the same result
each time, and write the same bytes to its ranges of files.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from queue import SimpleQueue
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from ..base.progress import quiet
from ..base.text import count, short
from ..base.threads import at_most, available, requested_threads
from ..errors import DTypeError, GGMLQError, HostMemoryError, WorkerError

# --- facts about an executor: its workers, whether it broke, another one like it -------------

WINDOW = 1024  # tasks handed out before their results are back: hundreds of workers stay busy


def check(executor: object) -> None:
    """Raise an error if this is no executor, that is if it has no ``submit``."""
    if not callable(getattr(executor, "submit", None)):
        raise DTypeError(
            f"executor={short(executor)}: it is no concurrent.futures.Executor, which has submit(); pass "
            "ProcessPoolExecutor(8), client.get_executor() of dask, MPIPoolExecutor(), or None"
        )


def threads_of(executor: Executor) -> int | None:
    """The threads of each task, so that all tasks together use the cores once; None: no limit.

    A number that ``set_num_threads`` has set holds for each worker. Workers of dask and MPI get one thread
    each, as these are usually set up.
    """
    if _of(executor, "thread", "ThreadPoolExecutor"):
        return None  # they share the one pool of this process
    threads = requested_threads()
    if threads is not None:
        return threads
    workers = at_once(executor)
    return max(1, available() // workers) if is_pool(executor) and workers else 1


def is_pool(executor: object) -> bool:
    """True for a pool of processes of this machine."""
    return _of(executor, "process", "ProcessPoolExecutor")


def _of(executor: object, module: str, name: str) -> bool:
    """True for an instance of a class of ``concurrent.futures``, which is not imported for that."""
    home = sys.modules.get(f"concurrent.futures.{module}")
    return home is not None and isinstance(executor, getattr(home, name))


def at_once(executor: Executor) -> int | None:
    """The number of tasks that a pool of this machine runs at a time, or None."""
    workers = getattr(executor, "_max_workers", None)
    return workers if isinstance(workers, int) and workers > 0 else None


def is_lost(error: BaseException) -> bool:
    """True for the error of a task whose worker ended."""
    is_dask = type(error).__module__.split(".")[0] == "distributed"  # KilledWorker, closed connections
    return is_dask or isinstance(error, BrokenExecutor | CancelledError)


def renewed(executor: Executor) -> Executor | None:
    """A pool like one that broke; None for a kind that cannot be made again from here."""
    if not is_pool(executor):
        return None
    from concurrent.futures import ProcessPoolExecutor  # is there by now

    facts: dict[str, Any] = vars(executor)
    kind: Any = type(executor) if is_ours(executor) else ProcessPoolExecutor
    return kind(  # type: ignore[no-any-return]
        facts.get("_max_workers"), facts.get("_mp_context"), facts.get("_initializer"),
        facts.get("_initargs", ()), max_tasks_per_child=facts.get("_max_tasks_per_child"),
    )  # fmt: skip


def is_ours(executor: Executor) -> bool:
    """True for a pool that belongs to one command, which ends it."""
    return getattr(executor, "is_commands", False)


def kill(executor: Executor) -> None:
    """End a pool of our own at once, and its processes in the middle of their tasks."""
    processes = list((getattr(executor, "_processes", None) or {}).values())
    results = getattr(executor, "_result_queue", None)
    executor.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()
    # A thread of the pool may have read half a message. It waits for the rest, and the end of this process
    # for the thread, until nobody can write: a pipe that this process holds open has no end.
    if (writer := getattr(results, "_writer", None)) is not None:
        writer.close()


# --- tasks run until all are done ------------------------------------------------------------

TRIES = 3  # of a task whose worker dies


class Task(Protocol):
    """The input of a worker; it is pickled."""

    @property
    def what(self) -> str:
        """The name of the task in an error: the tensor, and its part."""


Job = TypeVar("Job", bound=Task)
Result = TypeVar("Result")


def run(
    executor: Executor | None,
    tasks: Iterable[Job],
    work: Callable[[Job], Result],
    take: Callable[[Job, Result], object],
) -> None:
    """Run ``work(task)`` for each task on an executor, and pass task and result to ``take``, in any order.

    Without an executor tasks run one after the other in this process. ``work`` is a function of a module, so
    that it can be pickled. The first error of a task ends everything.
    """
    if executor is None:
        for task in tasks:
            take(task, work(task))
        return
    check(executor)
    _Run(executor, work, take).through(iter(tasks))


def _called(work: Callable[[Any], Result], task: Any, threads: int | None) -> Result:
    """Run the task in a worker."""
    with at_most(threads), quiet():
        return work(task)


class _Run(Generic[Job, Result]):
    def __init__(
        self, executor: Executor, work: Callable[[Job], Result], take: Callable[[Job, Result], object]
    ) -> None:
        self._executor, self._work, self._take = executor, work, take
        self._replacement: Executor | None = None  # made in place of one that broke
        self._threads = threads_of(executor)
        self._out: dict[Future[Result], Job] = {}  # in the order in which they went
        self._finished: SimpleQueue[Future[Result]] = SimpleQueue()
        self._again: deque[Job] = deque()
        self._alone: deque[Job] = deque()
        self._lost: dict[int, int] = {}  # how often, by identity: tasks are held until they are done

    def through(self, tasks: Iterator[Job]) -> None:
        try:
            while self._hand_out(tasks) or self._out:
                future = self._finished.get() if self._out else None
                if future in self._out:
                    self._settle(future)
        finally:
            if self._replacement is not None:
                kill(self._replacement)
            elif not is_ours(self._executor):  # killed next, and a cancelled future upsets that
                for future in self._out:
                    future.cancel()

    def _hand_out(self, tasks: Iterator[Job]) -> bool:
        """Fill the window; whether there is anything to wait for or to try."""
        if self._alone:
            if not self._out:
                self._submit(self._alone.popleft())
            return True
        while len(self._out) < WINDOW and not self._alone:
            task = self._again.popleft() if self._again else next(tasks, None)
            if task is None:
                return bool(self._out)
            self._submit(task)
        return True

    def _submit(self, task: Job) -> None:
        try:
            future = self._executor.submit(_called, self._work, task, self._threads)
        except BrokenExecutor as error:
            self._again.appendleft(task)
            self._broke(error)
        except RuntimeError as error:  # shut down
            raise WorkerError(
                f"{task.what}: the executor takes no work: {error}; it was shut down, or its `with` is "
                "over; pass one that is open"
            ) from error
        else:
            self._out[future] = task
            future.add_done_callback(self._finished.put)

    def _settle(self, future: Future[Result]) -> None:
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            task = self._out.pop(future)
            self._lost.pop(id(task), None)
            self._take(task, future.result())
        elif isinstance(error, BrokenExecutor):
            self._broke(error)
        elif is_lost(error):  # of dask's, which has tried it on several workers: alone, then
            task = self._out.pop(future)
            self._lost.setdefault(id(task), TRIES - 2)
            self._count(task, error)
        elif isinstance(error, MemoryError) and not isinstance(error, GGMLQError):
            raise HostMemoryError(
                f"{self._out[future].what}: its worker found no memory: {error or 'no figure is known'}; "
                "take fewer workers, or give each more"
            ) from error
        else:
            raise error

    def _broke(self, error: BaseException) -> None:
        """Replace a pool that broke, and try the tasks that it had not done again."""
        for future in [future for future in self._out if _succeeded(future)]:
            self._take(self._out.pop(future), future.result())
        out, self._out = list(self._out.values()), {}
        if not out and self._again:  # it took nothing: the one that it refused has to count
            out = [self._again.popleft()]
        broken, self._executor = self._executor, self._another(error, out)
        if broken is self._replacement:
            kill(broken)
        self._replacement = self._executor
        suspects = (at_once(self._executor) or len(out)) + 1  # one more may have been on its way
        self._again.extendleft(reversed(out[suspects:]))
        for task in reversed(out[:suspects]):
            self._count(task, error)

    def _another(self, error: BaseException, out: list[Job]) -> Executor:
        executor = renewed(self._executor)
        if executor is None:
            first = out[0].what if out else "the next task"
            raise WorkerError(
                f"{first}: the executor broke ({error or type(error).__name__}), with "
                f"{count(len(out), 'task')} not done; only pools of processes are made anew from here; "
                "start it again and repeat the call"
            ) from error
        return executor

    def _count(self, task: Job, error: BaseException) -> None:
        """One more loss of a task."""
        lost = self._lost[id(task)] = self._lost.get(id(task), 0) + 1
        if lost >= TRIES:
            self._give_up(task, error)
        (self._alone if lost == TRIES - 1 else self._again).appendleft(task)

    def _give_up(self, task: Job, error: BaseException) -> NoReturn:
        raise WorkerError(
            f"{task.what}: its worker died {TRIES} times ({error or type(error).__name__}), the last time "
            "with nothing else to do; too little memory is the usual reason; take fewer workers, or look "
            "with `ggmlq validate` whether the file is damaged"
        ) from error


def _succeeded(future: Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
