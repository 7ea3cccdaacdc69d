"""``ggmlq help``: the list of commands, or all of one; the parser itself answers it."""

from __future__ import annotations

from ._options import Commands, declare

SUMMARY = "this list, or all of one command"
ABOUT = "The same as --help: `ggmlq help convert` prints what `ggmlq convert --help` does."
EXAMPLES = """\
  ggmlq help
  ggmlq help quantize
  ggmlq help gru run
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq help`` with its options and examples."""
    parser = declare(commands, "help", "setup", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="a command, and one of its own")
