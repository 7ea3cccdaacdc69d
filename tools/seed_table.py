#!/usr/bin/env python3
"""Write the table of docs/compensation.md: the first experiment's error figures beside our own.

    python tools/seed_table.py [--rows 512] [--print]

The experiment multiplied M=512 rows of activations with N=K=4096 weights and gave one NMSE against
the product of the floats. It names neither its data nor its encoder; the rows here do.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from _page import put, settle

import ggmlq as gq
from ggmlq.reference import activations, linear, multiply, rule, weights

PAGE = Path(__file__).parents[1] / "docs" / "compensation.md"
BEGIN = "<!-- table: tools/seed_table.py -->"
SIZE = 4096
MMVQ = rule("q4_0", "ggml-mmvq")
OF_CODES = replace(MMVQ, sums="codes")  # s = d·Σq, not rounded
THEIRS = {
    "W4A16": "4.65e-3",
    "W4A8, −8·s, s = Σx": "4.66e-3",
    "W4A8, no compensation": "> 1e-2",
    "W4A8, 8 off each code and −8·s": "> 1e-2",
    "Q8_0 weights": "1.4e-5",
}


def symmetric_q4_0(w: np.ndarray) -> gq.QuantArray:
    """Blocks of q4_0 with d = amax / 7 and codes -7 … 7: what many hand-written encoders do."""
    runs = w.reshape(len(w), -1, 32)
    d = np.abs(runs).max(axis=-1) / np.float32(7)
    codes = (np.rint(runs / d[..., None]) + 8).astype(np.uint8)
    q = gq.quantize(w, "q4_0").copy()
    q.blocks["d"] = d
    q.blocks["qs"] = codes[..., :16] | codes[..., 16:] << 4
    return q


def no_compensation(x: np.ndarray, q: gq.QuantArray) -> np.ndarray:
    """Codes 0 … 15 as stored, and nothing taken off."""
    w = weights(q, MMVQ)
    return multiply(replace(w, offset=0 * w.offset), activations(x, q.format, MMVQ), MMVQ)


def twice(x: np.ndarray, q: gq.QuantArray) -> np.ndarray:
    """8 off each code, and 8·s off as well."""
    w = weights(q, MMVQ)
    return multiply(replace(w, offset=2 * w.offset), activations(x, q.format, MMVQ), MMVQ)


def figures(data: str, encoder: str, m: int) -> dict[str, float]:
    """NMSE of each way to multiply, against the product of the floats."""
    rng = np.random.default_rng(1)
    shapes = ((SIZE, SIZE), (m, SIZE))
    if data == "uniform":
        w, x = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    else:
        w, x = (rng.standard_normal(shape, np.float32) for shape in shapes)
    true = x.astype(np.float64) @ w.T.astype(np.float64)
    q = symmetric_q4_0(w) if encoder == "amax/7" else gq.quantize(w, "q4_0")
    return {
        "W4A16": gq.nmse(linear(x, q, "f16"), true),
        "W4A8, −8·s, s = Σx": gq.nmse(linear(x, q, MMVQ), true),
        "W4A8, −8·s, s = d·Σq": gq.nmse(linear(x, q, OF_CODES), true),
        "W4A8, 8 off each code": gq.nmse(linear(x, q, "ggml-mmq"), true),
        "W4A8, no compensation": gq.nmse(no_compensation(x, q), true),
        "W4A8, 8 off each code and −8·s": gq.nmse(twice(x, q), true),
        "Q8_0 weights": gq.nmse(linear(x, gq.quantize(w, "q8_0")), true),
    }


def table(m: int) -> str:
    """The experiment's figures in the first column."""
    runs = [("uniform", "amax/7"), ("uniform", "ggml's"), ("normal", "amax/7"), ("normal", "ggml's")]
    got = [figures(data, encoder, m) for data, encoder in runs]
    lines = ["| | first experiment | " + " | ".join(f"{data}, {encoder}" for data, encoder in runs) + " |"]
    lines.append("|---" * (2 + len(runs)) + "|")
    for name in got[0]:
        cells = " | ".join(f"{run[name]:.2e}".replace("e-0", "e-").replace("e+00", "") for run in got)
        lines.append(f"| {name} | {THEIRS.get(name, '')} | {cells} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=512, help="rows of activations")
    parser.add_argument("--print", action="store_true", help="print the table, write nothing")
    args = parser.parse_args()
    fresh = table(args.rows)
    print(fresh)
    if not args.print:
        settle(PAGE, put(PAGE.read_text(), BEGIN, fresh), check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
