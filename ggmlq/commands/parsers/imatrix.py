"""``ggmlq imatrix``: importance matrices made, merged, converted, and what is in them."""

from __future__ import annotations

from pathlib import Path

from ._options import Commands, add_force, add_json, count, declare

SUMMARY = "statistics of importance matrices; merge and convert them"
ABOUT = """\
What is in an importance matrix, or in several added up; --output writes the sum, as .gguf or as the older
.dat. With --model and --text one is made: the text is run through the model in a libllama of yours, and
files that are named too are added to it. Statistics are those of llama-imatrix --show-statistics: of the
mean squares of a tensor's columns.
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
    parser.add_argument("files", nargs="*", metavar="FILE", help="what llama-imatrix wrote, .gguf or .dat")
    group = parser.add_argument_group("making one")
    group.add_argument("--model", metavar="GGUF", help="the model that the text is run through")
    group.add_argument("--text", type=Path, metavar="FILE", help="the text, in UTF-8")
    group.add_argument("--lib", type=Path, help="libllama or a build folder (default: as doctor finds it)")
    group.add_argument("--chunks", type=count, metavar="N", help="at most so many chunks of the text")
    group.add_argument("--process-output", action="store_true", help="count output.weight too")
    group.add_argument("--threads", type=count, default=0, metavar="N", help="of the library")
    parser.add_argument("--output", "-o", metavar="OUT", help="write all of them as one")
    parser.add_argument("--output-format", choices=("gguf", "dat"), help="if the name does not say it")
    parser.add_argument(
        "--chunk-size", type=count, metavar="N", help="tokens a chunk (512, or as the first file says)"
    )
    add_force(parser)
    add_json(parser)
