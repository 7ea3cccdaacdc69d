"""``ggmlq formats``: the tables of types, and of llama.cpp's mixes of them."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..base.terminal import table
from ..convert.rules import wants_imatrix
from ..formats import FORMATS, Format
from . import _mixes


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq formats``; the result is the exit status."""
    types = {name.lower() for name in FORMATS}
    mixes = [mix for name in args.name if name.lower() not in types and (mix := _mixes.find(name))]
    if args.mixes or (mixes and len(mixes) == len(args.name)):
        shown = mixes or _mixes.ALL
        print(
            json.dumps([_mixes.facts(mix) for mix in shown], indent=2) if args.json else _mixes.listed(shown)
        )
        return 0
    type_names = [name for name in args.name if name.lower() in types or not _mixes.find(name)]
    names = [int(name) if name.isdecimal() else name for name in type_names] or list(FORMATS)
    facts = [_format_facts(FORMATS[name]) for name in names]
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    header = ["name", "id", "block", "bytes", "bits/weight", "decode", "encode", "imatrix"]
    rows = [
        [
            fact["name"], fact["id"], fact["block_size"], fact["bytes"], fact["bits_per_weight"],
            "yes" if fact["can_dequantize"] else "no",
            "yes" if fact["can_quantize"] else "no",
            fact["imatrix"],
        ]
        for fact in facts
    ]  # fmt: skip
    print(table(header, rows))
    if mixes or not args.name:
        print(f"\nMixes of types, of llama.cpp's quantizer:\n\n{_mixes.listed(mixes or _mixes.ALL)}")
    return 0


def _format_facts(fmt: Format) -> dict[str, object]:
    fields: dict[str, Any] = dict(fmt.dtype.fields or {})
    return {
        "name": fmt.name,
        "id": fmt.id,
        "block_size": fmt.block_size,
        "bytes": fmt.dtype.itemsize,
        "bits_per_weight": fmt.bits_per_weight,
        "can_dequantize": True,  # every format decodes; the descriptor cannot be made without
        "can_quantize": fmt.can_quantize,
        "needs_imatrix": fmt.needs_imatrix,
        "imatrix": _imatrix(fmt),
        "fields": [
            {"name": name, "offset": entry[1], "type": entry[0].base.str, "shape": entry[0].shape}
            for name, entry in fields.items()
        ],
    }


def _imatrix(fmt: Format) -> str:
    """The part of an importance matrix in a type: for ggml's encoder, and for llama.cpp's files."""
    if fmt.needs_imatrix:
        return "required"
    if wants_imatrix("", fmt):
        return "required in models"
    return "used" if getattr(fmt, "imatrix", "ignored") != "ignored" else ""
