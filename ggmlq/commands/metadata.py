"""``ggmlq metadata``: the keys and values of a file, shown in full or changed in place."""

from __future__ import annotations

import argparse
from typing import Any

from .. import gguf
from ..base import filetype
from ..base.text import table
from ..errors import GGUFError
from ..gguf import GGUFFile, Metadata, edit
from . import _metadata, _plain


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq metadata``; the result is the exit status."""
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
