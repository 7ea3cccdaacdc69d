"""The command ``ggmlq``: one subcommand a question.

Exit 0 fine, 1 something is wrong, 2 could not run, 130 interrupted, 143 terminated. Without a command it
prints its help and leaves with 2, since nothing ran.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

from . import __version__, completion, doctor
from .commands import _mixes, add_all
from .convert.rules import wants_imatrix
from .errors import GGMLQError
from .formats import FORMATS, Format
from .terminal import paint, table, wrapped
from .text import meant, printable
from .unwinding import unwinding

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what its encoding lacks comes escaped
            stream.reconfigure(errors="backslashreplace")
    parser = command_line()
    if not (sys.argv[1:] if argv is None else argv) and "_ARGCOMPLETE" not in os.environ:
        parser.print_help(sys.stderr)
        return 2
    completion.answer(parser)
    args = parser.parse_args(argv)
    try:
        with unwinding():
            status: int = args.run(args)
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


class _Parser(argparse.ArgumentParser):
    """Says what may have been meant, and escapes what it quotes: a shell's ``*`` passes any name."""

    commands: Commands | None = None

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices or not isinstance(value, str):
            return super()._check_value(action, value)
        known = [str(choice) for choice in action.choices]
        way = meant(value, known, f"choose from {', '.join(known)}")
        if action is self.commands:
            raise argparse.ArgumentError(None, f"there is no command {value!r}; {way}")
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {way}")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            asked = self.commands.choices[found.command] if self.commands is not None else self
            near = {word: meant(word.partition("=")[0], asked._option_string_actions, "") for word in rest}
            said = [f"{word}; {way}" if word[0:1] == "-" and way else word for word, way in near.items()]
            asked.error(f"unrecognized arguments: {' '.join(said)}")
        return found


def command_line() -> argparse.ArgumentParser:
    own = _Parser(
        prog="ggmlq", description="ggml's block formats: look at them, check them, multiply with them."
    )
    own.add_argument("--version", action="version", version=f"ggmlq {__version__}")
    parser: argparse.ArgumentParser = own
    own.commands = commands = parser.add_subparsers(dest="command", metavar="command", required=True)

    formats = commands.add_parser(
        "formats",
        help="the table of all types, and of the mixes of them",
        description="All types that a GGUF file can hold, and llama.cpp's mixes. imatrix: types whose "
        "encoder uses an importance matrix; cannot do without; or can, but `ggmlq quantize` and "
        "llama-quantize refuse to make weights other than token_embd and output of them without one.",
    )
    formats.add_argument("name", nargs="*", help="only these (name in any case, ggml id, or a mix)")
    formats.add_argument("--mixes", action="store_true", help="only the mixes")
    formats.set_defaults(run=_formats)

    health = commands.add_parser(
        "doctor",
        help="versions, CPU, GPU and libggml as ggmlq finds them",
        description="What ggmlq finds on this machine, and why something is not there. "
        "Exit 1 where a required package is missing or does not fit.",
    )
    health.set_defaults(run=_doctor)

    for command in (formats, health):
        command.add_argument("--json", action="store_true", help="print JSON")
    add_all(commands)
    return parser


def _formats(args: argparse.Namespace) -> int:
    types = {name.lower() for name in FORMATS}
    mixes = [mix for name in args.name if name.lower() not in types and (mix := _mixes.find(name))]
    if args.mixes or (mixes and len(mixes) == len(args.name)):
        shown = mixes or _mixes.ALL
        print(
            json.dumps([_mixes.facts(mix) for mix in shown], indent=2) if args.json else _mixes.listed(shown)
        )
        return 0
    asked = [name for name in args.name if name.lower() in types or not _mixes.find(name)]
    names = [int(name) if name.isdecimal() else name for name in asked] or list(FORMATS)
    facts = [_format_facts(FORMATS[name]) for name in names]
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    header = ["name", "id", "block", "bytes", "bits/weight", "decode", "encode", "imatrix"]
    rows = [
        [
            fact["name"], fact["id"], fact["block_size"], fact["bytes"], fact["bits_per_weight"],
            "yes" if fact["can_dequantize"] else "no",
            "yes" if fact["can_quantize"] else "no",
            fact["imatrix"],
        ]
        for fact in facts
    ]  # fmt: skip
    print(table(header, rows))
    if mixes or not args.name:
        print(f"\nMixes of types, of llama.cpp's quantizer:\n\n{_mixes.listed(mixes or _mixes.ALL)}")
    return 0


def _format_facts(fmt: Format) -> dict[str, object]:
    fields: dict[str, Any] = dict(fmt.dtype.fields or {})
    return {
        "name": fmt.name,
        "id": fmt.id,
        "block_size": fmt.block_size,
        "bytes": fmt.dtype.itemsize,
        "bits_per_weight": fmt.bits_per_weight,
        "can_dequantize": True,  # every format decodes; the descriptor cannot be made without
        "can_quantize": fmt.can_quantize,
        "needs_imatrix": fmt.needs_imatrix,
        "imatrix": _imatrix(fmt),
        "fields": [
            {"name": name, "offset": entry[1], "type": entry[0].base.str, "shape": entry[0].shape}
            for name, entry in fields.items()
        ],
    }


def _imatrix(fmt: Format) -> str:
    """What an importance matrix is to a type: for ggml's encoder, and for files as llama.cpp makes them."""
    if fmt.needs_imatrix:
        return "required"
    if wants_imatrix("", fmt):
        return "required in models"
    return "used" if getattr(fmt, "imatrix", "ignored") != "ignored" else ""


def _doctor(args: argparse.Namespace) -> int:
    report = doctor.examine()
    print(json.dumps(report, indent=2) if args.json else wrapped(doctor.describe(report), "    "))
    return 1 if report["problems"] else 0
