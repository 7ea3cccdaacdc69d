"""Parts that several commands share: their declaration, common options, and kinds of values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from ..base.text import meant, printable

if TYPE_CHECKING:
    from concurrent.futures import Executor

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
MOST = 1 << 62

FLASH = {"auto": None, "on": True, "off": False}
JSON_LINES = "print JSON, one object per line"
JSON_FILES = "print JSON: an object, or a list for several files"
# Arguments that are the same in several commands.
SHARED: dict[str, dict[str, Any]] = {
    "--json": {"action": "store_true", "help": "print JSON"},
    "--all-tensors": {"action": "store_true", "help": "print one line per tensor, also for equal layers"},
    "--dry-run": {"action": "store_true", "help": "write nothing, only show the new types and sizes"},
    "--force": {"action": "store_true", "help": "replace OUT if it exists"},
    "--imatrix": {"metavar": "FILE", "help": "importance matrix, .gguf or .dat"},
    "--device": {"default": "cpu", "help": "cpu (default), cuda or cuda:1"},
    "input": {"metavar": "IN", "help": "a .gguf file, any part of a split model"},
    "file": {
        "nargs": "+",
        "help": ".gguf files, safetensors (a file, an index, a folder), or patterns such as 'models/*.gguf'",
    },
    # of runs of a model in llama.cpp
    "model": {"metavar": "MODEL", "help": "a GGUF file"},
    "--prompt": {"metavar": "TEXT", "help": "the input text"},
    "--tokens": {"type": int, "metavar": "N", "help": "use N random tokens instead"},
    "--seed": {"type": int, "default": 0, "help": "seed of random tokens (default: 0)"},
    "--cache": {"metavar": "TYPE", "help": "type of the K and V caches: q8_0, or q8_0,f16"},
    "--flash": {"choices": tuple(FLASH), "default": "auto", "help": "attention as one node"},
    "--without": {
        "default": "", "metavar": "BUFFERS", "help": "weight layouts that may not be used: AMX,CPU_REPACK",
    },
    "--timeout": {
        "type": float, "default": 600, "metavar": "S",
        "help": "time limit for a node in seconds (default: 600)",
    },
}  # fmt: skip


class Help(argparse.HelpFormatter):
    """Help texts: paragraphs are wrapped to the terminal, examples are not."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return "\n\n".join(super(Help, self)._fill_text(part, width, indent) for part in text.split("\n\n"))


def declare(
    commands: Commands, name: str, group: str, summary: str, about: str, examples: str, **more: Any
) -> argparse.ArgumentParser:
    """Declare a command: its group in the list of commands, and its help."""
    more |= {"description": about, "epilog": f"examples:\n{examples}", "formatter_class": Help}
    return commands.add_parser(name, group=group, help=summary, **more)


def flag(parser: argparse._ActionsContainer, *words: str) -> None:
    """Declare a switch; its help is the last word."""
    *names, about = words
    parser.add_argument(*names, action="store_true", help=about)


def shared(parser: argparse._ActionsContainer, *names: str) -> None:
    """Declare arguments that are the same in several commands, by their names."""
    for name in names:
        parser.add_argument(name, **SHARED[name])


def add_text(parser: argparse.ArgumentParser, prompt: str) -> argparse._MutuallyExclusiveGroup:
    """Declare where a model's text comes from, one of three; ``prompt`` is the help of ``--prompt``."""
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--prompt", metavar="TEXT", help=prompt)
    text.add_argument("--file", type=Path, metavar="F", help="a file with it")
    text.add_argument("--tokens", type=count, metavar="N", help="N random tokens instead")
    return text


def size(text: str) -> int:
    """``500M``, ``4GB``, ``2.5GiB`` as bytes."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)((?:[kKMGT]i?)?)B?", text)
    unit = (parts[2] if parts[2] != "K" else "k") if parts else ""
    n = int(float(parts[1]) * UNITS[unit]) if parts and len(parts[1]) < 20 else 0
    if not 0 < n < MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 500M, 4GB or 2.5GiB")
    return n


def bits(text: str) -> float:
    """``4.5bpw`` or ``4.5`` as bits per weight."""
    parts = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+) ?(?:bpw|bits?)?", text)
    if parts is None or not 0 < float(parts[1]) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a target; write bits per weight, as 4.5bpw")
    return float(parts[1])


def count(text: str, least: int = 1) -> int:
    """A whole number of at least 1, or of ``least``."""
    if not text.isdecimal() or len(text) > 18 or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"{text[:20]!r} is not a count; write a whole number, {least} or more"
        )
    return int(text)


def natural(text: str) -> int:
    """A whole number of at least 0."""
    return count(text, 0)


def shape(text: str) -> tuple[int, ...]:
    """``4x512`` as (4, 512)."""
    if not re.fullmatch(r"\d{1,18}([x×,]\d{1,18})*", text):
        raise argparse.ArgumentTypeError(f"shape {text!r}: lengths separated by x are expected; write 4x512")
    return tuple(int(n) for n in re.split("[x×,]", text))


# --- the parser: commands in groups, and similar names in errors --------------------------------

GROUPS = ("files", "models", "kernels", "setup")  # of commands, as the list of all shows them


class Parser(argparse.ArgumentParser):
    """A parser that suggests similar names; names in messages are escaped, as a shell's ``*`` passes any."""

    commands: Commands | None = None

    def __init__(self, *args: Any, group: str = "", **words: Any) -> None:
        super().__init__(*args, **words)
        self.group = group  # of commands, under which the list of all shows it

    def format_help(self) -> str:
        """The help, with the commands in their groups."""
        if self.commands is None:
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        lines = {action.dest: action for action in self.commands._choices_actions}
        for group, names in self.groups().items():
            formatter.start_section(group)
            formatter.add_arguments([lines[name] for name in names])
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action is not self.commands])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def groups(self) -> dict[str, list[str]]:
        """The names of commands by group."""
        groups: dict[str, list[str]] = {group: [] for group in GROUPS}
        for name, parser in self.commands.choices.items() if self.commands is not None else ():
            groups[getattr(parser, "group", "")].append(name)
        return groups

    def error(self, message: str) -> NoReturn:
        """Print the error, not all options of a command beside it, and exit with status 2."""
        if self.commands is not None:
            super().error(printable(message))
        self.exit(2, f"{self.prog}: error: {printable(message)}\n{self.prog} --help lists the options\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices or not isinstance(value, str):
            return super()._check_value(action, value)
        choices = [str(choice) for choice in action.choices]
        way = meant(value, choices, f"choose from {', '.join(choices)}")
        if action is self.commands:
            raise argparse.ArgumentError(None, f"there is no command {value!r}; {way}")
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {way}")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options; an error for unknown words suggests similar ones."""
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            parser = self.commands.choices[options.command] if self.commands is not None else self
            near = {word: meant(word.partition("=")[0], parser._option_string_actions, "") for word in rest}
            words = [f"{word}; {way}" if word[0:1] == "-" and way else word for word, way in near.items()]
            parser.error(f"unrecognized arguments: {' '.join(words)}")
        return options


# --- who works: this process, processes beside it, dask's workers, MPI's ranks -----------------

Body: TypeAlias = "Callable[[argparse.Namespace, Executor | None], int]"


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Declare the options of engines."""
    group = parser.add_argument_group(
        "workers", "The result is the same with all of them. All must see the files under the same path."
    ).add_mutually_exclusive_group()
    group.add_argument(
        "--workers", type=count, metavar="N", help="use N processes, which divide the cores among them"
    )
    group.add_argument("--dask", metavar="ADDRESS", help="use the workers of a dask scheduler (extra dask)")
    flag(group, "--mpi", "use the other MPI ranks: mpiexec -n 9 ggmlq … --mpi (extra mpi)")


class _Served(Exception):
    """Raised in a rank that was a worker: its command is over."""


def with_workers(body: Body) -> Callable[[argparse.Namespace], int]:
    """Decorate a command that an executor works for; ranks of MPI other than the first print nothing."""

    @wraps(body)
    def run(args: argparse.Namespace) -> int:
        try:
            with _executor(args) as executor:
                return body(args, executor)
        except _Served:
            return 0

    return run


@contextmanager
def _executor(args: argparse.Namespace) -> Iterator[Executor | None]:
    """The executor of the options; None for this process alone."""
    from ..tasks import pools

    if args.workers is not None:
        with pools.processes(args.workers) as pool:
            yield pool
    elif args.dask is not None:
        with pools.dask(args.dask) as cluster:
            yield cluster
    elif args.mpi:
        with pools.mpi() as ranks:
            if ranks is not None:
                yield ranks
        if ranks is None:
            raise _Served
    else:
        yield None
