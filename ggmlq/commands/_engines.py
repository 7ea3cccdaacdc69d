"""Options that choose who works: this process, processes beside it, dask's workers, MPI's ranks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from ..tasks import pools

Body = Callable[[argparse.Namespace, Executor | None], int]


class _Served(Exception):
    """Raised in a rank that was a worker: its command is over."""


def run(body: Body, args: argparse.Namespace) -> int:
    """Run a command with the executor of its options; ranks of MPI other than the first print nothing."""
    try:
        with _executor(args) as executor:
            return body(args, executor)
    except _Served:
        return 0


@contextmanager
def _executor(args: argparse.Namespace) -> Iterator[Executor | None]:
    """The executor of the options; None for this process alone."""
    if args.workers is not None:
        with pools.processes(args.workers) as pool:
            yield pool
    elif args.dask is not None:
        with pools.dask(args.dask) as cluster:
            yield cluster
    elif args.mpi:
        with pools.mpi() as ranks:
            if ranks is not None:
                yield ranks
        if ranks is None:
            raise _Served
    else:
        yield None
