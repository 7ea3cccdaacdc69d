"""Plant mistakes into results of a libggml's operations, and see which name the doctor gives them.

    python tools/fault_table.py [--lib LIB] [--ops all|NAME,…] [--seeds N] [--cases N] [--json]

The library computes every case of `ggmlq check --ops`. Its right result must not be accused, with N seeds.
Into the results of N cases of each operation, spread over all, mistakes are planted: those that the doctor
imitates, as another kernel would have computed them, in float32; and those that it knows by places alone,
written here: ends of rows, rows of other threads, elements that nobody wrote or that came from elsewhere,
factors of rows, a result stored transposed. A mistake that gives the right result counts as none. The exit
status is 0 where 90 % have their name in first place or among the alternatives, and no right one is accused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlq.errors import GGMLQError, LibraryFailedError
from ggmlq.faults import diagnose_node
from ggmlq.faults.imitations import imitations
from ggmlq.llama import Bridge
from ggmlq.llama.guards import GUARD, UNWRITTEN
from ggmlq.reference.nodes import node

# By name, as commands are: a tool is no part of the house's plan.
ops, nodes = import_module("ggmlq.check.ops"), import_module("ggmlq.check.nodes")
GOAL = 0.9
VECTOR = 16
THREADS = 2
Planted = tuple[str, NDArray[Any]]  # the name of a mistake, and the result that it gives


def imitated(these: Any) -> Iterator[Planted]:
    """Mistakes as the same operation on other operands, in float32."""
    for one in imitations(these.op, these.inputs, these.params):
        try:
            other = node(one.op, one.inputs, one.params)
        except (GGMLQError, ValueError, IndexError, KeyError):
            continue
        if other.value.shape == these.y.shape:
            with np.errstate(all="ignore"):
                yield one.fault, other.value.astype(these.y.dtype)


def placed(these: Any, rng: np.random.Generator) -> Iterator[Planted]:
    """Mistakes that show by their places."""
    y = these.y
    if y.dtype != np.float32 or y.ndim < 2 or not y.size:
        return
    n, rows = y.shape[-1], y.size // y.shape[-1]
    rest = n % VECTOR
    if n > VECTOR and rest > 0:
        tail = y.copy()
        tail[..., n - rest :] = tail[..., n - rest :] * 1.5 + 0.5
        yield "node-tail", tail
    if rows > 3 and n > 3:
        flat = y.reshape(rows, n)
        other = flat.copy()
        other[1::2] = rng.standard_normal(other[1::2].shape)  # whatever was there before
        yield "node-rows", other.reshape(y.shape)
        factor = flat.copy()
        factor[::3] *= 1 + rng.random((len(factor[::3]), 1)).astype(np.float32)
        yield "node-row-sum", factor.reshape(y.shape)
    for fault, bits in (("node-unwritten", UNWRITTEN), ("node-outside", GUARD)):
        part = y.copy()
        part.reshape(rows, n).view(np.uint32)[rows // 2 :, n // 2 :] = bits
        yield fault, part
    if min(y.shape[-2:]) > 2:
        yield "node-transposed", np.ascontiguousarray(y.swapaxes(-1, -2)).reshape(y.shape)


def planted(these: Any, rng: np.random.Generator) -> Iterator[Planted]:
    """Each mistake once, where it changes the result."""
    right = node(these.op, these.inputs, these.params)
    seen = set[str]()
    for fault, y in (*imitated(these), *placed(these, rng)):
        if fault not in seen and right.wrong(y).any():
            seen.add(fault)
            yield fault, y


def right_nodes(bridge: Bridge, op: str, seed: int) -> Iterator[Any]:
    """The cases of an operation that the library computes, and computes right."""
    for case in ops.CASES[op](seed):
        try:
            ran = bridge.node(case.program, case.arrays(), threads=THREADS)
            these = nodes.operands(ran.node)
        except (LibraryFailedError, GGMLQError):
            continue
        verdict = nodes.judge_node(these, threads=THREADS)
        if ran.node.op == op and not verdict.out:
            yield nodes.as_judged(these, verdict)


def table(rows: dict[str, Counter[str]]) -> str:
    """The outcome as a table of a page."""
    lines = [
        "| planted | cases | named | among alternatives | unknown | called otherwise |",
        "|---|---|---|---|---|---|",
    ]
    total = Counter[str]()
    for fault, counts in sorted(rows.items()):
        cases, known = counts.total(), ("named", "alternative", "unknown")
        others = ", ".join(f"{name} {n}" for name, n in counts.most_common() if name not in known)
        columns = [counts[name] for name in known]
        lines.append(f"| {fault} | {cases} | {' | '.join(map(str, columns))} | {others} |")
        total += Counter({"cases": cases, "named": counts["named"], "alternative": counts["alternative"]})
    share = (total["named"] + total["alternative"]) / max(total["cases"], 1)
    lines.append(
        f"| **all** | {total['cases']} | {total['named']} | {total['alternative']} | | {share:.1%} |"
    )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Plant, diagnose and count; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lib", type=Path)
    parser.add_argument("--ops", default="all")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--cases", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    examined, accused = 0, list[str]()
    with Bridge(args.lib) as bridge:
        for op in ops.named(args.ops):
            for seed in range(args.seeds):
                every = list(right_nodes(bridge, op, seed))
                for these in every:
                    examined += 1
                    if not diagnose_node(op, these.inputs, these.params, these.y).ok:
                        accused.append(op)
                chosen = every[:: max(1, len(every) // args.cases)][: args.cases] if seed == 0 else []
                for i, these in enumerate(chosen):
                    for fault, y in planted(these, np.random.default_rng([seed, i])):
                        diagnosis = diagnose_node(op, these.inputs, these.params, y)
                        name = "named" if diagnosis.fault == fault else diagnosis.fault
                        rows[fault]["alternative" if fault in diagnosis.alternatives else name] += 1
            print(
                f"{op}: {examined} right results so far, {len(accused)} accused", file=sys.stderr, flush=True
            )
    cases = sum(counts.total() for counts in rows.values())
    named = sum(counts["named"] + counts["alternative"] for counts in rows.values())
    if args.json:
        facts = {"planted": cases, "named": named, "right": examined, "accused": accused, "faults": rows}
        print(json.dumps(facts, indent=1))
    else:
        print(table(rows))
        print(f"\n{examined} right results, {len(accused)} of them accused")
    return int(bool(accused) or named < GOAL * cases)


if __name__ == "__main__":
    sys.exit(main())
