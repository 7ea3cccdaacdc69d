"""``ggmlq copy``: split, merge, change the byte order or the metadata."""

from __future__ import annotations

import argparse
from typing import Any

from .. import gguf
from ..gguf import edit
from ..gguf.header import ALIGNMENT_KEY
from . import _metadata, _plain, _sizes


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq copy``; the result is the exit status."""
    with gguf.open(args.input) as file:
        metadata = _metadata.edited(file, args.edits)
        if args.alignment is not None:
            metadata = metadata | {ALIGNMENT_KEY: args.alignment}
        if args.room is not None:
            metadata = edit.with_room(metadata, args.room)
        settings: dict[str, Any] = {
            "byteorder": file.byteorder if args.byteorder == "keep" else args.byteorder,
            "split_max_bytes": args.split,
            "split_max_tensors": args.split_max_tensors,
        }
        files = gguf.layout(args.output, file, metadata, **settings)
        if not args.dry_run:
            _sizes.check_free([path for path, _ in files], args.force, file.paths)
            gguf.save(args.output, file, metadata, **settings)
    if args.json:
        facts = {"files": [path for path, _ in files], "file_bytes": [n for _, n in files]}
        _plain.print_json(facts | {"written": not args.dry_run})
        return 0
    _sizes.tell(files, args.dry_run)
    return 0
