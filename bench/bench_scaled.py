"""Scaled arrays on the CPU: quantizers beside a copy, products beside q8_0 panels, NumPy and torch.

    python bench/bench_scaled.py [--quick] [--json PATH] [--threads 1 2] [--torch PYTHON]

*Quantizers*: input of more than 300 MB, GB/s of bytes read and written; a tile that no cache holds is read
twice, and counted twice. The copy is one with as many threads, in turns with the quantizer. *Warm*
writes into memory that was written before; *fresh* makes the array, as a call does, and then the system
has to find pages for it: so does the copy. *Products*: N = K = 4096, GOP/s, kernels in turns, the
best of each. torch is measured where it can be imported, here or by the interpreter of ``--torch``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

import ggmlq as gq
from ggmlq.base.threads import share
from ggmlq.base.writing import write_whole
from ggmlq.codes import CODES
from ggmlq.codes.scaling import Rule
from ggmlq.codes.tiling import tiling
from ggmlq.cpu.quantize_scaled import driver
from ggmlq.testing.machine import commit, machine

SIZE = 4096  # N and K
ROWS, COLUMNS = 20480, 4096  # of what is quantized: 335 MB of float32, twice as many rows of halves
QUANTIZED = [
    (code, tile) for code in ("e4m3", "int8") for tile in ((1, 128), (128, 128), (1, None), (None, None))
]
Record = dict[str, Any]
Work = Callable[[], object]

TORCH = """
import sys, time, torch
threads, size, m = map(int, sys.argv[1:])
torch.set_num_threads(threads)
a = torch.randint(-127, 128, (m, size), dtype=torch.int8)
b = torch.randint(-127, 128, (size, size), dtype=torch.int8).t()
times = []
for _ in range(12):
    start = time.perf_counter(); torch._int_mm(a, b); times.append(time.perf_counter() - start)
print(min(times), torch.__version__)
"""


def main() -> None:
    """Measure, print a line a figure, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds")
    parser.add_argument("--json", metavar="PATH", help="write the figures and what they were measured on")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch")
    args = parser.parse_args()
    torch = args.torch or (sys.executable if importlib.util.find_spec("torch") else None)
    results: list[Record] = []
    for threads in args.threads:
        gq.set_num_threads(threads)
        for record in chain(quantizers(args.quick), products(args.quick, torch, threads)):
            results.append({"threads": threads, **record})
            print(*(f"{name}={value}" for name, value in results[-1].items()), flush=True)
    if args.json:
        report = {"machine": machine(), "commit": commit(), "results": results}
        write_whole(args.json, json.dumps(report, indent=1) + "\n")


# --- quantizers -----------------------------------------------------------------------------


def quantizers(quick: bool) -> Iterator[Record]:
    """Codes from floats of each width, beside a copy of these."""
    plain = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)
    for dtype in dtypes()[: 1 if quick else None]:
        x = plain if dtype == np.float32 else np.concatenate([plain.astype(dtype)] * 2)
        copied = np.empty_like(x)
        for code, tile in QUANTIZED[: 2 if quick else None]:
            yield {
                "what": "quantize", "from": x.dtype.name, "code": code, "tile": str(tile),
                **beside_a_copy(x, copied, code, tile, 3 if quick else 6),
            }  # fmt: skip


def dtypes() -> list[Any]:
    """The dtypes of floats that NumPy has here."""
    kinds: list[Any] = [np.float32, np.float16]
    if importlib.util.find_spec("ml_dtypes"):
        kinds.append(importlib.import_module("ml_dtypes").bfloat16)
    return kinds


def beside_a_copy(x: Any, copied: Any, code: str, tile: Any, rounds: int) -> Record:
    """GB/s of the quantizer and of the copy, warm and fresh."""
    rule = Rule(CODES[code], "float32", np.float32(1e-10), "half_even", False)
    over = tiling(tile, *x.shape)
    result = driver.quantize(x, over, rule)
    nbytes = x.nbytes + result.codes.nbytes + result.scales.nbytes
    cut = driver.near(over, x.itemsize)
    works: dict[str, Work] = {
        "fresh": lambda: driver.quantize(x, over, rule),
        "copy": lambda: share(lambda a, b: np.copyto(copied[a:b], x[a:b]), len(x)),
        "fresh_copy": lambda: fresh_copy(x),
    }
    if cut is None:
        nbytes += x.nbytes
    else:
        works["warm"] = lambda: driver.whole_tiles(x, cut, rule, result)
    best = in_turns(works, rounds)
    moved = {name: 2 * x.nbytes if "copy" in name else nbytes for name in works}
    return {f"{name}_gbs": round(moved[name] / best[name] / 1e9, 2) for name in works}


def fresh_copy(x: Any) -> None:
    """Copy by all threads into new memory."""
    copy = np.empty_like(x)
    share(lambda a, b: np.copyto(copy[a:b], x[a:b]), len(x))


# --- products -------------------------------------------------------------------------------


def products(quick: bool, torch: str | None, threads: int) -> Iterator[Record]:
    """Products of integers beside block formats and torch, of floats beside NumPy's float32."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((SIZE, SIZE), np.float32)
    q8 = gq.quantize(weights, "q8_0")
    arrays = {
        name: gq.quantize_scaled(weights, code, tile)
        for name, code, tile in (
            ("int8 channel", "int8", (1, None)), ("int8 block", "int8", (128, 128)),
            ("e4m3 block", "e4m3", (128, 128)),
        )
    }  # fmt: skip
    for m in (1, 512) if quick else (1, 8, 64, 512):
        x, out = rng.standard_normal((m, SIZE), np.float32), np.empty((m, SIZE), np.float32)
        works: dict[str, Work] = {
            "q8_0 panels": lambda x=x, out=out: gq.linear(x, q8, out=out, kernel="cpu:panels"),
            "numpy float32": lambda x=x, out=out: np.matmul(x, weights.T, out=out),
        }
        for name, w in arrays.items():
            x_codes = gq.quantize_scaled(x, w.code, (1, 128) if "block" in name else (1, None))
            works[name] = lambda x_codes=x_codes, w=w, out=out: gq.scaled_linear(x_codes, w, out=out)
            works[f"{name}, floats in"] = lambda x=x, w=w, out=out: gq.scaled_linear(x, w, out=out)
        best = in_turns(works, (3 if quick else 6) * (8 if m < 64 else 1))
        for name, seconds in best.items():
            yield product(name, m, seconds)
        if torch and m > 16:  # torch._int_mm takes more than 16 rows
            command = [torch, "-c", TORCH, str(threads), str(SIZE), str(m)]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            yield product(f"torch {output[1]} _int_mm", m, float(output[0]))


def product(name: str, m: int, seconds: float) -> Record:
    """The record of a product; a multiplication and an addition count as two operations."""
    return {
        "what": "product",
        "m": m,
        "of": name,
        "gops": round(2 * m * SIZE * SIZE / seconds / 1e9, 1),
        "seconds": seconds,
    }


def in_turns(works: dict[str, Work], rounds: int) -> dict[str, float]:
    """Seconds of each, the best of some rounds; the first compiles and lays out."""
    best = dict.fromkeys(works, float("inf"))
    for i in range(rounds + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if i:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main()
