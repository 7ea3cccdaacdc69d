"""``ggmlq imatrix``: make, merge and convert importance matrices, and show their statistics."""

from __future__ import annotations

from pathlib import Path

from ._options import Commands, add_force, add_json, count, declare

SUMMARY = "make, merge, convert and show importance matrices"
ABOUT = """\
Show the statistics of an importance matrix, or of the sum of several; --output writes the sum, as .gguf or as
the older .dat, and shows statistics with --show-statistics only. --model and --text make a matrix: your
libllama runs the text through the model. Files that are named in addition are added to it. The statistics
are those of llama-imatrix: of the mean squares of a tensor's columns.
"""
EXAMPLES = """\
  ggmlq imatrix --model model-f16.gguf --text calibration.txt --output imatrix.gguf
  ggmlq imatrix imatrix.gguf
  ggmlq imatrix a.gguf b.gguf old.dat --output all.gguf
  ggmlq imatrix imatrix.gguf --output imatrix.dat
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq imatrix`` with its options and examples."""
    parser = declare(commands, "imatrix", "models", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("files", nargs="*", metavar="FILE", help="importance matrices, .gguf or .dat")
    group = parser.add_argument_group("making a matrix")
    group.add_argument("--model", metavar="GGUF", help="the model that runs on the text")
    group.add_argument("--text", type=Path, metavar="FILE", help="the text, in UTF-8")
    group.add_argument("--lib", type=Path, help="libllama or a build folder (default: as doctor finds it)")
    group.add_argument("--chunks", type=count, metavar="N", help="at most N chunks of the text")
    group.add_argument("--process-output", action="store_true", help="also collect for output.weight")
    group.add_argument("--threads", type=count, default=0, metavar="N", help="threads of the library")
    parser.add_argument("--output", "-o", metavar="OUT", help="write the sum of all matrices")
    parser.add_argument(
        "--output-format", choices=("gguf", "dat"), help="kind of OUT, if its name does not show it"
    )
    parser.add_argument(
        "--chunk-size", type=count, metavar="N", help="tokens per chunk (512, or that of the first file)"
    )
    parser.add_argument(
        "--show-statistics",
        action="store_true",
        help="show statistics of each tensor, with --output, too",
    )
    add_force(parser)
    add_json(parser)
