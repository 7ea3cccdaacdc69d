"""Options that choose who works: this process, processes beside it, dask's workers, MPI's ranks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from ._options import count, flag

if TYPE_CHECKING:
    from concurrent.futures import Executor

Body: TypeAlias = "Callable[[argparse.Namespace, Executor | None], int]"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of engines."""
    group = parser.add_argument_group(
        "workers", "The result is the same with all of them. All must see the files under the same path."
    ).add_mutually_exclusive_group()
    group.add_argument(
        "--workers", type=count, metavar="N", help="use N processes, which divide the cores among them"
    )
    group.add_argument("--dask", metavar="ADDRESS", help="use the workers of a dask scheduler (extra dask)")
    flag(group, "--mpi", "use the other MPI ranks: mpiexec -n 9 ggmlq … --mpi (extra mpi)")


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
    from ..tasks import pools

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
