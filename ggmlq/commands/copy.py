"""``ggmlq copy``: split, merge, change the byte order or the metadata."""

from __future__ import annotations

import argparse
from typing import Any

from .. import gguf
from ..gguf import edit
from ..gguf.header import ALIGNMENT_KEY
from . import _metadata, _plain, _sizes


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "copy",
        help="re-split, merge, change byte order or metadata",
        description="Copy a GGUF model. Without options the parts of a split model become one file; OUT may "
        "be the file itself.",
    )
    parser.add_argument("input", metavar="IN", help="a .gguf file, any part of a split model")
    parser.add_argument("output", metavar="OUT", help="the new file; parts are named after it")
    parser.add_argument(
        "--split", type=_sizes.size, metavar="SIZE", help="tensor bytes a part: 2000000, 500M, 4GB, 2GiB"
    )
    parser.add_argument("--split-max-tensors", type=_sizes.count, metavar="N", help="tensors a part")
    parser.add_argument("--byteorder", choices=("little", "big", "keep"), default="keep", help="of the copy")
    parser.add_argument(
        "--alignment", type=int, help="of the tensors, a power of two; as it was if not given"
    )
    _metadata.add_options(parser)
    _metadata.add_option(parser, "drop", "KEY", "leave out a key")
    parser.add_argument(
        "--room", type=_sizes.size, metavar="SIZE",
        help="bytes left in the header, so that `ggmlq metadata` can change it in place later",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="only tell which files there would be, and their sizes"
    )
    _sizes.add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
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
