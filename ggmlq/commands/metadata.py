"""``ggmlq metadata``: the keys and values of a file, shown in full or changed in place."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from ..base.mixes import FILE_TYPE_KEY, file_type_number
from ..base.text import short
from ..errors import GGUFError, GGUFNotFoundError, GGUFOSError
from . import _plain
from ._options import Commands, declare, flag, shared, size

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
    parser = declare(commands, "metadata", "files", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("file", metavar="FILE", help="a .gguf file, any part of a split model")
    parser.add_argument(
        "get", nargs="?", default=argparse.SUPPRESS, metavar="KEY", help="the same as --get KEY"
    )
    add_options(parser)
    add_option(parser, "remove", "KEY", "remove a key")
    parser.add_argument(
        "--get", metavar="KEY", help="print only this value: text unchanged, other values as JSON"
    )
    parser.add_argument(
        "--room", type=size, metavar="SIZE", help="spare bytes in the header for later changes in place"
    )
    flag(parser, "--anew", "always write the whole file anew")
    flag(parser, "--dry-run", "write nothing, only show what would be done")
    shared(parser, "--json")


def run(args: argparse.Namespace) -> int:
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
            facts = _plain.metadata_facts(file, file.metadata)
            _plain.print_json({key: _plain.in_full(fact) for key, fact in facts.items()})
        else:
            print(_plain.metadata_table(_plain.metadata_facts(file, file.metadata)))
    return 0


def _print_value(value: Any) -> None:
    if isinstance(value, str):
        print(value, end="" if value.endswith("\n") else "\n")
    else:
        _plain.print_json(_plain.in_full(value))


def _change(file: GGUFFile, args: argparse.Namespace) -> int:
    from .. import gguf
    from ..gguf import edit

    metadata = edited(file, args.edits)
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


# --- changes of metadata, as they are written on a command line ---------------------------------

Edit = tuple[str, str]  # the option and its argument


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare changes of metadata; they are made in the order of the command line."""
    add_option(
        parser, "set", "KEY[:TYPE]=VALUE",
        "set metadata; VALUE is JSON or plain text; an existing key keeps its type",
    )  # fmt: skip
    add_option(
        parser, "set-file", "KEY[:TYPE]=FILE", "the same, with the value from a file: text or a JSON array"
    )
    add_option(parser, "rename", "OLD=NEW", "rename a key")


def add_option(parser: argparse.ArgumentParser, option: str, metavar: str, about: str) -> None:
    """Declare an option that may be repeated; each argument is stored with the name of the option."""

    def edit(text: str) -> Edit:
        return option, text

    parser.add_argument(
        f"--{option}", dest="edits", action="append", default=[], metavar=metavar, help=about, type=edit
    )


def edited(file: GGUFFile, edits: list[tuple[str, str]]) -> Metadata:
    """The metadata of a file after some changes."""
    from ..gguf import edit

    metadata = file.metadata
    for option, text in edits:
        if option in ("drop", "remove"):
            _check_there(file, f"--{option} {short(text)}", text, metadata)
            metadata = metadata.without(text)
        elif option == "rename":
            old, equals, new = text.partition("=")
            if not (old and equals and new):
                raise GGUFError(f"--rename {short(text)}: write OLD=NEW")
            _check_own(f"--rename {short(text)}", old, new)
            _check_there(file, f"--rename {short(text)}", old, metadata)
            metadata = edit.renamed(metadata, old, new)
        else:
            metadata = metadata | _parsed(option, text, metadata)
    return metadata


def _check_there(file: GGUFFile, request: str, key: str, metadata: Metadata) -> None:
    from ..gguf.metadata import missing

    if key not in metadata:
        missing(request, key, metadata, f"`ggmlq metadata {file.path}` lists them")


def _check_own(request: str, *keys: str) -> None:
    from ..gguf.file import KEYS

    for key in keys:
        if key in KEYS:
            raise GGUFError(
                f"{request}: {key} says which part of a model a file is, and every save makes it anew; "
                "`ggmlq copy --split` splits a model"
            )


def _read(request: str, path: str) -> str:
    from ..gguf.source import BYTES, LIMITS

    try:
        with open(path, "rb") as source:
            raw = source.read(LIMITS[BYTES] + 1)
    except FileNotFoundError as error:
        raise GGUFNotFoundError(f"{request}: {path}: there is no such file; check the path", error) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise GGUFOSError(f"{request}: {short(path)} cannot be read: {reason}; name a text file") from error
    if len(raw) > LIMITS[BYTES]:
        raise GGUFError(
            f"{request}: {path} has more than {LIMITS[BYTES]} bytes, which no header holds; cut it down"
        )
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise GGUFError(
            f"{request}: {path} is not UTF-8 at byte {error.start}; metadata are text or JSON; convert it"
        ) from None


def _parsed(option: str, assignment: str, metadata: Metadata) -> dict[str, Any]:
    """``KEY[:TYPE]=VALUE`` as an entry; the type is the one named, else the key's, else by the value."""
    from ..gguf import Typed, ValueType

    left, equals, text = assignment.partition("=")
    if not equals:
        raise GGUFError(f"--{option} {assignment!r}: there is no '='; write KEY=VALUE or KEY:uint32=VALUE")
    if option == "set-file":
        text = _read(f"--set-file {left}", text)
    _check_own(f"--{option} {short(assignment)}", left)
    if left == FILE_TYPE_KEY:
        return {left: Typed(file_type_number(f"--{option} {left}", text), "uint32")}
    key, _, word = left.rpartition(":")
    kind = ValueType.parse(word) if key else None
    if kind is None and left in metadata:
        return {left: _retyped(left, text, metadata.type(left))}
    key = key if kind is not None else left
    whole = option == "set-file" and kind is None and not text.lstrip().startswith("[")
    plain = whole or (kind is ValueType.STRING and not text.startswith("["))
    value = text if plain else _json(key, text)
    return {key: value if kind is None else Typed(value, kind)}


def _retyped(key: str, text: str, words: str) -> Any:
    """A new value for a key: a scalar stays a scalar and an array an array, of the same type."""
    from ..gguf import Typed, ValueType

    kind = ValueType.parse(words.rpartition(" ")[2])
    if kind is ValueType.ARRAY:  # of arrays: their elements choose their type
        kind = None
    value = text if words == ValueType.STRING.word else _json(key, text)
    if isinstance(value, list) != words.startswith("array"):
        shape = "an array" if isinstance(value, list) else "no array"
        raise GGUFError(
            f"--set {key}: its type is {words}, and {short(text)} is {shape}; write KEY:TYPE=VALUE"
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
