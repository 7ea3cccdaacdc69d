"""Completion in a shell: commands, options, files, types, and the names of tensors in a file.

By argcomplete, which asks the command itself what may follow: names of tensors stand in no script that
could be made once. The package is an extra; without it the command is what it is.
"""

from __future__ import annotations

import argparse
import importlib
import os
from typing import Any

from . import missing
from .errors import GGMLQError, MissingDependencyError
from .formats import FORMATS

SHELLS = ("bash", "zsh", "fish")
MOST = 5000  # names of tensors that a shell is handed


def _argcomplete() -> Any:
    try:
        return importlib.import_module("argcomplete")
    except ImportError:
        raise MissingDependencyError(
            "completion in a shell: it is done by the package argcomplete, which is not installed; "
            f"{missing.install('completion')}"
        ) from None


def script(shell: str) -> str:
    """What the shell evaluates once, at its start."""
    found: str = _argcomplete().shellcode(["ggmlq"], shell=shell)
    return found


def answer(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks what may follow, and leave; else nothing."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    for command in _parsers(parser):
        for action in command._actions:
            completer = COMPLETERS.get(action.dest)
            if completer is not None and action.choices is None:
                action.completer = completer  # type: ignore[attr-defined]
    _argcomplete().autocomplete(parser, always_complete_options="long")


def _parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return [*action.choices.values()]
    return []


def _types(**asked: Any) -> list[str]:
    return list(FORMATS)


def _tensors(prefix: str, parsed_args: argparse.Namespace, **asked: Any) -> list[str]:
    """Names of tensors in the file that stands before them."""
    path = getattr(parsed_args, "file", None) or getattr(parsed_args, "weights", None)
    if not isinstance(path, str) or "://" in path:  # nobody waits for a server at a tab
        return []
    try:
        with importlib.import_module("ggmlq.gguf").open(path) as file:
            return [name for name in file if name.startswith(prefix) and name.isprintable()][:MOST]
    except GGMLQError:
        return []


COMPLETERS = {"tensor": _tensors, "type": _types, "types": _types, "format": _types, "name": _types}
