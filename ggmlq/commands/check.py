"""``ggmlq check``: are the kernels of a library right?"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..arrays.dumps import Dump
from ..check import batches, cases, mixtures, report
from ..check.cases import Case
from ..check.contrast import contrasts
from ..check.judge import FIT
from ..check.outcome import IDLE, Outcome
from ..check.page import page
from ..check.plan import Plan, Trial, other_threads, trial_lines, untried
from ..check.run import run as run_cases
from ..check.running import Settings
from ..errors import DeviceError, DumpError, GGMLQError, ShapeError, UnsupportedError
from ..formats import FORMATS, Format
from ..llama import Bridge, Device
from ..llama.library import is_weight_type
from ..llama.loaded import listed
from ..pages import check_target, write
from . import _check_invariance, _check_ops, _plain, _saved_nodes

TIMEOUT, QUICK = 60.0, 20.0  # seconds for one case, of products and of other operations


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq check``; the result is the exit status."""
    for name, least in (("timeout", 1e-3), ("repeats", 1), ("threads", 1), ("time", 0)):
        value = getattr(args, name)
        if value is not None and not value >= least:
            raise ShapeError(f"--{name} {value}: it must be {least:g} or more; leave it out")
    if args.op is not None:
        raise UnsupportedError(
            f"--op {args.op}: write --ops {args.op}; products are checked by --types and --shapes, or as "
            "test-backend-ops prints them: ggmlq check 'MUL_MAT(type_a=q4_0,m=16,n=1,k=256)'"
        )
    if args.test_file and args.ops is None and not args.invariance:
        raise UnsupportedError("--test-file writes cases of operations: name them with --ops")
    if args.html:
        check_target(args.html, "--html")
    timeout = args.timeout or (TIMEOUT if args.ops is None else QUICK)
    with Bridge(args.lib, timeout=timeout, sleeps=args.ops is not None) as bridge:
        device = _device(bridge, args.device)
        if args.invariance:
            return _check_invariance.run(args, bridge, device, _types)
        if args.ops is not None:
            return _check_ops.run(args, bridge, device)
        if nodes := _saved_nodes.paths_of(args.replay):
            return _saved_nodes.run(args, bridge, device, nodes)
        trials = _trials(args, bridge, device)
        left = untried(device, bridge.devices(), trials)
        outcomes = []
        with _progress(len(trials), quiet=args.json) as (say, step):
            say("\n".join(_header(bridge, device, trials, left)))
            lines = report.Lines(say, every=args.verbose or _named(args) or args.time > 0)
            for outcome in run_cases(bridge, trials):
                outcome = replace(outcome, options=_options(args, outcome))  # noqa: PLW2901
                if outcome.bad and args.save:
                    outcome = report.save(args.save, outcome, args.arithmetic)  # noqa: PLW2901
                lines.add(outcome)
                step()
                outcomes.append(replace(outcome, arrays={}))
            lines.close()
        if args.html:
            write(page(outcomes, f"{bridge.path}", f"{device.name}: {device.description}"), args.html)
        if args.json:
            _plain.print_json({**_facts(bridge, device, args, outcomes), "not_tried": left})
        else:
            print(f"\n{report.summary(outcomes)}")
            print("".join(f"\n{contrast}" for contrast in contrasts(outcomes)), end="")
            print("".join(f"\n{idle}: {why}" for idle in IDLE for why in report.reasons(outcomes, idle)))
            print(report.last_sentence(outcomes))
    return _status(args, outcomes)


def _named(args: argparse.Namespace) -> bool:
    """True where cases were named one by one."""
    return bool(args.replay or args.case or args.shapes)


def _header(bridge: Bridge, device: Device, trials: list[Trial], left: list[str]) -> list[str]:
    """The library, the device, what is tried and what is not."""
    loaded = [f"loaded: {_plain.name(listed(bridge.libraries))}"] if bridge.libraries else []
    tried = [f"tried: {line}" for line in trial_lines(trials)]
    others = [f"not tried: {'; '.join(left)}"] if left else []
    place = f"{device.name}: {device.description}, {device.backend}"
    return [repr(bridge), *loaded, place, *tried, *others, "", report.HEADER]


def _options(args: argparse.Namespace, outcome: Outcome) -> str:
    """The options that repeat a run: the library, the device, and the settings of the case."""
    options = [("--lib", args.lib), ("--device", None if args.device == "CPU" else args.device)]
    options += [("--buffer", outcome.layout or None), ("--threads", outcome.threads)]
    options += [("--repeats", args.repeats), ("--arithmetic", args.arithmetic)]
    words = [f" {name} {shlex.quote(str(value))}" for name, value in options if value is not None]
    return "".join(words) + (" --repack" if args.repack and not outcome.layout else "")


def _device(bridge: Bridge, name: str) -> Device:
    devices = bridge.devices()
    for device in devices:
        if device.name.lower() == name.lower():
            return device
    raise DeviceError(
        f"--device {name}: {bridge.build.folder} has {', '.join(d.name for d in devices)}; name one of these"
    )


def _arithmetic(name: str | None) -> str | None:
    if name is not None and name not in FIT:
        raise UnsupportedError(
            f"--arithmetic {name}: no kernel multiplies so; choose of {', '.join(FIT)}, "
            "or leave it out to find the one that fits"
        )
    return name


def _trials(args: argparse.Namespace, bridge: Bridge, device: Device) -> list[Trial]:
    """The trials: cases that were named, else the edges in every layout, or in the named one."""
    how = Settings(
        device.name, device.backend, args.threads or min(4, os.cpu_count() or 1), args.buffer or args.repack,
        args.repeats, args.time, _arithmetic(args.arithmetic),
    )  # fmt: skip
    if _named(args):
        return [Trial(case, how) for case in _cases(args, bridge)]
    others = () if args.threads else other_threads(device, how.threads)
    plan = Plan(bridge, device, how, args.seed, others)
    layouts: list[str | bool] = [how.repack] if how.repack else [False, *device.layouts]
    if args.experts:
        experts = None if args.experts == "edges" else mixtures.parse_experts(args.experts)
        return [trial for fmt in _types(args, bridge) for trial in plan.mixtures(fmt, layouts, experts)]
    kinds = cases.parse_data(args.data) if args.data else None
    trials = [trial for fmt in _types(args, bridge) for trial in plan.products(fmt, layouts)]
    if args.large:
        trials += [Trial(cases.large(fmt, args.seed), how) for fmt in _types(args, bridge)]
    return [trial for trial in trials if kinds is None or trial.case.data in kinds]


def _cases(args: argparse.Namespace, bridge: Bridge) -> list[Case]:
    """The cases of files, of test-backend-ops, or of shapes."""
    named = [_saved(path) for path in args.replay]
    for text in args.case:
        parse = mixtures.parse_backend_ops if "MUL_MAT_ID" in text else batches.parse_backend_ops
        named.append(parse(text, args.seed))
    if named:
        if args.shapes or args.data or args.types != "all" or args.experts:
            raise ShapeError(
                "cases were given beside --types, --shapes, --experts or --data; a case says these itself; "
                "drop one"
            )
        return named
    return _mixtures(args, bridge) if args.experts else _plain_cases(args, bridge)


def _saved(path: Path) -> Case:
    """A saved case: with ids, in batches or plain; the error for any other file is that of plain cases."""
    try:
        saved = Dump(path)
        load: Callable[[Path], Case] = cases.load
        if "batches" in saved:
            load = batches.load
        elif "ids" in saved:
            load = mixtures.load
    except DumpError:
        load = cases.load
    return load(path)


def _mixtures(args: argparse.Namespace, bridge: Bridge) -> list[Case]:
    """Products with experts of each shape."""
    if args.experts == "edges":
        raise ShapeError(
            "--experts edges beside --shapes: shapes need a number of experts; write --experts 8/2"
        )
    experts, routing = mixtures.parse_experts(args.experts), mixtures.parse_routing(args.spread or "uniform")
    shaped = _plain_cases(args, bridge)
    if several := [case for case in shaped if isinstance(case, batches.Batch)]:
        raise ShapeError(
            f"--experts beside --shapes {several[0].shape}: products with experts have no batches; "
            "write M×N×K"
        )
    return [mixtures.with_experts(case, experts, routing, row_per_use=args.apart) for case in shaped]


def _plain_cases(args: argparse.Namespace, bridge: Bridge) -> list[Case]:
    """Products of each shape with one matrix."""
    kinds = cases.parse_data(args.data) if args.data else ["normal"]
    shapes = cases.parse_shapes(args.shapes)
    fits: Callable[[Format, int], bool] = lambda fmt, k: args.types != "all" or k % fmt.block_size == 0
    return [
        batches.in_batches(Case(fmt, m, n, k, kind, args.seed), lead)
        for fmt in _types(args, bridge)
        for lead, (m, n, k) in shapes
        if fits(fmt, k)
        for kind in kinds
    ]


def _types(args: argparse.Namespace, bridge: Bridge) -> list[Format]:
    if args.types == "all":
        return [fmt for fmt in FORMATS.values() if is_weight_type(fmt) and fmt.name in bridge.types]
    return cases.parse_types(args.types)


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """Functions that print a line and count a case; a bar on stderr where that is a terminal."""
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
        "library": _plain.library(bridge) | {"loaded": [str(path) for path in bridge.libraries]},
        "device": device.facts(),
        "threads": args.threads,
        "repack": args.repack,
        "buffer": args.buffer,
        "repeats": args.repeats,
        "cases": [outcome.facts() for outcome in outcomes],
    }


def _status(args: argparse.Namespace, outcomes: list[Outcome]) -> int:
    """The exit status: 1 for anything wrong, 2 where nothing ran or a named type did not."""
    if any(outcome.bad for outcome in outcomes):
        return 1
    ran = {outcome.case.format.name for outcome in outcomes if outcome.arithmetic}
    types = {outcome.case.format.name for outcome in outcomes}
    named = args.types != "all" or args.case or args.replay
    if not ran or (named and types - ran):
        idle = [why for verdict in IDLE for why in report.reasons(outcomes, verdict)]
        why, *more = idle or ["no case fits these types and shapes"]
        why += f"; {len(more)} more reasons stand above" if more and not args.json else ""
        raise GGMLQError(f"not run: {why}")
    return 0
