"""The main job on the CPU: quantize a layer, write it to a GGUF file and open that, multiply, check."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from typing import Any

import numpy as np

import ggmlq as gq
from ggmlq.llama import Bridge
from ggmlq.progress import Progress
from ggmlq.text import size, table
from ggmlq.threads import num_threads

FORMATS = ("f16", "q8_0", "q6_K", "q5_K", "q4_K", "q4_0", "mxfp4", "q2_K")
BOUND = 1e-10  # of a product in float32, against the same arithmetic in float64
ROUNDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2048, help="N, rows of the layer (default 2048)")
    parser.add_argument("--columns", type=int, default=4096, help="K, a multiple of 256 (default 4096)")
    parser.add_argument("--tokens", type=int, default=64, help="M, rows of activations (default 64)")
    args = parser.parse_args()
    rng = np.random.default_rng(7)
    w = rng.normal(0, 0.02, (args.rows, args.columns)).astype(np.float32)
    x = rng.standard_normal((args.tokens, args.columns), np.float32)
    exact = x.astype(np.float64) @ w.T.astype(np.float64)

    print(f"ggmlq {gq.__version__}: a layer [{args.rows}, {args.columns}] times {args.tokens} tokens\n")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "layer.gguf")
        gq.save(path, {name: gq.quantize(w, name) for name in FORMATS}, {"general.name": "a layer"})
        written = os.path.getsize(path)
        start = time.perf_counter()
        file = gq.open(path)
        opened = time.perf_counter() - start
    peer = _peer()
    report, good = [], True
    progress = Progress(len(FORMATS), "compiling and multiplying")
    for name, q in file.items():
        kernel = gq.kernels(format=name, device="cpu")[-1]
        y = x @ q.T  # compiles the first time, and lays the weights out
        off = float(np.max(gq.nmse(y, gq.reference.linear(x, q, kernel.arithmetic), axis=0)))
        good &= off <= BOUND
        elapsed = min(_seconds(x, q) for _ in range(ROUNDS))
        theirs = None if peer is None else _theirs(peer, x, q)
        operations = 2 * x.size * args.rows / 1e9
        report.append(
            [name, f"{q.format.bits_per_weight:g}", size(q.nbytes), f"{gq.nmse(y, exact):.1e}", f"{off:.1e}",
             "right" if off <= BOUND else "WRONG", f"{elapsed * 1e3:.2f}", f"{operations / elapsed:.0f}",
             "" if theirs is None else f"{operations / theirs:.0f}"]
        )  # fmt: skip
        progress.advance(1)
    progress.close()
    header = [
        "format",
        "bits",
        "size",
        "format error",
        "kernel error",
        "verdict",
        "ms",
        "GFLOP/s",
        "llama.cpp",
    ]
    print(table(header, report))
    print(
        "\nformat error: NMSE of x @ q.T against the unquantized weights, the price of the format\n"
        "kernel error: worst NMSE of a column against the kernel's arithmetic in float64\n"
        "llama.cpp:    GFLOP/s of its CPU backend on as many threads, the better of its two layouts"
        + ("" if peer else "; not installed here (pip install llama-cpp-python)")
        + "\n"
    )
    print(
        f"the layers lay in a GGUF file of {size(written)}, opened in {opened * 1e3:.1f} ms; "
        "its first block of q4_0:"
    )
    block = file["q4_0"].blocks[0, 0]
    print(f"  d  {block['d']}\n  qs {' '.join(f'{byte:02x}' for byte in block['qs'])}")
    print(f"\n{'all products are right' if good else 'A PRODUCT IS WRONG'}")
    return 0 if good else 1


def _seconds(x: Any, q: gq.QuantArray) -> float:
    start = time.perf_counter()
    _ = x @ q.T
    return time.perf_counter() - start


def _peer() -> Bridge | None:
    """llama.cpp's CPU backend, if there is one."""
    try:
        return Bridge()
    except gq.GGMLQError:
        return None


def _theirs(peer: Bridge, x: Any, q: gq.QuantArray) -> float:
    """Its time for the same product."""
    runs = []
    for repack in (False, True):
        with contextlib.suppress(gq.GGMLQError):  # not every type has a second layout
            runs.append(peer.measure(x, q, threads=num_threads(), repack=repack, time_runs=ROUNDS).fastest)
    time.sleep(0.1)  # its threads look for more work for a while
    return min(runs)


if __name__ == "__main__":
    sys.exit(main())
