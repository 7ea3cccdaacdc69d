"""``ggmlq survey``: what values are like and what types would cost, for models of any size."""

from __future__ import annotations

import argparse
from concurrent.futures import Executor
from fnmatch import fnmatchcase

from ..convert.sample import ELEMENTS
from ..surveys import survey
from ..threads import set_num_threads
from . import _engines, _plain, _sizes
from ._files import expanded

ABOUT = """\
Read all values of models and try types on them: range, zeros, NaN, the largest value in units of the root
mean square, and the NMSE of each tensor in each type. With an importance matrix errors count by it, which
tells how much of the power of its outputs a tensor loses. Tensors are read in parts, by workers where there
are some. Exit 0 where all values are numbers, 1 where some are not."""
EXAMPLES = """\
examples:
  ggmlq survey model-f16.gguf
  ggmlq survey DeepSeek-V3/ --types q4_K,q6_K --workers 32 --json > survey.json
  ggmlq survey model-f16.gguf --imatrix imatrix.gguf --sort error
  ggmlq survey *.gguf --no-types --dask tcp://10.0.0.1:8786
  mpiexec -n 65 ggmlq survey DeepSeek-V3/ --mpi
"""
SORTS = {
    "error": lambda one: -max(one.told.values(), default=-1.0),
    "peak": lambda one: -((one.values.peak if one.values else None) or -1.0),
    "name": lambda one: one.name,
    "size": lambda one: -one.nbytes,
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "survey",
        help="values of all tensors, and their errors in each type; by any number of workers",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file", nargs="+", help=".gguf files, safetensors (a file, an index, a folder), or patterns"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--types", metavar="LIST", help="types to try: q4_K,q6_K (default: q8_0 to q2_K)")
    which.add_argument("--no-types", action="store_true", help="try none, only look at values")
    parser.add_argument("--imatrix", metavar="FILE", help="importance matrix, .gguf or .dat")
    parser.add_argument(
        "--sample", type=_sizes.count, metavar="N", default=ELEMENTS,
        help=f"weights of a large tensor that are encoded in each type ({ELEMENTS})",
    )  # fmt: skip
    parser.add_argument(
        "--filter", action="append", default=[], metavar="GLOB",
        help="only tensors whose whole name fits; may be given again",
    )  # fmt: skip
    parser.add_argument("--sort", choices=[*SORTS], help="of the tensors; as they lie in files if not given")
    parser.add_argument(
        "--threads", type=_sizes.count, metavar="N",
        help="threads, of each worker; all cores if not given",
    )  # fmt: skip
    _engines.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    return _engines.run(_run, args)


def _run(args: argparse.Namespace, executor: Executor | None) -> int:
    if args.threads is not None:
        set_num_threads(args.threads)
    types = [] if args.no_types else args.types.split(",") if args.types else None
    found = survey(
        expanded(args.file), types=types, imatrix=args.imatrix, elements=args.sample, executor=executor,
        filter=lambda name: any(fnmatchcase(name, glob) for glob in args.filter) or not args.filter,
    )  # fmt: skip
    if args.sort:
        found.tensors.sort(key=SORTS[args.sort])
    if args.json:
        _plain.print_json(found.facts())
    else:
        print(found)
    return 0 if found.ok else 1
