"""``ggmlq copy``: split, merge, change the byte order or the metadata."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

from .. import gguf
from ..errors import GGUFError
from ..gguf import Metadata, Typed, ValueType
from ..gguf.header import ALIGNMENT_KEY

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


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
        "--split", type=_size, metavar="SIZE", help="tensor bytes a part: 2000000, 500M, 4G, 2Gi"
    )
    parser.add_argument("--byteorder", choices=("little", "big", "keep"), default="keep", help="of the copy")
    parser.add_argument(
        "--alignment", type=int, help="of the tensors, a power of two; as it was if not given"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY[:TYPE]=VALUE",
        help="set metadata; VALUE is JSON or plain text; an existing key keeps its type",
    )  # fmt: skip
    parser.add_argument("--drop", action="append", default=[], metavar="KEY", help="leave out a key")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    with gguf.open(args.input) as file:
        metadata = file.metadata.without(*args.drop)
        for assignment in args.set:
            metadata = metadata | _parsed(assignment, metadata)
        if args.alignment is not None:
            metadata = metadata | {ALIGNMENT_KEY: args.alignment}
        order = file.byteorder if args.byteorder == "keep" else args.byteorder
        paths = gguf.save(args.output, file, metadata, byteorder=order, split_max_bytes=args.split)
    if args.json:
        print(json.dumps({"files": paths}, indent=2))
    else:
        print("\n".join(f"wrote {path}" for path in paths))
    return 0


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)(|k|M|G|Ki|Mi|Gi)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 500M, 4G or 2Gi")
    return int(found[1]) * UNITS[found[2]]


def _parsed(assignment: str, metadata: Metadata) -> dict[str, Any]:
    """``KEY[:TYPE]=VALUE`` as an entry; the type as given, else that of the key, else chosen by the value."""
    left, equals, text = assignment.partition("=")
    if not equals:
        raise GGUFError(f"--set {assignment!r}: there is no '='; write KEY=VALUE or KEY:uint32=VALUE")
    key, _, word = left.rpartition(":")
    kind = ValueType.parse(word) if key else None
    if kind is None:
        key = left
        kind = _present_type(key, metadata)
    value = text if kind is ValueType.STRING and not text.startswith("[") else _json(text)
    return {key: value if kind is None else Typed(value, kind)}


def _present_type(key: str, metadata: Metadata) -> ValueType | None:
    """The type of a key's value, or of its elements."""
    return ValueType.parse(metadata.type(key).rpartition(" ")[2]) if key in metadata else None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
