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
from ..gguf.metadata import missing
from ..text import short
from . import _plain

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
        for key in args.drop:
            if key not in file.metadata:
                way = f"`ggmlq info --metadata {args.input}` lists them"
                missing(f"--drop {short(key)}", key, file.metadata, way)
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
        print("\n".join(f"wrote {_plain.name(path)}" for path in paths))
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
    if kind is None and left in metadata:
        return {left: _retyped(left, text, metadata.type(left))}
    key = key if kind is not None else left
    value = text if kind is ValueType.STRING and not text.startswith("[") else _json(key, text)
    return {key: value if kind is None else Typed(value, kind)}


def _retyped(key: str, text: str, words: str) -> Any:
    """A new value for a key: a scalar stays a scalar and an array an array, of the same type."""
    kind = ValueType.parse(words.rpartition(" ")[2])
    if kind is ValueType.ARRAY:  # of arrays: their elements choose their type
        kind = None
    value = text if words == ValueType.STRING.word else _json(key, text)
    if isinstance(value, list) != words.startswith("array"):
        found = "an array" if isinstance(value, list) else "no array"
        raise GGUFError(
            f"--set {key}: its type is {words}, and {short(text)} is {found}; write KEY:TYPE=VALUE"
        )
    return value if kind is None else Typed(value, kind)


def _json(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise GGUFError(
            f"--set {key}: arrays lie too deep in each other; GGUF has 16 levels; flatten them"
        ) from None
