"""Facts about an executor of tasks: its number of workers, whether it broke, another one like it."""

from __future__ import annotations

import sys
from concurrent.futures import BrokenExecutor, CancelledError, Executor
from typing import Any

from ..base.text import short
from ..base.threads import available, requested_threads
from ..errors import DTypeError

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
