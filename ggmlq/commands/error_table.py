"""``ggmlq error-table``: the errors of numbers in few bits, as a table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from . import _plain
from ._options import Commands, declare, shared

if TYPE_CHECKING:
    from ..accuracy import ErrorTable

SUMMARY = "show how 8-bit codes and block types round numbers"
ABOUT = """\
Show for each value and each format the nearest code under a scale, the value of that code, and the error.
Without arguments: eight values in int8 and in a simulation of 8-bit floats (docs/scaled.md discusses them).
"""
EXAMPLES = """\
  ggmlq error-table
  ggmlq error-table 0.1 3.5 448 --formats e4m3,e5m2,int8,q4_0
  ggmlq error-table --scale 1 --calibrate amax -- -17 300
"""
READING = """
"dequantized" is read back in place of the value, and "error" is the distance between them. Saturated rows
show how far a format reaches at its scale, the other rows how fine its steps are."""


def add(commands: Commands) -> None:
    parser = declare(commands, "error-table", "models", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument(
        "values", nargs="*", type=float, metavar="VALUE", help="numbers; negative ones after --"
    )
    parser.add_argument("--scale", type=float, help="the code is the one nearest to VALUE / SCALE")
    parser.add_argument(
        "--formats",
        default=None,
        metavar="A,B",
        help="formats, such as e4m3,e5m2,int8,bf16,q4_0,fp8_naive",
    )
    parser.add_argument(
        "--calibrate", choices=["amax"], help="a scale for each format, from the largest value"
    )
    parser.add_argument(
        "--language",
        choices=["en", "zh"],
        default="en",
        help="zh: a table for each format with Chinese headings and five decimals",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw error against value; needs matplotlib")
    shared(parser, "--json")


def run(args: argparse.Namespace) -> int:
    from ..accuracy import error_table
    from ..accuracy.table import DOCUMENT

    settings: dict[str, Any] = {} if args.scale is None else {"scale": args.scale}
    if args.formats is not None:
        settings["formats"] = [name.strip() for name in args.formats.split(",") if name.strip()]
    errors = error_table(args.values or DOCUMENT, calibrate=args.calibrate, **settings)
    if args.plot is not None:
        errors.plot(args.plot)
    if args.json:
        _plain.print_json(_facts(errors))
    elif args.language == "zh":
        print(errors.as_document())
    else:
        print(errors.as_text(), READING, sep="\n")
    return 0


def _facts(errors: ErrorTable) -> dict[str, Any]:
    rows = [row._asdict() for row in errors]
    for row in rows:
        del row["hexadecimal"]
    return {"scales": errors.scales, "rows": rows}
