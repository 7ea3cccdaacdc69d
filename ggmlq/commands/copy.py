"""``ggmlq copy``: split, merge, change the byte order or the metadata."""

from __future__ import annotations

import argparse
from typing import Any

from . import _files, _plain
from . import metadata as changes
from ._options import Commands, count, declare, flag, shared, size

SUMMARY = "split or merge a model, change its byte order or metadata"
ABOUT = """\
Copy a GGUF model. Without options the parts of a split model become one file. OUT may be IN.
"""
EXAMPLES = """\
  ggmlq copy model-00001-of-00003.gguf model.gguf      the parts become one file
  ggmlq copy model.gguf parts.gguf --split 4GB
  ggmlq copy model.gguf big.gguf --byteorder big --dry-run
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "copy", "files", SUMMARY, ABOUT, EXAMPLES)
    shared(parser, "input")
    parser.add_argument("output", metavar="OUT", help="the new file; parts are named after it")
    parser.add_argument(
        "--split", "--split-max-size", type=size, metavar="SIZE",
        help="tensor bytes per part: 2000000, 500M, 4GB, 2GiB",
    )  # fmt: skip
    parser.add_argument("--split-max-tensors", type=count, metavar="N", help="tensors per part")
    parser.add_argument(
        "--byteorder", choices=("little", "big", "keep"), default="keep", help="byte order of the copy"
    )
    parser.add_argument(
        "--alignment", type=int, help="alignment of the tensors, a power of two (default: that of IN)"
    )
    changes.add_options(parser)
    changes.add_option(parser, "drop", "KEY", "leave out a key")
    parser.add_argument(
        "--room", type=size, metavar="SIZE",
        help="spare bytes in the header, so that `ggmlq metadata` can change it in place later",
    )  # fmt: skip
    flag(parser, "--dry-run", "write nothing, only show the new files and their sizes")
    shared(parser, "--force", "--json")


def run(args: argparse.Namespace) -> int:
    from .. import gguf
    from ..gguf import edit
    from ..gguf.header import ALIGNMENT_KEY

    with gguf.open(args.input) as file:
        metadata = changes.edited(file, args.edits)
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
            _files.check_free([path for path, _ in files], args.force, file.paths)
            gguf.save(args.output, file, metadata, **settings)
    if args.json:
        facts = {"files": [path for path, _ in files], "file_bytes": [n for _, n in files]}
        _plain.print_json(facts | {"written": not args.dry_run})
        return 0
    _files.tell(files, args.dry_run)
    return 0
