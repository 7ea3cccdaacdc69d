"""``ggmlq vectors``: test vectors for kernels in any language."""

from __future__ import annotations

import argparse
from typing import Any

from ..base.progress import long_work
from . import _plain
from ._options import Commands, declare, shared

SUMMARY = "write test vectors for kernels in any language"
ABOUT = """\
Write into the folder OUT what a kernel must give: blocks of every type with all codes and hostile scales and
their values, floats and the bytes that ggml's encoders make of them, products with a bound for each element,
and values of wrong decoders, each with the name of its mistake. Raw little-endian files, and index.json.
"""
EXAMPLES = """\
  ggmlq vectors vectors/
  ggmlq vectors vectors/ --formats q4_K,iq3_s
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "vectors", "kernels", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("out", metavar="OUT", help="a folder that is new or empty")
    parser.add_argument("--formats", metavar="A,B", help="types (default: all block types)")
    shared(parser, "--json")


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from ..check import vectors
    from ..formats import FORMATS

    names = [name.strip() for name in (args.formats or "").split(",") if name.strip()]
    with long_work("writing vectors"):
        index = vectors.write(args.out, [FORMATS[name] for name in names])
    size = sum(file.stat().st_size for file in Path(args.out).rglob("*.*"))
    kinds: dict[str, int] = {}
    for case in index["cases"]:
        kinds[case["kind"]] = kinds.get(case["kind"], 0) + 1
    found: dict[str, Any] = {"out": args.out, "cases": kinds, "bytes": size}
    if args.json:
        _plain.print_json(found)
        return 0
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    print(f"wrote {_plain.name(args.out)}: {counts}; {size / 1e6:.1f} MB")
    return 0
