"""``ggmlq help``: the list of commands, or the help of one command; the parser itself prints it."""

from __future__ import annotations

from ._options import Commands, declare

SUMMARY = "print this list, or the help of a command"
ABOUT = "The same as --help: `ggmlq help convert` prints the same as `ggmlq convert --help`."
EXAMPLES = """\
  ggmlq help
  ggmlq help quantize
  ggmlq help gru run
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "help", "setup", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="a command, or a command and its action")
