"""``ggmlq info``: what is in a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

from ..base.folding import folded
from ..base.terminal import paint, table
from ..base.text import count, number, short, size
from ..errors import GGUFError
from . import _plain
from ._files import expanded
from ._options import JSON_FILES, Commands, declare, flag, shared

if TYPE_CHECKING:
    from ..gguf import GGUFFile
    from ..safetensors import SafetensorsFile

SUMMARY = "show architecture, sizes, tensors and metadata of models"
ABOUT = """\
Show the contents of GGUF files and of safetensors, the summary last. Any part of a split model opens the
whole. Exit 1: tensors are missing, as in a partial download.
"""
EXAMPLES = """\
  ggmlq info model.gguf                          tensors of equal layers in one line
  ggmlq info model.gguf --tensors --sort size    each tensor, the largest first
  ggmlq info model.gguf --filter 'blk.0.*' --filter '*rope*'
  ggmlq info *.gguf
  ggmlq info checkpoint/                         safetensors: a file, an index, a folder
"""
SORTS = {
    "name": lambda fact: fact["name"],
    "type": lambda fact: (fact["type"], fact["name"]),
    "size": lambda fact: -fact["bytes"],
    "parameters": lambda fact: -prod(fact["shape"]),
}


def add(commands: Commands) -> None:
    parser = declare(commands, "info", "files", SUMMARY, ABOUT, EXAMPLES)
    shared(parser, "file")
    flag(parser, "--tensors", "print only the table of tensors, one per line")
    flag(parser, "--metadata", "print only the metadata")
    parser.add_argument(
        "--filter", action="append", default=[], metavar="GLOB",
        help="only tensors and keys whose whole name fits; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--sort",
        choices=("name", "type", "size", "parameters"),
        help="order of the tensors (default: that of the file)",
    )
    parser.add_argument(
        "--fold", action=argparse.BooleanOptionalAction, default=None,
        help="tensors of equal layers in one line (default: yes, but not with --tensors)",
    )  # fmt: skip
    flag(parser, "--json", JSON_FILES)


def run(args: argparse.Namespace) -> int:
    everything = args.tensors == args.metadata
    fold = everything if args.fold is None else args.fold
    models = [_facts(path, args, everything) for path in expanded(args.file)]
    if args.filter and not any(facts.get("tensors") or facts.get("metadata") for facts in models):
        _nothing_fits(args.filter[0], models[0]["files"][0])
    status = int(any(facts["missing"] for facts in models))
    if args.json:
        _plain.print_json(models if len(models) > 1 else models[0])
        return status
    pages = ["\n\n".join(_describe(facts, args, everything, fold)) for facts in models]
    for facts, page in zip(models, pages, strict=True):
        if len(models) > 1:
            print(paint(f"== {_plain.name(facts['files'][0])}", "head"), end="\n\n")
        print(page, end="\n" if facts is models[-1] else "\n\n")
    return status


def _facts(path: str, args: argparse.Namespace, everything: bool) -> dict[str, Any]:
    from ..gguf import Array
    from ..safetensors import SafetensorsFile
    from ..safetensors import either as files
    from . import _safetensors

    opened: Any = files.open(path)
    with opened as file:
        _warn(file)
        if isinstance(file, SafetensorsFile):
            facts, tensors = _safetensors.summary(file), _safetensors.tensors(file)
            metadata: dict[str, Any] = dict(file.metadata)
        else:
            facts, tensors = _summary(file), _tensors(file)
            metadata = _plain.metadata_facts(file, [key for key in file.metadata if _fits(key, args.filter)])
            for fact in metadata.values():
                if isinstance(fact.get("value"), Array):
                    fact["length"] = len(fact["value"])
    if everything or args.tensors:
        facts["tensors"] = [fact for fact in tensors if _fits(fact["name"], args.filter)]
        if args.sort:
            facts["tensors"].sort(key=SORTS[args.sort])
    if everything or args.metadata:
        facts["metadata"] = {key: value for key, value in metadata.items() if _fits(key, args.filter)}
    return facts


def _warn(file: GGUFFile | SafetensorsFile) -> None:
    """Warn on stderr, also beside JSON, that parts of the model are missing and figures are of the whole."""
    if file.missing:
        print(
            f"ggmlq info: {_plain.name(file.paths[0])}: {len(file.missing)} of {count(len(file), 'tensor')} "
            f"are missing, {_plain.value(file.missing[0])} first; the download was cut off; fetch the rest",
            file=sys.stderr,
        )


def _nothing_fits(pattern: str, path: str) -> NoReturn:
    from ..gguf.metadata import missing
    from ..safetensors import either as files

    with files.open(path) as file:
        names = [*file, *file.metadata]
    missing(f"--filter {short(pattern)} of {path}", pattern.strip("*"), names, "without it all are listed")


def _fits(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _summary(file: GGUFFile) -> dict[str, Any]:
    infos = [file.info(name) for name in file]
    types: dict[str, dict[str, Any]] = {}
    for info in infos:
        row = types.setdefault(
            info.format.name, {"type": info.format.name, "tensors": 0, "parameters": 0, "bytes": 0}
        )
        row["tensors"] += 1
        row["parameters"] += prod(info.shape)
        row["bytes"] += info.nbytes
    parameters = sum(row["parameters"] for row in types.values())
    nbytes = sum(row["bytes"] for row in types.values())
    return {
        "files": list(file.paths),
        "file_bytes": sum(part.source.size for part in file.parts),
        "version": file.version,
        "byteorder": file.byteorder,
        "alignment": file.alignment,
        "architecture": _text(file, "general.architecture"),
        "name": _text(file, "general.name"),
        "parameters": parameters,
        "tensor_bytes": nbytes,
        "bits_per_weight": 8 * nbytes / parameters if parameters else 0.0,
        "missing": list(file.missing),
        "types": sorted(types.values(), key=lambda row: -int(row["bytes"])),
    }


def _text(file: GGUFFile, key: str) -> str | None:
    try:
        value = file.metadata.get(key)
    except GGUFError:
        return None
    return value if isinstance(value, str) else None


def _tensors(file: GGUFFile) -> list[dict[str, Any]]:
    return [
        {
            "name": info.name,
            "type": info.format.name,
            "shape": list(info.shape),
            "bytes": info.nbytes,
            "file": part.source.path,
            "at": part.header.data + info.offset,
        }
        for part in file.parts
        for info in part.header.tensors.values()
    ]


def _describe(facts: dict[str, Any], args: argparse.Namespace, everything: bool, fold: bool) -> list[str]:
    from . import _safetensors

    sections = []
    if facts.get("metadata") or args.metadata:
        sections.append(_table_of_metadata(facts))
    if facts.get("tensors") or args.tensors:
        sections.append(_table_of_tensors(facts["tensors"], fold, args.sort))
    if everything and facts.get("format") == "safetensors":
        sections += _safetensors.described(facts)
    elif everything:
        rows = [[r["type"], r["tensors"], number(r["parameters"]), size(r["bytes"])] for r in facts["types"]]
        sections += [table(["type", "tensors", "parameters", "size"], rows), "\n".join(_head(facts))]
    return sections


def _table_of_metadata(facts: dict[str, Any]) -> str:
    if facts.get("format") == "safetensors":
        entries = facts["metadata"].items()
        return table(["key", "value"], [[_plain.name(key), _plain.value(text)] for key, text in entries])
    return _plain.metadata_table(facts["metadata"])


def _table_of_tensors(facts: list[dict[str, Any]], fold: bool, sort: str | None) -> str:
    shown: Iterable[dict[str, Any]] = facts
    if fold:
        shown = sorted(folded(facts), key=SORTS[sort]) if sort else folded(facts)
    return _plain.tensor_table(shown, fold)


def _head(facts: dict[str, Any]) -> list[str]:
    parts, tensors = facts["files"], sum(row["tensors"] for row in facts["types"])
    more = f" and {count(len(parts) - 1, 'more part')}" if len(parts) > 1 else ""
    named = "no name" if facts["name"] is None else f"name {_plain.value(facts['name'])}"
    kind = "no architecture" if facts["architecture"] is None else _plain.value(facts["architecture"])
    lacks = len(facts["missing"])
    return [
        f"{_plain.name(parts[0])}{more}",
        f"GGUF version {facts['version']}, {facts['byteorder']}-endian, alignment {facts['alignment']}, "
        f"{size(facts['file_bytes'])}",
        f"{'architecture ' if facts['architecture'] is not None else ''}{kind}, {named}",
        f"{count(tensors, 'tensor')}, {number(facts['parameters'])} parameters, "
        f"{size(facts['tensor_bytes'])}, {facts['bits_per_weight']:.3f} bits a weight",
        *([f"missing, as of a partial download: {lacks} of {count(tensors, 'tensor')}"] if lacks else []),
    ]
