"""``ggmlq check``: are the kernels of a library right?"""

from __future__ import annotations

import argparse
from pathlib import Path

from ._options import Commands, add_json, declare

SUMMARY = "judge the kernels of a libggml on seeded cases"
ABOUT = """\
Run a library's matrix products on seeded cases and judge each result: its arithmetic, its distance from that
arithmetic and from exact values, the elements beyond the bound of float32 sums, and the mistake. Exit 0: all
is right, 1: something is wrong, 2: something could not run.
"""
EXAMPLES = """\
  ggmlq check                                      the libggml that doctor finds, all types, their edges
  ggmlq check --lib ~/llama.cpp/build --types q4_0,q4_K --save bad
  ggmlq check --types q4_0 --shapes 1x4096x4096,512x4096x4096 --time 20
  ggmlq check --replay bad/q4_0-1.npz
  ggmlq check --invariance --types q4_0,q8_0       a row's bits alone, beside others, by other threads
  ggmlq check --ops all                            every other operation: norms, rope, attention, copies …
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq check`` with its options and examples."""
    parser = declare(commands, "check", "kernels", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument(
        "case", nargs="*", help="cases of test-backend-ops: 'MUL_MAT(type_a=q4_0,…)', MUL_MAT_ID"
    )
    parser.add_argument("--op", help=argparse.SUPPRESS)  # as test-backend-ops has it, to say what is taken
    parser.add_argument("--ops", metavar="NAMES", help="operations that are no products: ROPE,NORM, or all")
    parser.add_argument(
        "--invariance", action="store_true",
        help="do the bits of a row depend on rows beside it, its place, threads? of the library and of ggmlq",
    )  # fmt: skip
    parser.add_argument(
        "--test-file", type=Path, metavar="OUT", help="with --ops: write the cases for test-backend-ops"
    )
    parser.add_argument("--large", action="store_true", help="also more than 65535 rows, and 2^31 elements")
    parser.add_argument("--lib", type=Path, help="a library or build folder (default: as doctor finds it)")
    parser.add_argument("--device", default="CPU", help="one of the build's devices (default: CPU)")
    parser.add_argument(
        "--types", default="all", help="q4_0,q4_K (default: all types that the device supports)"
    )
    parser.add_argument("--shapes", help="M×N×K, as 1x4096x4096; with batches before it, as 3x9x64x512")
    parser.add_argument("--experts", metavar="E/U", help="products with experts, as 128/8, or edges")
    parser.add_argument("--spread", help="how tokens use experts: uniform, skewed, duplicate, few")
    parser.add_argument("--apart", action="store_true", help="with --experts: one row of x for each use")
    parser.add_argument(
        "--data", help="kinds of activations, or all: normal, uniform, zero, constant, huge, tiny, outliers"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the data (default: 0)")
    parser.add_argument(
        "--repack",
        action="store_true",
        help="use the device's first layout of weights beside the plain one",
    )
    parser.add_argument("--buffer", metavar="NAME", help="use only this weight layout: AMX, CPU_REPACK …")
    parser.add_argument(
        "--threads", type=int, help="threads of a CPU (default: up to 4; some cases 1, 2, all, 32)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs whose bits must agree (default: 3)")
    parser.add_argument("--time", type=int, default=0, metavar="RUNS", help="also time this number of runs")
    parser.add_argument(
        "--arithmetic", help="the arithmetic that the kernels claim (default: the one that fits)"
    )
    parser.add_argument("--timeout", type=float, help="seconds for one case (default: 60; with --ops: 20)")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write wrong cases to DIR as npz")
    parser.add_argument("--replay", type=Path, metavar="NPZ", action="append", default=[],
                        help="run a case that --save wrote")  # fmt: skip
    parser.add_argument("--html", metavar="FILE", help="also write the report as an HTML page")
    parser.add_argument("--verbose", action="store_true", help="print one line for each right case")
    add_json(parser)
