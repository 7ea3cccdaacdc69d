"""``ggmlq cache``: lists and removes the fetched parts of remote files."""

from __future__ import annotations

import argparse
import importlib
import time
from typing import Any

from ..base.terminal import table
from ..base.text import count, size
from . import _plain


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq cache``; the result is the exit status."""
    remote: Any = importlib.import_module("ggmlq.remote")  # what it needs, other commands start without
    entries = remote.empty() if args.empty else remote.entries()
    if args.json:
        files = [entry._asdict() for entry in entries]
        _plain.print_json({"removed": args.empty, "files": files, "problem": remote.problem()})
        return 0
    if entries:
        rows = [
            [
                _plain.name(e.address),
                size(e.size),
                size(e.there),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(e.used)),
            ]
            for e in entries
        ]
        print(table(["address", "size", "here", "opened"], rows), end="\n\n")
    total = size(sum(entry.there for entry in entries))
    print(f"{'removed ' if args.empty else ''}{count(len(entries), 'file')}, {total}")
    if (problem := remote.problem()) is not None:
        print(f"nothing is kept: {problem}")
    return 0
