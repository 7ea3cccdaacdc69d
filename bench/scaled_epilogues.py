"""The cost of a bias, of codes as results and of floats as operands, beside the bare product on Hopper.

    python bench/scaled_epilogues.py --json endings.json
    python bench/scaled_epilogues.py --shapes 64x7168x2048

Each product in a CUDA graph of several, in turns in one process; microseconds are the median of replays after
rests. ``bare`` has operands that are quantized already and bfloat16 results. Up to 64 rows weights are
rotated over more than 150 MB.

    bias          added by the same kernel
    int8 out      results as int8 under a scale for each row of x; ``apart``: float32 first, then quantized
    floats in     x is bfloat16, quantized in the same call; ``apart``: that alone
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a script as of a module of the folder

import numpy as np

import ggmlq as gq
from bench.hopper import FEW, INTEGERS, OUTSIDE, Replays, empty, floats_of, operands
from bench.on_card import in_turns
from ggmlq.base.writing import write_whole
from ggmlq.cuda.driver import device
from ggmlq.dispatch import checks
from ggmlq.testing.machine import commit, machine

SHAPES = {
    "int8": [*INTEGERS, (512, 4096, 4096), (64, 7168, 2048)],
    "fp8": [(4096, 4096, 4096), (128, 7168, 2048), *((m, n, k) for n, k in FEW for m in (1, 8, 64))],
}  # fmt: skip
TURNS, ROTATED, STEPS = 3, 150_000_000, {"int8": ("int8", (1, None)), "fp8": ("e4m3", (1, 128))}


def bfloat16(rows: int, k: int) -> Any:
    """Normal data in bfloat16."""
    cp = device.cupy()
    words = (cp.random.standard_normal((rows, k), dtype=cp.float32).view(cp.uint32) >> 16).astype(cp.uint16)
    return words.view(checks.float_dtype("a product", OUTSIDE))


def quantized_apart(y: Any, scales: Any, x: Any, w: Any) -> Any:
    """Codes of a product's results in float32, by a call of their own."""
    return gq.quantize_scaled(gq.scaled_linear(x, w, out=y), "int8", (1, None), scales=scales)


def works(case: str, m: int, n: int, k: int) -> dict[str, list[Any]]:
    """The product and its variants with all sets of weights, after their results were compared."""
    cp, (code, tile) = device.cupy(), STEPS[case]
    count = max(1, -(-ROTATED // (n * k))) if m <= 64 else 1
    sets = [operands(case, m, n, k, seed) for seed in range(count)]
    y, wide, floats = empty(m, n, OUTSIDE), cp.empty((m, n), np.float32), bfloat16(m, k)
    bias = cp.random.standard_normal(n, dtype=cp.float32)
    (x, w), *_ = sets
    sums = gq.scaled_linear(x, w)
    scales = cp.maximum(cp.abs(sums).max(1, keepdims=True), 1e-3) / np.float32(127)
    want = gq.quantize_scaled(sums, "int8", (1, None), scales=scales)
    result = gq.scaled_linear(x, w, requantize=("int8", scales))
    assert bool((result.codes == want.codes).all()), "other codes than one step after the other gives"
    rounded = gq.scaled_linear(x, w, bias=bias, dtype=OUTSIDE)
    assert bool((cp.abs(floats_of(rounded) - (sums + bias)) <= cp.abs(sums + bias) / 128).all()), "wrong bias"
    return {
        "bare": [partial(gq.scaled_linear, x, w, out=y) for x, w in sets],
        "bias": [partial(gq.scaled_linear, x, w, out=y, bias=bias) for x, w in sets],
        "int8 out": [partial(gq.scaled_linear, x, w, requantize=("int8", scales)) for x, w in sets],
        "int8 out, apart": [partial(quantized_apart, wide, scales, x, w) for x, w in sets],
        "floats in": [partial(gq.scaled_linear, floats, w, out=y, activations=(code, tile)) for _, w in sets],
        "floats in, apart": [partial(gq.quantize_scaled, floats, code, tile, ragged="pad") for _ in sets],
    }


def measured(case: str, m: int, n: int, k: int) -> list[dict[str, Any]]:
    """The figures of a shape, one for each variant."""
    variants = works(case, m, n, k)
    graphs = {
        name: Replays(calls, max(len(calls), 20 if m <= 128 else 4)) for name, calls in variants.items()
    }
    lines = []
    for name, seconds in in_turns(graphs, TURNS, 0.02, 0.15, 12).items():
        us = statistics.median(seconds) * 1e6
        lines.append({"case": case, "m": m, "n": n, "k": k, "what": name, "us": us})
        more = us - lines[0]["us"]
        print(f"{case} {m}x{n}x{k:<6} {name:18} {us:9.2f} us  {more:+8.2f}", flush=True)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", metavar="MxNxK[,…]", help="only these, in both kinds of codes")
    parser.add_argument("--json")
    options = parser.parse_args()
    selection = [tuple(map(int, s.split("x"))) for s in options.shapes.split(",")] if options.shapes else None
    figures: list[dict[str, Any]] = []
    for case, shapes in SHAPES.items():
        for m, n, k in selection or shapes:
            figures += measured(case, m, n, k)
    if options.json:
        report = {**machine(), "commit": commit(), "figures": figures}
        write_whole(options.json, json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
