"""Files of nodes that ``ggmlq trace --save`` wrote: judged as they are, or computed again on a library."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import GGMLQError, UnsupportedError
from ..llama import Bridge, Device
from ..trace import Product, report
from ..trace.saved import is_node, judged, load_node, replay
from . import _plain

THREADS = (1, 2)  # where no number is named: some kernels are wrong with several threads only


def paths_of(files: list[Path]) -> list[Path]:
    """The files, if all of them hold nodes; none where all hold products."""
    nodes = [path for path in files if is_node(path)]
    if nodes and len(nodes) < len(files):
        other = next(path for path in files if path not in nodes)
        raise UnsupportedError(
            f"--replay {nodes[0]} {other}: the first holds a node, the other one does not; replay them apart"
        )
    return nodes


def run(args: argparse.Namespace, bridge: Bridge, device: Device, paths: list[Path]) -> int:
    """Compute each node alone on a device, and judge it; the result is the exit status."""
    if args.case:
        raise UnsupportedError(
            f"--replay {paths[0]} {args.case[0]}: one file belongs to an option; write --replay for each"
        )
    records: list[Product] = []
    if not args.json:
        print(f"{bridge!r}\n{device.name}: {device.description}, {device.backend}\n\n{report.HEADER}")
    for path in paths:
        node = load_node(path)
        for threads in (args.threads,) if args.threads else THREADS:
            results = replay(bridge, node, device.name, threads=threads, repeats=args.repeats)
            records += results
            for record in results if not args.json else ():
                print(report.line(record))
            if len(results) > 1 and not args.json:
                print(f"    {args.repeats} runs with {threads} threads gave {len(results)} results: a race")
    wrong = sum(record.verdict == "wrong" for record in records)
    idle = [record for record in records if record.verdict == "not judged"]
    if args.json:
        facts: dict[str, Any] = {
            "library": _plain.library(bridge), "device": device.facts(),
            "nodes": [record.facts() for record in records],
        }  # fmt: skip
        _plain.print_json(facts)
    else:
        rest = f"; {len(idle)} not judged" if idle else ""
        print(f"\n{wrong} of {len(records)} results are wrong{rest}")
    if idle and len(idle) == len(records):
        raise GGMLQError(f"not judged: {idle[0].text}")
    return 1 if wrong else 0


def diagnose(path: str, as_json: bool) -> int:
    """Judge a node as the traced library gave it; the result is the exit status."""
    record = judged(load_node(path))
    if as_json:
        _plain.print_json(record.facts())
    else:
        print(f"{report.HEADER}\n{report.line(record)}")
    return 1 if record.verdict == "wrong" else 0
