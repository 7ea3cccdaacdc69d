"""``ggmlq error-table``: what numbers become in few bits."""

from __future__ import annotations

import argparse
from typing import Any

from ..accuracy import ErrorTable, error_table
from ..accuracy.table import DOCUMENT, FORMATS, SCALE
from . import _plain


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "error-table",
        help="what numbers become in 8 bits or in a block type, and the errors",
        description="Each value under a scale as the nearest code of each format, what is read back, and the "
        "error. Without arguments the eight values and two formats of the document that it comes from.",
    )
    parser.add_argument("values", nargs="*", type=float, metavar="VALUE", help="negative ones after --")
    parser.add_argument("--scale", type=float, default=SCALE, help="codes are those next to VALUE / SCALE")
    parser.add_argument(
        "--formats",
        default=",".join(FORMATS),
        metavar="A,B",
        help="such as e4m3,e5m2,int8,bf16,q4_0,fp8_naive",
    )
    parser.add_argument("--calibrate", choices=["amax"], help="a scale for each format, by the largest value")
    parser.add_argument("--plot", metavar="FILE", help="draw error against value; needs matplotlib")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    names = [name.strip() for name in args.formats.split(",") if name.strip()]
    found = error_table(args.values or DOCUMENT, args.scale, names, args.calibrate)
    if args.plot is not None:
        found.plot(args.plot)
    if args.json:
        _plain.print_json(_facts(found))
    else:
        print(found)
    return 0


def _facts(found: ErrorTable) -> dict[str, Any]:
    rows = [row._asdict() for row in found]
    for row in rows:
        del row["hexadecimal"]
    return {"scales": found.scales, "rows": rows}
