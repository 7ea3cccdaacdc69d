"""``ggmlq check``: are the kernels of a library right?"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.text import count
from ..errors import DeviceError, GGMLQError, ShapeError, UnsupportedError
from . import _check_ci, _plain
from ._options import Commands, declare, flag, shared

if TYPE_CHECKING:
    from ..check.outcome import Outcome
    from ..check.plan import Trial
    from ..llama import Bridge, Device

SUMMARY = "judge the kernels of a libggml on seeded cases"
ABOUT = """\
Run a library's matrix products on seeded cases and judge each result: its arithmetic, its distance from that
arithmetic and from exact values, the elements beyond the bound of float32 sums, and the mistake. Exit 0: all
is right, 1: something is wrong, 2: something could not run.
"""
EXAMPLES = """\
  ggmlq check                                      the libggml that doctor finds, all types, their edges
  ggmlq check --lib ~/llama.cpp/build --types q4_0,q4_K --save bad
  ggmlq check --types q4_0 --shapes 1x4096x4096,512x4096x4096 --time 20
  ggmlq check --replay bad/q4_0-1.npz
  ggmlq check --invariance --types q4_0,q8_0       a row's bits alone, beside others, by other threads
  ggmlq check --ops all                            every other operation: norms, rope, attention, copies …
  ggmlq check --case 'CLAMP(ne=[17,5,3,2], rows apart)'
  ggmlq check --ops all --budget 60s --baseline known.json --junit check.xml --github
"""
MOST_THREADS = 512  # ggml's own limit
TIMEOUT, QUICK = 60.0, 20.0  # seconds for one case, of products and of other operations


def add(commands: Commands) -> None:
    parser = declare(commands, "check", "kernels", SUMMARY, ABOUT, EXAMPLES)
    about = "cases as a report or test-backend-ops calls them: 'MUL_MAT(type_a=q4_0,…)', 'CLAMP(…)'"
    parser.add_argument("case", nargs="*", help=about)
    parser.add_argument("--case", dest="named", action="append", default=[], metavar="CASE",
                        help="the same, one case")  # fmt: skip
    parser.add_argument("--op", help=argparse.SUPPRESS)  # as test-backend-ops has it, to say what is taken
    parser.add_argument("--ops", metavar="NAMES", help="operations that are no products: ROPE,NORM, or all")
    flag(
        parser,
        "--invariance",
        "do the bits of a row depend on rows beside it, its place, threads? of the library and of ggmlq",
    )
    parser.add_argument(
        "--test-file", type=Path, metavar="FILE",
        help="cases of a file of test-backend-ops; with --ops: write the cases to it",
    )  # fmt: skip
    flag(parser, "--large", "also more than 65535 rows, and 2^31 elements")
    parser.add_argument("--lib", type=Path, help="a library or build folder (default: as doctor finds it)")
    parser.add_argument("--device", default="CPU", help="one of the build's devices (default: CPU)")
    parser.add_argument(
        "--types", default="all", help="q4_0,q4_K (default: all types that the device supports)"
    )
    parser.add_argument("--shapes", help="M×N×K, as 1x4096x4096; with batches before it, as 3x9x64x512")
    parser.add_argument("--experts", metavar="E/U", help="products with experts, as 128/8, or edges")
    parser.add_argument("--spread", help="how tokens use experts: uniform, skewed, duplicate, few")
    flag(parser, "--apart", "with --experts: one row of x for each use")
    parser.add_argument(
        "--data",
        help="kinds of activations, or all: normal, uniform, zero, constant, huge, tiny, outliers, special",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the data (default: 0)")
    flag(parser, "--repack", "use the device's first layout of weights beside the plain one")
    parser.add_argument("--buffer", metavar="NAME", help="use only this weight layout: AMX, CPU_REPACK …")
    parser.add_argument(
        "--threads", type=int, help="threads of a CPU (default: up to 4; some cases 1, 2, all, 32)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs whose bits must agree (default: 3)")
    parser.add_argument("--time", type=int, default=0, metavar="RUNS", help="also time this number of runs")
    parser.add_argument(
        "--arithmetic", help="the arithmetic that the kernels claim (default: the one that fits)"
    )
    parser.add_argument("--timeout", type=float, help="seconds for one case (default: 60; with --ops: 20)")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write wrong cases to DIR as npz")
    parser.add_argument("--replay", type=Path, metavar="NPZ", action="append", default=[],
                        help="run a case that --save wrote")  # fmt: skip
    flag(parser, "--verbose", "print one line for each right case")
    shared(parser, "--json")
    _check_ci.add(parser)


def run(args: argparse.Namespace) -> int:
    from ..llama import Bridge
    from . import _check

    for name, least in (("timeout", 1e-3), ("repeats", 1), ("threads", 1), ("time", 0)):
        value = getattr(args, name)
        if value is not None and not value >= least:
            raise ShapeError(f"--{name} {value}: it must be {least:g} or more; leave it out")
    if args.seed < 0:
        raise ShapeError(f"--seed {args.seed}: a seed is 0 or more; choose another")
    if args.threads is not None and args.threads > MOST_THREADS:
        raise ShapeError(f"--threads {args.threads}: ggml takes up to {MOST_THREADS}; name fewer")
    if args.op is not None:
        raise UnsupportedError(
            f"--op {args.op}: write --ops {args.op}; products are checked by --types and --shapes, or as "
            "test-backend-ops prints them: ggmlq check 'MUL_MAT(type_a=q4_0,m=16,n=1,k=256)'"
        )
    _check_ci.refuse(args)
    args.case += args.named
    of_ops = _check.takes_operations(args)
    timeout = args.timeout or (QUICK if of_ops else TIMEOUT)
    where = {"server": args.rpc, "emulator": args.emulate}
    with Bridge(args.lib, timeout=timeout, sleeps=not args.time, **where) as bridge:
        device = _device(bridge, args.device)
        if args.invariance:
            return _check.run_invariance(args, bridge, device)
        if of_ops:
            return _check.run_ops(args, bridge, device)
        if nodes := _check.paths_of(args.replay):
            return _check.run_nodes(args, bridge, device, nodes)
        return _run_products(args, bridge, device)


def _run_products(args: argparse.Namespace, bridge: Bridge, device: Device) -> int:
    from ..check import ci, report
    from ..check.outcome import IDLE
    from ..check.plan import untried
    from ..check.report import contrasts

    trials, notes = _trials(args, bridge, device), list[str]()
    trials = [one for one in trials if ci.in_shard(f"{one.case.label}{one.how.repack}", args.shard)]
    left = untried(device, bridge.devices(), trials)
    with _progress(len(trials), quiet=args.json) as (say, step):
        say("\n".join(_header(bridge, device, trials, left)))
        outcomes = list(_judged(args, bridge, trials, say, step))
    if len(outcomes) < len(trials):
        missing = len(trials) - len(outcomes)
        notes.append(f"--budget is used up: {missing} of {count(len(trials), 'case')} did not run")
    records = ci.of_products(outcomes, device.name)
    title = f"products on {device.name}"
    faults, baseline = _check_ci.finish(args, f"{bridge.path}", title, records, notes)
    if args.json:
        _plain.print_json({**_facts(bridge, device, args, outcomes), "not_tried": left, "baseline": baseline})
    else:
        print(f"\n{report.summary(outcomes)}")
        print("".join(f"\n{contrast}" for contrast in contrasts(outcomes)), end="")
        print("".join(f"\n{idle}: {why}" for idle in IDLE for why in report.reasons(outcomes, idle)))
        print(report.last_sentence(outcomes))
        _check_ci.say(notes)
    return _status(args, outcomes) if faults or not any(o.bad for o in outcomes) else 0


def _judged(
    args: argparse.Namespace, bridge: Bridge, trials: list[Trial], say: Callable[[str], None],
    step: Callable[[], None],
) -> Iterator[Outcome]:  # fmt: skip
    """The outcomes of trials, each printed and perhaps saved, until the time is up."""
    from ..check import report
    from ..check.plan import spread
    from ..check.run import run as run_cases
    from . import _check

    until = _check_ci.deadline(args)
    lines = report.Lines(say, every=args.verbose or _check.is_named(args) or args.time > 0)
    for outcome in run_cases(bridge, spread(trials) if args.budget else trials):
        outcome = replace(outcome, options=_options(args, outcome))  # noqa: PLW2901
        if outcome.bad and args.save:
            outcome = report.save(args.save, outcome, args.arithmetic)  # noqa: PLW2901
        lines.add(outcome)
        step()
        yield replace(outcome, arrays={})
        if time.monotonic() > until:
            break
    lines.close()


def _header(bridge: Bridge, device: Device, trials: list[Trial], left: list[str]) -> list[str]:
    """The library, the device, what is tried and what is not."""
    from ..check import report
    from ..check.plan import trial_lines
    from ..llama.library import listed

    loaded = [f"loaded: {_plain.name(listed(bridge.libraries))}"] if bridge.libraries else []
    tried = [f"tried: {line}" for line in trial_lines(trials)]
    others = [f"not tried: {'; '.join(left)}"] if left else []
    place = f"{device.name}: {device.description}, {device.backend}"
    return [repr(bridge), *loaded, place, *tried, *others, "", report.HEADER]


def _options(args: argparse.Namespace, outcome: Outcome) -> str:
    """The options that repeat a run: the library, the device, and the settings of the case."""
    from ._check import where

    layout = f" --buffer {shlex.quote(outcome.layout)}" if outcome.layout else " --repack" * args.repack
    return f"{where(args)}{layout} --threads {outcome.threads}"


def _device(bridge: Bridge, name: str) -> Device:
    devices = bridge.devices()
    if bridge.server and name == "CPU":  # the first of the server, whatever it is called
        return devices[0]
    for device in devices:
        if device.name.lower() == name.lower():
            return device
    raise DeviceError(
        f"--device {name}: {bridge.build.folder} has {', '.join(d.name for d in devices)}; name one of these"
    )


def _arithmetic(name: str | None) -> str | None:
    from ..check.judge import FIT

    if name is not None and name not in FIT:
        raise UnsupportedError(
            f"--arithmetic {name}: no kernel multiplies so; choose of {', '.join(FIT)}, "
            "or leave it out to find the one that fits"
        )
    return name


def _trials(args: argparse.Namespace, bridge: Bridge, device: Device) -> list[Trial]:
    """The trials: cases that were named, else the edges in every layout, or in the named one."""
    from ..check import batches, cases
    from ..check.plan import Plan, Settings, Trial, other_threads
    from . import _check

    how = Settings(
        device.name, device.backend, args.threads or min(4, os.cpu_count() or 1), args.buffer or args.repack,
        args.repeats, args.time, _arithmetic(args.arithmetic),
    )  # fmt: skip
    if _check.is_named(args):
        return [Trial(case, how) for case in _check.chosen(args, bridge)]
    others = () if args.threads else other_threads(device, how.threads)
    plan = Plan(bridge, device, how, args.seed, others)
    layouts: list[str | bool] = [how.repack] if how.repack else [False, *device.layouts]
    if args.experts:
        experts = None if args.experts == "edges" else batches.parse_experts(args.experts)
        return [trial for fmt in _check.types(args, bridge) for trial in plan.mixtures(fmt, layouts, experts)]
    kinds = cases.parse_data(args.data) if args.data else None
    trials = [trial for fmt in _check.types(args, bridge) for trial in plan.products(fmt, layouts)]
    if args.large:
        trials += [Trial(cases.large(fmt, args.seed), how) for fmt in _check.types(args, bridge)]
    return [trial for trial in trials if kinds is None or trial.case.data in kinds]


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
    from ..check import report
    from ..check.outcome import IDLE

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
