"""``ggmlq check``: are the kernels of a library right?"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..check import cases, mixtures, report
from ..check.cases import Case
from ..check.judge import FIT
from ..check.outcome import Outcome
from ..check.page import page
from ..check.run import Settings
from ..check.run import run as run_cases
from ..dumps import Dump
from ..errors import DeviceError, DumpError, GGMLQError, ShapeError, UnsupportedError
from ..formats import FORMATS, Format
from ..llama import Bridge, Device
from ..llama.library import is_weight_type
from ..pages import check_target, write
from . import _plain

REPACKED_ROWS = 16  # rows that the widest of ggml's repacked layouts interleaves
TILED_ROWS = 32  # and that its layout AMX takes at a time


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    for name, least in (("timeout", 1e-3), ("repeats", 1), ("threads", 1), ("time", 0)):
        if not getattr(args, name) >= least:
            raise ShapeError(f"--{name} {getattr(args, name)}: it must be {least:g} or more; leave it out")
    if args.html:
        check_target(args.html, "--html")
    with Bridge(args.lib, timeout=args.timeout) as bridge:
        device = _device(bridge, args.device)
        todo = _cases(args, bridge)
        how = Settings(
            device.name, device.backend, args.threads, args.buffer or args.repack, args.repeats, args.time,
            _arithmetic(args.arithmetic),
        )  # fmt: skip
        outcomes = []
        with _progress(len(todo), quiet=args.json) as (say, step):
            say(f"{bridge!r}\n{device.name}: {device.description}, {device.backend}\n\n{report.HEADER}")
            for outcome in run_cases(bridge, todo, how):
                outcome = replace(outcome, options=_options(args))  # noqa: PLW2901
                if outcome.bad and args.save:
                    outcome = report.save(args.save, outcome, args.arithmetic)  # noqa: PLW2901
                if outcome.verdict != "not run":
                    say(report.line(outcome))
                step()
                outcomes.append(replace(outcome, arrays={}))
        if args.html:
            write(page(outcomes, f"{bridge.path}", f"{device.name}: {device.description}"), args.html)
        if args.json:
            _plain.print_json(_facts(bridge, device, args, outcomes))
        else:
            print(f"\n{report.summary(outcomes)}")
            print("".join(f"\nnot run: {reason}" for reason in report.reasons(outcomes)), end="")
    return _status(args, outcomes)


def _options(args: argparse.Namespace) -> str:
    """What was said of the library and of how to run it, for whoever repeats a case."""
    said = [("--lib", args.lib), ("--device", None if args.device == "CPU" else args.device)]
    said += [("--buffer", args.buffer), ("--threads", args.threads), ("--repeats", args.repeats)]
    said += [("--arithmetic", args.arithmetic)]
    words = [f" {name} {shlex.quote(str(value))}" for name, value in said if value is not None]
    return "".join(words) + (" --repack" if args.repack else "")


def _device(bridge: Bridge, name: str) -> Device:
    found = bridge.devices()
    for device in found:
        if device.name.lower() == name.lower():
            return device
    raise DeviceError(
        f"--device {name}: {bridge.build.folder} has {', '.join(d.name for d in found)}; name one of these"
    )


def _arithmetic(name: str | None) -> str | None:
    if name is not None and name not in FIT:
        raise UnsupportedError(
            f"--arithmetic {name}: no kernel multiplies so; choose of {', '.join(FIT)}, "
            "or leave it out to find the one that fits"
        )
    return name


def _cases(args: argparse.Namespace, bridge: Bridge) -> list[Case]:
    """What was asked for; without shapes or cases, the edges."""
    given = [_saved(path) for path in args.replay]
    for text in args.case:
        kind = mixtures if "MUL_MAT_ID" in text else cases
        given.append(kind.parse_backend_ops(text, args.seed))
    if given:
        if args.shapes or args.data or args.types != "all" or args.experts:
            raise ShapeError(
                "cases were given beside --types, --shapes, --experts or --data; a case says these itself; "
                "drop one"
            )
        return given
    return _mixtures(args, bridge) if args.experts else _plain_cases(args, bridge)


def _saved(path: Path) -> Case:
    """With ids or without; a file that is none of them is told by the latter."""
    try:
        mixed = "ids" in Dump(path)
    except DumpError:
        mixed = False
    return mixtures.load(path) if mixed else cases.load(path)


def _mixtures(args: argparse.Namespace, bridge: Bridge) -> list[Case]:
    """Products with experts: the edges, or each shape."""
    experts = None if args.experts == "edges" else mixtures.parse_experts(args.experts)
    if not args.shapes:
        group, types = REPACKED_ROWS if args.repack else 1, _types(args, bridge)
        return [case for fmt in types for case in mixtures.edges(fmt, args.seed, group, experts)]
    if experts is None:
        raise ShapeError(
            "--experts edges beside --shapes: shapes need a number of experts; write --experts 8/2"
        )
    spread = mixtures.parse_spread(args.spread or "uniform")
    return [mixtures.mixed(case, experts, spread, apart=args.apart) for case in _plain_cases(args, bridge)]


def _plain_cases(args: argparse.Namespace, bridge: Bridge) -> list[Case]:
    """Products with one matrix."""
    kinds = cases.parse_data(args.data) if args.data else None
    if not args.shapes:
        group = REPACKED_ROWS if args.repack or args.buffer else 1
        group = TILED_ROWS if (args.buffer or "").upper() == "AMX" else group
        edges = [case for fmt in _types(args, bridge) for case in cases.edges(fmt, args.seed, group)]
        return [case for case in edges if kinds is None or case.data in kinds]
    shapes = cases.parse_shapes(args.shapes)
    fits: Callable[[Format, int], bool] = lambda fmt, k: args.types != "all" or k % fmt.block_size == 0
    return [
        Case(fmt, m, n, k, kind, args.seed)
        for fmt in _types(args, bridge)
        for m, n, k in shapes
        if fits(fmt, k)
        for kind in kinds or ["normal"]
    ]


def _types(args: argparse.Namespace, bridge: Bridge) -> list[Format]:
    if args.types == "all":
        return [fmt for fmt in FORMATS.values() if is_weight_type(fmt) and fmt.name in bridge.types]
    return cases.parse_types(args.types)


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """How to print a line and how to count a case; a bar on stderr where that is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield (lambda text: None) if quiet else print, lambda: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="case", file=sys.stderr, leave=False) as bar:
        say = (lambda text: None) if quiet else (lambda text: tqdm.write(text, file=sys.stdout))
        yield say, lambda: bar.update(1)


def _facts(
    bridge: Bridge, device: Device, args: argparse.Namespace, outcomes: list[Outcome]
) -> dict[str, Any]:
    return {
        "library": {"path": str(bridge.path), "version": bridge.version},
        "device": device.facts(),
        "threads": args.threads,
        "repack": args.repack,
        "buffer": args.buffer,
        "repeats": args.repeats,
        "cases": [outcome.facts() for outcome in outcomes],
    }


def _status(args: argparse.Namespace, outcomes: list[Outcome]) -> int:
    """1 for anything wrong; 2 where nothing ran, or not all of what was named."""
    if any(outcome.bad for outcome in outcomes):
        return 1
    ran = {outcome.case.format.name for outcome in outcomes if outcome.arithmetic}
    asked = {outcome.case.format.name for outcome in outcomes}
    named = args.types != "all" or args.case or args.replay
    if not ran or (named and asked - ran):
        why = "; ".join(report.reasons(outcomes)[:3]) or "no case fits these types and shapes"
        raise GGMLQError(f"not run: {why}")
    return 0
