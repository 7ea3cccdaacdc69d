#!/usr/bin/env python3
"""Write what `gq.diagnose` makes of wrong kernels into docs/faults.md, and the list of faults.

python tools/fault_table.py [--full] [--scaled] [--check] [--seed N]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from _page import put, settle
from tqdm import tqdm

import ggmlq
from ggmlq.faults import CATALOGUE, Fault
from ggmlq.faults.scaled import SCALED

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "faults.md"
LIST = "<!-- list: tools/fault_table.py -->"
TABLE = "<!-- table: tools/fault_table.py -->"
LIST_OF_SCALED = "<!-- list of scaled: tools/fault_table.py -->"
TABLE_OF_SCALED = "<!-- table of scaled: tools/fault_table.py -->"
sys.path.insert(0, str(ROOT / "tests"))


def entries(faults: Iterable[Fault]) -> str:
    """One section a fault."""
    parts = []
    for fault in faults:
        lines = [f"### {fault.id}", "", fault.says]
        if fault.wrong:
            lines += [
                "",
                f"- wrong: `{fault.wrong}`",
                f"- right: `{fault.right}`",
                f"- look at: {fault.look}",
            ]
        if fault.bugs:
            lines += ["" if not fault.wrong else None, f"- seen: {fault.bugs}"]
        parts.append("\n".join(line for line in lines if line is not None))
    return "\n\n".join(parts)


def table(found: Counter[tuple[str, str]], title: str) -> str:
    """For each fault how often it was tried, named rightly, called unknown, and what else."""
    lines = [title, "", "| given | cases | named | unknown | called otherwise |", "|---|---|---|---|---|"]
    for given in sorted({given for given, _ in found}):
        said = Counter({name: n for (fault, name), n in found.items() if fault == given})
        others = ", ".join(f"{name} {n}" for name, n in said.most_common() if name not in (given, "unknown"))
        lines.append(f"| {given} | {said.total()} | {said[given]} | {said['unknown']} | {others} |")
    right = sum(n for (given, said), n in found.items() if given == said)
    lines.append(f"| **all** | {found.total()} | {right} ({right / found.total():.1%}) | | |")
    return "\n".join(lines)


def measured(seed: int, full: bool) -> str:
    """Run the suite, and the kernels with an unlisted difference beside their fault."""
    import mutation
    import wrong_kernels

    formats = wrong_kernels.FORMATS if full else mutation.FEW
    cases = list(mutation.cases(seed, formats, times=3 if full else 1))
    found, _ = mutation.tried(tqdm(cases))
    mixed, _ = mutation.tried(tqdm(list(mutation.mixtures(seed, formats))))
    shapes = ", ".join(map(str, mutation.SHAPES))
    title = f"Formats {', '.join(formats)}; shapes (M, N, K) {shapes}; seed {seed}."
    beside = "Each fault together with a difference that no entry lists:"
    return f"{table(found, title)}\n\n{table(mixed, beside)}"


def measured_scaled(seed: int, times: int = 50) -> str:
    """The same for products of scaled arrays, and how many right ones were accused."""
    import numpy as np
    import scaled_mutants

    cases = [(fault, seed * 1000 + i) for fault in scaled_mutants.MUTANTS for i in range(times)]
    found, _ = scaled_mutants.tried(tqdm(cases))
    for i in tqdm(range(10 * times)):
        rng = np.random.default_rng([seed, i])
        x, w = scaled_mutants.drawn(rng)
        y = scaled_mutants.right(scaled_mutants.Operand(x), scaled_mutants.Operand(w), rng)
        found["correct", ggmlq.diagnose(y, x, w).fault] += 1
    return table(found, f"Seed {seed}.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true", help="all formats, three times as many cases")
    parser.add_argument("--scaled", action="store_true", help="of the tables only that of scaled arrays")
    parser.add_argument("--check", action="store_true", help="compare the list with the page, write nothing")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    fresh = put(PAGE.read_text(), LIST, f"\n{entries(CATALOGUE.values())}\n", "<!-- end of list -->")
    own = [fault for fault in SCALED.values() if fault is not CATALOGUE.get(fault.id) and fault.wrong]
    fresh = put(fresh, LIST_OF_SCALED, f"\n{entries(own)}\n", "<!-- end of list of scaled -->")
    if not args.check:  # the tables take minutes; only the lists are compared
        end = "<!-- end of table of scaled -->"
        fresh = put(fresh, TABLE_OF_SCALED, f"\n{measured_scaled(args.seed)}\n", end)
    if not (args.check or args.scaled):
        fresh = put(fresh, TABLE, f"\n{measured(args.seed, args.full)}\n")
    return settle(PAGE, fresh, args.check)


if __name__ == "__main__":
    sys.exit(main())
