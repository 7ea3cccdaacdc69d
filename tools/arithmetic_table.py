#!/usr/bin/env python3
"""Measure how well the reference agrees with llama.cpp's own products; write docs/arithmetic.md's table.

python tools/arithmetic_table.py [--check]

A figure is the worst row of weights over all runs in tests/golden/products.npz: the sum over rows
of activations of the squared difference, over that of |x|^2 |w|^2 / K.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from _page import put, settle

from ggmlq.formats import FORMATS
from ggmlq.reference import linear, row_errors, rule
from ggmlq.reference.rules import Rule
from ggmlq.testing.products import products

ROOT = Path(__file__).parents[1]
PAGE, GOLDEN = ROOT / "docs" / "arithmetic.md", ROOT / "tests" / "golden"
BEGIN = "<!-- table: tools/arithmetic_table.py -->"
PROGRAMS = ("ggml-cpu", "ggml-mmvq", "ggml-mmq")


def reached(name: str) -> dict[str, str]:
    """The worst row of each program, and whether rows overflow there but not in the reference."""
    errors: dict[str, list[np.ndarray]] = {}
    for p in products(GOLDEN, name):
        error = row_errors(p.y, linear(p.x, p.q, p.arithmetic), p.x, p.q)
        errors.setdefault(p.arithmetic, []).append(error)
    worst = {}
    for arithmetic, runs in errors.items():
        every = np.concatenate(runs)
        finite = np.isfinite(every)
        worst[arithmetic] = f"{every[finite].max():.0e}" + ("" if finite.all() else " and overflow")
    return worst


def differences(how: Rule) -> str:
    """What a record says beyond integer products with the codes' own sums."""
    said = []
    if how.zero_in_code:
        said.append("zero taken off through half(Σx)")
    elif how.sums == "kept" and how.quantizer is not None:
        said.append("offset times half(" + ("d·Σq)" if how.quantizer.sums == "codes" else "Σx)"))
    if how.eighths:
        said.append("codes 0 … 2, offset 1 ∓ 1/8")
    if how.half_products:
        said.append("half products")
    if how.truncate:
        said.append("integer sums cut off")
    if how.scales == "half":
        said.append("half sub-scales")
    if how.quantizer is not None and how.quantizer.run == 64:
        said.append("one scale for 64, six sums of 16 in 128")
    if how.weights is not None:
        said.append(f"x as {how.floats}" + ("" if how.bounded else ", other kernels, no bound"))
    return "; ".join(said)


def cell(name: str, arithmetic: str, worst: dict[str, str]) -> str:
    if arithmetic not in worst:
        return "–"
    said = differences(rule(name, arithmetic))
    return f"{worst[arithmetic]}: {said}" if said else worst[arithmetic]


def table() -> str:
    """One line a type that llama.cpp multiplies, in the order of ids."""
    lines = ["| type | " + " | ".join(PROGRAMS) + " |", "|---" * (1 + len(PROGRAMS)) + "|"]
    for name in FORMATS:
        if not (GOLDEN / f"{name.lower()}.npz").exists():
            continue
        worst = reached(name)
        if worst:
            lines.append(f"| {name} | " + " | ".join(cell(name, a, worst) for a in PROGRAMS) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the page, write nothing")
    check = parser.parse_args().check
    return settle(PAGE, put(PAGE.read_text(), BEGIN, table()), check)


if __name__ == "__main__":
    sys.exit(main())
