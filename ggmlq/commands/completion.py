"""``ggmlq completion``, and what a shell is told at a Tab: commands, options, files, types, names of tensors.

The package argcomplete runs the command itself at every Tab, since no fixed script could hold the names of
tensors. It is an extra; without it the command works without completion. The shell waits for the answer, so
NumPy is imported only for the names of tensors, when their file is opened.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..base.mixes import MIXES
from ..errors import GGMLQError, MissingDependencyError
from ._options import Commands, declare

SUMMARY = "make a shell complete commands, files and names of tensors"
ABOUT = """\
Print the script that makes a shell complete ggmlq's commands, options and files, types, and the names of
tensors in a file. It needs the package argcomplete: pip install argcomplete
"""
EXAMPLES = """\
add to ~/.bashrc or ~/.zshrc:
  eval "$(ggmlq completion bash)"
  eval "$(ggmlq completion zsh)"
for fish, once:
  ggmlq completion fish > ~/.config/fish/completions/ggmlq.fish
"""
SHELLS = ("bash", "zsh", "fish")
MOST = 5000  # names of tensors that a shell is handed
OPENING = re.compile(r'"""(\w+): ')  # the first words of a block format's file are its name
SCALAR = re.compile(r'ScalarFormat\(name="(\w+)"')
FLOATS = ["f32", "f16", "bf16"]


def add(commands: Commands) -> None:
    parser = declare(commands, "completion", "setup", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(args: argparse.Namespace) -> int:
    print(script(args.shell))
    return 0


def _argcomplete() -> Any:
    try:
        return importlib.import_module("argcomplete")
    except ImportError:
        from ..base import missing  # it reads the package's metadata: 20 ms

        raise MissingDependencyError(
            "completion in a shell: it is done by the package argcomplete, which is not installed; "
            f"{missing.install('completion')}"
        ) from None


def script(shell: str) -> str:
    """The text that the shell evaluates once, at its start."""
    text: str = _argcomplete().shellcode(["ggmlq"], shell=shell)
    return text


def answer(parser: argparse.ArgumentParser) -> None:
    """Print the completions and exit, if a shell requests them; else do nothing."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    commands = _commands(parser)
    completers = COMPLETERS | {"help words": _one_of(lambda: [*commands])}
    for name, command in commands.items():
        for action in command._actions:
            completer = completers.get(f"{name} {action.dest}", completers.get(action.dest))
            if completer is not None and action.choices is None:
                action.completer = completer  # type: ignore[attr-defined]
    _argcomplete().autocomplete(parser, always_complete_options="long")


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return {**action.choices}
    return {}


def types() -> list[str]:
    """The names of all types, read from the first lines of their files: an import would bring NumPy."""
    folder = Path(__file__).parents[1] / "formats"
    scalars = SCALAR.findall((folder / "scalars.py").read_text(encoding="utf-8"))
    blocks = [OPENING.match(_line(path)) for path in sorted(folder.glob("[a-z]*.py"))]
    return [*scalars, *(name[1] for name in blocks if name)]


def _line(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline()


def mixes() -> list[str]:
    """The names of llama.cpp's mixes."""
    return [mix.name for mix in MIXES]


def _one_of(*lists: Callable[[], list[str]]) -> Callable[..., list[str]]:
    """A completer of names, also behind the last comma of a list; upper or lower case as the word began."""

    def complete(prefix: str, **context: Any) -> list[str]:
        before, comma, begun = prefix.rpartition(",")
        names = dict.fromkeys(name for names in lists for name in names())
        fitting = [name for name in names if name.lower().startswith(begun.lower())]
        loud = any(letter.isupper() for letter in begun) and not any(
            name.startswith(begun) for name in fitting
        )
        return [before + comma + begun + (name.upper() if loud else name)[len(begun) :] for name in fitting]

    return complete


def _tensors(prefix: str, parsed_args: argparse.Namespace, **context: Any) -> list[str]:
    """Names of tensors in the file that the command line names before."""
    path = getattr(parsed_args, "file", None) or getattr(parsed_args, "weights", None)
    path = path or getattr(parsed_args, "model", None)
    if not isinstance(path, str) or "://" in path:  # nobody waits for a server at a tab
        return []
    try:
        with importlib.import_module("ggmlq.gguf").open(path) as file:
            return [name for name in file if name.startswith(prefix) and name.isprintable()][:MOST]
    except GGMLQError:
        return []


_TYPES, _MIXES = _one_of(types), _one_of(types, mixes)
COMPLETERS = {"tensor": _tensors, "type": _MIXES, "types": _TYPES, "format": _TYPES, "name": _MIXES}
COMPLETERS |= {"dequantize type": _one_of(lambda: FLOATS)}
