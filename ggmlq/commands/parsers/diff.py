"""``ggmlq diff``: what two models differ in."""

from __future__ import annotations

from . import _engines
from ._options import Commands, add_all_tensors, add_json, declare

SUMMARY = "compare two GGUF models, tensor by tensor and key by key"
ABOUT = """\
Compare B with A: missing tensors, tensors of another shape or type, NMSE, the largest error and the worst
block, and metadata. Exit 0: equal, 1: different, 2: could not compare.
"""
EXAMPLES = """\
  ggmlq diff a.gguf b.gguf
  ggmlq diff model-f16.gguf model-q8_0.gguf --tolerance 1e-4 --tensors --workers 8
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq diff`` with its options and examples."""
    parser = declare(commands, "diff", "files", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("a", metavar="A", help="a .gguf file, any part of a split model")
    parser.add_argument("b", metavar="B", help="another model; its errors are relative to the values of A")
    parser.add_argument(
        "--tolerance", type=float, default=0.0, metavar="NMSE",
        help="tensors of any types with at most this NMSE are equal (default: only equal bytes are equal)",
    )  # fmt: skip
    parser.add_argument("--tensors", action="store_true", help="compare only tensors; metadata may differ")
    _engines.add_options(parser)
    parser.add_argument("--html", metavar="FILE", help="also write the report as an HTML page")
    add_all_tensors(parser)
    add_json(parser)
