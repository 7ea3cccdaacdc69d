#!/usr/bin/env python3
"""Write the generated tables of docs/scaled.md: number formats, errors, and why sums are promoted.

python tools/scaled_tables.py [--check]

All of it is computed, nothing is measured: the page is the same on every machine.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from _page import put, settle, table

import ggmlq as gq
from ggmlq.accuracy.table import DOCUMENT
from ggmlq.codes.numbers import NUMBERS, Number

PAGE = Path(__file__).parents[1] / "docs" / "scaled.md"
MARK = "<!-- table: tools/scaled_tables.py {} -->"
K, ROWS, SEED = 4096, 32, 1  # of the products whose sums are compared
PROMOTED = (None, 1024, 512, 256, 128, 64)


def numbers() -> str:
    """One line a number format."""
    header = ["format", "bits", "sign / exponent / mantissa", "largest", "smallest normal", "smallest",
              "step at 1", "infinities", "NaN"]  # fmt: skip
    return table(header, [_number(n) for n in NUMBERS])


def _number(n: Number) -> list[str]:
    if n.bias is None:
        return [n.name, str(n.bits), "integer", f"{n.lowest:g} … {n.max:g}", "–", "1", "1", "no", "no"]
    below = f"{n.smallest:.7g}" if n.subnormals else "none below"
    nans = "yes" if n.nans.startswith("all") else n.nans
    bits = f"{n.sign} / {n.exponent} / {n.mantissa}, bias {n.bias}"
    normal = f"{n.smallest_normal:.7g}"
    step = f"{n.eps:.7g}" if n.mantissa else "a factor of 2"
    return [n.name, str(n.bits), bits, f"{n.max:.9g}", normal, below, step,
            "yes" if n.infinities else "no", nans]  # fmt: skip


def errors(scale: float, values: tuple[float, ...], calibrate: str | None) -> str:
    """What is read back of each value, and the error, a column a format."""
    names = ("int8_full", "fp8_naive", "e4m3", "e5m2") if calibrate is None else (
        "int8", "int8_asym", "e4m3", "e5m2", "bf16", "f16")  # fmt: skip
    found = gq.error_table(values, scale, names, calibrate)
    columns = [found.of(name) for name in names]
    rows = [
        [f"{value:g}", *(f"{c[i].dequantized:.6g} ({c[i].error:.4g})" for c in columns)]
        for i, value in enumerate(values)
    ]
    return table(["value", *names], rows)


def promotion() -> str:
    """The error of sums that keep 13 bits, by how many products they take before they go over to float32."""
    rng = np.random.default_rng(SEED)
    header = ["sums go over into float32", *_kinds(rng)]
    rows = []
    for every in PROMOTED:
        name = f"every {every}" if every else f"never (K = {K})"
        rows.append(
            [name, *(f"{_error(x, w, every):.1e}" for x, w in _kinds(np.random.default_rng(SEED)).values())]
        )
    return table(header, rows)


def _kinds(rng: np.random.Generator) -> dict[str, tuple[gq.ScaledArray, gq.ScaledArray]]:
    """Operands whose sums are of different kinds, under one scale each."""
    shape = (2, ROWS, K)
    even = rng.uniform(-448, 448, shape)
    normal = rng.standard_normal(shape)
    positive = rng.uniform(0, 1, shape)
    return {
        name: tuple(gq.quantize_scaled(part, "e4m3", (1, None)) for part in data)
        for name, data in (("uniform", even), ("normal", normal), ("positive", positive))
    }  # type: ignore[return-value]


def _error(x: gq.ScaledArray, w: gq.ScaledArray, every: int | None) -> float:
    exact = gq.reference.scaled_linear(x, w)
    kept = gq.reference.scaled_linear(x, w, "fp22", promote=every)
    return float(np.abs(kept - exact).mean() / np.abs(exact).mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the page, write nothing")
    check = parser.parse_args().check
    more = (0.001, 0.123, 1.234, 17.0, 33.0, *DOCUMENT[3:])
    page = PAGE.read_text()
    for name, text in (
        ("numbers", numbers()),
        ("errors", errors(0.1, DOCUMENT, None)),
        ("unscaled", errors(1.0, more, None)),
        ("calibrated", errors(1.0, DOCUMENT, "amax")),
        ("promotion", promotion()),
    ):
        page = put(page, MARK.format(name), text)
    return settle(PAGE, page, check)


if __name__ == "__main__":
    sys.exit(main())
