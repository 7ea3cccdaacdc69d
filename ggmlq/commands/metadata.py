"""``ggmlq metadata``: the keys and values of a file, shown in full or changed in place."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..base import filetype
from ..base.text import table
from ..errors import GGUFError
from . import _metadata, _plain
from ._options import Commands, add_json, declare, size

if TYPE_CHECKING:
    from ..gguf import GGUFFile, Metadata

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


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq metadata``; the result is the exit status."""
    from .. import gguf

    changes = bool(args.edits) or args.room is not None
    if args.get is not None and changes:
        raise GGUFError("--get prints a value of a file, and this changes it; do one after the other")
    with gguf.open(args.file) as file:
        if args.get is not None:
            _print_value(file.metadata[args.get])
        elif changes:
            return _change(file, args)
        elif args.json:
            _plain.print_json({key: _fact(file.metadata, key) for key in file.metadata})
        else:
            print(table(["key", "type", "value"], [_row(file.metadata, key) for key in file.metadata]))
    return 0


def _print_value(value: Any) -> None:
    if isinstance(value, str):
        print(value, end="" if value.endswith("\n") else "\n")
    else:
        _plain.print_json(_plain.in_full(value))


def _fact(metadata: Metadata, key: str) -> dict[str, Any]:
    fact: dict[str, Any] = {"type": metadata.type(key)}
    try:
        fact["value"] = _plain.in_full(metadata[key])
    except GGUFError as error:  # text that is not UTF-8
        fact["error"] = str(error)
    else:
        if key == filetype.KEY and (name := filetype.name(metadata[key])):
            fact["name"] = name
    return fact


def _row(metadata: Metadata, key: str) -> list[str]:
    try:
        shown = _plain.value(metadata[key])
        name = filetype.name(metadata[key]) if key == filetype.KEY else None
    except GGUFError as error:
        shown, name = str(error), None
    return [_plain.name(key), metadata.type(key), f"{shown} ({name})" if name else shown]


def _change(file: GGUFFile, args: argparse.Namespace) -> int:
    from .. import gguf
    from ..gguf import edit

    metadata = _metadata.edited(file, args.edits)
    if args.room is not None:
        metadata = edit.with_room(metadata, args.room)
    why = "it was asked for" if args.anew else edit.why_not_in_place(file, metadata)
    if not args.dry_run:
        if why is None:
            edit.change(file, metadata)
        else:
            counts = [len(part.header.tensors) for part in file.parts]
            split = counts if len(counts) > 1 else None
            gguf.save(file.path, file, metadata, byteorder=file.byteorder, split_max_tensors=split)
    how = "in place" if why is None else f"written anew: {why}"
    if args.json:
        facts = {"files": list(file.paths), "in_place": why is None, "why_anew": why}
        _plain.print_json(facts | {"written": not args.dry_run})
    else:
        print(f"{_plain.name(file.path)} {'would be' if args.dry_run else 'is'} changed, {how}")
    return 0
