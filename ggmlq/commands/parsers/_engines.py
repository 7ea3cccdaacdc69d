"""Options for workers: this process, more processes, dask's workers, MPI's ranks."""

from __future__ import annotations

import argparse

from ._options import count


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of engines."""
    group = parser.add_argument_group(
        "workers", "The result is the same with all of them. All must see the files under the same path."
    ).add_mutually_exclusive_group()
    group.add_argument(
        "--workers", type=count, metavar="N", help="use N processes, which divide the cores among them"
    )
    group.add_argument("--dask", metavar="ADDRESS", help="use the workers of a dask scheduler (extra dask)")
    group.add_argument(
        "--mpi", action="store_true",
        help="use the other MPI ranks: mpiexec -n 9 ggmlq … --mpi (extra mpi)",
    )  # fmt: skip
