"""``ggmlq survey``: statistics of values and errors of types, for models of any size."""

from __future__ import annotations

import argparse
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from . import _plain
from ._files import expanded
from ._options import Commands, add_workers, count, declare, flag, shared, with_workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

SUMMARY = "show statistics of all tensors, and their errors in types"
ABOUT = """\
Read all values of models and try types on them: range, zeros, NaN, the largest value in units of the root
mean square, and the NMSE of each tensor in each type. With an importance matrix errors are weighted by it,
which estimates the share of the power of its outputs that a tensor loses. Tensors are read in parts, by
workers if there are some. Exit 0: all values are finite, 1: some are NaN or infinite.
"""
EXAMPLES = """\
  ggmlq survey model-f16.gguf
  ggmlq survey DeepSeek-V3/ --types q4_K,q6_K --workers 32 --json > survey.json
  ggmlq survey model-f16.gguf --imatrix imatrix.gguf --sort error
  ggmlq survey *.gguf --no-types --dask tcp://10.0.0.1:8786
  mpiexec -n 65 ggmlq survey DeepSeek-V3/ --mpi
"""
SORTS = {
    "error": lambda one: -max(one.shown_errors.values(), default=-1.0),
    "peak": lambda one: -((one.values.peak if one.values else None) or -1.0),
    "name": lambda one: one.name,
    "size": lambda one: -one.nbytes,
}


def add(commands: Commands) -> None:
    parser = declare(commands, "survey", "models", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument(
        "file", nargs="+", help=".gguf files, safetensors (a file, an index, a folder), or patterns"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--types", metavar="LIST", help="types to try: q4_K,q6_K (default: q8_0 to q2_K)")
    flag(which, "--no-types", "try no types, only read values")
    shared(parser, "--imatrix")
    parser.add_argument(
        "--sample", type=count, metavar="N",
        help="weights of a large tensor that are encoded in each type (131072)",
    )  # fmt: skip
    parser.add_argument(
        "--filter", action="append", default=[], metavar="GLOB",
        help="only tensors whose whole name fits; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--sort",
        choices=("error", "peak", "name", "size"),
        help="order of the tensors (default: that of the files)",
    )
    parser.add_argument(
        "--threads", type=count, metavar="N",
        help="number of threads, of each worker (default: all cores)",
    )  # fmt: skip
    add_workers(parser)
    shared(parser, "--all-tensors", "--json")


@with_workers
def run(args: argparse.Namespace, executor: Executor | None) -> int:
    from ..base.threads import set_num_threads
    from ..convert.measure import ELEMENTS
    from ..report.survey import survey

    if args.threads is not None:
        set_num_threads(args.threads)
    types = [] if args.no_types else args.types.split(",") if args.types else None
    report = survey(
        expanded(args.file), types=types, imatrix=args.imatrix, elements=args.sample or ELEMENTS,
        executor=executor,
        filter=lambda name: any(fnmatchcase(name, glob) for glob in args.filter) or not args.filter,
    )  # fmt: skip
    if args.sort:
        report.tensors.sort(key=SORTS[args.sort])
    if args.json:
        _plain.print_json(report.facts())
    else:
        print(report.text(args.all_tensors))
    return 0 if report.ok else 1
