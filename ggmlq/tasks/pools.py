"""The executors behind ``--workers``, ``--dask`` and ``--mpi``: made for one command, gone with it."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from ..base import missing
from ..base.system import interrupts_blocked
from ..errors import MissingDependencyError, WorkerError
from .engine import kill

PATIENCE = 30  # seconds that dask's scheduler may take to answer


@contextmanager
def processes(count: int) -> Iterator[Executor]:
    """A pool of processes of this machine. They end with this process, however it ends."""
    import multiprocessing  # here: commands that need no workers start sooner
    from concurrent.futures import ProcessPoolExecutor

    class Pool(ProcessPoolExecutor):
        is_commands = True

        def submit(self, work: Any, /, *args: Any, **how: Any) -> Any:
            with interrupts_blocked():  # a process that is started here inherits that: Ctrl-C is not for it
                return super().submit(work, *args, **how)

    pool = Pool(count, multiprocessing.get_context("spawn"), initializer=_begin)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        kill(pool)
        raise


def _begin() -> None:
    """Begin a worker: it ignores Ctrl-C, and ends when the process that started it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def dask(address: str) -> Iterator[Executor]:
    """The workers of a scheduler of dask, such as ``tcp://10.0.0.1:8786``, or a file that names it."""
    distributed = _imported("distributed", "dask", "dask's workers")
    try:
        where = {"scheduler_file": address} if os.path.isfile(address) else {"address": address}
        client = distributed.Client(**where, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        raise WorkerError(
            f"--dask {address}: no scheduler answers there: {error}; start one with `dask scheduler`, "
            "workers with `dask worker ADDRESS`, and write the address that it prints"
        ) from error
    with client:
        executor = client.get_executor()
        try:
            yield executor
        finally:
            executor.shutdown(wait=False)  # which cancels what is left


@contextmanager
def mpi() -> Iterator[Executor | None]:
    """An executor on the other ranks of this run of MPI; those ranks get None when their work is over.

    Each rank runs the same command; the first hands out tasks, the others do them until it is done.
    """
    futures: Any = _imported("mpi4py.futures", "mpi", "MPI's ranks")
    shared = sys.modules.get("mpi4py.futures._core")
    if getattr(shared, "SharedPool", None) is not None:  # python -m mpi4py.futures: others serve already
        with futures.MPIPoolExecutor() as executor:
            yield executor
        return
    world = importlib.import_module("mpi4py.MPI").COMM_WORLD
    if world.size < 2:
        raise WorkerError(
            "--mpi: this is the only rank; the first hands out work and the others do it; start the "
            "command with mpiexec -n 9 ggmlq …"
        )
    with futures.MPICommExecutor(world, root=0) as executor:
        yield executor


def _imported(module: str, extra: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # mpi4py without a library of MPI
        raise MissingDependencyError(
            f"--{extra}: {what} need {module.partition('.')[0]}, and it cannot be imported: {error}; "
            f"{missing.install(extra)}"
        ) from error
