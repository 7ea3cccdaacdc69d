"""Times on a CPU: the product with weights as they lie, y @ q, and rows that do not depend on each other.

    python bench/bench_transposed.py [--formats q4_0,q4_K] [--shape 4096x4096] [--rows 1,8,64] [--json FILE]

For y @ q: beside it decoding all of q and NumPy's product, NumPy's product alone, and x @ q.T of the same
size. For ``invariant=True``: beside it the kernel that is taken otherwise, and the best in the arithmetic q8.
Each number is the best of some calls, in ms.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.base.writing import write_whole
from ggmlq.dispatch import ladder
from ggmlq.dispatch.problems import Linear
from ggmlq.testing.machine import commit, machine

LEAST = 0.3  # seconds that a number is measured for


def main() -> None:
    """Measure everything, print it as a table of Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--formats", default="q4_0,q4_K,q6_K,f16")
    parser.add_argument("--shape", default="4096x4096", help="N x K")
    parser.add_argument("--rows", default="1,8,64,512")
    parser.add_argument("--json", type=Path, help="write the figures and what they were measured on")
    args = parser.parse_args()
    n, k = map(int, args.shape.split("x"))
    results = []
    columns = ["y @ q", "decode, y @ w", "y @ w", "x @ q.T", "q8", "invariant"]
    print(f"| format | M | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    for name in args.formats.split(","):
        fmt = gq.formats[name]
        q = gq.QuantArray.from_bytes(random_blocks(fmt, n, k // fmt.block_size).tobytes(), fmt, (n, k))
        for m in map(int, args.rows.split(",")):
            times = dict(zip(columns, _times(q, m), strict=True))
            results.append({"format": name, "m": m, "n": n, "k": k, "ms": times})
            print(f"| {name} | {m} | {' | '.join(f'{t:.3g}' if t else '–' for t in times.values())} |")
    if args.json:
        facts = {"commit": commit(), "machine": machine(), "results": results}
        write_whole(args.json, json.dumps(facts, indent=1) + "\n")


def _times(q: gq.QuantArray, m: int) -> list[float]:
    rng = np.random.default_rng(m)
    (n, k), w = q.shape, q.dequantize()
    x, y = rng.standard_normal((m, k), np.float32), rng.standard_normal((m, n), np.float32)
    with_codes = _takes_codes(q, m)
    return [
        _best(lambda: y @ q),
        _best(lambda: y @ q.dequantize()),
        _best(lambda: y @ w),
        _best(lambda: x @ q.T),
        _best(lambda: gq.linear(x, q, arithmetic="q8")) if with_codes else 0.0,
        _best(lambda: gq.linear(x, q, invariant=True)),
    ]


def _takes_codes(q: gq.QuantArray, m: int) -> bool:
    """True where a kernel multiplies activations of 8 bits with this format."""
    problem = Linear(q.format, m, *q.shape, device="cpu")
    kernels = ladder.rungs("linear", "cpu")
    return any(rung.arithmetic == "q8" and rung.refuses(problem) is None for rung in kernels)


def _best(work: Callable[[], object]) -> float:
    """Milliseconds of the fastest call, after two that prepare and record."""
    work()
    work()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < LEAST:
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return 1e3 * min(times)


if __name__ == "__main__":
    main()
