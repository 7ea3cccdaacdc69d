"""Options of `copy` and `metadata`: changes of metadata, as they are written on a command line."""

from __future__ import annotations

import argparse

Edit = tuple[str, str]  # the option and its argument


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare changes of metadata; they are made in the order of the command line."""
    add_option(
        parser, "set", "KEY[:TYPE]=VALUE",
        "set metadata; VALUE is JSON or plain text; an existing key keeps its type",
    )  # fmt: skip
    add_option(
        parser, "set-file", "KEY[:TYPE]=FILE", "the same, with the value from a file: text or a JSON array"
    )
    add_option(parser, "rename", "OLD=NEW", "rename a key")


def add_option(parser: argparse.ArgumentParser, option: str, metavar: str, about: str) -> None:
    """Declare an option that may be repeated; each argument is stored with the name of the option."""

    def edit(text: str) -> Edit:
        return option, text

    parser.add_argument(
        f"--{option}", dest="edits", action="append", default=[], metavar=metavar, help=about, type=edit
    )
