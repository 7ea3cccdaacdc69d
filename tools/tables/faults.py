"""The tables of bench/notes/doctor.md: what ``gq.diagnose`` makes of wrong kernels. They take minutes."""

from __future__ import annotations

import sys
from collections import Counter

from tqdm import tqdm

import ggmlq

from . import ROOT, Options, Texts

OPTIONS = {
    "--full": {"action": "store_true", "help": "all formats, three times as many cases"},
    "--scaled": {"action": "store_true", "help": "of the two tables only that of scaled arrays"},
    "--seed": {"type": int, "default": 1, "help": "of the data (default: 1)"},
}
sys.path.insert(0, str(ROOT / "tests"))


def texts(options: Options) -> Texts:
    """The tables of measured verdicts."""
    yield "bench/notes/doctor.md scaled", scaled_verdicts(options.seed)
    if not options.scaled:
        yield "bench/notes/doctor.md blocks", verdicts(options.seed, options.full)


def counted(verdicts: Counter[tuple[str, str]], title: str) -> str:
    """Faults that were tried and named rightly, and what those that were not were called."""
    tried, others = Counter[str](), list[str]()
    for (fault, _), n in verdicts.items():
        tried[fault] += n
    for fault, n in sorted(tried.items()):
        if (right := verdicts[fault, fault]) < n:
            names = [f"{name} {n}" for (of, name), n in verdicts.items() if of == fault != name]
            others.append(f"`{fault}` {right} of {n} ({', '.join(names)})")
    right = sum(n for (fault, name), n in verdicts.items() if fault == name)
    text = f"{len(tried)} kinds, {tried.total()} cases, {right} ({right / tried.total():.1%}) named"
    return f"{title}\n\n{text}" + (f"; not always: {', '.join(others)}." if others else ".")


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
