"""The command ``ggmlq``: one subcommand a question.

Exit 0 fine, 1 something is wrong, 2 could not run, 130 interrupted, 143 terminated. Without a command it
prints its help and leaves with 2, since nothing ran. All commands' files are imported for help and completion
in a shell; their functions import what a run needs.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from . import GGMLQError, __version__
from .base.terminal import paint
from .base.text import printable
from .base.unwinding import unwinding
from .commands import add_all, completion
from .commands._options import Help, Parser

ABOUT = """\
ggml's block formats: show, check, convert and multiply them. `ggmlq help COMMAND` prints the help of a
command.
"""
EXAMPLES = """\
examples:
  ggmlq info model.gguf                                   the contents of a file
  ggmlq convert Qwen3-8B/ qwen3-8b.gguf --type q4_K_M     a checkpoint of Hugging Face to a small model
  ggmlq demo model.gguf                                   multiply its layers here, check and time them
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what its encoding lacks comes escaped
            stream.reconfigure(errors="backslashreplace")
    parser = command_line()
    words = list(sys.argv[1:] if argv is None else argv)
    if not words and "_ARGCOMPLETE" not in os.environ:
        parser.print_help(sys.stderr)
        return 2
    completion.answer(parser)
    asks = words[:1] == ["help"] and not any(word.startswith("-") for word in words)
    args = parser.parse_args([*words[1:], "--help"] if asks else words)
    try:
        with unwinding():
            name = args.command.replace("-", "_")
            command: Any = importlib.import_module(f"{__package__}.commands.{name}")
            status: int = command.run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except GGMLQError as error:
        _complain(args.command, str(error))
        return 2
    except MemoryError as error:
        _complain(args.command, f"the memory does not suffice: {error or 'no figure is known'}; free some")
        return 2
    except KeyboardInterrupt:
        _complain(args.command, "interrupted")
        return 130  # as a shell counts it
    except OSError as error:  # of the output; files that are read raise a GGMLQError
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at exit
        if isinstance(error, BrokenPipeError):  # the reader (`| head`) has seen enough
            return 0
        _complain(args.command, f"cannot write the output: {error}")
        return 2


def _complain(command: str, text: str) -> None:
    """The one place where errors reach a terminal: they quote paths, names and libraries."""
    print(paint(f"ggmlq {command}:", "bad", sys.stderr), printable(text), file=sys.stderr)


def command_line() -> Parser:
    """The parser of ``ggmlq``, with all commands."""
    parser = Parser(
        prog="ggmlq",
        usage="%(prog)s [-h] [-V] COMMAND …",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=Help,
    )
    parser.add_argument("-V", "--version", action="version", version=f"ggmlq {__version__}")
    commands: Any = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog="ggmlq")
    parser.commands = commands
    add_all(commands)
    return parser
