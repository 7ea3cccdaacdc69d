"""``ggmlq report``: a whole model on one page."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from ..base.text import count
from . import _files, _plain
from ._options import Commands, declare, flag

if TYPE_CHECKING:
    from ..report import Report

SUMMARY = "write an HTML page: types, errors, histograms, damage"
ABOUT = """\
Examine every tensor of a model and write one HTML page: main facts, types and bits by layer, the error of
each tensor, histograms of values, scales and codes, rows of zeros, outliers, damaged blocks. The page is a
single file that loads nothing; its tables sort, it prints, and it can be read without scripts. With the
original (--against) errors are measured, otherwise they are estimated from the scales. Exit 0: nothing is
wrong, 1: something is wrong.
"""
EXAMPLES = """\
  ggmlq report model-q4_K.gguf                         writes model-q4_K.report.html
  ggmlq report model-q4_K.gguf --against model-f16.gguf -o errors.html
  ggmlq report model-q4_K.gguf --json > facts.json
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "report", "models", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("file", metavar="MODEL", help="a .gguf file, any part of a split model")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the page (default: the name of MODEL, as MODEL.report.html)"
    )
    flag(parser, "--force", "replace FILE if it exists")
    parser.add_argument("--against", metavar="ORIGINAL", help="the same model in floats, such as f16")
    flag(parser, "--json", "print the facts as JSON; write a page only with -o")


def page_of(model: str) -> str:
    """The page of a model, in the folder where the command is called: ``model.report.html``."""
    return f"{os.path.basename(model.rstrip('/')).removesuffix('.gguf')}.report.html"


def run(args: argparse.Namespace) -> int:
    from ..pages import check_target
    from ..report import examine

    output = args.output or (None if args.json else page_of(args.file))
    if output is not None:
        check_target(output)
        _files.check_free([output], args.force)
    report = examine(args.file, args.against)
    if output is not None:
        report.write(output)
    if args.json:
        _plain.print_json(report.facts())
    else:
        print(_text(report, output))
    return 0 if report.ok else 1


def _text(report: Report, output: str | None) -> str:
    lines = [f"{f.severity}: {_plain.name(f.where)}: {_plain.name(f.text)}" for f in report.findings]
    errors = sum(f.severity == "error" for f in report.findings)
    notes = len(report.findings) - errors
    counts = f"{count(errors, 'error')}, {count(notes, 'note')}"
    return "\n".join(
        [*lines, f"{_plain.name(report.paths[0])}: {counts}", f"wrote {_plain.name(output or '')}"]
    )
