"""``ggmlq validate``: is the file sound?"""

from __future__ import annotations

import argparse

from ..files import is_safetensors
from ..gguf import check as gguf
from ..safetensors import check as safetensors
from . import _plain


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "validate",
        help="check every rule of the format, and every block for NaN and the like",
        description="Structure, metadata and values of a GGUF file or of safetensors. Exit 1 where something "
        "is wrong; notes alone do not count.",
    )
    parser.add_argument("file", help="a .gguf file, or safetensors: a file, an index, a folder")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    kind = safetensors if is_safetensors(args.file) else gguf
    findings = kind.check(args.file)
    errors = sum(finding.severity == "error" for finding in findings)
    if args.json:
        _plain.print_json(
            {"file": args.file, "ok": not errors, "findings": [finding._asdict() for finding in findings]}
        )
    else:
        for finding in findings:
            print(f"{finding.severity}: {_plain.name(finding.where)}: {_plain.name(finding.text)}")
        print(f"{_plain.name(args.file)}: {errors} errors, {len(findings) - errors} notes")
    return 1 if errors else 0
