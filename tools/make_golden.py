#!/usr/bin/env python3
"""Write tests/golden/<format>.npz: blocks and values that ggml makes of the rows in tests/golden/inputs.npz.

    python tools/make_golden.py [--lib PATH] [--check] [FORMAT ...]

A file holds, for each set of rows, `<set>/blocks` (as ggml encodes them) and `<set>/values` (as
ggml decodes those blocks), and `random/blocks` with `random/values` for random bytes with sane
scales. Formats that need an importance matrix get one of ones; those that take one also have
`<set>/weighted`: as ggml encodes them with the importance in inputs.npz. Tests only read these files.

The rows: `uniform` and `normal` were cut from a run of ggml commit d99724f2 (the last twelve
rows of `uniform` are special: zeros, ones, -3.5, 1e-8, a ramp, noise of 1e-6 and 1e4, spikes,
heavy tails, ±0.5, integers); `edges` and `extremes` are made here, from fixed seeds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from ggmlq.arrays.blocks import random_blocks
from ggmlq.arrays.rows import MODEST, rows
from ggmlq.formats import FORMATS, Format
from ggmlq.llama.library import Library

FOLDER = Path(__file__).parents[1] / "tests" / "golden"
ONES = ("iq2_xxs", "iq2_xs", "iq1_s", "iq1_m")  # encoded with an importance matrix of ones


def edges() -> np.ndarray:
    """One row of every modest kind."""
    return np.concatenate([rows(kind, 1, 512, seed) for seed, kind in enumerate(MODEST)])


def extremes() -> np.ndarray:
    """Rows whose scales vanish or overflow as halves, and a sum whose order matters (q1_0)."""
    order = np.full((1, 512), 2.0**-20, np.float32)
    order[:, ::128] = 2**4 + 2**-7
    return np.concatenate([rows("tiny", 3, 512), rows("huge", 3, 512), order, rows("faint", 3, 512)])


# Rows in which one step of a search decides, and nothing in the other rows shows that step: the
# last sweep of q3_K, a tie of errors in q2_K, a quotient of q5_K, its last candidate, runs near 1e-15.
STEPS = {"normal": (878, 394, 176), "half_integers": (335,), "faint": (0, 6, 91)}


def steps() -> np.ndarray:
    """The rows that show a single step."""
    return np.concatenate([rows(kind, 1024, 256)[list(at)] for kind, at in STEPS.items()])


def importance() -> np.ndarray:
    """One weight a column as calibration gives them: over decades, some 0, a run and a super-block of 0."""
    weights = np.random.default_rng(17).chisquare(1, 1024).astype(np.float32) ** 2
    weights[::41] = 0
    weights[64:96] = 0
    weights[768:] = 0
    return weights


def golden(fmt: Format, library: Library, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All arrays of one format."""
    arrays = {}
    for name, x in inputs.items():
        if name == "extremes" and getattr(fmt, "pack", ...) is None:
            continue  # searches of code books are not defined there: ggml's assertions end the process
        imatrix = np.ones(x.shape[1], np.float32) if fmt.name in ONES else None
        raw = library.quantize(x, fmt, imatrix)
        if fmt.name == "q8_K":  # ggml leaves the sums of a block of zeros unwritten
            blocks = raw.view(fmt.dtype)
            blocks["bsums"][blocks["d"] == 0] = 0
        arrays[f"{name}/blocks"] = raw
        if getattr(fmt, "imatrix", "ignored") != "ignored":
            arrays[f"{name}/weighted"] = library.quantize(x, fmt, importance()[: x.shape[1]])
        if fmt.name != "q8_1":  # ggml never decodes it
            arrays[f"{name}/values"] = library.dequantize(raw, fmt)
    if fmt.name != "q8_1":
        raw = random_blocks(fmt, 1, 4096 // fmt.block_size, seed=fmt.id).view(np.uint8)
        arrays["random/blocks"] = raw
        arrays["random/values"] = library.dequantize(raw, fmt)
    return arrays


def main() -> int:
    """Write the files of all formats, or compare them; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("format", nargs="*", help="only these formats")
    parser.add_argument("--lib", type=Path, help="a libggml-base (default: the one ggmlq finds)")
    parser.add_argument("--check", action="store_true", help="compare with the files, write nothing")
    args = parser.parse_args()
    library = Library(args.lib)
    print(f"{library.path}: ggml {library.version}")
    with np.load(FOLDER / "inputs.npz") as stored:
        inputs = {"uniform": stored["uniform"], "normal": stored["normal"]}
    inputs |= {"edges": edges(), "extremes": extremes(), "steps": steps()}
    if not args.check:
        np.savez_compressed(FOLDER / "inputs.npz", **inputs, importance=importance())
    wrong = 0
    for name in args.format or FORMATS:
        fmt = FORMATS[name]
        if fmt.block_size == 1 and fmt.name not in ("f16", "bf16"):
            continue
        arrays = golden(fmt, library, inputs)
        path = FOLDER / f"{fmt.name.lower()}.npz"
        if not args.check:
            np.savez_compressed(path, **arrays, ggml=np.array(library.version))
            print(f"wrote {path.name}")
            continue
        with np.load(path) as stored:
            bad = [
                key for key in arrays
                if not np.array_equal(arrays[key], stored[key], equal_nan="values" in key)
            ]  # fmt: skip
        wrong += bool(bad)
        print(f"{fmt.name:8} {'differs in ' + ', '.join(bad) if bad else 'the same'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
