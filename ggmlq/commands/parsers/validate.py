"""``ggmlq validate``: is the file sound?"""

from __future__ import annotations

from ._options import Commands, declare

SUMMARY = "check every rule of the format and the values of every block"
ABOUT = """\
Check structure, metadata and values of GGUF files and of safetensors. Exit 1: something is wrong; notes alone
do not count.
"""
EXAMPLES = """\
  ggmlq validate model.gguf
  ggmlq validate 'models/*.gguf' --json
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq validate`` with its options and examples."""
    parser = declare(commands, "validate", "files", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument(
        "file", nargs="+",
        help=".gguf files, safetensors (a file, an index, a folder), or patterns such as 'models/*.gguf'",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="print JSON: an object, or a list for several files"
    )
