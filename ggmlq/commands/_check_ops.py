"""``ggmlq check --ops``: are the operations of a library right that are no products?"""

from __future__ import annotations

import argparse
from typing import Any

from ..check import nodes, opreport, ops
from ..check.nodes import write_lines
from ..check.outcome import IDLE
from ..errors import GGMLQError, UnsupportedError
from ..llama import Bridge, Device
from ..llama.library import listed
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
    outcomes = list[ops.OpOutcome]()
    for some in ops.run_ops(
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
        outcomes += some
        for text in () if args.json else opreport.lines(some, args.verbose):
            print(text)
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
            "contrasts": opreport.shared(outcomes),
        }  # fmt: skip
        _plain.print_json(facts)
    else:
        print(f"\n{opreport.summary(outcomes)}\n")
        print("".join(f"{text}\n" for text in opreport.arithmetics(outcomes)), end="")
        print("".join(f"{text}\n" for text in opreport.shared(outcomes)), end="")
        print("".join(f"{_plain.name(reason)}\n" for reason in opreport.reasons(outcomes)), end="")
        print(opreport.last_sentence(outcomes))
    if any(outcome.bad for outcome in outcomes):
        return 1
    if all(outcome.verdict in IDLE for outcome in outcomes):
        why = f"{outcomes[0].verdict}: {outcomes[0].text}" if outcomes else "not run: there is no case"
        raise GGMLQError(why)
    return 0
