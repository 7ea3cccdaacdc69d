"""Options of ``ggmlq check`` for a maintainer's CI, and what they do at the end of a run."""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import GGMLQError, UnsupportedError
from . import _plain
from ._options import flag

if TYPE_CHECKING:
    from ..check.ci import Record

SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("in a CI")
    group.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="known faults: only new ones fail the run (exit status 1)",
    )
    flag(group, "--accept", "write the faults of this run to --baseline, as known ones")
    group.add_argument("--junit", type=Path, metavar="FILE", help="write the cases as JUnit's XML")
    flag(group, "--github", "annotate a workflow of GitHub, and write the summary of its step")
    group.add_argument("--budget", type=seconds, metavar="60s",
                       help="stop after this time; cases that catch most come first")  # fmt: skip
    group.add_argument("--shard", type=shard, metavar="I/N", help="run part I of N of the cases")
    group.add_argument(
        "--rpc", metavar="HOST:PORT", default="", help="judge the devices of a server of ggml's RPC"
    )
    group.add_argument(
        "--emulate",
        metavar="EMULATOR:ROOT",
        default="",
        help="judge a build of another machine: qemu-aarch64-static:FOLDER, which holds its Python",
    )


def seconds(text: str) -> float:
    """``60s``, ``2m`` or ``90`` as seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 60s, 2m or 1h")
    return float(match[1]) * SECONDS[match[2] or ""]


def shard(text: str) -> tuple[int, int]:
    """``2/4`` as (2, 4)."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no part; write 2/4 for the second of four")
    return int(match[1]), int(match[2])


def deadline(args: argparse.Namespace) -> float:
    """The time at which no further case is begun."""
    return time.monotonic() + args.budget if args.budget else math.inf


def refuse(args: argparse.Namespace) -> None:
    """Raise an error, before the work starts, for files that the end of the run could not read or write."""
    from ..check import ci

    if args.accept and args.baseline is None:
        raise UnsupportedError("--accept writes known faults to a file: name it, --baseline known.json")
    for option, path in (("--junit", args.junit), ("--baseline", args.baseline if args.accept else None)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise GGMLQError(
                f"{option} {path}: no file can be written there; name one in a folder that exists"
            )
    if args.baseline is not None:
        ci.Baseline(args.baseline)


def finish(
    args: argparse.Namespace, library: str, title: str, records: Sequence[Record], notes: list[str]
) -> tuple[list[Record], dict[str, Any]]:
    """Write what the options ask for; the faults that fail the run, and facts for JSON.

    ``notes``: sentences on the run; those on the baseline are added.
    """
    from ..check import ci

    facts: dict[str, Any] = {}
    known: list[Record] = []
    faults = [one for one in records if one.bad]
    if args.baseline is not None:
        baseline = ci.Baseline(args.baseline)
        comparison = baseline.compared(records)
        faults, known = comparison.new, comparison.known
        facts = {"new": [one.head for one in faults], "known": len(known), "gone": comparison.gone}
        notes += ci.sentences(comparison)
        if args.accept:
            written = baseline.accept(records, library)
            notes.append(f"accepted: {args.baseline} has {written} known faults now")
            faults, known = [], [*faults, *known]
    if args.junit is not None:
        ci.write_junit(args.junit, records, known)
    if args.github:
        for text in ci.workflow_commands(faults):
            print(text, file=sys.stderr if args.json else sys.stdout)
        ci.write_summary(ci.markdown(f"ggmlq check: {title}", records, faults, notes))
    return faults, facts


def say(notes: Sequence[str]) -> None:
    """Print sentences on the run."""
    print("".join(f"{_plain.name(note)}\n" for note in notes), end="")
