"""The table of bench/notes/agreement.md: how well the reference agrees with llama.cpp's own products.

A figure is the worst row of weights over all runs in tests/golden/products.npz: the sum over rows
of activations of the squared difference, over that of |x|^2 |w|^2 / K.
"""

from __future__ import annotations

import sys

import numpy as np

from ggmlq.formats import FORMATS
from ggmlq.reference import linear, row_errors, rule
from ggmlq.reference.rules import Rule

from . import ROOT, Options, Texts, table

sys.path.insert(0, str(ROOT / "tests"))

from right import products

GOLDEN = ROOT / "tests" / "golden"
PROGRAMS = ("ggml-cpu", "ggml-mmvq", "ggml-mmq")


def texts(options: Options) -> Texts:
    """One line a type that llama.cpp multiplies, in the order of ids."""
    stored = [name for name in FORMATS if (GOLDEN / f"{name.lower()}.npz").exists()]
    worst = {name: worst_rows(name) for name in stored}
    rows = [[name, *(cell(name, a, worst[name]) for a in PROGRAMS)] for name in stored if worst[name]]
    yield "bench/notes/agreement.md", table(["type", *PROGRAMS], rows)


def worst_rows(name: str) -> dict[str, str]:
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
    """The differences of a rule from integer products with the codes' own sums."""
    notes = []
    if how.zero_in_code:
        notes.append("zero taken off through half(Σx)")
    elif how.sums == "kept" and how.quantizer is not None:
        notes.append("offset times half(" + ("d·Σq)" if how.quantizer.sums == "codes" else "Σx)"))
    if how.eighths:
        notes.append("codes 0 … 2, offset 1 ∓ 1/8")
    if how.half_products:
        notes.append("half products")
    if how.truncate:
        notes.append("integer sums cut off")
    if how.scales == "half":
        notes.append("half sub-scales")
    if how.quantizer is not None and how.quantizer.run == 64:
        notes.append("one scale for 64, six sums of 16 in 128")
    if how.weights is not None:
        notes.append(f"x as {how.floats}" + ("" if how.bounded else ", other kernels, no bound"))
    return "; ".join(notes)


def cell(name: str, arithmetic: str, worst: dict[str, str]) -> str:
    """The worst row of a type in a program, and what is different there."""
    if arithmetic not in worst:
        return "–"
    notes = differences(rule(name, arithmetic))
    return f"{worst[arithmetic]}: {notes}" if notes else worst[arithmetic]
