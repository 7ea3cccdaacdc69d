"""``ggmlq info``: the contents of model files."""

from __future__ import annotations

import argparse

from ._options import Commands, declare

SUMMARY = "show architecture, sizes, tensors and metadata of models"
ABOUT = """\
Show the contents of GGUF files and of safetensors, the summary last. Any part of a split model opens the
whole. Exit 1: tensors are missing, as in a partial download.
"""
EXAMPLES = """\
  ggmlq info model.gguf                          tensors of equal layers in one line
  ggmlq info model.gguf --tensors --sort size    each tensor, the largest first
  ggmlq info model.gguf --filter 'blk.0.*' --filter '*rope*'
  ggmlq info *.gguf
  ggmlq info checkpoint/                         safetensors: a file, an index, a folder
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq info`` with its options and examples."""
    parser = declare(commands, "info", "files", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument(
        "file", nargs="+",
        help=".gguf files, safetensors (a file, an index, a folder), or patterns such as 'models/*.gguf'",
    )  # fmt: skip
    parser.add_argument(
        "--tensors", action="store_true", help="print only the table of tensors, one per line"
    )
    parser.add_argument("--metadata", action="store_true", help="print only the metadata")
    parser.add_argument(
        "--filter", action="append", default=[], metavar="GLOB",
        help="only tensors and keys whose whole name fits; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--sort",
        choices=("name", "type", "size", "parameters"),
        help="order of the tensors (default: that of the file)",
    )
    parser.add_argument(
        "--fold", action=argparse.BooleanOptionalAction, default=None,
        help="tensors of equal layers in one line (default: yes, but not with --tensors)",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="print JSON: an object, or a list for several files"
    )
