"""``ggmlq metadata``: the keys and values of a file, shown in full or changed in place."""

from __future__ import annotations

from . import _metadata
from ._options import Commands, add_json, declare, size

SUMMARY = "show, set, remove and rename keys, in place where it fits"
ABOUT = """\
Show the metadata of a GGUF model, or change it. A change is written into the file where it lies if the
header has room for it, which takes milliseconds whatever the size of the model; else the whole file is
written anew, and is there in full or not at all. `--room 64KiB` leaves room for changes to come.
"""
EXAMPLES = """\
  ggmlq metadata model.gguf
  ggmlq metadata model.gguf --json                          all values, arrays in full
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
    _metadata.add_options(parser)
    _metadata.add_option(parser, "remove", "KEY", "remove a key")
    parser.add_argument("--get", metavar="KEY", help="print this value alone: text as it is, else JSON")
    parser.add_argument(
        "--room", type=size, metavar="SIZE", help="bytes left in the header for changes in place"
    )
    parser.add_argument("--anew", action="store_true", help="write the whole file anew, even where it fits")
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be done")
    add_json(parser)
