"""``ggmlq show``: one tensor, as statistics or as a block taken apart."""

from __future__ import annotations

import argparse
import re

from ._options import Commands, add_json, declare

SUMMARY = "show statistics of a tensor, or one block field by field"
ABOUT = """\
Show range, scales and codes of a tensor; with --block the fields, bits and values of one block.
"""
EXAMPLES = """\
  ggmlq show model.gguf blk.0.ffn_up.weight
  ggmlq show model.gguf blk.0.ffn_up.weight --block 0
  ggmlq show model.gguf blk.0.ffn_up.weight --rows 0:16 --plot
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq show`` with its options and examples."""
    parser = declare(commands, "show", "files", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("file", help="a .gguf file, or safetensors")
    parser.add_argument("tensor", help="name of the tensor, see `ggmlq info --tensors`")
    parser.add_argument("--block", type=int, metavar="I", help="block number I, counted over all rows")
    parser.add_argument("--rows", type=_rows, metavar="A:B", help="only rows A to B - 1, as in Python")
    parser.add_argument(
        "--plot", nargs="?", const="", metavar="FILE",
        help="draw histograms of values, scales and codes to FILE.svg or FILE.png; without FILE, print them",
    )  # fmt: skip
    add_json(parser)


def _rows(text: str) -> slice:
    ends = re.fullmatch(r"(\d*):(\d*)", text)
    if ends is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of rows; write 0:16, 100: or :8")
    return slice(*(int(end) if end else None for end in ends.groups()))
