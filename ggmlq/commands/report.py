"""``ggmlq report``: a whole model on one page."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.text import count as counted
from ..errors import GGMLQError
from . import _files, _plain
from ._options import Commands, count, declare, flag, shared

if TYPE_CHECKING:
    from ..report import Report

SUMMARY = "write an HTML page: types, errors, histograms, damage"
ABOUT = """\
Examine every tensor of a model and write one HTML page: main facts, types and bits by layer, the error of
each tensor, histograms of values, scales and codes, rows of zeros, outliers, damaged blocks. The page is a
single file that loads nothing; its tables sort, it prints, and it can be read without scripts. With the
original (--against) errors are measured, otherwise they are estimated from the scales. --quality runs models
beside their original on a text: perplexity, KL and best tokens, by token and by layer, by this library and by
your libllama where there is one. Exit 0: nothing is wrong, 1: something is wrong.
"""
EXAMPLES = """\
  ggmlq report model-q4_K.gguf                         writes model-q4_K.report.html
  ggmlq report model-q4_K.gguf --against model-f16.gguf -o errors.html
  ggmlq report model-q4_K.gguf --json > facts.json
  ggmlq report --quality model-f16.gguf model-q4_K.gguf model-q3_K.gguf --text text.txt
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "report", "models", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("file", metavar="MODEL", nargs="?", help="a .gguf file, any part of a split model")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the page (default: the name of MODEL, as MODEL.report.html)"
    )
    flag(parser, "--force", "replace FILE if it exists")
    parser.add_argument("--against", metavar="ORIGINAL", help="the same model in floats, such as f16")
    group = parser.add_argument_group("quality on a text")
    group.add_argument(
        "--quality", nargs="+", metavar="MODEL", help="the original, and one model or more made of it"
    )
    group.add_argument("--text", type=Path, metavar="FILE", help="the text, in UTF-8")
    group.add_argument("--stretch", type=count, metavar="N", help="tokens that are run together (512)")
    group.add_argument("--stretches", type=count, metavar="N", help="at most N of them")
    group.add_argument("--lib", type=Path, help="libllama or a build folder (default: as doctor finds it)")
    shared(group, "--device")
    flag(parser, "--json", "print the facts as JSON; write a page only with -o")


def page_of(model: str) -> str:
    """The page of a model, in the folder where the command is called: ``model.report.html``."""
    return f"{os.path.basename(model.rstrip('/')).removesuffix('.gguf')}.report.html"


def run(args: argparse.Namespace) -> int:
    from ..pages import check_target
    from ..report import examine

    if args.quality is not None:
        return _quality(args)
    if args.file is None:
        raise GGMLQError("there is no model; name one, or --quality ORIGINAL MODEL --text FILE")
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


def _quality(args: argparse.Namespace) -> int:
    """Models beside their original on a text."""
    from ..pages import check_target
    from ..trace.quality import quality
    from . import _quality as lines

    if len(args.quality) < 2 or args.text is None or args.file or args.against:
        raise GGMLQError(
            f"--quality {' '.join(args.quality)}: it takes the original, one model or more made "
            "of it, and --text FILE; MODEL and --against are of the other report"
        )
    stem = page_of(args.quality[1]).removesuffix(".report.html")
    output = args.output or (None if args.json else f"{stem}.quality.html")
    if output is not None:
        check_target(output)
        _files.check_free([output], args.force)
    report = quality(
        args.quality[0], args.quality[1:], _plain.text_of("--text", args.text), name=str(args.text),
        stretch=args.stretch, most=args.stretches, device=args.device, lib=args.lib,
        bar=False if args.json else None,
    )  # fmt: skip
    if output is not None:
        report.write(output)
    if args.json:
        _plain.print_json(report.facts())
        return 0
    for one in (report.original, *report.models):
        print(f"{_plain.name(one.path)}: {one.bits:.3f} bits a weight")
        for kind, measured in (("", one.quality), ("by libllama: ", one.library)):
            for line in lines.said(measured.facts()) if measured.loss else ():
                print(f"  {kind}{line}")
    if not report.by_library:
        print(f"no numbers by a libllama: {_plain.name(report.library)}")
    print(f"wrote {_plain.name(output or '')}")
    return 0


def _text(report: Report, output: str | None) -> str:
    lines = [f"{f.severity}: {_plain.name(f.where)}: {_plain.name(f.text)}" for f in report.findings]
    errors = sum(f.severity == "error" for f in report.findings)
    notes = len(report.findings) - errors
    counts = f"{counted(errors, 'error')}, {counted(notes, 'note')}"
    return "\n".join(
        [*lines, f"{_plain.name(report.paths[0])}: {counts}", f"wrote {_plain.name(output or '')}"]
    )
