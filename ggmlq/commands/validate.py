"""``ggmlq validate``: is the file sound?"""

from __future__ import annotations

import argparse

from ..base.terminal import paint, wrapped
from ..base.text import count
from . import _plain
from ._files import expanded
from ._options import JSON_FILES, Commands, declare, flag, shared

SUMMARY = "check every rule of the format and the values of every block"
ABOUT = """\
Check structure, metadata and values of GGUF files and of safetensors. Exit 1: something is wrong; notes alone
do not count.
"""
EXAMPLES = """\
  ggmlq validate model.gguf
  ggmlq validate 'models/*.gguf' --json
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "validate", "files", SUMMARY, ABOUT, EXAMPLES)
    shared(parser, "file")
    flag(parser, "--json", JSON_FILES)


def run(args: argparse.Namespace) -> int:
    from ..gguf import check as gguf
    from ..safetensors import check as safetensors
    from ..safetensors.either import is_safetensors

    reports = []
    for path in expanded(args.file):
        findings = (safetensors if is_safetensors(path) else gguf).check(path)
        errors = sum(finding.severity == "error" for finding in findings)
        reports.append(
            {"file": path, "ok": not errors, "findings": [finding._asdict() for finding in findings]}
        )
        if args.json:
            continue
        for finding in findings:
            style = "bad" if finding.severity == "error" else "note"
            text = f": {_plain.name(finding.where)}: {_plain.name(finding.text)}"
            print(wrapped(paint(finding.severity, style) + text, "    "))
        counts = f"{count(errors, 'error')}, {count(len(findings) - errors, 'note')}"
        print(f"{_plain.name(path)}: {paint(counts, 'bad' if errors else 'good')}")
    if args.json:
        _plain.print_json(reports if len(reports) > 1 else reports[0])
    return 0 if all(report["ok"] for report in reports) else 1
