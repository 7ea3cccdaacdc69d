"""The tables and lists of docs/faults.md: what ``gq.diagnose`` makes of wrong kernels, and all faults.

The tables take minutes; --check compares the lists alone.
"""

from __future__ import annotations

import sys
from collections import Counter

from tqdm import tqdm

import ggmlq
from ggmlq.faults.catalogue import CATALOGUE, SCALED, Fault

from . import ROOT, Options, Texts, table

OPTIONS = {
    "--full": {"action": "store_true", "help": "all formats, three times as many cases"},
    "--scaled": {"action": "store_true", "help": "of the two tables only that of scaled arrays"},
    "--seed": {"type": int, "default": 1, "help": "of the data (default: 1)"},
}
HEADER = ("given", "cases", "named", "unknown", "called otherwise")
sys.path.insert(0, str(ROOT / "tests"))


def texts(options: Options) -> Texts:
    """Two lists, then the tables of measured verdicts."""
    scaled = [fault for fault in SCALED.values() if fault is not CATALOGUE.get(fault.id) and fault.wrong]
    yield "docs/faults.md list", "\n\n".join(map(section, CATALOGUE.values()))
    yield "docs/faults.md list of scaled", "\n\n".join(map(section, scaled))
    if not options.check:
        yield "docs/faults.md scaled", scaled_verdicts(options.seed)
    if not (options.check or options.scaled):
        yield "docs/faults.md blocks", verdicts(options.seed, options.full)


def section(fault: Fault) -> str:
    """The section of a fault."""
    lines = [f"### {fault.id}", "", fault.says]
    if fault.wrong:
        lines += ["", f"- wrong: `{fault.wrong}`", f"- right: `{fault.right}`", f"- look at: {fault.look}"]
    if fault.bugs:
        lines += [*([] if fault.wrong else [""]), f"- seen: {fault.bugs}"]
    return "\n".join(lines)


def counted(verdicts: Counter[tuple[str, str]], title: str) -> str:
    """A table: how often each fault was tried, named rightly, called unknown, and what else."""
    rows = []
    for fault in sorted({fault for fault, _ in verdicts}):
        names = Counter({name: n for (tried, name), n in verdicts.items() if tried == fault})
        others = ", ".join(f"{name} {n}" for name, n in names.most_common() if name not in (fault, "unknown"))
        rows.append([fault, names.total(), names[fault], names["unknown"], others])
    right = sum(n for (fault, name), n in verdicts.items() if fault == name)
    text = table(HEADER, rows)
    total = f"| **all** | {verdicts.total()} | {right} ({right / verdicts.total():.1%}) | | |"
    return f"{title}\n\n{text}\n{total}"


def verdicts(seed: int, full: bool) -> str:
    """Tables of the suite, and of kernels with an unlisted difference beside their fault."""
    import mutation
    import wrong_kernels

    formats = wrong_kernels.FORMATS if full else mutation.FEW
    cases = list(mutation.cases(seed, formats, times=3 if full else 1))
    single, _ = mutation.tried(tqdm(cases))
    mixed, _ = mutation.tried(tqdm(list(mutation.mixtures(seed, formats))))
    shapes = ", ".join(map(str, mutation.SHAPES))
    title = f"Formats {', '.join(formats)}; shapes (M, N, K) {shapes}; seed {seed}."
    beside = "Each fault together with a difference that no entry lists:"
    return f"{counted(single, title)}\n\n{counted(mixed, beside)}"


def scaled_verdicts(seed: int, times: int = 50) -> str:
    """The table of products of scaled arrays, with how many right ones were accused."""
    import numpy as np
    import scaled_mutants

    cases = [(fault, seed * 1000 + i) for fault in scaled_mutants.MUTANTS for i in range(times)]
    verdicts, _ = scaled_mutants.tried(tqdm(cases))
    for i in tqdm(range(10 * times)):
        rng = np.random.default_rng([seed, i])
        x, w = scaled_mutants.drawn(rng)
        y = scaled_mutants.right(scaled_mutants.Operand(x), scaled_mutants.Operand(w), rng)
        verdicts["correct", ggmlq.diagnose(y, x, w).fault] += 1
    return counted(verdicts, f"Seed {seed}.")
