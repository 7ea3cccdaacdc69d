"""Parts that several commands share: their declaration, common options, and kinds of values."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
MOST = 1 << 62


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


def add_json(parser: argparse.ArgumentParser, about: str = "print JSON") -> None:
    """Declare ``--json`` for a command."""
    parser.add_argument("--json", action="store_true", help=about)


def add_text(parser: argparse.ArgumentParser, prompt: str) -> argparse._MutuallyExclusiveGroup:
    """Declare where a model's text comes from, one of three; ``prompt`` is the help of ``--prompt``."""
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--prompt", metavar="TEXT", help=prompt)
    text.add_argument("--file", type=Path, metavar="F", help="a file with it")
    text.add_argument("--tokens", type=count, metavar="N", help="N random tokens instead")
    return text


def add_force(parser: argparse.ArgumentParser, target: str = "OUT") -> None:
    """Declare ``--force``; ``target`` is the name of the replaced file in the help."""
    parser.add_argument("--force", action="store_true", help=f"replace {target} if it exists")


def add_all_tensors(parser: argparse.ArgumentParser) -> None:
    """Declare ``--all-tensors`` for a command."""
    parser.add_argument(
        "--all-tensors",
        action="store_true",
        help="print one line per tensor, also for equal layers",
    )


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


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or not int(text[:18]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a count; write a whole number, 1 or more")
    return int(text)


def shape(text: str) -> tuple[int, ...]:
    """``4x512`` as (4, 512)."""
    if not re.fullmatch(r"\d{1,18}([x×,]\d{1,18})*", text):
        raise argparse.ArgumentTypeError(f"shape {text!r}: lengths separated by x are expected; write 4x512")
    return tuple(int(n) for n in re.split("[x×,]", text))
