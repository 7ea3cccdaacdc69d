"""``ggmlq tune``: times kernels on this machine, for ``auto`` to choose by."""

from __future__ import annotations

import argparse

from ._options import Commands, add_json, count, declare, shape

SUMMARY = "time kernels on this machine, so that the fastest is taken"
ABOUT = """\
Time the kernels that products of blocks could take on this machine, for formats, shapes and numbers of rows
of activations, or for the tensors of a model. Times are remembered beside compiled code, and products that
name no kernel take the fastest from then on. Ctrl-C keeps what was timed.

Products on a CPU or card that ggmlq has no table of do this by themselves when they are first used, with two
kernels; this command does it ahead, with all that could be fast. --out writes a file, which GGMLQ_TUNE=FILE
reads on any machine of the same kind. --share prints all that is remembered as such a file, to be sent to
others: it has the CPU's or card's name and times, nothing else of the machine.
"""
EXAMPLES = """\
  ggmlq tune
  ggmlq tune model.gguf --rows 1 64
  ggmlq tune --formats q4_K q6_K --shapes 4096x14336 14336x4096 --out tuned.json
  ggmlq tune --device cuda --json
  ggmlq tune --share > my_cpu.json
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq tune`` with its options and examples."""
    parser = declare(commands, "tune", "kernels", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("file", nargs="?", metavar="MODEL", help="a .gguf file: its formats and shapes")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:1")
    parser.add_argument("--formats", nargs="+", metavar="FORMAT", help="formats (q4_0 q8_0 q4_K q6_K)")
    parser.add_argument("--shapes", nargs="+", type=_matrix, metavar="NxK", help="weights (4096x4096)")
    parser.add_argument(
        "--rows", nargs="+", type=count, metavar="M",
        help="rows of activations, up to a power of two each (1 2 4 8 16 32 64 512)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="write the times to a file for GGMLQ_TUNE")
    parser.add_argument("--share", action="store_true", help="print all remembered times as such a file")
    add_json(parser)


def _matrix(text: str) -> tuple[int, ...]:
    lengths = shape(text)
    if len(lengths) != 2 or not all(0 < n < 1 << 31 for n in lengths):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape of weights; write NxK, such as 4096x14336")
    return lengths
