"""Options of `copy` and `metadata`: changes of metadata, as they are written on a command line."""

from __future__ import annotations

import argparse

Edit = tuple[str, str]  # the option, and what was given to it


def add_options(parser: argparse.ArgumentParser) -> None:
    """Changes of metadata; carried out in the order in which they stand."""
    add_option(
        parser, "set", "KEY[:TYPE]=VALUE",
        "set metadata; VALUE is JSON or plain text; a key that is there keeps its type",
    )  # fmt: skip
    add_option(parser, "set-file", "KEY[:TYPE]=FILE", "the same with what a file holds, text or a JSON array")
    add_option(parser, "rename", "OLD=NEW", "another key for a value")


def add_option(parser: argparse.ArgumentParser, option: str, metavar: str, about: str) -> None:
    """Declare an option that may be given again; each value remembers its option."""

    def edit(text: str) -> Edit:
        return option, text

    parser.add_argument(
        f"--{option}", dest="edits", action="append", default=[], metavar=metavar, help=about, type=edit
    )
