"""``ggmlq info``: what is in a file."""

from __future__ import annotations

import argparse
import os
from math import prod
from typing import Any

from .. import files
from ..errors import GGUFError
from ..gguf import Array, GGUFFile
from ..safetensors import SafetensorsFile
from ..text import size, table
from . import _plain, _safetensors


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "info",
        help="architecture, sizes, tensors and metadata of a model",
        description="What is in a GGUF file or in safetensors. A part of a split model stands for the whole.",
    )
    parser.add_argument("file", help="a .gguf file, or safetensors: a file, an index, a folder")
    parser.add_argument("--tensors", action="store_true", help="only the table of tensors")
    parser.add_argument("--metadata", action="store_true", help="only the metadata")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    everything = args.tensors == args.metadata
    with files.open(args.file) as file:
        if isinstance(file, SafetensorsFile):
            facts = _safetensors.facts(file, everything or args.tensors, everything or args.metadata)
            return _told(facts, _safetensors.described(facts), args)
        facts = _summary(file)
        if everything or args.tensors:
            facts["tensors"] = _tensors(file)
        if everything or args.metadata:
            facts["metadata"] = {key: _value(file, key) for key in file.metadata}
    return _told(facts, _describe(facts, everything), args)


def _told(facts: dict[str, Any], text: list[str], args: argparse.Namespace) -> int:
    if args.json:
        _plain.print_json(facts)
    else:
        print("\n\n".join(text))
    return 0


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
        "file_bytes": sum(os.path.getsize(path) for path in file.paths),
        "version": file.version,
        "byteorder": file.byteorder,
        "alignment": file.alignment,
        "architecture": _text(file, "general.architecture"),
        "name": _text(file, "general.name"),
        "parameters": parameters,
        "tensor_bytes": nbytes,
        "bits_per_weight": 8 * nbytes / parameters if parameters else 0.0,
        "types": sorted(types.values(), key=lambda row: -int(row["bytes"])),
    }


def _text(file: GGUFFile, key: str) -> str | None:
    try:
        found = file.metadata.get(key)
    except GGUFError:
        return None
    return found if isinstance(found, str) else None


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


def _value(file: GGUFFile, key: str) -> dict[str, Any]:
    fact: dict[str, Any] = {"type": file.metadata.type(key)}
    try:
        fact["value"] = file.metadata[key]
    except GGUFError as error:
        return fact | {"error": str(error)}
    if isinstance(fact["value"], Array):
        fact["length"] = len(fact["value"])
    return fact


def _describe(facts: dict[str, Any], everything: bool) -> list[str]:
    sections = []
    if everything:
        head = [
            f"{_plain.name(facts['files'][0])}"
            + (f" and {len(facts['files']) - 1} more parts" if len(facts["files"]) > 1 else ""),
            f"GGUF version {facts['version']}, {facts['byteorder']}-endian, alignment {facts['alignment']}, "
            f"{size(facts['file_bytes'])}",
            f"architecture {_plain.value(facts['architecture'])}, name {_plain.value(facts['name'])}",
            f"{facts['parameters']} parameters, {size(facts['tensor_bytes'])}, "
            f"{facts['bits_per_weight']:.3f} bits a weight",
        ]
        sections.append("\n".join(head))
        rows = [[r["type"], r["tensors"], r["parameters"], size(r["bytes"])] for r in facts["types"]]
        sections.append(table(["type", "tensors", "parameters", "size"], rows))
    if "tensors" in facts:
        rows = [
            [
                _plain.name(t["name"]),
                t["type"],
                " x ".join(map(str, t["shape"])) or "scalar",
                size(t["bytes"]),
            ]
            for t in facts["tensors"]
        ]
        sections.append(table(["tensor", "type", "shape", "size"], rows))
    if "metadata" in facts:
        rows = [
            [
                _plain.name(key),
                fact["type"],
                _plain.value(fact["value"]) if "value" in fact else fact["error"],
            ]
            for key, fact in facts["metadata"].items()
        ]
        sections.append(table(["key", "type", "value"], rows))
    return sections
