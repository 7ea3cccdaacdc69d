"""``ggmlq report``: a whole model on one page."""

from __future__ import annotations

from ._options import Commands, add_force, declare

SUMMARY = "a whole model as one HTML page: types, errors, histograms, damage"
ABOUT = """\
Look at every tensor of a model and write one HTML page: what the model is, types and bits by layer, the
error of each tensor, histograms of values, scales and codes, dead rows, outliers, damaged blocks. The page
is a single file that loads nothing from anywhere; it sorts, prints, and reads without a script. Errors are
measured where the original is at hand (--against), else estimated from the scales. Exit 0 where nothing is
wrong, 1 where something is.
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
    parser.add_argument("--against", metavar="ORIGINAL", help="the same model in f16 or the like")
    parser.add_argument(
        "--json", action="store_true", help="print the facts as JSON; a page is then written with -o only"
    )
