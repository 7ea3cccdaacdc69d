"""What is asked of an executor beside ``submit``: how many it has, whether it broke, another one like it."""

from __future__ import annotations

import sys
from concurrent.futures import BrokenExecutor, CancelledError, Executor
from typing import Any

from ..base.cores import available
from ..base.text import short
from ..base.threads import requested_threads
from ..errors import DTypeError

WINDOW = 1024  # tasks handed out before their results are back: hundreds of workers stay busy


def check(executor: object) -> None:
    """It can be given work."""
    if not callable(getattr(executor, "submit", None)):
        raise DTypeError(
            f"executor={short(executor)}: it is no concurrent.futures.Executor, which has submit(); pass "
            "ProcessPoolExecutor(8), client.get_executor() of dask, MPIPoolExecutor(), or None"
        )


def threads_of(executor: Executor) -> int | None:
    """Threads for each task, so that all together use the cores once; None: as many as there are.

    What ``set_num_threads`` was told is taken for each worker. Where workers are elsewhere, one each is what
    dask and MPI are set up for.
    """
    if _of(executor, "thread", "ThreadPoolExecutor"):
        return None  # they share the one pool of this process
    told = requested_threads()
    if told is not None:
        return told
    workers = at_once(executor)
    return max(1, available() // workers) if is_pool(executor) and workers else 1


def is_pool(executor: object) -> bool:
    """Whether it is a pool of processes of this machine."""
    return _of(executor, "process", "ProcessPoolExecutor")


def _of(executor: object, module: str, name: str) -> bool:
    """Without importing what nobody has made one of."""
    found = sys.modules.get(f"concurrent.futures.{module}")
    return found is not None and isinstance(executor, getattr(found, name))


def at_once(executor: Executor) -> int | None:
    """How many tasks a pool of this machine runs at a time, if it says."""
    found = getattr(executor, "_max_workers", None)
    return found if isinstance(found, int) and found > 0 else None


def is_lost(error: BaseException) -> bool:
    """Whether a task ended with its worker and not by itself."""
    of_dask = type(error).__module__.split(".")[0] == "distributed"  # KilledWorker, closed connections
    return of_dask or isinstance(error, BrokenExecutor | CancelledError)


def renewed(executor: Executor) -> Executor | None:
    """A pool like one that broke; None for a kind that cannot be made again from here."""
    if not is_pool(executor):
        return None
    from concurrent.futures import ProcessPoolExecutor  # is there by now

    said: dict[str, Any] = vars(executor)
    kind: Any = type(executor) if is_ours(executor) else ProcessPoolExecutor
    return kind(  # type: ignore[no-any-return]
        said.get("_max_workers"), said.get("_mp_context"), said.get("_initializer"),
        said.get("_initargs", ()), max_tasks_per_child=said.get("_max_tasks_per_child"),
    )  # fmt: skip


def is_ours(executor: Executor) -> bool:
    """Whether it was made for one command, which ends it."""
    return getattr(executor, "of_a_command", False)


def kill(executor: Executor) -> None:
    """End a pool of our own at once: what its processes still do, nobody waits for."""
    processes = list((getattr(executor, "_processes", None) or {}).values())
    executor.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()
