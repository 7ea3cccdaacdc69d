"""The smallest error of a single element that a trace finds in at least 95 of 100 trials, by type and rows.

    python tools/trace_limits.py [--types q4_K,q6_K] [--rows 1,8,64] [--shape NxK] [--trials N] [--check]

Products are those of the installed libggml. In each trial one element, anywhere, is moved by a multiple of
its bound; it is found where it is among the columns and rows that random sums point at. Without options it
writes the table of docs/trace.md (minutes); --check only says whether the page has one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

import ggmlq as gq
from ggmlq import reference
from ggmlq.base.text import table
from ggmlq.llama import Bridge
from ggmlq.testing.rows import rows
from ggmlq.trace import judging
from ggmlq.trace.operands import Part

PAGE = Path(__file__).parents[1] / "docs" / "trace.md"
BEGIN, END = "<!-- limits: tools/trace_limits.py -->\n", "<!-- end of limits -->\n"
ARITHMETIC = "ggml-cpu"
TYPES = "q4_0,q8_0,q4_1,q2_K,q4_K,q6_K,iq4_xs,mxfp4,f16"
MULTIPLES = [1.05, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128]
ENOUGH = 0.95


class Case:
    """A product of the library, and what of judging it is the same in all trials."""

    def __init__(self, bridge: Bridge, fmt: str, m: int, n: int, k: int) -> None:
        x = rows("normal", m, k, 1)
        q = bridge.quantize(rows("normal", n, k, 2), fmt, imatrix=np.ones(k, np.float32))
        self.y = bridge.mul_mat(x, q, threads=2)
        self.part = Part(self.y, x, q)
        self.a = judging.activations(x, q, ARITHMETIC)
        self.off = judging._column_errors(self.part, self.a, ARITHMETIC)
        self.rms = float(np.sqrt((self.y.astype(np.float64) ** 2).mean()))

    def found(self, rng: np.random.Generator, times: float) -> tuple[bool, float]:
        """Whether one element that is off by so many bounds is judged, and how much it is off."""
        m, n = self.y.shape
        i, j = int(rng.integers(m)), int(rng.integers(n))
        q = self.part.q[j : j + 1]
        limit = float(reference.bound(self.part.x[i : i + 1], q, ARITHMETIC)[0, 0])
        wanted = float(reference.linear(self.part.x[i : i + 1], q, ARITHMETIC)[0, 0])
        column = self.y[:, j : j + 1].copy()
        column[i, 0] = wanted + rng.choice([-1, 1]) * times * limit
        off = self.off.copy()
        off[j] = judging._column_errors(Part(column, self.part.x, q), self.a, ARITHMETIC)[0]
        columns = np.argsort(-off, kind="stable")[: judging.COLUMNS]
        if j not in columns:
            return False, times * limit
        y = self.y[:, columns].copy()
        y[:, list(columns).index(j)] = column[:, 0]
        some = Part(y, self.part.x, self.part.q[columns])
        return i in judging._suspicious_rows(some, np.arange(len(columns)), ARITHMETIC, self.a), times * limit


def smallest(case: Case, trials: int, seed: int) -> tuple[float, float]:
    """In bounds, and by the root mean square of the result."""
    for times in MULTIPLES:
        rng = np.random.default_rng(seed)
        told = [case.found(rng, times) for _ in range(trials)]
        if sum(found for found, _ in told) >= ENOUGH * trials:
            return times, float(np.mean([error for _, error in told])) / case.rms
    return float("inf"), float("inf")


def main() -> int:
    """Measure and write, or look."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--rows", default="1,8,64,512")
    parser.add_argument("--shape", default="4096x4096")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check:
        return 0 if PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip() else 1
    n, k = map(int, args.shape.split("x"))
    counts = [int(m) for m in args.rows.split(",")]
    lines = []
    types = args.types.split(",")
    with Bridge(timeout=600) as bridge, tqdm(total=len(counts) * len(types), unit="case") as bar:
        for fmt in types:
            line = [gq.formats[fmt].name]
            for m in counts:
                times, relative = smallest(Case(bridge, fmt, m, n, k), args.trials, args.seed)
                line.append(f"{times:g} ({relative:.0e})")
                bar.update()
            lines.append(line)
    made = table(["type", *(f"M={m}" for m in counts)], lines)
    print(made)
    drawn = "".join(f"    {line}\n" for line in made.splitlines())
    before, after = PAGE.read_text().partition(BEGIN)[0], PAGE.read_text().partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{drawn}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
