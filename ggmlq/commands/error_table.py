"""``ggmlq error-table``: the errors of numbers in few bits, as a table."""

from __future__ import annotations

import argparse
from typing import Any

from ..accuracy import ErrorTable, error_table
from ..accuracy.table import DOCUMENT
from . import _plain

READING = """
"dequantized" is read back in place of the value, and "error" is the distance between them. Saturated rows
show how far a format reaches at its scale, the other rows how fine its steps are."""


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq error-table``; the result is the exit status."""
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
