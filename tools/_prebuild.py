"""The command of prebuild.py and prebuild_cpu.py: its options, the check of packs, and the list."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from _packs import Wanted, looked_away, names, problems


def command(
    description: str | None, wanted: Iterable[Wanted], folders: Path, build: Callable[[str, int], int]
) -> int:
    """Build the packs of these kernels in these folders, check them or list them; the exit status."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=shape)
    parser.add_argument("--check", action="store_true", help="print what is missing or has changed")
    parser.add_argument("--list", action="store_true", help="print the kernels that belong in")
    parser.add_argument("--json", action="store_true", help="with --check: as JSON")
    parser.add_argument("--only", default="", metavar="TEXT", help="compile kernels with this in their name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: all cores")
    args = parser.parse_args()
    if args.list:
        print(*(f"{kernel.folder}: {kernel.origin}" for kernel in wanted), sep="\n")
        return 0
    if args.check:
        return check(wanted, folders, args.json)
    return build(args.only, max(args.jobs, 1))


def check(wanted: Iterable[Wanted], folders: Path, as_json: bool) -> int:
    """Print where packs and sources do not agree; the exit status."""
    wrong, others = problems(folders, wanted), looked_away(folders)
    if as_json:
        print(json.dumps({**wrong, "changed elsewhere": others}, indent=1))
    else:
        print("\n".join(names(wrong)) or "packs and sources agree")
        if others:
            print(f"{len(others)} files changed, but no kernel: a run writes files.json, in seconds")
    return int(any(wrong.values()))
