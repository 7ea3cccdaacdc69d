"""``ggmlq survey``: statistics of values and errors of types, for models of any size."""

from __future__ import annotations

from . import _engines
from ._options import Commands, add_all_tensors, add_json, count, declare

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


def add(commands: Commands) -> None:
    """Declare ``ggmlq survey`` with its options and examples."""
    parser = declare(commands, "survey", "models", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument(
        "file", nargs="+", help=".gguf files, safetensors (a file, an index, a folder), or patterns"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--types", metavar="LIST", help="types to try: q4_K,q6_K (default: q8_0 to q2_K)")
    which.add_argument("--no-types", action="store_true", help="try no types, only read values")
    parser.add_argument("--imatrix", metavar="FILE", help="importance matrix, .gguf or .dat")
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
    _engines.add_options(parser)
    add_all_tensors(parser)
    add_json(parser)
