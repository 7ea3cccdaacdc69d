"""Options of who does the work: this process, processes beside it, dask's workers, MPI's ranks."""

from __future__ import annotations

import argparse

from ._options import count


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of engines."""
    group = parser.add_argument_group(
        "workers", "Who does the work; the result is the same. All must see the files under one path."
    ).add_mutually_exclusive_group()
    group.add_argument(
        "--workers", type=count, metavar="N", help="N processes beside this one; they share the cores"
    )
    group.add_argument("--dask", metavar="ADDRESS", help="the workers of a dask scheduler (extra dask)")
    group.add_argument(
        "--mpi", action="store_true",
        help="the other ranks: mpiexec -n 9 ggmlq … --mpi (extra mpi)",
    )  # fmt: skip
