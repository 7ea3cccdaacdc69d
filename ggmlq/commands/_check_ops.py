"""``ggmlq check --ops``: are the operations of a library right that are no products?"""

from __future__ import annotations

import argparse
from typing import Any

from ..check import nodes, ops
from ..check.testfile import write_lines
from ..errors import GGMLQError, UnsupportedError
from ..llama import Bridge, Device
from ..llama.loaded import listed
from . import _plain

UNUSED = ("shapes", "experts", "data", "buffer", "save", "html")


def run(args: argparse.Namespace, bridge: Bridge, device: Device) -> int:
    """Run the cases of some operations; the result is the exit status."""
    if unused := [name for name in UNUSED if getattr(args, name)]:
        raise UnsupportedError(f"--ops beside --{unused[0]}: cases of operations have none; leave it out")
    names = ops.named(args.ops)
    if args.arithmetic and nodes.ATTENTION not in names:
        raise UnsupportedError(
            f"--ops {args.ops} --arithmetic {args.arithmetic}: {nodes.ATTENTION} alone is computed in "
            "several arithmetics; leave --arithmetic out"
        )
    threads = (args.threads,) if args.threads else ops.THREADS if device.backend == "CPU" else (1,)
    if not args.json:
        print(repr(bridge))
        print(f"loaded: {_plain.name(listed(bridge.libraries))}" if bridge.libraries else "")
        print(f"{device.name}: {device.description}, {device.backend}\n")
    outcomes = []
    for outcome in ops.run_ops(
        bridge,
        names,
        device.name,
        device.backend,
        seed=args.seed,
        threads=threads,
        repeats=args.repeats,
        large=args.large,
        arithmetic=args.arithmetic or "",
    ):
        outcomes.append(outcome)
        if not args.json and (outcome.bad or args.verbose) and _is_shown(outcome, outcomes, args.verbose):
            print(ops.line(outcome))
    if args.test_file:
        count = write_lines(args.test_file, (outcome.line for outcome in outcomes))
        if not args.json:
            name = _plain.name(str(args.test_file))
            print(
                f"wrote {count} cases to {name}: MALLOC_PERTURB_=255 test-backend-ops test --test-file {name}"
            )
    if args.json:
        facts: dict[str, Any] = {
            "library": _plain.library(bridge),
            "device": device.facts(), "cases": [outcome.facts() for outcome in outcomes],
            "contrasts": ops.shared(outcomes),
        }  # fmt: skip
        _plain.print_json(facts)
    else:
        print(f"\n{ops.summary(outcomes)}\n")
        print("".join(f"{text}\n" for text in ops.arithmetics(outcomes)), end="")
        print("".join(f"{text}\n" for text in ops.shared(outcomes)), end="")
        print("".join(f"{_plain.name(reason)}\n" for reason in ops.reasons(outcomes)), end="")
        print(ops.last_sentence(outcomes))
    if any(outcome.bad for outcome in outcomes):
        return 1
    if all(outcome.verdict == "not run" for outcome in outcomes):
        raise GGMLQError(f"not run: {outcomes[0].text if outcomes else 'there is no case'}")
    return 0


def _is_shown(outcome: ops.OpOutcome, outcomes: list[ops.OpOutcome], every: bool) -> bool:
    """True for the first bad cases of an operation; the summary counts the others."""
    return every or sum(o.bad and o.op == outcome.op for o in outcomes) <= ops.DIAGNOSED
