"""``ggmlq check --invariance``: do the bits of a row depend on its neighbours, its place, the threads?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from ..base.text import table
from ..check import invariance
from ..check.invariance import OPS, Invariance, Subject
from ..errors import UnsupportedError
from ..llama import Bridge, Device
from . import _check_cases, _plain

UNUSED = ("shapes", "experts", "data", "arithmetic", "buffer", "repack", "save", "html", "test_file", "time")


def run(args: argparse.Namespace, bridge: Bridge, device: Device) -> int:
    """Try operations of the library and ours; the result is the exit status."""
    if unused := [name for name in UNUSED if getattr(args, name)]:
        option = unused[0].replace("_", "-")
        raise UnsupportedError(f"--invariance beside --{option}: it has cases of its own; leave one out")
    ops = _ops(args.ops)
    names = [fmt.name for fmt in _check_cases.types(args, bridge)]
    if not args.json:
        print(repr(bridge))
        print(f"{device.name}: {device.description}, {device.backend}; and ggmlq on this CPU\n")
    subjects = [*invariance.of_library(bridge, device.name, names, ops, args.seed)]
    if args.ops is None:
        subjects += invariance.of_ours(names, args.seed)
    outcomes = [invariance.examine(subject, args.seed) for subject in _shown(subjects, quiet=args.json)]
    if args.json:
        facts: dict[str, Any] = {
            "library": _plain.library(bridge), "device": device.facts(),
            "outcomes": [outcome.facts() for outcome in outcomes],
        }  # fmt: skip
        _plain.print_json(facts)
    else:
        print(_table(outcomes))
        for text in dict.fromkeys(f"not tried: {o.op}, {o.type}: {o.text}" for o in outcomes if o.text):
            print(_plain.name(text))
        print(_last(outcomes))
    return int(any(outcome.broken for outcome in outcomes))


def _ops(text: str | None) -> list[str]:
    if text is None or text.lower() == "all":
        return list(OPS)
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in OPS:
            raise UnsupportedError(
                f"--invariance --ops {text}: {name} is not tried so; choose of {', '.join(OPS)}"
            )
    return names


def _shown(subjects: list[Subject], *, quiet: bool) -> Iterator[Subject]:
    """The subjects, with a bar on stderr where that is a terminal."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield from subjects
        return
    from tqdm import tqdm

    yield from tqdm(subjects, unit="operation", file=sys.stderr, leave=False)


def _table(outcomes: list[Invariance]) -> str:
    """A row for all types of an operation that depend on the same things."""
    groups = dict[tuple[Any, ...], list[str]]()
    for o in outcomes:
        if not o.text:
            groups.setdefault((o.who, o.op, o.beside, o.place, o.threads), []).append(o.type)
    rows = [
        [
            who,
            op,
            _list(beside, "rows"),
            _list(place, "places on"),
            _list(threads, "threads"),
            " ".join(types),
        ]
        for (who, op, beside, place, threads), types in groups.items()
    ]
    head = ["of", "operation", "other bits beside", "at another place", "by other threads", "types"]
    return table(head, rows)


def _list(numbers: tuple[int, ...], unit: str) -> str:
    return f"{', '.join(map(str, numbers))} {unit}" if numbers else "-"


def _last(outcomes: list[Invariance]) -> str:
    tried = [o for o in outcomes if not o.text]
    same = sum(o.invariant is True for o in tried)
    broken = [f"{o.op} ({o.type})" for o in outcomes if o.broken]
    text = f"{same} of {len(tried)} give a row the same bits beside any rows, at any place, by any threads"
    return f"{text}; broken promises: {', '.join(broken)}" if broken else text
