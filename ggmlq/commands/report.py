"""``ggmlq report``: a whole model on one page."""

from __future__ import annotations

import argparse

from ..pages import check_target
from ..report import Report, examine
from . import _plain

ABOUT = """\
Look at every tensor of a model and write one HTML page: what the model is, types and bits by layer, the
error of each tensor, histograms of values, scales and codes, dead rows, outliers, damaged blocks. The
page is a single file that loads nothing from anywhere; it sorts, prints, and reads without a script.
Errors are measured where the original is at hand (--against), else estimated from the scales.
Exit 0 where nothing is wrong, 1 where something is."""
FILE = "report.html"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "report",
        help="a whole model as one HTML page: types, errors, histograms, damage",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="MODEL", help="a .gguf file, any part of a split model")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help=f"the page (default: {FILE}); replaced if there"
    )
    parser.add_argument("--against", metavar="ORIGINAL", help="the same model in f16 or the like")
    parser.add_argument(
        "--json", action="store_true", help="print the facts as JSON; a page is then written with -o only"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    output = args.output or (None if args.json else FILE)
    if output is not None:
        check_target(output)
    found = examine(args.file, args.against)
    if output is not None:
        found.write(output)
    if args.json:
        _plain.print_json(found.facts())
    else:
        print(_told(found, output))
    return 0 if found.ok else 1


def _told(found: Report, output: str | None) -> str:
    lines = [f"{f.severity}: {_plain.name(f.where)}: {_plain.name(f.text)}" for f in found.findings]
    errors = sum(f.severity == "error" for f in found.findings)
    notes = len(found.findings) - errors
    counts = f"{errors} error{'s' * (errors != 1)}, {notes} note{'s' * (notes != 1)}"
    return "\n".join(
        [*lines, f"{_plain.name(found.paths[0])}: {counts}", f"wrote {_plain.name(output or '')}"]
    )
