"""The table of docs/trace.md: the smallest error of a single element that a trace finds in 95 of 100 trials.

Products are those of the installed libggml. In each trial one element, anywhere, is moved by a multiple of
its bound; it is found where it is among the columns and rows that random sums point at. It takes minutes.
"""

from __future__ import annotations

import numpy as np
from tqdm import tqdm

import ggmlq as gq
from ggmlq import reference
from ggmlq.base.text import table
from ggmlq.llama import Bridge
from ggmlq.testing.rows import rows
from ggmlq.trace import judging
from ggmlq.trace.judging import Part

from . import Options, Texts

ARITHMETIC = "ggml-cpu"
MULTIPLES = [1.05, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128]
ENOUGH = 0.95
OPTIONS = {
    "--types": {"default": "q4_0,q8_0,q4_1,q2_K,q4_K,q6_K,iq4_xs,mxfp4,f16", "help": "of weights"},
    "--rows": {"default": "1,8,64,512", "help": "of activations"},
    "--shape": {"default": "4096x4096", "help": "N × K of the weights"},
    "--trials": {"type": int, "default": 100, "help": "with each multiple of the bound"},
    "--seed": {"type": int, "default": 0, "help": "of the elements that are moved"},
}


def texts(options: Options) -> Texts:
    """A line a type, a column a number of rows."""
    n, k = map(int, options.shape.split("x"))
    counts = [int(m) for m in options.rows.split(",")]
    types = options.types.split(",")
    lines = []
    with Bridge(timeout=600) as bridge, tqdm(total=len(counts) * len(types), unit="case") as bar:
        for fmt in types:
            line = [gq.formats[fmt].name]
            for m in counts:
                times, relative = smallest(Case(bridge, fmt, m, n, k), options.trials, options.seed)
                line.append(f"{times:g} ({relative:.0e})")
                bar.update()
            lines.append(line)
    text = table(["type", *(f"M={m}" for m in counts)], lines)
    yield "docs/trace.md", "\n".join(f"    {line}" for line in text.splitlines())


class Case:
    """A product of the library, and the part of its judgement that is the same in all trials."""

    def __init__(self, bridge: Bridge, fmt: str, m: int, n: int, k: int) -> None:
        x = rows("normal", m, k, 1)
        q = bridge.quantize(rows("normal", n, k, 2), fmt, imatrix=np.ones(k, np.float32))
        self.y = bridge.mul_mat(x, q, threads=2)
        self.part = Part(self.y, x, q)
        self.a = judging.activations(x, q, ARITHMETIC)
        self.off = judging._column_errors(self.part, self.a, ARITHMETIC)
        self.rms = float(np.sqrt((self.y.astype(np.float64) ** 2).mean()))

    def trial(self, rng: np.random.Generator, times: float) -> tuple[bool, float]:
        """One element off by so many bounds: is it judged, and by how much is it off?"""
        m, n = self.y.shape
        i, j = int(rng.integers(m)), int(rng.integers(n))
        q = self.part.q[j : j + 1]
        limit = float(reference.bound(self.part.x[i : i + 1], q, ARITHMETIC)[0, 0])
        right = float(reference.linear(self.part.x[i : i + 1], q, ARITHMETIC)[0, 0])
        column = self.y[:, j : j + 1].copy()
        column[i, 0] = right + rng.choice([-1, 1]) * times * limit
        off = self.off.copy()
        off[j] = judging._column_errors(Part(column, self.part.x, q), self.a, ARITHMETIC)[0]
        columns = np.argsort(-off, kind="stable")[: judging.COLUMNS]
        if j not in columns:
            return False, times * limit
        y = self.y[:, columns].copy()
        y[:, list(columns).index(j)] = column[:, 0]
        judged = Part(y, self.part.x, self.part.q[columns])
        return i in judging._suspicious_rows(
            judged, np.arange(len(columns)), ARITHMETIC, self.a
        ), times * limit


def smallest(case: Case, trials: int, seed: int) -> tuple[float, float]:
    """The smallest error, in bounds and by the root mean square of the result."""
    for times in MULTIPLES:
        rng = np.random.default_rng(seed)
        results = [case.trial(rng, times) for _ in range(trials)]
        if sum(judged for judged, _ in results) >= ENOUGH * trials:
            return times, float(np.mean([error for _, error in results])) / case.rms
    return float("inf"), float("inf")
