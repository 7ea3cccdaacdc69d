"""``ggmlq report``: a whole model on one page."""

from __future__ import annotations

from ._options import Commands, add_force, declare

SUMMARY = "write an HTML page: types, errors, histograms, damage"
ABOUT = """\
Examine every tensor of a model and write one HTML page: main facts, types and bits by layer, the error of
each tensor, histograms of values, scales and codes, rows of zeros, outliers, damaged blocks. The page is a
single file that loads nothing; its tables sort, it prints, and it can be read without scripts. With the
original (--against) errors are measured, otherwise they are estimated from the scales. Exit 0: nothing is
wrong, 1: something is wrong.
"""
EXAMPLES = """\
  ggmlq report model-q4_K.gguf                         writes model-q4_K.report.html
  ggmlq report model-q4_K.gguf --against model-f16.gguf -o errors.html
  ggmlq report model-q4_K.gguf --json > facts.json
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq report`` with its options and examples."""
    parser = declare(commands, "report", "models", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("file", metavar="MODEL", help="a .gguf file, any part of a split model")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the page (default: the name of MODEL, as MODEL.report.html)"
    )
    add_force(parser, "FILE")
    parser.add_argument("--against", metavar="ORIGINAL", help="the same model in floats, such as f16")
    parser.add_argument(
        "--json", action="store_true", help="print the facts as JSON; write a page only with -o"
    )
