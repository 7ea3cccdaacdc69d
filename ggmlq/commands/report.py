"""``ggmlq report``: a whole model on one page."""

from __future__ import annotations

import argparse
import os

from ..base.text import count
from ..pages import check_target
from ..report import Report, examine
from . import _plain, _sizes


def page_of(model: str) -> str:
    """The page of a model, in the folder where the command is called: ``model.report.html``."""
    return f"{os.path.basename(model.rstrip('/')).removesuffix('.gguf')}.report.html"


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq report``; the result is the exit status."""
    output = args.output or (None if args.json else page_of(args.file))
    if output is not None:
        check_target(output)
        _sizes.check_free([output], args.force)
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
