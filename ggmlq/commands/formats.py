"""``ggmlq formats``: the tables of types, and of llama.cpp's mixes of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..base.mixes import ALIASES, BY_NAME, MIXES, Mix
from ..base.terminal import table
from ..base.text import table as plain_table
from . import _plain
from ._options import Commands, declare, flag, shared

if TYPE_CHECKING:
    from ..formats import Format

SUMMARY = "show the tables of all types and of all mixes"
ABOUT = """\
Show all types that a GGUF file can hold, and llama.cpp's mixes. The column imatrix says whether the encoder
uses an importance matrix, needs one, or works without one but `ggmlq quantize` and llama-quantize refuse to
use the type without one, except for token_embd and output.
"""
EXAMPLES = """\
  ggmlq formats
  ggmlq formats q4_K iq2_xs
  ggmlq formats q4_K_M                                    the types in a mix
  ggmlq formats --mixes
"""
# Parts of a model with rules of their own, and how tensors of them are called.
PARTS = {"v": "attn_v", "k": "attn_k", "q": "attn_q", "attention": "attn_output", "down": "ffn_down"}
PARTS |= {"gate": "ffn_gate", "up": "ffn_up"}


def add(commands: Commands) -> None:
    parser = declare(commands, "formats", "files", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("name", nargs="*", help="only these (name in any case, ggml id, or a mix)")
    flag(parser, "--mixes", "only the mixes")
    shared(parser, "--json")


def run(args: argparse.Namespace) -> int:
    from ..formats import FORMATS

    types = {name.lower() for name in FORMATS}
    mixes = [mix for name in args.name if name.lower() not in types and (mix := _mix(name))]
    if args.mixes or (mixes and len(mixes) == len(args.name)):
        shown = mixes or MIXES
        if args.json:
            _plain.print_json([_mix_facts(mix) for mix in shown])
        else:
            print(_mix_table(shown))
        return 0
    type_names = [name for name in args.name if name.lower() in types or not _mix(name)]
    names = [int(name) if name.isdecimal() else name for name in type_names] or list(FORMATS)
    facts = [_format_facts(FORMATS[name]) for name in names]
    if args.json:
        _plain.print_json(facts)
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
        print(f"\nMixes of types, of llama.cpp's quantizer:\n\n{_mix_table(mixes or MIXES)}")
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
    from ..convert.rules import wants_imatrix

    if fmt.needs_imatrix:
        return "required"
    if wants_imatrix("", fmt):
        return "required in models"
    return "used" if getattr(fmt, "imatrix", "ignored") != "ignored" else ""


def _mix(name: str) -> Mix | None:
    """The mix of a name, in any case, or by llama.cpp's short name."""
    low = name.lower()
    return BY_NAME.get(ALIASES.get(low, low))


def _mix_facts(mix: Mix) -> dict[str, Any]:
    """A mix as JSON."""
    from ..convert.rules import WANT_IMATRIX

    others = {
        text: list(dict.fromkeys(fmt for fmt, _ in rules))
        for part, text in PARTS.items()
        if (rules := getattr(mix, part))
    }
    wanting = {*WANT_IMATRIX, *mix.wants_imatrix}
    return {
        "name": mix.name,
        "file_type": mix.number,
        "base": mix.base,
        "output": mix.output,
        "token_embd": mix.embedding or mix.base,
        "others": others | ({"experts": [mix.stacked]} if mix.stacked else {}),
        "needs_imatrix": bool({mix.base, *(kind for kinds in others.values() for kind in kinds)} & wanting),
    }


def _mix_table(mixes: Sequence[Mix]) -> str:
    """A table of the mixes."""
    rows = []
    for mix in mixes:
        fact = _mix_facts(mix)
        others = "; ".join(f"{part} {', '.join(kinds)}" for part, kinds in fact["others"].items())
        needs = "required" if fact["needs_imatrix"] else ""
        rows.append([mix.name, mix.number, mix.base, mix.output, fact["token_embd"], needs, others])
    header = ["mix", "file type", "most", "output", "token_embd", "imatrix", "some or all of"]
    return plain_table(header, rows)
