"""Parts of `ggmlq check`: cases that its options name, operations, invariance, and nodes of `ggmlq trace`."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..arrays.dumps import Dump
from ..base.text import table
from ..check import batches, cases, ci, invariance, nodes, opreport, ops, order, strided, testfile
from ..check.cases import Case
from ..check.invariance import OPS, Invariance, Subject
from ..check.nodes import write_lines
from ..check.outcome import IDLE
from ..errors import DumpError, GGMLQError, ShapeError, UnsupportedError
from ..formats import FORMATS, Format
from ..llama import Bridge, Device
from ..llama.library import is_weight_type, listed
from ..reference.nodes import PRODUCTS
from ..trace import Product, report
from ..trace.saved import is_node, judged, load_node, replay, write_node
from . import _check_ci, _plain


def is_named(args: argparse.Namespace) -> bool:
    """True where cases were named one by one."""
    return bool(args.replay or args.case or args.shapes)


def chosen(args: argparse.Namespace, bridge: Bridge) -> list[Case]:
    """The cases of files, of test-backend-ops, or of shapes."""
    named = [_saved(path) for path in args.replay]
    for text in args.case:
        parse = batches.parse_mixture if "MUL_MAT_ID" in text else strided.parse_product
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
        if "per" in saved:
            load = strided.load
        elif "batches" in saved:
            load = batches.load_batch
        elif "ids" in saved:
            load = batches.load_mixture
    except DumpError:
        load = cases.load
    return load(path)


def _mixtures(args: argparse.Namespace, bridge: Bridge) -> list[Case]:
    """Products with experts of each shape."""
    if args.experts == "edges":
        raise ShapeError(
            "--experts edges beside --shapes: shapes need a number of experts; write --experts 8/2"
        )
    experts, routing = batches.parse_experts(args.experts), batches.parse_routing(args.spread or "uniform")
    shaped = _plain_cases(args, bridge)
    if several := [case for case in shaped if isinstance(case, batches.Batch)]:
        raise ShapeError(
            f"--experts beside --shapes {several[0].shape}: products with experts have no batches; "
            "write M×N×K"
        )
    return [batches.with_experts(case, experts, routing, row_per_use=args.apart) for case in shaped]


def _plain_cases(args: argparse.Namespace, bridge: Bridge) -> list[Case]:
    """Products of each shape with one matrix."""
    kinds = cases.parse_data(args.data) if args.data else ["normal"]
    shapes = cases.parse_shapes(args.shapes)
    fits: Callable[[Format, int], bool] = lambda fmt, k: args.types != "all" or k % fmt.block_size == 0
    return [
        batches.in_batches(Case(fmt, m, n, k, kind, args.seed), lead)
        for fmt in types(args, bridge)
        for lead, (m, n, k) in shapes
        if fits(fmt, k)
        for kind in kinds
    ]


def types(args: argparse.Namespace, bridge: Bridge) -> list[Format]:
    """The types of --types; all that are of weights and that the library has."""
    if args.types == "all":
        return [fmt for fmt in FORMATS.values() if is_weight_type(fmt) and fmt.name in bridge.types]
    return cases.parse_types(args.types)


# --- --ops: are the operations right that are no products? --------------------------------------

REPEATS = 3  # runs of a case, where no number is named
UNUSED_BY_OPS = ("shapes", "experts", "spread", "apart", "data", "buffer", "repack", "time")


def takes_operations(args: argparse.Namespace) -> bool:
    """True where the cases are of operations that are no products; an error where they are of both."""
    if args.invariance or args.replay:
        return args.ops is not None
    if args.test_file is not None and args.ops is None:
        return True
    names = [re.match(r"\s*([A-Za-z]\w*)\s*(\(|$)", case) for case in args.case]
    others = [name.string for name in names if name and name[1].upper() not in PRODUCTS]
    if others and (len(others) < len(args.case) or args.ops):
        raise UnsupportedError(
            f"--case {others[0]} beside {args.ops or 'a product'}: products and operations are checked "
            "apart; run two commands"
        )
    return bool(others) or args.ops is not None


def op_cases(args: argparse.Namespace, bridge: Bridge, device: Device) -> list[Any]:
    """The cases of operations that the options name, in the order in which they run."""
    if args.test_file is not None and args.ops is None:
        cases = testfile.read(args.test_file, bridge, device.name, args.seed)
        wanted = [case for case in cases if not args.case or str(case) in args.case]
        return [case for case in wanted if ci.in_shard(str(case), args.shard)]
    if args.case:
        return [ops.case_of(case, args.seed) for case in args.case]
    every = [
        case for case in ops.cases_of(ops.named(args.ops), args.seed, args.large)
        if ci.in_shard(str(case), args.shard)
    ]  # fmt: skip
    return order.ordered(every) if args.budget else every


def run_ops(args: argparse.Namespace, bridge: Bridge, device: Device) -> int:
    """Run the cases of some operations; the result is the exit status."""
    unused = [name for name in UNUSED_BY_OPS if getattr(args, name)] + ["types"] * (args.types != "all")
    if unused:
        raise UnsupportedError(f"--ops beside --{unused[0]}: cases of operations have none; leave it out")
    every = op_cases(args, bridge, device)
    if args.arithmetic and all(case.op != nodes.ATTENTION for case in every):
        raise UnsupportedError(
            f"--ops {args.ops} --arithmetic {args.arithmetic}: {nodes.ATTENTION} alone is computed in "
            "several arithmetics; leave --arithmetic out"
        )
    options = (f" --seed {args.seed}" if args.seed else "") + where(args)
    if args.test_file is not None and args.ops is None:
        options = f" --test-file {shlex.quote(str(args.test_file))}{options}"
    threads = (args.threads,) if args.threads else ops.THREADS if device.backend == "CPU" else (1,)
    if not args.json:
        print(repr(bridge))
        print(f"loaded: {_plain.name(listed(bridge.libraries))}" if bridge.libraries else "")
        print(f"{device.name}: {device.description}, {device.backend}\n")
    outcomes = list[ops.OpOutcome]()
    for some in ops.run_ops(
        bridge, every, device.name, device.backend, threads=threads, repeats=args.repeats,
        arithmetic=args.arithmetic or "", options=options, until=_check_ci.deadline(args),
    ):  # fmt: skip
        kept = [saved_node(args.save, one) if args.save and one.node else one for one in some]
        outcomes += [replace(one, node=None) for one in kept]
        for text in () if args.json else opreport.lines(kept, args.verbose or bool(args.case)):
            print(text)
    if args.test_file and args.ops is not None:
        lines = write_lines(args.test_file, (outcome.line for outcome in outcomes))
        if not args.json:
            name = _plain.name(str(args.test_file))
            print(
                f"wrote {lines} cases to {name}: MALLOC_PERTURB_=255 test-backend-ops test --test-file {name}"
            )
    notes, records = _left(every, outcomes), ci.of_operations(outcomes, device.name)
    faults, baseline = _check_ci.finish(
        args, f"{bridge.path}", f"operations on {device.name}", records, notes
    )
    if args.json:
        facts = [outcome.facts() for outcome in outcomes]
        _plain.print_run(
            bridge, device, cases=facts, contrasts=opreport.shared(outcomes), baseline=baseline,
            loaded=[str(path) for path in bridge.libraries], notes=notes,
        )  # fmt: skip
    else:
        print(f"\n{opreport.summary(outcomes)}\n")
        for texts in (opreport.arithmetics, opreport.shared, opreport.reasons):
            _check_ci.say(texts(outcomes))
        print(opreport.last_sentence(outcomes))
        _check_ci.say(notes)
    if faults:
        return 1
    if all(outcome.verdict in IDLE for outcome in outcomes):
        why = f"{outcomes[0].verdict}: {outcomes[0].text}" if outcomes else "not run: there is no case"
        raise GGMLQError(why)
    return 0


def where(args: argparse.Namespace) -> str:
    """The options of the command that say on which library and device a case ran, and how it was judged."""
    device, repeats = (None if args.device == "CPU" else args.device, args.repeats)
    options = [("--lib", args.lib), ("--device", device), ("--rpc", args.rpc), ("--emulate", args.emulate)]
    options += [("--arithmetic", args.arithmetic), ("--timeout", args.timeout)]
    options += [("--repeats", None if repeats == REPEATS else repeats)]
    return "".join(f" {name} {shlex.quote(str(value))}" for name, value in options if value)


def _left(every: Sequence[Any], outcomes: Sequence[ops.OpOutcome]) -> list[str]:
    """A sentence on cases for which the time did not suffice."""
    ran, names = {outcome.case for outcome in outcomes}, [str(case) for case in every]
    if len(ran) == len(names):
        return []
    part = order.share(ran, names)
    return [
        f"--budget is used up: {len(ran)} of {len(names)} cases ran; they find {part:.0%} of all that the "
        "whole set finds"
    ]


def saved_node(folder: Path, outcome: ops.OpOutcome) -> ops.OpOutcome:
    """A wrong case with the file that ``--replay`` and ``ggmlq diagnose`` read."""
    assert outcome.node is not None
    stem = re.sub(r"[^\w.]+", "-", f"{outcome.case}-{outcome.seed}").strip("-")
    return replace(outcome, saved=str(write_node(folder, f"{stem}.npz", outcome.node, outcome.fault)))


# --- --invariance: do a row's bits depend on neighbours, place, threads? ------------------------

UNUSED_BY_INVARIANCE = (
    "shapes",
    "experts",
    "data",
    "arithmetic",
    "buffer",
    "repack",
    "save",
    "test_file",
    "time",
)


def run_invariance(args: argparse.Namespace, bridge: Bridge, device: Device) -> int:
    """Try operations of the library and ours; the result is the exit status."""
    if unused := [name for name in UNUSED_BY_INVARIANCE if getattr(args, name)]:
        option = unused[0].replace("_", "-")
        raise UnsupportedError(f"--invariance beside --{option}: it has cases of its own; leave one out")
    ops = _ops(args.ops)
    names = [fmt.name for fmt in types(args, bridge)]
    if not args.json:
        print(repr(bridge))
        print(f"{device.name}: {device.description}, {device.backend}; and ggmlq on this CPU\n")
    subjects = [*invariance.of_library(bridge, device.name, names, ops, args.seed)]
    if args.ops is None:
        subjects += invariance.of_ours(names, args.seed)
    outcomes = [invariance.examine(subject, args.seed) for subject in _shown(subjects, quiet=args.json)]
    if args.json:
        _plain.print_run(bridge, device, outcomes=[outcome.facts() for outcome in outcomes])
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


# --- nodes that trace has saved: judged as they are, or computed again --------------------------

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


def run_nodes(args: argparse.Namespace, bridge: Bridge, device: Device, paths: list[Path]) -> int:
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
        _plain.print_run(bridge, device, nodes=[record.facts() for record in records])
    else:
        rest = f"; {len(idle)} not judged" if idle else ""
        print(f"\n{wrong} of {len(records)} results are wrong{rest}")
    if idle and len(idle) == len(records):
        raise GGMLQError(f"not judged: {idle[0].text}")
    return 1 if wrong else 0


def diagnose_node(path: str, as_json: bool) -> int:
    """Judge a node as the traced library gave it; the result is the exit status."""
    record = judged(load_node(path))
    if as_json:
        _plain.print_json(record.facts())
    else:
        print(f"{report.HEADER}\n{report.line(record)}")
    return 1 if record.verdict == "wrong" else 0
