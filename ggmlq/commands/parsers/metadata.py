"""``ggmlq metadata``: the keys and values of a file, shown in full or changed in place."""

from __future__ import annotations

import argparse

from . import _metadata
from ._options import Commands, add_json, declare, size

SUMMARY = "show, set, remove and rename keys, in place if they fit"
ABOUT = """\
Show the metadata of a GGUF model, or change it. If the header has room for a change, it is written in place,
which takes milliseconds, however large the model is. Otherwise the file is written anew, in full or not at
all. `--room 64KiB` leaves room for later changes.
"""
EXAMPLES = """\
  ggmlq metadata model.gguf
  ggmlq metadata model.gguf --json                          all values, arrays in full
  ggmlq metadata model.gguf general.architecture
  ggmlq metadata model.gguf --get tokenizer.chat_template > template.jinja
  ggmlq metadata model.gguf --set-file tokenizer.chat_template=template.jinja
  ggmlq metadata model.gguf --set general.name=mine --remove general.url --room 64KiB
  ggmlq metadata model.gguf --set general.file_type=Q4_K_M
  ggmlq metadata model.gguf --rename general.nam=general.name --dry-run
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq metadata`` with its options and examples."""
    parser = declare(commands, "metadata", "files", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("file", metavar="FILE", help="a .gguf file, any part of a split model")
    parser.add_argument(
        "get", nargs="?", default=argparse.SUPPRESS, metavar="KEY", help="the same as --get KEY"
    )
    _metadata.add_options(parser)
    _metadata.add_option(parser, "remove", "KEY", "remove a key")
    parser.add_argument(
        "--get", metavar="KEY", help="print only this value: text unchanged, other values as JSON"
    )
    parser.add_argument(
        "--room", type=size, metavar="SIZE", help="spare bytes in the header for later changes in place"
    )
    parser.add_argument("--anew", action="store_true", help="always write the whole file anew")
    parser.add_argument("--dry-run", action="store_true", help="write nothing, only show what would be done")
    add_json(parser)
